"""Read small files whole, together with their metadata.

``read_small`` reads one file, and knows what to do with one that a program is writing or that
cannot be read. ``read_together`` has the compiled core read many, and leaves such files to it.
"""

import errno
import mmap
import os
import stat
from collections.abc import Sequence
from typing import Final, NamedTuple

from ciuic.errors import SourceError
from ciuic.source.directory import read_xattrs
from ciuic.source.faults import CHANGED_TYPE, source_error
from ciuic.source.file import open_source_file
from ciuic.source.page_cache import SMALL_BYTES_MAX, own_buffer, read_whole
from ciuic.source.stability import ATTEMPTS, ReadStatus, is_replaced, is_unwritten
from ciuic.system.core import Core, FileRead, core
from ciuic.system.kernel import hold_lease

__all__ = ["Small", "Still", "Wanted", "read_small", "read_together"]

_PAGE: Final = mmap.PAGESIZE
_BUFFER_PAGES: Final = SMALL_BYTES_MAX // _PAGE
_too_old: Final[set[int]] = set()
"""Has ENOSYS if this kernel cannot tell which pages of a file are cached (before Linux 6.5)."""


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


class Wanted(NamedTuple):
    """A small file that is to be read.

    Attributes:
        directory_fd: The file's directory.
        name: The file's name there.
        size_bytes: The length that it had when it was listed.
        owned: This user may leave the access time unchanged.
        frozen: No program can write to the file, so no lease is needed.
    """

    directory_fd: int
    name: bytes
    size_bytes: int
    owned: bool
    frozen: bool


class Still(NamedTuple):
    """A small file that no program was writing when it was read."""

    data: bytes
    status: ReadStatus
    xattrs: tuple[tuple[bytes, bytes], ...]


def read_together(wanted: Sequence[Wanted]) -> list[Still | None]:
    """Read small files in few calls of the compiled core, without the interpreter's lock.

    Each file is read as ``read_small`` reads it: while it is read, a lease keeps writers out.

    Args:
        wanted: The files, each shorter than ``SMALL_BYTES_MAX``.

    Returns:
        The files in the same order; None for each that is left to ``read_small``: it cannot be
        read, has grown, is being written, or the core does not run.
    """
    compiled = core()
    if compiled is None or _too_old:
        return [None] * len(wanted)
    found: list[Still | None] = []
    together: list[tuple[int, bytes, int, int]] = []
    pages = 0
    for directory_fd, name, size_bytes, owned, frozen in wanted:
        needed = size_bytes // _PAGE + 1
        if len(together) == compiled.functions.FILES_MAX or pages + needed > _BUFFER_PAGES:
            found += _read_together(compiled, together)
            together, pages = [], 0
        flags = owned * compiled.functions.READ_OWNED | frozen * compiled.functions.READ_FROZEN
        together.append((directory_fd, name, size_bytes, flags))
        pages += needed
    return found + _read_together(compiled, together)


def _read_together(
    compiled: Core, files: Sequence[tuple[int, bytes, int, int]]
) -> list[Still | None]:
    return [_still(read) for read in compiled.functions.files_read(own_buffer(), files)]


def _still(read: int | FileRead) -> Still | None:
    if isinstance(read, int):
        if read == errno.ENOSYS:
            _too_old.add(read)
        return None
    data, xattrs, *status = read
    if xattrs:
        xattrs = tuple(sorted(dict(xattrs).items()))
    return Still(data, ReadStatus(*status), xattrs)


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
        SourceError: The file cannot be read, or is no longer a regular file.
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
