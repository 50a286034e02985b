"""Read files without changing the page cache: the pages that a snapshot loads are dropped again.

After a read, the page cache holds the same pages of the file as before. So a snapshot, which reads
each file once, does not evict the training's data. Small files are read with RWF_DONTCACHE
(preadv2(2), Linux 6.14, ext4 and XFS), which does exactly that. On other systems, and for large
files, mincore(2) finds the cached pages before the read, and POSIX_FADV_DONTNEED drops the others
after it. One call of cachestat(2), Linux 6.5, mostly suffices instead of mincore: it takes time for
the cached pages only, and a sparse file may have a billion pages that are not.

There are limits. Pages that another program reads at the same time may be dropped too, unless that
program has them mapped; pages that it writes may go to the disk sooner. If this user may not write
to the file, mincore reports all pages as cached, so none is dropped. If a reader stops in the
middle of a file, pages that the kernel read ahead for it stay.
"""

import ctypes
import errno
import mmap
import os
import threading
from collections.abc import Callable
from typing import Any, Final

from ciuic.source.byte_range import ByteRange

__all__ = [
    "SMALL_BYTES_MAX",
    "WINDOW_BYTES",
    "CacheKeeper",
    "own_buffer",
    "read_whole",
    "without_dontcache",
]

WINDOW_BYTES: Final = 64 * 1024 * 1024
"""Length of the ranges whose cached pages are looked up together. Read-ahead goes less far than
this, and no folio of the page cache crosses a multiple of it."""
SMALL_BYTES_MAX: Final = 1024 * 1024
"""Maximum length of a file that is read in one call."""
_PAGE: Final = mmap.PAGESIZE
_RWF_DONTCACHE: Final = 0x80
_SYS_CACHESTAT: Final = 451
_NOT_KNOWN: Final = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}
# mincore sets the lowest bit of a page's byte and reserves the others.
_LOWEST_BIT: Final = bytes(value & 1 for value in range(256))


# Any: ctypes has no public types for its types of values and for its functions.
def _function(name: str, result: Any, *arguments: Any) -> Callable[..., int]:
    found: Any = getattr(ctypes.CDLL(None, use_errno=True), name)
    found.restype, found.argtypes = result, arguments
    function: Callable[..., int] = found
    return function


_size, _int, _pointer = ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p
_mmap: Final = _function("mmap", _pointer, _pointer, _size, _int, _int, _int, ctypes.c_int64)
_munmap: Final = _function("munmap", _int, _pointer, _size)
_mincore: Final = _function("mincore", _int, _pointer, _size, _pointer)
_cachestat: Final = _function(
    "syscall", ctypes.c_long, ctypes.c_long, ctypes.c_uint, _pointer, _pointer, ctypes.c_uint
)
_MAP_FAILED: Final = ctypes.c_void_p(-1).value


class _Own(threading.local):
    """Buffers for reading small files, separate for each thread."""

    def __init__(self) -> None:
        # Page-aligned: copying to 16 bytes past the start of a page took three times as long.
        self.buffer = memoryview(mmap.mmap(-1, SMALL_BYTES_MAX))
        self.range = (ctypes.c_uint64 * 2)()
        self.counts = (ctypes.c_uint64 * 5)()
        self.range_at = ctypes.addressof(self.range)
        self.counts_at = ctypes.addressof(self.counts)


_own: Final = _Own()
without_dontcache: Final[set[int]] = set()
"""Device numbers of file systems that don't support RWF_DONTCACHE."""


def own_buffer() -> memoryview:
    """Return this thread's buffer of ``SMALL_BYTES_MAX`` bytes, for reading small files."""
    return _own.buffer


def read_whole(fd: int, size_bytes: int, device: int) -> bytes:
    """Read a small file without changing the page cache.

    Args:
        fd: Open for reading.
        size_bytes: The expected length. If the file has grown, one byte more is returned, but
            never more than SMALL_BYTES_MAX.
        device: ``st_dev`` of the file.
    """
    wanted = min(size_bytes + 1, SMALL_BYTES_MAX)
    if device not in without_dontcache:
        try:
            buffer = _own.buffer
            count = os.preadv(fd, (buffer[:wanted],), 0, _RWF_DONTCACHE)
            return bytes(buffer[:count])
        except OSError as error:
            if error.errno not in _NOT_KNOWN:
                raise
            without_dontcache.add(device)
    runs = _absent(fd, 0, min(size_bytes, SMALL_BYTES_MAX))
    try:
        return os.pread(fd, wanted, 0)
    finally:
        _drop(fd, runs)


