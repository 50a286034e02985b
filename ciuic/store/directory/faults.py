"""Translates operating system errors on the store's own files, in one place."""

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator

from ciuic.errors import (
    FILE_SIZE_HINT,
    CommitUncertainError,
    ReadOnlyError,
    ResourceError,
    StoreError,
    StoreFullError,
)
from ciuic.ids import SnapshotId
from ciuic.system import durable

__all__ = ["CREATE", "store_faults", "uncertain_change", "uncertain_commit", "uncertain_forget"]

_FULL = {errno.ENOSPC, errno.EDQUOT}
_OWN_LIMITS = {errno.EMFILE, errno.ENFILE}
CREATE = "create the store"
"""What ``store_faults`` is told of a store that does not exist yet."""
_ELSEWHERE = "Choose a directory in which this user may make files and directories."
_NOT_YOURS = (
    "Run ciuic as the user who owns the store. If another user has written to it, use 'chown -R' to"
    " give all of it to one user."
)


@contextlib.contextmanager
def store_faults(doing: str, path: str) -> Iterator[None]:
    """Raise ``StoreError`` or ``StoreFullError`` for any OSError in the block.

    Args:
        doing: The action, as in "cannot <doing> <path>".
        path: The file or directory.
    """
    try:
        yield
    except OSError as error:
        raise translated(error, doing, path) from error


def translated(error: OSError, doing: str, path: str) -> StoreError:
    """Return the store's error for ``error``."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    if isinstance(error, durable.NotSyncedError):
        return CommitUncertainError(f"{path} was written, but cannot be synced: {reason}")
    message = f"cannot {doing} {path}: {reason}"
    if error.errno == errno.ELOOP:
        return StoreError(
            f"{message}: {os.fsdecode(error.filename or path)} is a symlink",
            hint="Put the file or directory itself there: ciuic follows no symlink inside a store."
            " To keep a directory of a store on another disk, use a bind mount.",
        )
    if error.errno in _FULL:
        return StoreFullError(message)
    if error.errno in _OWN_LIMITS:
        return StoreError(message, hint=ResourceError.default_hint)
    if error.errno == errno.EFBIG:
        return StoreError(message, hint=FILE_SIZE_HINT)
    if error.errno in {errno.EACCES, errno.EPERM}:
        return StoreError(message, hint=_ELSEWHERE if doing == CREATE else _NOT_YOURS)
    if error.errno == errno.EROFS:
        return ReadOnlyError(message)
    return StoreError(message)


def uncertain_commit(snapshot_id: SnapshotId, why: str) -> CommitUncertainError:
    """Return the error for a snapshot that a power cut may undo, or that no server confirmed."""
    error = CommitUncertainError(
        f"the snapshot {snapshot_id} was written, but that was not confirmed: {why}",
        hint=f"Check the store's disk or server. 'ciuic list' shows whether {snapshot_id} is there,"
        f" and 'ciuic verify {snapshot_id}' whether it is intact.",
    )
    error.done = {"id": snapshot_id}
    return error


def uncertain_change(snapshot_id: SnapshotId, why: str) -> CommitUncertainError:
    """Return the error for tags or a pin that a power cut may undo, or that no server confirmed."""
    return CommitUncertainError(
        f"{snapshot_id} was changed, but that was not confirmed: {why}",
        hint=f"Check the store's disk or server; 'ciuic show {snapshot_id}' shows the tags and the"
        " pin.",
    )


def uncertain_forget(snapshot_ids: Iterable[SnapshotId], why: str) -> CommitUncertainError:
    """Return the error if a power cut may undo a forget, or no server confirmed it."""
    return CommitUncertainError(
        f"that {', '.join(snapshot_ids)} is forgotten was not confirmed: {why}",
        hint="Check the store's disk or server. If 'ciuic list' shows one later, forget it again.",
    )
