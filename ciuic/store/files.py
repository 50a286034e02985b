"""Opening the store's own files: regular files only, and never waiting for one that is not.

A FIFO at the place of a manifest would hang whoever opens it. What a disk can't give is damage of
one file, and is asked for a second time before: cables and controllers fail for a moment, too.
"""

import errno
import os
import stat
from collections.abc import Callable
from typing import Final, TypeVar

from ciuic.errors import CorruptionError, UnreachableError

__all__ = [
    "fails_on_disk",
    "open_regular",
    "read_at",
    "read_if_possible",
    "read_or_zeros",
    "read_regular",
    "status_of",
]

T = TypeVar("T")

_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_NOT_REGULAR: Final = {errno.ELOOP, errno.ENXIO}
"""How open(2) refuses a symlink and a socket."""
_ON_DISK: Final = {errno.EIO, errno.EUCLEAN, errno.EBADMSG}
"""A bad sector; and a file system's own notes on a file that contradict themselves, or whose
checksum is wrong."""


def fails_on_disk(error: OSError) -> bool:
    """It is about what the disk has of one file, and no reason to give up the others."""
    return error.errno in _ON_DISK


def status_of(path: str) -> os.stat_result:
    """The status of a file, not following a symlink.

    Raises:
        UnreachableError: The file system can't tell.
        OSError: Anything else.
    """
    try:
        return _twice(lambda: os.lstat(path))
    except OSError as error:
        if not fails_on_disk(error):
            raise
        raise UnreachableError(f"{path} can't be looked at: {error.strerror}") from error


def _twice(ask: Callable[[], T]) -> T:
    try:
        return ask()
    except OSError as error:
        if not fails_on_disk(error):
            raise
    return ask()


def open_regular(path: str) -> int:
    """Open a regular file for reading; the caller closes the descriptor.

    Raises:
        UnreachableError: The file system can't give it out.
        CorruptionError: Something else stands there.
        OSError: It can't be opened for another reason.
    """
    try:
        fd, status = _twice(lambda: _opened(path))
    except OSError as error:
        if error.errno in _NOT_REGULAR:
            raise CorruptionError(f"{path} is not a regular file") from error
        if fails_on_disk(error):
            raise UnreachableError(f"{path} can't be opened: {error.strerror}") from error
        raise
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise CorruptionError(f"{path} is not a regular file")
    return fd


def _opened(path: str) -> tuple[int, os.stat_result]:
    fd = os.open(path, _FLAGS)
    try:
        return fd, os.fstat(fd)
    except OSError:
        os.close(fd)
        raise


def read_regular(path: str, bytes_max: int) -> bytes:
    """The content of a regular file, up to ``bytes_max``.

    Raises:
        CorruptionError: Something else stands there, or a sector can't be read.
        OSError: Anything else.
    """
    with open(open_regular(path), "rb") as file:

        def read() -> bytes:
            file.seek(0)
            # A file object has room for all that it is asked for before it reads.
            return file.read(min(bytes_max, os.fstat(file.fileno()).st_size))

        try:
            return _twice(read)
        except OSError as error:
            if not fails_on_disk(error):
                raise
            raise CorruptionError(f"{path} can't be read: its disk fails") from error


def read_at(fd: int, length_bytes: int, offset_bytes: int) -> bytes:
    """Up to so many bytes of a pack.

    Raises:
        CorruptionError: A sector can't be read: that spoils what lies on it, and not the run.
        OSError: Anything else.
    """
    try:
        return os.pread(fd, length_bytes, offset_bytes)
    except OSError as error:
        if not fails_on_disk(error):
            raise
        raise CorruptionError(f"byte {offset_bytes} of a pack can't be read") from error


def read_if_possible(fd: int, length_bytes: int, offset_bytes: int) -> bytes:
    """As ``read_at``; nothing where a sector can't be read."""
    try:
        return read_at(fd, length_bytes, offset_bytes)
    except CorruptionError:
        return b""


def read_or_zeros(fd: int, length_bytes: int, offset_bytes: int, sector_bytes: int) -> bytes:
    """So many bytes: zeros for sectors that can't be read, and for what is behind the end."""
    try:
        data = read_at(fd, length_bytes, offset_bytes)
    except CorruptionError:
        parts = []
        for at in range(0, length_bytes, sector_bytes):
            length = min(sector_bytes, length_bytes - at)
            parts.append(read_if_possible(fd, length, offset_bytes + at).ljust(length, b"\0"))
        data = b"".join(parts)
    return data.ljust(length_bytes, b"\0")
