"""Where a store is and how to reach it, as a user writes it. The module ``address`` opens it.

This module is apart because importing the clients of object stores takes longer than most commands.
"""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, urlsplit

from ciuic.errors import UsageError
from ciuic.store.place.keys import is_key
from ciuic.store.place.retries import PATIENCE_S

__all__ = ["PlaceOptions", "bucket_name", "bucket_url", "endpoint_url", "split_address"]

_SCHEMES: Final = ("s3", "gs", "az", "file")
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")
_ENDPOINT: Final = re.compile(
    r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?/?|https?://\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?/?"
)
_QUICK_S: Final = 30
_CONNECT_S: Final = 10


@dataclass(frozen=True, slots=True)
class PlaceOptions:
    """How to reach an object store; a directory needs none of it.

    Attributes:
        endpoint: URL of the server; empty: ``AWS_ENDPOINT_URL_S3``, ``AWS_ENDPOINT_URL``, or the
            service of the URL's scheme.
        region: Region of the bucket; empty: ``AWS_REGION`` or ``us-east-1``.
        credentials_file: A file with credentials; empty: the usual environment variables and
            files. For S3, the format of ``~/.aws/credentials``; for Google, a key in JSON.
        path_style: The bucket is a part of the path, not of the host's name.
        patience_s: A request begins no attempt later than this after its first one, in seconds.
        quick_s: The time limit of a small request, in seconds.
        connect_s: The time limit of a connection's beginning, in seconds.
    """

    endpoint: str = ""
    region: str = ""
    credentials_file: str = ""
    path_style: bool = True
    patience_s: float = PATIENCE_S
    quick_s: float = _QUICK_S
    connect_s: float = _CONNECT_S


def split_address(address: str) -> SplitResult:
    """Split and check the URL of a store.

    Raises:
        UsageError: It cannot be the URL of a store. What may be a password is not quoted.
    """
    hint = "Write a path, or s3://bucket/prefix, gs://bucket/prefix or az://container/prefix."
    try:
        url = urlsplit(address)
    except ValueError:
        raise UsageError("the store's address is not a URL", hint=hint) from None
    if "@" in address and url.scheme != "file":
        # The address is not quoted: it holds a password, which may have any character.
        raise UsageError(
            "the store's address holds a user name or a password",
            hint="Leave them out, and name a credentials file.",
        )
    if not url.scheme or url.scheme not in _SCHEMES:
        # Not quoted as a whole: what a user puts into a URL of another kind may be secret.
        what = f"'{url.scheme}:' is not a kind of store" if url.scheme else "it is a relative path"
        raise UsageError(f"the store's address cannot be used: {what}", hint=hint)
    if url.query or url.fragment:
        raise UsageError(
            f"the store's address {address.partition('?')[0].partition('#')[0]!r} is followed"
            " by '?' or '#'",
            hint="Leave that part out; environment variables have the options.",
        )
    if url.scheme == "file":
        if url.netloc or not url.path.startswith("/"):
            raise UsageError(
                "the store's address names another machine",
                hint="Write three slashes: file:///path.",
            )
        return url
    if not _BUCKET.fullmatch(url.netloc):
        # Not quoted: a user may have put a key there.
        raise UsageError(
            f"the store's address has no valid bucket name after '{url.scheme}://'", hint=hint
        )
    prefix = url.path.strip("/")
    if prefix and not is_key(prefix):
        raise UsageError(
            f"the store's address {address!r} has a prefix with a forbidden character or '..'",
            hint="Use letters, digits, '.', '_', '-' and '/'.",
        )
    return url


def bucket_url(address: str) -> str:
    """Return the URL of a bucket as this program writes it.

    Raises:
        UsageError: It is not the URL of a bucket.
    """
    url = split_address(address)
    if url.scheme == "file":
        raise UsageError(
            "the store's address is that of a directory", hint="Write the path of the directory."
        )
    return bucket_name(url).rstrip("/")


def bucket_name(url: SplitResult) -> str:
    """Return what names a place in a bucket on this machine: it has a slash without a prefix."""
    return f"{url.scheme}://{url.netloc}/{url.path.strip('/')}"


def endpoint_url(text: str) -> str:
    """Return the URL of a server.

    Raises:
        ValueError: It is not one. The message does not quote it, because it may hold a password.
    """
    if not _ENDPOINT.fullmatch(text) or not _has_port(text):
        raise ValueError("it is not the URL of a server, such as https://s3.example.org:9000")
    return text.rstrip("/")


def _has_port(url: str) -> bool:
    try:
        return urlsplit(url).port != 0
    except ValueError:  # above 65535
        return False
