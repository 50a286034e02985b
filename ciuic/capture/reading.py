"""One file -> its bytes as of one moment, or the news that there was no such moment.

In place: the status of the open file before and after reading must be the same; if it is not,
the file is read again, a bounded number of times. A torn read is thereby found wherever the
kernel moves ctime on a write, which it does for write(2) and for the first write through a
mapping to a clean page, but not for further ones: docs/guarantees.md, N3.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from typing import Final, NamedTuple

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


_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Not blocking: a FIFO that has taken a file's place must not hang the snapshot."""
_OPEN_OWNED: Final = _OPEN | os.O_NOATIME
"""The kernel allows this to a file's owner and to root."""
_TURNED: Final = "turned into something else while the snapshot was taken"


class Small(NamedTuple):
    """A small file as it was read."""

    data: bytes
    status: os.stat_result
    xattrs: tuple[tuple[bytes, bytes], ...]
    is_torn: bool


class Extent(NamedTuple):
    """A stretch of data in a file; what lies between extents is holes."""

    offset_bytes: int
    length_bytes: int


def read_small(directory_fd: int, name: bytes, *, owned: bool) -> Small:
    """All of a small file, with its metadata, in as few calls as it takes.

    A hundred thousand small files are mostly system calls and what is between them, so this is
    one plain function. ``is_torn`` is set when the file changed at every attempt.

    Raises:
        SourceError: It can't be read, or is not a regular file any longer.
    """
    try:
        fd = os.open(name, _OPEN_OWNED if owned else _OPEN, dir_fd=directory_fd)
        try:
            after = os.fstat(fd)
            for _ in range(ATTEMPTS):
                before = after
                if not stat.S_ISREG(before.st_mode):
                    raise SourceError(_TURNED)
                # One byte more than expected: a file that has grown shows by itself.
                data = os.pread(fd, before.st_size + 1, 0)
                after = os.fstat(fd)
                is_torn = len(data) != before.st_size or not same_content(before, after)
                if not is_torn:
                    break
            return Small(data, before, read_xattrs(fd), is_torn)
        finally:
            os.close(fd)
    except OSError as error:
        raise _source_error(error) from error


class OpenFile:
    """A regular file that is being captured.

    Raises:
        SourceError: It can't be opened, or is not a regular file any longer.
    """

    def __init__(self, directory_fd: int, name: bytes, *, owned: bool) -> None:
        with source_faults():
            self.fd = os.open(name, _OPEN_OWNED if owned else _OPEN, dir_fd=directory_fd)
        self.ended_early = False
        self.before = os.fstat(self.fd)
        if not stat.S_ISREG(self.before.st_mode):
            self.close()
            raise SourceError(_TURNED)

    def close(self) -> None:
        """Close the file."""
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

    def blocks(self, extent: Extent) -> Iterator[tuple[int, memoryview]]:
        """The bytes of an extent, as position and block; each block is a buffer of its own.

        A file that has shrunk ends early; ``check_unchanged`` tells.
        """
        if extent.length_bytes >= _ADVISE_BYTES_MIN:
            os.posix_fadvise(
                self.fd, extent.offset_bytes, extent.length_bytes, os.POSIX_FADV_SEQUENTIAL
            )
        offset, end = extent.offset_bytes, extent.offset_bytes + extent.length_bytes
        while offset < end:
            # Up to the next multiple: chunks are cut at multiples, and a block is cut at its end.
            wanted = min(BLOCK_BYTES - offset % BLOCK_BYTES, end - offset)
            with source_faults():
                data = os.pread(self.fd, wanted, offset)
            if not data:
                self.ended_early = True
                return
            yield offset, memoryview(data)
            offset += len(data)

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
        with source_faults():
            self.before = os.fstat(self.fd)


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
