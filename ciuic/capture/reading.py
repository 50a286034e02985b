"""One file -> its bytes as of one moment, or the news that there was no such moment.

In place: the status of the open file before and after reading must be the same; if it is not,
the file is read again, a bounded number of times. A torn read is thereby found wherever the
kernel moves ctime on a write, which it does for write(2) and for the first write through a
mapping to a clean page, but not for further ones: docs/guarantees.md, N3. So it is also asked
whether some program has the file open for writing. The page cache is left as it was found.
"""

import contextlib
import errno
import os
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from ciuic.capture.cache import CacheKeeper, read_whole
from ciuic.capture.kernel import has_writer, hold_lease
from ciuic.errors import ResourceError, SourceError, TornReadError, VanishedError
from ciuic.scan import read_xattrs

__all__ = [
    "ATTEMPTS",
    "BLOCK_BYTES",
    "Extent",
    "OpenFile",
    "is_settled",
    "read_small",
    "same_content",
    "source_faults",
]

ATTEMPTS: Final = 3
"""How often a file that changes under the reader is read before it is marked."""
BLOCK_BYTES: Final = 4 * 1024 * 1024
"""Cold reads of 4 MiB with POSIX_FADV_SEQUENTIAL ran at three times the speed of 1 MiB ones."""
_COARSE_NS: Final = 2_000_000_000
_FINE_NS: Final = 20_000_000
_SECOND_NS: Final = 1_000_000_000
_ADVISE_BYTES_MIN: Final = 256 * 1024
_AHEAD_BYTES: Final = 16 * 1024 * 1024
_AHEAD_COUNT: Final = 256
"""How far scattered reads are announced ahead: enough for a disk that answers many at a time."""

_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Not blocking: a FIFO that has taken a file's place must not hang the snapshot."""
_OPEN_OWNED: Final = _OPEN | os.O_NOATIME
"""The kernel allows this to a file's owner and to root."""
_TURNED: Final = "turned into something else while the snapshot was taken"


BlockEnd = Callable[[int, int], int]
"""Where a block ends that begins at an offset and is about so long: whoever cuts chunks out of
blocks knows, since a chunk can't go on in the next one."""


def _next_multiple(offset_bytes: int, block_bytes: int) -> int:
    return offset_bytes - offset_bytes % block_bytes + block_bytes


class Small(NamedTuple):
    """A small file as it was read.

    Attributes:
        is_torn: It changed at every attempt.
        has_writer: Some program had it open for writing when it was read; None: not known.
    """

    data: bytes
    status: os.stat_result
    xattrs: tuple[tuple[bytes, bytes], ...]
    is_torn: bool
    has_writer: bool | None = None


class Extent(NamedTuple):
    """A stretch of data in a file; what lies between extents is holes."""

    offset_bytes: int
    length_bytes: int


def read_small(directory_fd: int, name: bytes, *, owned: bool, frozen: bool = False) -> Small:
    """All of a small file, with its metadata, in as few calls as it takes.

    A hundred thousand small files are mostly system calls and what is between them, so this is
    one plain function. While it reads, nobody can begin to write: an opener waits for the end,
    a few microseconds or one read of the disk.

    Args:
        directory_fd: Where it is.
        name: Of the file there.
        owned: The access time can be left alone.
        frozen: Nobody can write to it: a writer is not looked for.

    Raises:
        SourceError: It can't be read, or is not a regular file any longer.
    """
    try:
        fd = os.open(name, _OPEN_OWNED if owned else _OPEN, dir_fd=directory_fd)
        try:
            writer = None if frozen else hold_lease(fd)
            after = os.fstat(fd)
            for _ in range(ATTEMPTS):
                before = after
                if not stat.S_ISREG(before.st_mode):
                    raise SourceError(_TURNED)
                # One byte more than expected comes if there is: a file that has grown shows.
                data = read_whole(fd, before.st_size, before.st_dev)
                after = os.fstat(fd)
                is_torn = len(data) != before.st_size or not same_content(before, after)
                if not is_torn:
                    break
            return Small(data, before, read_xattrs(fd), is_torn, writer)
        finally:
            os.close(fd)
    except OSError as error:
        raise _source_error(error) from error


