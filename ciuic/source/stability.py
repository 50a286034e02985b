"""Decide from the status of a file whether it changed.

If a rename replaces a file, both the old and the new file are consistent. The rename moves the old
file's ctime but not its mtime. So a moved ctime alone does not make a read torn if a lease kept
writers out, or if a second read gave the same bytes.
"""

import os
from typing import Final, NamedTuple

__all__ = ["ATTEMPTS", "ReadStatus", "is_replaced", "is_settled", "is_unwritten", "same_content"]

ATTEMPTS: Final = 3
"""Number of times that a changing file is read before it counts as being written."""
_COARSE_NS: Final = 2_000_000_000
_FINE_NS: Final = 20_000_000
_SECOND_NS: Final = 1_000_000_000


class ReadStatus(NamedTuple):
    """What an entry holds of the status of a file, named as in ``os.stat_result``."""

    st_mode: int
    st_uid: int
    st_gid: int
    st_mtime_ns: int
    st_ctime_ns: int
    st_ino: int


def same_content(before: os.stat_result, after: os.stat_result) -> bool:
    """Return whether two statuses are of the same inode with the same size and times."""
    return (
        before.st_size == after.st_size
        and before.st_mtime_ns == after.st_mtime_ns
        and before.st_ctime_ns == after.st_ctime_ns
        and before.st_ino == after.st_ino
    )


def is_unwritten(before: os.stat_result, after: os.stat_result, *, is_sure: bool) -> bool:
    """Return whether no program wrote to an inode between two statuses of it.

    A write moves ctime and mtime; renaming, linking and unlinking move ctime alone. But a program
    can set mtime back.

    Args:
        before: The first status.
        after: The second status.
        is_sure: Other evidence shows that no program wrote: a lease, or two reads of the same
            bytes. Then a moved ctime alone is ignored.
    """
    if is_sure:
        same = before.st_size == after.st_size and before.st_mtime_ns == after.st_mtime_ns
        return same and before.st_ino == after.st_ino
    return same_content(before, after)


def is_replaced(directory_fd: int, name: bytes, status: os.stat_result) -> bool:
    """Return whether a name now leads to another file than the one that was opened by it."""
    try:
        now = os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
    except OSError:
        return False
    return (now.st_dev, now.st_ino) != (status.st_dev, status.st_ino)


def is_settled(mtime_ns: int, ctime_ns: int, looked_at_ns: int) -> bool:
    """Return whether any change after ``looked_at_ns`` must have moved ctime.

    The kernel sets file times from a coarse clock (up to 10 ms a tick), and some file systems store
    whole seconds: a second write within the same tick leaves the times as they are.
    """
    whole_seconds = mtime_ns % _SECOND_NS == 0 and ctime_ns % _SECOND_NS == 0
    return ctime_ns < looked_at_ns - (_COARSE_NS if whole_seconds else _FINE_NS)
