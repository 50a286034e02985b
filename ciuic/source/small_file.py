"""Read a small file whole, together with its metadata."""

import os
import stat
from typing import NamedTuple

from ciuic.errors import SourceError
from ciuic.source.directory import read_xattrs
from ciuic.source.faults import CHANGED_TYPE, source_error
from ciuic.source.file import open_source_file
from ciuic.source.page_cache import SMALL_BYTES_MAX, read_whole
from ciuic.source.stability import ATTEMPTS, is_replaced, is_unwritten
from ciuic.system.kernel import hold_lease

__all__ = ["Small", "read_small"]


class Small(NamedTuple):
    """A small file as it was read.

    Attributes:
        is_torn: The file changed during every attempt.
        has_writer: A program had the file open for writing when it was read; None: unknown.
    """

    data: bytes
    status: os.stat_result
    xattrs: tuple[tuple[bytes, bytes], ...]
    is_torn: bool
    has_writer: bool | None = None


def read_small(
    directory_fd: int,
    name: bytes,
    *,
    owned: bool,
    frozen: bool = False,
    bytes_max: int = SMALL_BYTES_MAX - 1,
) -> Small | None:
    """Read a small file and its metadata with few system calls.

    With a hundred thousand small files, most time goes to system calls and the code between them,
    so this is one plain function. While it reads, a lease keeps writers out: a program that opens
    the file for writing waits a few microseconds, or for one read from disk.

    Args:
        directory_fd: The file's directory.
        name: The file's name there.
        owned: This user may leave the access time unchanged.
        frozen: No program can write to the file, so no lease is needed.
        bytes_max: A longer file is not read.

    Returns:
        None if the name now leads to a file that is not small.

    Raises:
        SourceError: The file can't be read, or is no longer a regular file.
    """
    try:
        for attempt in range(1, ATTEMPTS + 1):
            fd = open_source_file(directory_fd, name, owned=owned)
            try:
                small = _read_open(fd, bytes_max, frozen=frozen)
            finally:
                os.close(fd)
            if small is None or not (small.is_torn or small.has_writer) or attempt == ATTEMPTS:
                break
            if not is_replaced(directory_fd, name, small.status):
                break
        return small
    except OSError as error:
        raise source_error(error) from error


def _read_open(fd: int, bytes_max: int, *, frozen: bool) -> Small | None:
    writer = None if frozen else hold_lease(fd)
    after = os.fstat(fd)
    data: bytes | None = None
    for _ in range(ATTEMPTS):
        before, last = after, data
        if not stat.S_ISREG(before.st_mode):
            raise SourceError(CHANGED_TYPE)
        if before.st_size > bytes_max:
            return None
        # This asks for one byte more than the size, so a file that has grown is noticed.
        data = read_whole(fd, before.st_size, before.st_dev)
        after = os.fstat(fd)
        is_sure = writer is False or data == last
        is_torn = len(data) != before.st_size or not is_unwritten(before, after, is_sure=is_sure)
        if not is_torn:
            break
    return Small(data or b"", before, read_xattrs(fd), is_torn, writer)
