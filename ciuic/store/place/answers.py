"""Sorts the errors of the object store client by what the caller must do.

The client's messages quote the server's answer, which may quote the request: ciuic never shows
them. The client's exceptions have few classes, so this module reads the status code from a message.
"""

import re
from typing import Final

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from ciuic.errors import (
    AccessDeniedError,
    CorruptionError,
    LostRaceError,
    MissingError,
    StoreError,
    StoreFullError,
    UnsupportedError,
)
from ciuic.store.place.retries import TransientError

__all__ = ["CLIENT_ERRORS", "RETRIED", "sorted_error"]

CLIENT_ERRORS: Final = (BaseError, FileNotFoundError, NotImplementedError)
"""What the client raises when a request fails."""

_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w{1,64})</Code>")
_ONE_KEY: Final = re.compile(r"DeleteObjects request failed for key .*\(code: (\w{1,64})\)")
"""One request deletes many objects. Its answer is 200, and has a code for each refused key."""
_TIME_OUT: Final = re.compile(r"TimedOut|kind: Timeout|operation timed out")
_NO_CONNECTION: Final = re.compile(r"kind: Connect\b|ConnectError|ConnectionRefused|dns error")
_NO_TLS: Final = re.compile(r"InvalidMessage\(")
_NO_TRUST: Final = re.compile(r"InvalidCertificate\(")
_CUT: Final = re.compile(r"kind: (?:Interrupted|Body|Decode)|IncompleteMessage|response body")
_NO_CREDENTIALS: Final = re.compile(r"[Cc]redential|/api/token")
_METADATA: Final = re.compile(r"//169\.254\.1(?:69\.254|70\.2)\b|//metadata\.google")
"""The client asks the machine that it runs on for credentials only if it has been given none."""
_REDIRECTS: Final = range(300, 400)
_FULL_CODES: Final = {"QuotaExceeded", "InsufficientCapacity", "XMinioStorageFull"}
_EXPIRED: Final = "Get new credentials, then run the command again."
_HINTS: Final = {
    "ExpiredToken": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "RequestTimeTooSkewed": "Set the clock of this machine: it differs too much from the server's.",
}
_REFUSED_KEYS: Final = {
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
}
"""Amazon answers those about tokens with 400, as if the request were malformed."""
_BARE: Final = 400, "look at"
_NO_REASON: Final = (
    "The server does not say why. If the credentials are temporary, get new ones; else check the"
    " region and the store's address."
)
_NO_WORD: Final = (
    f"{AccessDeniedError.default_hint} The server does not say why: the clock of this machine may"
    " be wrong, or the credentials may have expired."
)
_OTHER_ACCOUNT: Final = (
    f"{AccessDeniedError.default_hint} If another account has written the object, it may be closed"
    " to this one: use keys of one account on all machines."
)
RETRIED: Final = {408, 409, 425, 429, 500, 502, 503, 504}
"""409: two conditional writes met, and the server asks for another attempt."""
_RETRIED_CODES: Final = {
    "InternalError",
    "OperationAborted",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "UnknownError",
}
"""The codes of single keys that would have one of these statuses."""
_CLIENT_ONLY: Final = "the server did not answer as an object store does"


