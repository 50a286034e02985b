"""Checks keys, the names of objects in a place, and tells a URL from a path."""

import re
from typing import Final

from ciuic.errors import UsageError

__all__ = ["check_folder", "check_key", "is_key", "is_url", "refuse_cut_url"]

_NAME: Final = r"(?!\.{1,2}(?:/|\Z))[A-Za-z0-9._-]{1,255}"
_KEY: Final = rf"{_NAME}(?:/{_NAME})*"
_KEY_LENGTH_MAX: Final = 900
"""S3 allows 1024 bytes for the key together with the prefix of the store."""
_URL: Final = r"[A-Za-z][A-Za-z0-9+.-]*://"
_CUT_URL: Final = r"(s3|gs|az|file):/(?!/)"
"""Not any word: the name of a directory may have a colon."""


def is_url(address: str) -> bool:
    """Return whether a store's address is a URL, such as ``s3://bucket/prefix``, and not a path.

    The module ``address`` opens the places of both. This function is here because importing the
    clients of object stores takes longer than most commands.
    """
    return "://" in address and re.match(_URL, address) is not None


def refuse_cut_url(address: str) -> None:
    """Refuse a URL that lacks a slash, such as ``s3:/bucket``: it would be a relative path.

    Raises:
        UsageError: It is one. The message does not quote it, because it may hold a password.
    """
    cut = re.match(_CUT_URL, address, re.IGNORECASE)
    if cut:
        slashes = "//" if cut[1].lower() != "file" else "///"
        raise UsageError(
            f"the store's address begins with '{cut[0]}', which is neither a URL nor a clear path",
            hint=f"Write {cut[1]}:{slashes}, or ./{cut[0]} for a directory of that name.",
        )


def is_key(text: str) -> bool:
    """Return whether ``text`` is a key: names of letters, digits, ``.``, ``_``, ``-``, and ``/``.

    Every file system and object store keeps these characters as they are.
    """
    return len(text) <= _KEY_LENGTH_MAX and re.fullmatch(_KEY, text) is not None


def check_key(key: str) -> None:
    """Refuse a text that is not a key, so that no object is outside of the place.

    Raises:
        ValueError: It is absolute or empty, has ``..`` or a NUL, or another forbidden character.
    """
    if not is_key(key):
        raise ValueError(f"{key!r} is not a key")


def check_folder(folder: str) -> None:
    """Like ``check_key``, for a folder; the empty text is the whole place."""
    if folder:
        check_key(folder)
