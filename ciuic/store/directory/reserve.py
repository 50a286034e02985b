"""A reserve of space on the store's disk, for commands that free space.

A full disk must not prevent them from working: forget, tag and prune write a few small files before
they remove anything. The reserve is a file without content. A command that finds the disk full
removes it and tries again. Each command that writes creates it again at its end, as large as the
free space allows.
"""

import contextlib
import os
import stat
from collections.abc import Callable
from typing import Final, TypeVar

from ciuic.errors import StoreFullError
from ciuic.store.records import layout
from ciuic.system import durable, nofollow

__all__ = ["RESERVE_BYTES", "release_reserve", "renew_reserve", "with_reserve"]

T = TypeVar("T")

RESERVE_BYTES: Final = 4 * 1024 * 1024
"""Enough for the marks of 32 snapshots, a record of retired IDs, entries of directories, and a new
pack with the last needed chunk of old ones, which has a MiB."""
_PIECE_BYTES: Final = 128 * 1024
"""On a disk that is nearly full, a smaller reserve is better than none. On btrfs each piece is an
extent."""
_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL


def with_reserve(store_path: str, act: Callable[[], T]) -> T:
    """Call ``act``; if the disk is full, remove the reserve and call it again.

    Raises:
        StoreFullError: The disk is full without the reserve, too.
    """
    try:
        return act()
    except StoreFullError:
        if not release_reserve(store_path):
            raise
    return act()


def release_reserve(store_path: str) -> bool:
    """Remove the reserve; False if there is none."""
    path = os.path.join(store_path, layout.RESERVE)
    if not nofollow.exists(path):
        return False
    with contextlib.suppress(OSError):
        durable.remove_file(path)
        return True
    return False


def renew_reserve(store_path: str) -> None:
    """Create the reserve, as large as the free space allows. Errors are ignored."""
    path = os.path.join(store_path, layout.RESERVE)
    with contextlib.suppress(OSError):
        if _is_whole(path):
            return
        durable.remove_file(path)
        fd = nofollow.open_file(path, _FLAGS)
        try:
            for begin in range(0, RESERVE_BYTES, _PIECE_BYTES):
                os.posix_fallocate(fd, begin, _PIECE_BYTES)
        finally:
            os.close(fd)


def _is_whole(path: str) -> bool:
    try:
        status = nofollow.status(path)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size >= RESERVE_BYTES
