"""Opening the store's own files: regular files only, and never waiting for one that is not.

A FIFO at the place of a manifest would hang whoever opens it.
"""

import errno
import os
import stat
from typing import Final

from ciuic.errors import CorruptionError

__all__ = ["open_regular", "read_at", "read_if_possible", "read_or_zeros", "read_regular"]

_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_NOT_REGULAR: Final = {errno.ELOOP, errno.ENXIO}
"""How open(2) refuses a symlink and a socket."""


def open_regular(path: str) -> int:
    """Open a regular file for reading; the caller closes the descriptor.

    Raises:
        CorruptionError: Something else stands there.
        OSError: It can't be opened.
    """
    try:
        fd = os.open(path, _FLAGS)
    except OSError as error:
        if error.errno in _NOT_REGULAR:
            raise CorruptionError(f"{path} is not a regular file") from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise CorruptionError(f"{path} is not a regular file")
    return fd


def read_regular(path: str, bytes_max: int) -> bytes:
    """The content of a regular file, up to ``bytes_max``.

    Raises:
        CorruptionError: Something else stands there, or a sector can't be read.
        OSError: Anything else.
    """
    with open(open_regular(path), "rb") as file:
        try:
            return file.read(bytes_max)
        except OSError as error:
            if error.errno != errno.EIO:
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
        if error.errno != errno.EIO:
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
