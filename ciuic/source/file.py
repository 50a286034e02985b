"""Read a file as it was at one moment, or detect that it changed during every attempt.

The status of the open file must be the same before and after reading. If it differs, the file is
read again, a bounded number of times. This finds a torn read if the kernel moves ctime on a write.
It does for write(2) and for the first write through a mapping to a clean page, but not for later
writes to that page (docs/guarantees.md, N3). So the reader also checks whether a program has the
file open for writing. The page cache is left as it was.

``stability`` decides whether a file changed. If a torn file was replaced meanwhile, the callers
open its name again. ``small_file`` reads small files with fewer calls.
"""

import errno
import os
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from ciuic.errors import SourceError, TornReadError
from ciuic.source.byte_range import ByteRange
from ciuic.source.faults import CHANGED_TYPE, source_error, source_faults
from ciuic.source.page_cache import CacheKeeper
from ciuic.source.stability import is_unwritten
from ciuic.system.kernel import has_writer

__all__ = ["BLOCK_BYTES", "OpenFile", "open_source_file"]

BLOCK_BYTES: Final = 4 * 1024 * 1024
"""Cold reads of 4 MiB with POSIX_FADV_SEQUENTIAL ran at three times the speed of 1 MiB ones."""
_ADVISE_BYTES_MIN: Final = 256 * 1024
_AHEAD_BYTES: Final = 16 * 1024 * 1024
_AHEAD_COUNT: Final = 256
"""Number of scattered reads that are announced ahead, which keeps the queue of a fast disk full."""

_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""O_NONBLOCK: a FIFO that replaced the file must not block the snapshot."""
_OPEN_OWNED: Final = _OPEN | os.O_NOATIME
"""The kernel allows this to a file's owner and to root."""

BlockEnd = Callable[[int, int], int]
"""Returns where the block ends that begins at an offset and has about a given length. The chunker
supplies it, as a chunk cannot continue in the next block."""


def _next_multiple(offset_bytes: int, block_bytes: int) -> int:
    return offset_bytes - offset_bytes % block_bytes + block_bytes


def open_source_file(directory_fd: int, name: bytes, *, owned: bool) -> int:
    """Open a file for reading, with O_NOATIME if the kernel allows it."""
    if owned:
        # Root needs CAP_FOWNER for O_NOATIME. Without it, as in some containers and user
        # namespaces, root may still be able to read the file.
        try:  # not contextlib.suppress, which costs three calls for each file
            return os.open(name, _OPEN_OWNED, dir_fd=directory_fd)
        except PermissionError:
            pass
    return os.open(name, _OPEN, dir_fd=directory_fd)