def sorted_error(
    error: Exception, doing: str, url: str, key_source: str = "", server: str = ""
) -> StoreError | TransientError:
    """Return ciuic's error for an error of the client.

    Args:
        error: One of ``CLIENT_ERRORS``.
        doing: The action, as in "cannot <doing> <url>".
        url: The object's or place's URL, without credentials.
        key_source: What has named the access key: a file or a variable; empty: unknown.
        server: The server's URL; empty: that of the service.
    """
    text = str(error)
    if refused := _ONE_KEY.search(text):
        return _refused_key(refused[1], doing, url)
    status = _status(text)
    code = _code(text)
    message = f"cannot {doing} {url}: {_reason(status, code)}"
    if code in _FULL_CODES or status == 507:
        return StoreFullError(message, hint="Delete objects, or raise the quota of the bucket.")
    if status in RETRIED:
        return TransientError(_reason(status, code), is_answer=True)
    if _METADATA.search(text):
        return _no_credentials(doing, url)
    if code == "NoSuchBucket":
        return StoreError(
            f"cannot {doing} {url}: the bucket does not exist",
            hint="Create the bucket, or correct the store's address.",
        )
    if status == 404 or isinstance(error, FileNotFoundError):
        return MissingError(f"there is no {url}")
    if status == 412 or isinstance(error, (AlreadyExistsError, PreconditionError)):
        return LostRaceError(f"{url}: another writer was first")
    # The answer to HEAD has no body, so it does not say that a token has expired.
    is_refused = status in {401, 403} or code in _REFUSED_KEYS or (status, doing) == _BARE
    if is_refused or isinstance(error, (PermissionDeniedError, UnauthenticatedError)):
        return AccessDeniedError(message, hint=_hint(status, code, doing, key_source))
    if status == 501 or isinstance(error, (NotSupportedError, NotImplementedError)):
        return UnsupportedError(message)
    if status == 416:
        return CorruptionError(f"{url} is shorter than expected")
    if status in _REDIRECTS or "redirect without LOCATION" in text:
        return StoreError(message, hint="Correct the region, or the address of the server.")
    if status or "NotPartial" in text:
        reason = _reason(status, code) if status else _CLIENT_ONLY
        return StoreError(
            f"cannot {doing} {url}: {reason}",
            hint="Check the store's address, and whether the server implements S3 in full.",
        )
    return _unanswered(text, doing, url, server)


def _refused_key(code: str, doing: str, url: str) -> StoreError | TransientError:
    reason = f"the server answered {code}"
    message = f"cannot {doing} {url}: {reason}"
    if code in _RETRIED_CODES:
        return TransientError(reason, is_answer=True)
    if code == "NoSuchKey":
        return MissingError(f"there is no {url}")
    if code == "AccessDenied":
        return AccessDeniedError(message)
    return StoreError(message)


def _hint(status: int, code: str, doing: str, key_source: str) -> str:
    """Return what to do about a refusal."""
    if (status, doing) == _BARE:
        return _NO_REASON
    if doing == _BARE[1] and not code:
        return _NO_WORD
    if doing == "read" and code == "AccessDenied":
        return _OTHER_ACCOUNT
    hint = _HINTS.get(code, AccessDeniedError.default_hint)
    is_about_key = code in _REFUSED_KEYS and key_source
    return f"{hint} The access key is that of {key_source}." if is_about_key else hint


def _unanswered(text: str, doing: str, url: str, server: str) -> StoreError | TransientError:
    if _NO_CREDENTIALS.search(text):
        return _no_credentials(doing, url)
    if _NO_TLS.search(text):
        return StoreError(
            f"cannot {doing} {url}: the server does not answer with TLS, which https:// needs",
            hint="Correct the port of the server's address, or write http:// if it has no TLS.",
        )
    if _NO_TRUST.search(text):
        return StoreError(
            f"cannot {doing} {url}: this machine does not trust the server's certificate",
            hint="Correct the server's address, or install the certificate of its authority here.",
        )
    who = f"the server {server}" if server else "the server"
    if _TIME_OUT.search(text):
        return TransientError(f"{who} did not answer in time")
    if _NO_CONNECTION.search(text):
        return TransientError(f"{who} cannot be reached")
    if _CUT.search(text):
        return TransientError("the server's answer ended early")
    return TransientError("the connection failed")


def _no_credentials(doing: str, url: str) -> AccessDeniedError:
    return AccessDeniedError(
        f"cannot {doing} {url}: there are no credentials",
        hint="Name a file with credentials: store_credentials in the configuration, or the"
        " environment variable AWS_SHARED_CREDENTIALS_FILE. Or set AWS_ACCESS_KEY_ID and"
        " AWS_SECRET_ACCESS_KEY.",
    )


def _status(text: str) -> int:
    found = _STATUS.search(text)
    return int(found[1]) if found else 0


def _code(text: str) -> str:
    found = _CODE.search(text)
    return found[1] if found else ""


def _reason(status: int, code: str) -> str:
    if not status:
        return "the server refused it"
    return f"the server answered {status}{f' {code}' if code else ''}"
