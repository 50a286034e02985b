"""Clones made before a freeze begins, of files that are likely to be then what they are now.

To clone a thousand files takes as long as the freeze may, and longer once their blocks are shared;
to see that a file has not changed since it was cloned takes a hundredth of that. So the freeze
itself clones only what has changed in the meantime.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from typing import Final

from ciuic.capture.frozen import AREA_NAME, Area
from ciuic.capture.reading import is_settled, same_content
from ciuic.scan import DirectoryHandle

__all__ = ["READ_AT_ONCE_BYTES", "EarlyClones", "LeftOut"]

LeftOut = Callable[[DirectoryHandle, bytes, os.stat_result], bool]
"""A name in a directory, of this status, is no part of the snapshot."""

READ_AT_ONCE_BYTES: Final = 16 * 1024
"""Files up to this size are read when the walk comes to them: one read is shorter than a clone."""
_LOOKED_AT_MAX: Final = 10_000
"""Names that the first look sees: a walk through a million would take longer than it saves."""
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FULL: Final = {errno.ENOSPC, errno.EDQUOT}


class EarlyClones:
    """The clones of one root's files that were made ahead.

    One is of use only while its file has the size and the times that it had before it was cloned.
    That says nothing against the content having changed in the same tick of the kernel's clock,
    so a file whose ctime is that young is left to the freeze. Writing through a memory map moves
    ctime, too: cloning has written out the file's dirty pages, and the next write to each of them
    asks the file system anew.

    Args:
        area: Where clones lie.
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
        """Clone what looks changed among the first files of a tree.

        It also brings the files' inodes into memory, which on a cold cache takes longer than all
        the rest of a freeze.

        Args:
            top: The root.
            since_ns: Files that have not changed since then are not cloned; None: all are.
            is_left_out: Not to be cloned, nor looked into.

        Raises:
            OSError: No further clone can be made; those that were are of use.
        """
        copies_fd = self._area.copies_fd()
        try:
            for directory, name in _worth_cloning(top, since_ns, is_left_out):
                try:
                    self._clone(directory, name, copies_fd)
                except OSError as error:
                    if error.errno in _FULL:
                        raise
        finally:
            os.close(copies_fd)

    def take(self, status: os.stat_result) -> int | None:
        """The number of the clone of a file that looks like this now, if there is one."""
        found = self._made.pop(status.st_ino, None)
        return found[1] if found is not None and same_content(found[0], status) else None

    def _clone(self, directory: DirectoryHandle, name: bytes, copies_fd: int) -> None:
        fd = os.open(name, _OPEN, dir_fd=directory.fd)
        try:
            status = os.fstat(fd)
            is_young = not is_settled(status.st_mtime_ns, status.st_ctime_ns, self._taken_ns)
            if stat.S_ISREG(status.st_mode) and not is_young and status.st_ino not in self._made:
                self._made[status.st_ino] = status, self._area.clone(fd, copies_fd)
        finally:
            os.close(fd)


def _worth_cloning(
    top: DirectoryHandle,
    since_ns: int | None,
    is_left_out: LeftOut,
) -> Iterator[tuple[DirectoryHandle, bytes]]:
    """Files among the first of a tree that are of a size to be cloned, and look changed."""
    device = os.fstat(top.fd).st_dev
    seen = 0
    # Not all of them open: one directory may have ten thousand others.
    left: list[tuple[DirectoryHandle, bytes | None]] = [(top, None)]
    while left:
        above, inner = left.pop()
        try:
            directory = above if inner is None else above.child(inner)
            names = directory.names()
        except OSError:
            continue
        for name in names:
            if seen == _LOOKED_AT_MAX:
                return
            seen += 1
            with contextlib.suppress(OSError):
                status = directory.status(name)
                is_elsewhere = status.st_dev != device or name == AREA_NAME
                if is_elsewhere or is_left_out(directory, name, status):
                    continue
                if stat.S_ISDIR(status.st_mode):
                    left.append((directory, name))
                elif stat.S_ISREG(status.st_mode) and status.st_size > READ_AT_ONCE_BYTES:
                    times = status.st_mtime_ns, status.st_ctime_ns
                    if since_ns is None or not is_settled(*times, since_ns):
                        yield directory, name
