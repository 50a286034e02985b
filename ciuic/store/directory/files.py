"""Opens and reads the store's own files; only regular files, and without ever blocking.

A FIFO in place of a manifest would hang the process that opens it, and a device node may do worse.
No symlink is followed, in any part of the path (``nofollow``). A read that the disk refuses is
tried a second time, because cables and controllers also fail temporarily. If the second read fails
too, the file counts as damaged.
"""

import errno
import os
import stat
from collections.abc import Callable
from typing import Final, TypeVar

from ciuic.errors import CorruptionError, StoreError, UnreachableError
from ciuic.system import nofollow

__all__ = [
    "fails_on_disk",
    "open_or_create",
    "open_regular",
    "read_at",
    "read_if_possible",
    "read_or_zeros",
    "read_regular",
    "status_of",
    "status_within",
]

T = TypeVar("T")

_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_NOT_REGULAR: Final = {errno.ELOOP, errno.ENXIO}
"""How open(2) refuses symlinks and sockets."""
_ON_DISK: Final = {errno.EIO, errno.EUCLEAN, errno.EBADMSG}
"""A bad sector, and metadata of the file system that is inconsistent or has a wrong checksum."""


def fails_on_disk(error: OSError) -> bool:
    """Return whether an error concerns one file on the disk; other files may still be readable."""
    return error.errno in _ON_DISK


def status_of(path: str) -> os.stat_result:
    """Return the status of a file, without following a symlink.

    Raises:
        UnreachableError: The file system cannot read the status.
        OSError: Another error.
    """
    return _reached(path, lambda: nofollow.status(path))


def status_within(directory: int, path: str) -> os.stat_result:
    """Like ``status_of`` for a file in a directory that the caller keeps open.

    Args:
        directory: The directory's descriptor.
        path: The file's path.
    """
    name = os.path.basename(path)
    return _reached(path, lambda: os.stat(name, dir_fd=directory, follow_symlinks=False))


def _reached(path: str, ask: Callable[[], os.stat_result]) -> os.stat_result:
    try:
        return _twice(ask)
    except OSError as error:
        if not fails_on_disk(error):
            raise
        raise UnreachableError(f"cannot get the status of {path}: {error.strerror}") from error


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
        UnreachableError: The file system cannot open it.
        CorruptionError: The path is not a regular file.
        OSError: Another error.
    """
    try:
        fd, status = _twice(lambda: _opened(path))
    except OSError as error:
        if error.errno in _NOT_REGULAR:
            raise CorruptionError(f"{path} is not a regular file") from error
        if fails_on_disk(error):
            raise UnreachableError(f"{path} cannot be opened: {error.strerror}") from error
        raise
    if not stat.S_ISREG(status.st_mode):
        if fd >= 0:
            os.close(fd)
        raise CorruptionError(f"{path} is not a regular file")
    return fd


def open_or_create(path: str, access: int = os.O_RDWR) -> int:
    """Open a regular file, and create it if it is missing; the caller closes it.

    Raises:
        StoreError: The path is not a regular file.
        OSError: It cannot be opened.
    """
    # O_NONBLOCK: opening a FIFO must not wait for a process at the other end.
    fd = nofollow.open_file(path, access | os.O_CREAT | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise StoreError(
        f"{path} is not a regular file",
        hint="Find out who made it, remove it, and run ciuic again.",
    )


def _opened(path: str) -> tuple[int, os.stat_result]:
    with nofollow.opened_parent(path) as (directory, name):
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        # Opening a device can have effects: a watchdog device starts its timer.
        if not stat.S_ISREG(status.st_mode):
            return -1, status
        fd = os.open(name, _FLAGS, dir_fd=directory)
    try:
        return fd, os.fstat(fd)
    except OSError:
        os.close(fd)
        raise


def read_regular(path: str, bytes_max: int) -> bytes:
    """Read a regular file, up to ``bytes_max``.

    Raises:
        CorruptionError: The path is not a regular file, or a sector cannot be read.
        OSError: Another error.
    """
    with open(open_regular(path), "rb") as file:

        def read() -> bytes:
            file.seek(0)
            # A file object allocates the requested length before it reads.
            return file.read(min(bytes_max, os.fstat(file.fileno()).st_size))

        try:
            return _twice(read)
        except OSError as error:
            if not fails_on_disk(error):
                raise
            raise CorruptionError(f"{path} cannot be read: the disk reported an error") from error


def read_at(fd: int, length_bytes: int, offset_bytes: int) -> bytes:
    """Read up to ``length_bytes`` bytes of a pack.

    Raises:
        CorruptionError: A sector cannot be read. This damages what is on it and must not end the
            run.
        OSError: Another error.
    """
    try:
        return os.pread(fd, length_bytes, offset_bytes)
    except OSError as error:
        if not fails_on_disk(error):
            raise
        raise CorruptionError(f"byte {offset_bytes} of a pack cannot be read") from error


def read_if_possible(fd: int, length_bytes: int, offset_bytes: int) -> bytes:
    """Like ``read_at``, but return no bytes if a sector cannot be read."""
    try:
        return read_at(fd, length_bytes, offset_bytes)
    except CorruptionError:
        return b""


def read_or_zeros(fd: int, length_bytes: int, offset_bytes: int, sector_bytes: int) -> bytes:
    """Read exactly ``length_bytes``: unreadable sectors, and bytes past the end, are zeros."""
    try:
        data = read_at(fd, length_bytes, offset_bytes)
    except CorruptionError:
        parts = []
        for at in range(0, length_bytes, sector_bytes):
            length = min(sector_bytes, length_bytes - at)
            parts.append(read_if_possible(fd, length, offset_bytes + at).ljust(length, b"\0"))
        data = b"".join(parts)
    return data.ljust(length_bytes, b"\0")
