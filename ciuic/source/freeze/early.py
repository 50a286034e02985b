"""Reflink copies made before the freeze, of files that are unlikely to change until then.

Copying a thousand files takes as long as the whole freeze may take, and longer if their blocks are
shared already. Checking that a file has not changed since it was copied takes a hundredth of that.
So during the freeze, only files that have changed meanwhile are copied.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from typing import Final

from ciuic.source.directory import DirectoryHandle
from ciuic.source.freeze.area import Area
from ciuic.source.freeze.interface import AREA_NAME
from ciuic.source.stability import is_settled, same_content

__all__ = ["READ_AT_ONCE_BYTES", "EarlyCopies", "LeftOut"]

LeftOut = Callable[[DirectoryHandle, bytes, os.stat_result], bool]
"""Returns whether a name in a directory, with its status, is excluded from the snapshot."""

READ_AT_ONCE_BYTES: Final = 16 * 1024
"""Files up to this size are read when the walk reaches them: reading takes less time than a reflink
copy."""
_NAMES_MAX: Final = 10_000
"""Number of names that are checked before the freeze: a walk over a million names would take longer
than it saves."""
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FULL: Final = {errno.ENOSPC, errno.EDQUOT}


class EarlyCopies:
    """The reflink copies of one root that were made before the freeze.

    A copy is valid only while its file has the size and the times that it had before it was
    copied. Within one tick of the kernel's clock, the content can change without a change of the
    times, so files with a ctime that recent are left to the freeze. Writing through a memory map
    moves ctime, too: the copy flushed the file's dirty pages, and the next write to each of them
    notifies the file system again.

    Args:
        area: Where the copies are made.
        taken_ns: When the snapshot began.
    """

    def __init__(self, area: Area, taken_ns: int) -> None:
        self._area = area
        self._taken_ns = taken_ns
        self._made: dict[int, tuple[os.stat_result, int]] = {}

    def make(
        self,
        top: DirectoryHandle,
        since_ns: int | None,
        is_left_out: LeftOut,
    ) -> None:
        """Copy the files that look changed among the first names of a tree.

        This also loads the files' inodes into memory, which on a cold cache takes longer than the
        rest of the freeze.

        Args:
            top: The root.
            since_ns: Files without a change since then are not copied; None: all are copied.
            is_left_out: Tells which names are excluded.

        Raises:
            OSError: No further copy can be made; the copies made so far are valid.
        """
        copies_fd = self._area.copies_fd()
        try:
            for directory, name in _worth_copying(top, since_ns, is_left_out):
                try:
                    self._copy(directory, name, copies_fd)
                except OSError as error:
                    if error.errno in _FULL:
                        raise
        finally:
            os.close(copies_fd)

    def take(self, status: os.stat_result) -> int | None:
        """Return the number of the copy of a file with this status; None if it has no copy."""
        found = self._made.pop(status.st_ino, None)
        return found[1] if found is not None and same_content(found[0], status) else None

    def _copy(self, directory: DirectoryHandle, name: bytes, copies_fd: int) -> None:
        fd = os.open(name, _OPEN, dir_fd=directory.fd)
        try:
            status = os.fstat(fd)
            is_recent = not is_settled(status.st_mtime_ns, status.st_ctime_ns, self._taken_ns)
            if stat.S_ISREG(status.st_mode) and not is_recent and status.st_ino not in self._made:
                self._made[status.st_ino] = status, self._area.add_copy(fd, copies_fd)
        finally:
            os.close(fd)


def _worth_copying(
    top: DirectoryHandle,
    since_ns: int | None,
    is_left_out: LeftOut,
) -> Iterator[tuple[DirectoryHandle, bytes]]:
    """Yield the files among the first names of a tree that are large enough and look changed."""
    device = os.fstat(top.fd).st_dev
    seen = 0
    # Subdirectories are opened one at a time: a directory may have ten thousand of them.
    waiting: list[tuple[DirectoryHandle, bytes | None]] = [(top, None)]
    while waiting:
        parent, child_name = waiting.pop()
        try:
            directory = parent if child_name is None else parent.child(child_name)
            names = directory.names()
        except OSError:
            continue
        for name in names:
            if seen == _NAMES_MAX:
                return
            seen += 1
            with contextlib.suppress(OSError):
                status = directory.status(name)
                is_elsewhere = status.st_dev != device or name == AREA_NAME
                if is_elsewhere or is_left_out(directory, name, status):
                    continue
                if stat.S_ISDIR(status.st_mode):
                    waiting.append((directory, name))
                elif stat.S_ISREG(status.st_mode) and status.st_size > READ_AT_ONCE_BYTES:
                    times = status.st_mtime_ns, status.st_ctime_ns
                    if since_ns is None or not is_settled(*times, since_ns):
                        yield directory, name