class CacheKeeper:
    """Restores the page cache of one large file that is read in order, whole or in ranges.

    The caller must call ``reach`` before it reads a range. After ``finish``, the page cache holds
    the same pages of the file as before, and another pass may begin.

    Args:
        fd: The open file, which the caller closes.
        size_bytes: Length of the file; pages beyond it are ignored.
        private: No other program reads this file: all of its pages are dropped.
    """

    def __init__(self, fd: int, size_bytes: int, *, private: bool) -> None:
        self._fd = fd
        self._size_bytes = size_bytes
        self._private = private
        self._absent: dict[int, list[ByteRange]] = {}

    def reach(self, offset_bytes: int, length_bytes: int) -> None:
        """Look up the cached pages of a range that will be read."""
        first = offset_bytes // WINDOW_BYTES
        last = (offset_bytes + length_bytes - 1) // WINDOW_BYTES
        # One window more: reading the end of a window reads ahead into the next window.
        for window in range(first, last + 2):
            if window not in self._absent and window * WINDOW_BYTES < self._size_bytes:
                self._absent[window] = self._look(window * WINDOW_BYTES)

    def leave(self, offset_bytes: int) -> None:
        """Drop the pages before an offset, which will not be read again in this pass."""
        while self._absent and (window := min(self._absent)) < offset_bytes // WINDOW_BYTES:
            _drop(self._fd, self._absent.pop(window))

    def finish(self) -> None:
        """End the pass: drop the remaining pages."""
        while self._absent:
            _drop(self._fd, self._absent.popitem()[1])

    def _look(self, start: int) -> list[ByteRange]:
        length = min(WINDOW_BYTES, self._size_bytes - start)
        if self._private:
            return [ByteRange(start, -(-length // _PAGE) * _PAGE)]
        return _absent(self._fd, start, length)


def _absent(fd: int, offset_bytes: int, length_bytes: int) -> list[ByteRange]:
    """Return the parts of a range that are not cached, mostly with one system call.

    The range begins with a page. If the kernel cannot tell what is cached, none is returned.
    """
    if length_bytes == 0:
        return []
    own = _own
    pages = -(-length_bytes // _PAGE)
    own.range[0], own.range[1] = offset_bytes, pages * _PAGE
    if _cachestat(_SYS_CACHESTAT, fd, own.range_at, own.counts_at, 0) == 0:
        if own.counts[0] == 0:
            return [ByteRange(offset_bytes, pages * _PAGE)]
        if own.counts[0] == pages:
            return []
    return _absent_by_page(fd, offset_bytes, length_bytes)


def _absent_by_page(fd: int, offset_bytes: int, length_bytes: int) -> list[ByteRange]:
    """Return the parts of a range that are not cached, by looking at each page."""
    address = _mmap(None, length_bytes, mmap.PROT_READ, mmap.MAP_SHARED, fd, offset_bytes)
    if address == _MAP_FAILED:
        return []
    try:
        vector = ctypes.create_string_buffer(-(-length_bytes // _PAGE))
        if _mincore(address, length_bytes, vector) != 0:
            return []
    finally:
        _munmap(address, length_bytes)
    present = vector.raw.translate(_LOWEST_BIT)
    runs = []
    end = 0
    while (start := present.find(0, end)) >= 0:
        end = present.find(1, start)
        if end < 0:
            end = len(present)
        runs.append(ByteRange(offset_bytes + start * _PAGE, (end - start) * _PAGE))
    return runs


def _drop(fd: int, runs: list[ByteRange]) -> None:
    for run in runs:
        os.posix_fadvise(fd, run.offset_bytes, run.length_bytes, os.POSIX_FADV_DONTNEED)