class OpenFile:
    """A regular file that is being captured.

    Args:
        directory_fd: Where it is.
        name: Of the file there.
        owned: The access time can be left alone.
        private: A frozen copy, which nobody writes and nobody else reads: a writer is not looked
            for, and nothing of it stays in the page cache.

    Attributes:
        fd: Its descriptor, for as long as this is open.
        before: Its status when this attempt began.
        has_writer: Some program had it open for writing then; None: not known.
        ended_early: It turned out shorter than ``before`` says.

    Raises:
        SourceError: It can't be opened, or is not a regular file any longer.
    """

    def __init__(
        self, directory_fd: int, name: bytes, *, owned: bool, private: bool = False
    ) -> None:
        with source_faults():
            self.fd = os.open(name, _OPEN_OWNED if owned else _OPEN, dir_fd=directory_fd)
        self._private = private
        self._peeked_bytes = 0
        self.ended_early = False
        self.before = os.fstat(self.fd)
        if not stat.S_ISREG(self.before.st_mode):
            os.close(self.fd)
            raise SourceError(_TURNED)
        self.has_writer = None if private else has_writer(self.fd)
        self._cache = CacheKeeper(self.fd, self.before.st_size, private=private)

    def close(self) -> None:
        """Close the file."""
        self._cache.finish()
        os.close(self.fd)

    def extents(self) -> Iterator[Extent]:
        """The stretches that hold data, in order: lseek(2), SEEK_DATA and SEEK_HOLE."""
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
                    raise _source_error(error) from error
            end = min(end, size)
            if start < end:
                yield Extent(start, end - start)

    def peek(self, offset_bytes: int, length_bytes: int) -> bytes:
        """Some bytes, in any order, before all is read from the front; fewer at the file's end.

        ``peeked`` has to be called after the last one.
        """
        self._cache.reach(offset_bytes, length_bytes)
        self._peeked_bytes = max(self._peeked_bytes, offset_bytes)
        with source_faults():
            return os.pread(self.fd, length_bytes, offset_bytes)

    def peeked(self) -> None:
        """No more is to be peeked at; what is not near the front leaves the page cache."""
        if self._peeked_bytes >= BLOCK_BYTES:
            self._cache.finish()
        self._peeked_bytes = 0

    def blocks(
        self, extent: Extent, block_end: BlockEnd = _next_multiple
    ) -> Iterator[tuple[int, memoryview]]:
        """The bytes of an extent, as position and block; each block is a buffer of its own.

        Blocks end where ``block_end`` says. A file that has shrunk ends early;
        ``check_unchanged`` tells.
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
        self, extents: Iterable[Extent], block_end: BlockEnd = _next_multiple
    ) -> Iterator[tuple[int, memoryview]]:
        """The bytes of some stretches, in order, and from the disk nothing that lies between.

        The disk is told ahead what comes, so that small stretches don't wait for one another.
        Blocks are cut as ``blocks`` cuts them.
        """
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_RANDOM)
        ahead: deque[Extent] = deque()
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

    def _blocks_of(self, piece: Extent) -> Iterator[tuple[int, memoryview]]:
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

    def check_unchanged(self, read_bytes: int) -> None:
        """Make sure that what was read is the file as it was at one moment.

        Args:
            read_bytes: Length of what was read, holes included.

        Raises:
            TornReadError: It is not.
        """
        with source_faults():
            after = os.fstat(self.fd)
        if not same_content(self.before, after) or read_bytes != self.before.st_size:
            raise TornReadError("changed while it was read")

    def look_again(self) -> None:
        """Begin another attempt."""
        self.ended_early = False
        self._cache.finish()
        with source_faults():
            self.before = os.fstat(self.fd)
        self.has_writer = None if self._private else has_writer(self.fd)
        self._cache = CacheKeeper(self.fd, self.before.st_size, private=self._private)


def _pieces(extents: Iterable[Extent], block_end: BlockEnd) -> Iterator[Extent]:
    """The same, cut where blocks end."""
    for extent in extents:
        at, end = extent.offset_bytes, extent.offset_bytes + extent.length_bytes
        while at < end:
            wanted = min(block_end(at, BLOCK_BYTES), end) - at
            yield Extent(at, wanted)
            at += wanted


def same_content(one: os.stat_result, other: os.stat_result) -> bool:
    """Two looks at an inode saw the same content, as far as the kernel tells."""
    return (
        one.st_size == other.st_size
        and one.st_mtime_ns == other.st_mtime_ns
        and one.st_ctime_ns == other.st_ctime_ns
        and one.st_ino == other.st_ino
    )


def is_settled(mtime_ns: int, ctime_ns: int, looked_at_ns: int) -> bool:
    """Whether a change after ``looked_at_ns`` is sure to have moved ctime on.

    The kernel stamps files with a coarse clock (up to 10 ms a tick), some file systems with
    whole seconds: a file written twice within a tick looks the same after the second time.
    """
    whole_seconds = mtime_ns % _SECOND_NS == 0 and ctime_ns % _SECOND_NS == 0
    return ctime_ns < looked_at_ns - (_COARSE_NS if whole_seconds else _FINE_NS)


@contextlib.contextmanager
def source_faults() -> Iterator[None]:
    """Raise SourceError for any OSError of the block, which must only touch the source."""
    try:
        yield
    except OSError as error:
        raise _source_error(error) from error


def _source_error(error: OSError) -> SourceError | ResourceError:
    if error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOMEM}:
        return ResourceError(f"the snapshot can't go on: {os.strerror(error.errno)}")
    if error.errno == errno.ENOENT:
        return VanishedError("vanished while the snapshot was taken")
    if error.errno in {errno.ELOOP, errno.EISDIR, errno.ENXIO}:
        return SourceError(_TURNED)
    return SourceError(f"could not be read: {os.strerror(error.errno or 0)}")
