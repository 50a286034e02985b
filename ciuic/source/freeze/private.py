"""Directories that only this user can access, and locks in them.

No other user can redirect what is done there, or hold a lock.
"""

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from typing import Final

from ciuic.source.freeze.interface import AREA_NAME
from ciuic.system import kernel

__all__ = ["PRIVATE_MODE", "is_own", "is_private", "locked", "make_top", "opened", "start_of"]

PRIVATE_MODE: Final = 0o700
_OTHERS_WRITE: Final = 0o022
_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def make_top(place: bytes, *, in_subvolume: bool) -> None:
    """Make the directory of all areas in a place, unless it exists.

    Args:
        place: The directory.
        in_subvolume: Make it a btrfs subvolume, if possible.

    Raises:
        OSError: It cannot be made.
    """
    path = os.path.join(place, AREA_NAME)
    if in_subvolume:
        with contextlib.suppress(OSError), opened(place) as fd:
            kernel.create_subvolume(fd, AREA_NAME)
        with contextlib.suppress(OSError):
            _make_private(path)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, PRIVATE_MODE)


def _make_private(path: bytes) -> None:
    """Take the rights of others from a new subvolume: the kernel makes it like any directory.

    Only while it is empty, and only if no other user could have put anything there.
    """
    with opened(path) as fd:
        status = os.fstat(fd)
        is_ours = status.st_uid == os.geteuid() and not status.st_mode & _OTHERS_WRITE
        if is_ours and not is_private(status) and not os.listdir(fd):
            os.fchmod(fd, PRIVATE_MODE)


@contextlib.contextmanager
def opened(path: bytes) -> Iterator[int]:
    """Open a directory for the duration of the block; a symlink is refused."""
    fd = os.open(path, _OPEN_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def locked(path: bytes, how: int) -> Iterator[None]:
    """Lock a file or directory for the duration of the block.

    Raises:
        BlockingIOError: Another process has a lock that excludes this one.
    """
    fd = os.open(path, _OPEN)
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


def start_of(path: bytes, bytes_max: int, directory: int | None = None) -> bytes:
    """Return the first bytes of a regular file; b"" for other files, which might block."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    with open(fd, "rb") as file:
        return file.read(bytes_max) if stat.S_ISREG(os.fstat(fd).st_mode) else b""


def is_own(path: bytes) -> bool:
    """Return whether a path is a directory that only this user can access."""
    try:
        return is_private(os.lstat(path))
    except OSError:
        return False


def is_private(status: os.stat_result) -> bool:
    """Return whether a status is that of a directory that only this user can access."""
    return (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == os.geteuid()
        and not stat.S_IMODE(status.st_mode) & 0o077
    )
