"""Sends a file to S3 in one request, from the disk: a piece of it at a time is in memory.

The client of the object store takes a body from memory, or sends it in several requests, and an
interrupted write would then leave hidden parts that cost money. So this module sends the request
itself. It does not word errors: what it cannot send, the client sends, whose error counts.
"""

import contextlib
import hashlib
import hmac
import http.client
import ssl
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import SplitResult, parse_qs, urlsplit

import obstore
from obstore.exceptions import UnknownConfigurationKeyError
from obstore.store import S3Store

from ciuic.store.place.answers import CLIENT_ERRORS, RETRIED
from ciuic.store.place.credentials import AccessKey
from ciuic.store.place.place import Body
from ciuic.store.place.retries import TransientError

__all__ = ["NEUTRAL", "FileUploads"]

T = TypeVar("T")

NEUTRAL: Final = {
    "AWS_ACCESS_KEY_ID",
    "AWS_ALLOW_HTTP",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL_STS",
    "AWS_IMDSV1_FALLBACK",
    "AWS_METADATA_ENDPOINT",
    "AWS_REGION",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
}
"""Variables of the client that only say where to send a request and whose key signs it. Another one
may change how it stores an object: encrypted with a key of the user, for example."""

_VALID: Final = timedelta(minutes=15)
_PROXIES: Final = {"http_proxy", "https_proxy", "all_proxy"}
_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_WAITS_MAX: Final = 60
"""An upload is given up if nothing moves during this many waits, although the server answers."""


class FileUploads:
    """Sends files below the prefix of a client. May be used from any thread.

    With an access key, the request has the hash of its content, and the server compares them.
    Without one, the client signs a URL, and TLS protects the content.

    Args:
        client: Says where an object is, and has the credentials of the machine.
        key: The access key that the client was given; None: it gets credentials itself.
        environment: The environment variables; with a proxy there, or one that the client reads
            and that is not ``NEUTRAL``, nothing is sent.
        connect_s: The time limit of a connection's beginning.
    """

    def __init__(
        self,
        client: S3Store,
        key: AccessKey | None,
        environment: Mapping[str, str],
        connect_s: float,
    ) -> None:
        self._client = client
        self._key = key
        self._connect_s = connect_s
        self._is_used = not any(
            (value and name.lower() in _PROXIES)
            or (name.startswith("AWS_") and name not in NEUTRAL and _is_read(name))
            for name, value in environment.items()
        )

    def send(self, key: str, body: Body, *, wait_s: float, look: Callable[[int], None]) -> bool:
        """Create or replace an object; False: the client is to do it.

        Args:
            key: The object's key.
            body: Its content.
            wait_s: ``look`` is called each time that nothing has moved for so long.
            look: Takes the count of bytes that are sent. Raises ``TransientError`` if the server
                has gone.

        Raises:
            StoreError: The file cannot be read, or was cut.
            TransientError: The next attempt may succeed.
        """
        if not self._is_used:
            return False
        try:
            url = urlsplit(obstore.sign(self._client, "PUT", key, _VALID))
            if self._key is None and url.scheme != "https":
                return False
            target, headers = self._signed(url, body)
            with contextlib.closing(self._connected(url)) as connection:
                connection.timeout = wait_s
                status = _exchange(connection, target, headers, body, look)
        except ssl.SSLCertVerificationError:
            self._is_used = False  # the client may trust other certificates
            return False
        except (OSError, http.client.HTTPException, *CLIENT_ERRORS):
            return False
        if status in RETRIED:
            raise TransientError(f"the server answered {status}", is_answer=True)
        if status != http.HTTPStatus.OK:
            self._is_used = False  # what the server refuses would be sent twice each time
        return status == http.HTTPStatus.OK

    def _connected(self, url: SplitResult) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        connection = kind(url.hostname or "", url.port, timeout=self._connect_s)
        connection.connect()
        return connection

    def _signed(self, url: SplitResult, body: Body) -> tuple[str, dict[str, str]]:
        """Return the target of a request and its headers: Signature Version 4 of AWS."""
        length = {"content-length": str(body.size_bytes)}
        if self._key is None:
            return f"{url.path}?{url.query}", {"host": url.netloc, **length}
        query = parse_qs(url.query)
        time, scope = query["X-Amz-Date"][0], query["X-Amz-Credential"][0].partition("/")[2]
        content = hashlib.sha256()
        for piece in body.pieces():
            content.update(piece)
        headers = {
            "host": url.netloc,
            "x-amz-content-sha256": content.hexdigest(),
            "x-amz-date": time,
        }
        if self._key.token:
            headers["x-amz-security-token"] = self._key.token
        names = ";".join(headers)
        lines = [f"{name}:{value}" for name, value in headers.items()]
        request = "\n".join(["PUT", url.path, "", *lines, "", names, content.hexdigest()])
        digest = hashlib.sha256(request.encode()).hexdigest()
        signing_key = f"AWS4{self._key.secret}".encode()
        for part in (*scope.split("/"), "\n".join([_ALGORITHM, time, scope, digest])):
            signing_key = hmac.digest(signing_key, part.encode(), "sha256")
        credential = f"{_ALGORITHM} Credential={self._key.id}/{scope}"
        signature = f"SignedHeaders={names}, Signature={signing_key.hex()}"
        return url.path, {**headers, **length, "authorization": f"{credential}, {signature}"}


def _is_read(name: str) -> bool:
    """Return whether the client reads a variable whose name begins with AWS_."""
    # Any: a TypedDict of obstore that cannot be imported at run time.
    config: Any = {name: "true"}
    try:
        S3Store("bucket", config=config)
    except UnknownConfigurationKeyError:
        return False
    except CLIENT_ERRORS:
        return True  # of another value
    return True


def _exchange(
    connection: http.client.HTTPConnection,
    target: str,
    headers: Mapping[str, str],
    body: Body,
    look: Callable[[int], None],
) -> int:
    """Send a request, and return the status of the answer."""
    connection.putrequest("PUT", target, skip_host=True, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    connection.sock.settimeout(connection.timeout)
    sent_bytes = 0
    for piece in body.pieces():
        left = piece
        while left:
            count = _awaited(partial(connection.sock.send, left), partial(look, sent_bytes))
            sent_bytes += count
            left = left[count:]
    return _awaited(connection.getresponse, partial(look, sent_bytes)).status


def _awaited(act: Callable[[], T], look: Callable[[], None]) -> T:
    """Return what ``act`` returns, and look whenever it has waited too long."""
    for _ in range(_WAITS_MAX):
        with contextlib.suppress(TimeoutError):
            return act()
        look()
    raise TransientError("the server takes nothing more")
