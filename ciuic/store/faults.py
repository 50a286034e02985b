"""Operating system errors on the store's own files -> the store's errors, once and in one place."""

import contextlib
import errno
import os
from collections.abc import Iterator

from ciuic.errors import StoreError, StoreFullError

__all__ = ["store_faults"]

_FULL = {errno.ENOSPC, errno.EDQUOT}
_NOT_YOURS = (
    "Run ciuic as the user who owns the store; if another one has written to it, 'chown -R' gives"
    " all of it to one."
)


@contextlib.contextmanager
def store_faults(doing: str, path: str) -> Iterator[None]:
    """Raise ``StoreError`` or ``StoreFullError`` for any OSError of the block.

    Args:
        doing: What was tried, as in "cannot <doing> <path>".
        path: The file or directory that it was tried on.
    """
    try:
        yield
    except OSError as error:
        raise translated(error, doing, path) from error


def translated(error: OSError, doing: str, path: str) -> StoreError:
    """The store's error for ``error``."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    message = f"cannot {doing} {path}: {reason}"
    if error.errno in _FULL:
        return StoreFullError(message)
    if error.errno in {errno.EACCES, errno.EPERM}:
        return StoreError(message, hint=_NOT_YOURS)
    if error.errno == errno.EROFS:
        return StoreError(message, hint="Mount the store's file system for writing.")
    return StoreError(message)