class OpenFile:
    """A regular file that is being read for a snapshot.

    Args:
        directory_fd: The file's directory.
        name: The file's name there.
        owned: This user may leave the access time unchanged.
        private: A reflink copy, which no other program reads or writes: the writer check is
            skipped, and no page of the file stays in the page cache.

    Attributes:
        fd: The file's descriptor, valid until ``close``.
        before: Status of the file when this attempt began.
        has_writer: A program had the file open for writing then; None: unknown.
        ended_early: The file turned out shorter than ``before`` says.

    Raises:
        SourceError: The file cannot be opened, or is no longer a regular file.
    """

    def __init__(
        self, directory_fd: int, name: bytes, *, owned: bool, private: bool = False
    ) -> None:
        with source_faults():
            self.fd = open_source_file(directory_fd, name, owned=owned)
        self._private = private
        self._peeked_bytes = 0
        self.ended_early = False
        self.before = os.fstat(self.fd)
        if not stat.S_ISREG(self.before.st_mode):
            os.close(self.fd)
            raise SourceError(CHANGED_TYPE)
        self.has_writer = None if private else has_writer(self.fd)
        self._cache = CacheKeeper(self.fd, self.before.st_size, private=private)

    def close(self) -> None:
        """Close the file."""
        self._cache.finish()
        os.close(self.fd)

    def extents(self) -> Iterator[ByteRange]:
        """Yield the ranges that hold data, in order: lseek(2), SEEK_DATA and SEEK_HOLE."""
        size = self.before.st_size
        end = 0
        while end < size:
            try:
                start = os.lseek(self.fd, end, os.SEEK_DATA)
                end = os.lseek(self.fd, start, os.SEEK_HOLE)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return
                if error.errno == errno.EINVAL and end == 0:
                    start, end = 0, size
                else:
                    raise source_error(error) from error
            end = min(end, size)
            if start < end:
                yield ByteRange(start, end - start)

    def peek(self, offset_bytes: int, length_bytes: int) -> bytes:
        """Read some bytes, in any order, before the file is read from its start.

        The caller must call ``peeked`` after the last peek.

        Returns:
            The bytes; fewer at the end of the file.
        """
        self._cache.reach(offset_bytes, length_bytes)
        self._peeked_bytes = max(self._peeked_bytes, offset_bytes)
        with source_faults():
            return os.pread(self.fd, length_bytes, offset_bytes)

    def peeked(self) -> None:
        """End peeking; pages that are not near the start of the file leave the page cache."""
        if self._peeked_bytes >= BLOCK_BYTES:
            self._cache.finish()
        self._peeked_bytes = 0

    def blocks(
        self, extent: ByteRange, block_end: BlockEnd = _next_multiple
    ) -> Iterator[tuple[int, memoryview]]:
        """Yield position and bytes of each block of an extent; each block has its own buffer.

        ``block_end`` determines where blocks end. A file that has shrunk ends early, which
        ``check_unchanged`` reports.
        """
        if extent.length_bytes >= _ADVISE_BYTES_MIN:
            os.posix_fadvise(
                self.fd, extent.offset_bytes, extent.length_bytes, os.POSIX_FADV_SEQUENTIAL
            )
        offset, end = extent.offset_bytes, extent.offset_bytes + extent.length_bytes
        while offset < end:
            wanted = min(block_end(offset, BLOCK_BYTES), end) - offset
            self._cache.reach(offset, wanted)
            block = self._read(offset, wanted)
            if block is None:
                return
            yield offset, block
            offset += len(block)

    def scattered_blocks(
        self, extents: Iterable[ByteRange], block_end: BlockEnd = _next_multiple
    ) -> Iterator[tuple[int, memoryview]]:
        """Yield the blocks of several ranges, in order; the disk reads nothing between the ranges.

        Reads are announced ahead, so that small ranges don't wait for one another. Blocks are cut
        as in ``blocks``.
        """
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_RANDOM)
        ahead: deque[ByteRange] = deque()
        ahead_bytes = 0
        for piece in _pieces(extents, block_end):
            self._cache.reach(*piece)
            os.posix_fadvise(self.fd, *piece, os.POSIX_FADV_WILLNEED)
            ahead.append(piece)
            ahead_bytes += piece.length_bytes
            while ahead_bytes > _AHEAD_BYTES or len(ahead) > _AHEAD_COUNT:
                ahead_bytes -= ahead[0].length_bytes
                yield from self._blocks_of(ahead.popleft())
                if self.ended_early:
                    return
        while ahead and not self.ended_early:
            yield from self._blocks_of(ahead.popleft())

    def _blocks_of(self, piece: ByteRange) -> Iterator[tuple[int, memoryview]]:
        offset, end = piece.offset_bytes, piece.offset_bytes + piece.length_bytes
        while offset < end and (block := self._read(offset, end - offset)) is not None:
            yield offset, block
            offset += len(block)

    def _read(self, offset: int, length: int) -> memoryview | None:
        self._cache.leave(offset)
        with source_faults():
            data = os.pread(self.fd, length, offset)
        if data:
            return memoryview(data)
        self.ended_early = True
        return None

    def check_unchanged(self, read_bytes: int, *, is_same: bool = False) -> None:
        """Check that the bytes read are the file as it was at one moment.

        Args:
            read_bytes: Number of bytes read, including holes.
            is_same: The previous attempt read the same bytes.

        Raises:
            TornReadError: The file changed while it was read.
        """
        with source_faults():
            after = os.fstat(self.fd)
        is_unchanged = is_unwritten(self.before, after, is_sure=is_same)
        if not is_unchanged or read_bytes != self.before.st_size:
            raise TornReadError("changed while it was read")

    def look_again(self) -> None:
        """Begin another attempt."""
        self.ended_early = False
        self._cache.finish()
        with source_faults():
            self.before = os.fstat(self.fd)
        self.has_writer = None if self._private else has_writer(self.fd)
        self._cache = CacheKeeper(self.fd, self.before.st_size, private=self._private)


def _pieces(extents: Iterable[ByteRange], block_end: BlockEnd) -> Iterator[ByteRange]:
    """Yield the extents, cut at the ends of blocks."""
    for extent in extents:
        at, end = extent.offset_bytes, extent.offset_bytes + extent.length_bytes
        while at < end:
            wanted = min(block_end(at, BLOCK_BYTES), end) - at
            yield ByteRange(at, wanted)
            at += wanted
