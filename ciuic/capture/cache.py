"""The page cache, left as it was found: what a snapshot brings in goes out again.

What of a file was not in the page cache before it was read is not there afterwards, and what was
there still is: a training's data is not pushed out by a reader that never comes back. Small
files are read with RWF_DONTCACHE (preadv2(2), Linux 6.14, ext4 and XFS), which is just this. Else,
and for large files, mincore(2) tells before the read what is there, and POSIX_FADV_DONTNEED drops
the rest after it; cachestat(2), Linux 6.5, answers most questions about small files in one call.

The limits: what another program reads at the same moment may be dropped with it, unless it has it
mapped; what it writes may go to the disk sooner. mincore tells the truth only to who may write
the file, and shows everything as present to others, so that nothing is dropped. A reader that
stops in the middle leaves what was being read ahead for it.
"""

import ctypes
import errno
import mmap
import os
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

__all__ = ["SMALL_BYTES_MAX", "WINDOW_BYTES", "CacheKeeper", "read_whole", "without_dontcache"]

WINDOW_BYTES: Final = 64 * 1024 * 1024
"""What is looked at together: read-ahead reaches less far than this past what is being read, and
no folio of the page cache crosses a multiple of it."""
SMALL_BYTES_MAX: Final = 1024 * 1024
"""The longest read in one piece."""
_PAGE: Final = mmap.PAGESIZE
_RWF_DONTCACHE: Final = 0x80
_SYS_CACHESTAT: Final = 451
_NOT_KNOWN: Final = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}
# mincore sets the lowest bit of a page's byte and reserves the others.
_LOWEST_BIT: Final = bytes(value & 1 for value in range(256))


class Run(NamedTuple):
    """A stretch of whole pages."""

    offset_bytes: int
    length_bytes: int


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
    """What each thread that reads small files has for itself."""

    def __init__(self) -> None:
        # Page-aligned: a copy to 16 bytes past the start of a page took three times as long.
        self.buffer = memoryview(mmap.mmap(-1, SMALL_BYTES_MAX))
        self.range = (ctypes.c_uint64 * 2)()
        self.counts = (ctypes.c_uint64 * 5)()
        self.range_at = ctypes.addressof(self.range)
        self.counts_at = ctypes.addressof(self.counts)


_own: Final = _Own()
without_dontcache: Final[set[int]] = set()
"""Devices whose file system or kernel has no RWF_DONTCACHE."""


def read_whole(fd: int, size_bytes: int, device: int) -> bytes:
    """All of a small file and, if it has grown, one byte more; the page cache as it was.

    Args:
        fd: Open for reading.
        size_bytes: Its length as far as is known; SMALL_BYTES_MAX at most are read.
        device: Where the file lies: ``st_dev``.
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
    runs = _absent_of_small(fd, min(size_bytes, SMALL_BYTES_MAX))
    try:
        return os.pread(fd, wanted, 0)
    finally:
        _drop(fd, runs)


class CacheKeeper:
    """Watches the pages of one file that is read from its beginning to its end, or in ranges.

    Nothing may be read before ``reach`` was told of it. After ``finish`` the page cache holds of
    this file what it held at the beginning; then another pass may begin.

    Args:
        fd: Stays the caller's.
        size_bytes: What lies behind is nobody's: it is not looked at.
        private: Nobody else reads this file: all of it goes out, whatever was there.
    """

    def __init__(self, fd: int, size_bytes: int, *, private: bool) -> None:
        self._fd = fd
        self._size_bytes = size_bytes
        self._private = private
        self._absent: dict[int, list[Run]] = {}

    def reach(self, offset_bytes: int, length_bytes: int) -> None:
        """This range is about to be read, or read ahead."""
        first = offset_bytes // WINDOW_BYTES
        last = (offset_bytes + length_bytes - 1) // WINDOW_BYTES
        # One more: reading the end of a window reads ahead into the next.
        for window in range(first, last + 2):
            if window not in self._absent and window * WINDOW_BYTES < self._size_bytes:
                self._absent[window] = self._look(window * WINDOW_BYTES)

    def leave(self, offset_bytes: int) -> None:
        """What lies before this will not be read again in this pass."""
        while self._absent and (window := min(self._absent)) < offset_bytes // WINDOW_BYTES:
            _drop(self._fd, self._absent.pop(window))

    def finish(self) -> None:
        """The pass is over."""
        while self._absent:
            _drop(self._fd, self._absent.popitem()[1])

    def _look(self, start: int) -> list[Run]:
        length = min(WINDOW_BYTES, self._size_bytes - start)
        if self._private:
            return [Run(start, -(-length // _PAGE) * _PAGE)]
        return _absent(self._fd, start, length)


def _absent_of_small(fd: int, size_bytes: int) -> list[Run]:
    """``_absent`` from the beginning, mostly by one call."""
    if size_bytes == 0:
        return []
    own = _own
    pages = -(-size_bytes // _PAGE)
    own.range[1] = pages * _PAGE
    if _cachestat(_SYS_CACHESTAT, fd, own.range_at, own.counts_at, 0) == 0:
        if own.counts[0] == 0:
            return [Run(0, pages * _PAGE)]
        if own.counts[0] == pages:
            return []
    return _absent(fd, 0, size_bytes)


def _absent(fd: int, offset_bytes: int, length_bytes: int) -> list[Run]:
    """The runs of a range that are not cached; none where that can't be known."""
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
        runs.append(Run(offset_bytes + start * _PAGE, (end - start) * _PAGE))
    return runs


def _drop(fd: int, runs: list[Run]) -> None:
    for run in runs:
        os.posix_fadvise(fd, run.offset_bytes, run.length_bytes, os.POSIX_FADV_DONTNEED)
