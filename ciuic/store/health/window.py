"""Reads a pack from the disk, past the page cache where the file system allows it."""

import errno
import mmap
import os
from collections.abc import Callable
from typing import Final

from ciuic.errors import CancelledError, CorruptionError
from ciuic.store.directory.files import fails_on_disk
from ciuic.system.buffers import BufferPool

__all__ = ["SECTOR_BYTES", "Window"]

SECTOR_BYTES: Final = 4096
_WINDOW_BYTES: Final = 4 * 1024 * 1024
_windows: Final = BufferPool(_WINDOW_BYTES)


class Window:
    """A part of a pack in memory, read in large blocks.

    What the page cache holds says nothing about the disk, and the training's own data should stay
    in it.

    Args:
        fd: The open pack; stays open, and its file offset does not change.
        cancelled: Called before each read; true ends the work.
    """

    def __init__(self, fd: int, cancelled: Callable[[], bool] = lambda: False) -> None:
        self.fd = fd
        self._cancelled = cancelled
        self.size_bytes = os.fstat(fd).st_size
        self._buffer = _windows.take()
        self._large: mmap.mmap | None = None
        self._direct_fd = _open_direct(fd)
        self._view = memoryview(b"")
        self._begin = 0
        self._careful_until = 0

    def __enter__(self) -> "Window":
        return self

    def __exit__(self, *_: object) -> None:
        self.forget()
        _windows.give_back(self._buffer)
        if self._direct_fd is not None:
            os.close(self._direct_fd)

    def forget(self) -> None:
        """Drop the bytes in memory, so that the next view reads from the disk again."""
        self._view = memoryview(b"")
        self._large = None
        if self._direct_fd is None:
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def view(self, offset_bytes: int, length_bytes: int) -> memoryview:
        """Return bytes of the pack, fewer at its end; valid until the next call.

        Raises:
            CorruptionError: The disk cannot read a sector among them.
            CancelledError: ``cancelled`` returned true.
            OSError: Another error of the file system.
        """
        end = min(offset_bytes + length_bytes, self.size_bytes)
        if offset_bytes < self._begin or end > self._begin + len(self._view):
            self._load(offset_bytes, end)
        start = offset_bytes - self._begin
        return self._view[start : max(start, end - self._begin)]

    def _load(self, start: int, end: int) -> None:
        begin = start - start % SECTOR_BYTES
        wanted = -(-(end - begin) // SECTOR_BYTES) * SECTOR_BYTES
        self._view = memoryview(b"")
        if begin >= self._careful_until and wanted <= _WINDOW_BYTES:
            try:
                self._fill(self._buffer, begin, _WINDOW_BYTES)
            except CorruptionError:
                # Read only what is asked for in this range: one bad sector must not cost its
                # neighbors.
                self._careful_until = begin + _WINDOW_BYTES
            else:
                return
        buffer = self._buffer
        if wanted > _WINDOW_BYTES:
            if self._large is None or len(self._large) < wanted:
                self._large = mmap.mmap(-1, wanted)
            buffer = self._large
        self._fill(buffer, begin, wanted)

    def _fill(self, buffer: mmap.mmap, begin: int, length: int) -> None:
        whole = memoryview(buffer)
        filled = 0
        while filled < length:
            count = self._read(whole[filled:length], begin + filled)
            filled += count
            # A direct read cannot continue after a short read: its offset must be aligned.
            if count == 0 or filled % SECTOR_BYTES:
                break
        self._view = whole[:filled]
        self._begin = begin

    def _read(self, into: memoryview, at: int) -> int:
        if self._cancelled():
            raise CancelledError("the check of the packs was stopped")
        try:
            if self._direct_fd is not None:
                try:
                    return os.preadv(self._direct_fd, [into], at)
                except OSError as error:
                    if error.errno != errno.EINVAL:
                        raise
                # Some file systems accept the flag and refuse the read.
                os.close(self._direct_fd)
                self._direct_fd = None
            return os.preadv(self.fd, [into], at)
        except OSError as error:
            if not fails_on_disk(error):
                raise
            raise CorruptionError(f"byte {at} of a pack cannot be read") from error


def _open_direct(fd: int) -> int | None:
    """Open the same file with O_DIRECT; None where the file system does not support it."""
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError:
        return None
