"""A root as one snapshot reads it: the live directory, a frozen subvolume, or reflink copies."""

import contextlib
import os
import stat
from array import array
from typing import Final, NamedTuple

from ciuic.errors import SourceError
from ciuic.model import Entry
from ciuic.source.directory import DirectoryHandle, open_directory_beneath, open_root, read_xattrs
from ciuic.source.faults import CHANGED_TYPE
from ciuic.source.freeze.area import Area, copy_name
from ciuic.source.freeze.copies import SIGN, Copies, Copy
from ciuic.source.freeze.early import READ_AT_ONCE_BYTES, EarlyCopies
from ciuic.source.freeze.interface import IN_PLACE
from ciuic.source.freeze.methods import REFLINK, SUBVOLUME
from ciuic.source.freeze.records import RootRecord
from ciuic.source.freeze.trust import FrozenRoot
from ciuic.source.mounts import mounts
from ciuic.source.stability import ATTEMPTS, is_replaced, is_settled, is_unwritten
from ciuic.system import kernel

__all__ = ["FrozenFile", "ReflinkView", "RootView", "SubvolumeView"]

_EMPTY_SUBVOLUME_INODE: Final = 2
"""Inode of the empty directory that a btrfs snapshot has in place of a nested subvolume."""
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CHANGED: Final = "it changed after the freeze, so a program may have been writing it then"
_PAUSE_NS: Final = 60_000_000_000
"""A program that is still writing a file is assumed never to pause for longer than this."""


class FrozenFile(NamedTuple):
    """A file that was copied by reflink.

    Attributes:
        directory_fd: The area's directory of copies.
        name: Name of the copy.
        status: Status of the file when it was copied.
        xattrs: Extended attributes of the file when it was copied.
        is_being_written: A program had the file open for writing, or the file changed during
            every attempt.
    """

    directory_fd: int
    name: bytes
    status: os.stat_result
    xattrs: tuple[tuple[bytes, bytes], ...]
    is_being_written: bool


class RootView:
    """A root that is read in place; the subclasses freeze it.

    Attributes:
        path: The root.
        previous: The reflink copies of this root for the parent snapshot, if they still exist.
    """

    how = IN_PLACE
    is_frozen = False
    """No program can write to the files that are read through the view."""

    def __init__(self, path: bytes, previous: FrozenRoot | None = None) -> None:
        self.path = path
        self.previous = previous
        self._real = os.path.realpath(path)

    def close(self) -> None:
        """Close the descriptors."""
        if self.previous is not None:
            self.previous.close()

    def open_top(self) -> DirectoryHandle:
        """Open the directory to walk.

        Raises:
            SourceError: The root is missing or cannot be read.
        """
        return open_root(self.path)

    def is_elsewhere(self, path: bytes, status: os.stat_result) -> bool:  # noqa: ARG002
        """Return whether a directory is not frozen with its root: a mount point or a subvolume."""
        return False

    def open_live(self, path: bytes) -> DirectoryHandle:
        """Open the live directory of a path in a frozen root.

        Raises:
            OSError: It cannot be opened, or is no longer a directory.
        """
        top = os.open(self._real, _OPEN_DIRECTORY)
        try:
            return DirectoryHandle(open_directory_beneath(top, self._below(path)), path)
        finally:
            os.close(top)

    def can_copy(self, status: os.stat_result) -> bool:  # noqa: ARG002
        """Return whether a regular file should be copied by reflink."""
        return False

    def keep_copy(self, entry: Entry) -> bool:  # noqa: ARG002
        """Keep the parent snapshot's copy of an unchanged file; returns whether it has one."""
        return False

    def copy(self, directory_fd: int, name: bytes) -> FrozenFile:
        """Copy a file by reflink, together with its metadata of the same moment.

        Args:
            directory_fd: The file's directory.
            name: The file's name there.

        Raises:
            OSError: The file cannot be copied; the caller reads it in place.
            SourceError: It is no longer a regular file.
        """
        raise NotImplementedError

    def record(self) -> RootRecord | None:
        """Return the record of this root's copies; None if nothing was frozen."""
        return None

    def _live_path(self, path: bytes) -> bytes:
        return os.path.join(self._real, self._below(path))

    def _below(self, path: bytes) -> bytes:
        return path[len(self.path.rstrip(b"/")) :].lstrip(b"/")


class SubvolumeView(RootView):
    """A root in a read-only snapshot of its btrfs subvolume.

    Attributes:
        live_device: ``st_dev`` of the live files; the files of the snapshot have another.
    """

    how = SUBVOLUME
    is_frozen = True

    def __init__(
        self,
        path: bytes,
        previous: FrozenRoot | None,
        area: Area,
        record: RootRecord,
        taken_ns: int,
    ) -> None:
        super().__init__(path, previous)
        self._area = area
        self._record = record
        self._taken_ns = taken_ns
        self._doubtful: set[int] = set()
        self.live_device = os.stat(self._real).st_dev
        below = self._real.rstrip(b"/") + b"/"
        points = [mount.point for mount in mounts() if mount.point.startswith(below)]
        self._mounted = frozenset([path.rstrip(b"/") + point[len(below) - 1 :] for point in points])

    def open_top(self) -> DirectoryHandle:
        """See ``RootView``."""
        frozen = os.path.join(self._area.tree_path(self._record.tree), self._record.inside)
        handle = open_root(frozen)
        handle.path = self.path
        return handle

    def is_elsewhere(self, path: bytes, status: os.stat_result) -> bool:
        """See ``RootView``."""
        return status.st_ino == _EMPTY_SUBVOLUME_INODE or path in self._mounted

    def is_doubtful(self, path: bytes, status: os.stat_result) -> bool:
        """Return whether a frozen file may lack bytes, so that the live file should be read.

        btrfs flushes dirty data before it freezes names and sizes. Bytes that are written between
        the two are missing, even from a file that a rename completed. Bytes that were written
        before the snapshot began are never missing: ``Freezer`` synced them after that.
        """
        is_synced = is_settled(status.st_mtime_ns, status.st_ctime_ns, self._taken_ns)
        if is_synced and not self._may_have_had_a_writer(path, status):
            return False
        self._doubtful.add(status.st_ino)
        return True

    def _may_have_had_a_writer(self, path: bytes, status: os.stat_result) -> bool:
        """Return whether a file was written lately and is gone, so no lease can find its writer.

        A rename moves ctime but not mtime. So if they differ, the writer had finished.
        """
        is_recent = self._taken_ns - status.st_ctime_ns < _PAUSE_NS
        if status.st_mtime_ns != status.st_ctime_ns or not is_recent:
            return False
        try:
            return os.lstat(self._live_path(path)).st_ino != status.st_ino
        except OSError:
            return True

    def why_written(self, path: bytes, status: os.stat_result) -> str | None:
        """Return the evidence that a program was writing to a file when it was frozen.

        A file that has changed since then counts: the program may have begun before the freeze.
        The frozen bytes may then mix several writes, and no lease of now can tell.

        Returns:
            None: there is none. An empty text: a program has the file open for writing.
        """
        try:
            fd = os.open(self._live_path(path), _OPEN)
        except OSError:
            return None
        try:
            now = os.fstat(fd)
            if now.st_ino != status.st_ino:
                return None
            # The file may have been replaced after it was opened by its name.
            is_unlinked = now.st_nlink == 0
            is_changed = not is_unwritten(status, now, is_sure=is_unlinked)
            if kernel.has_writer(fd) is True:
                return ""
            return _CHANGED if is_changed else None
        finally:
            os.close(fd)

    def record(self) -> RootRecord:
        """See ``RootView``."""
        return self._record._replace(doubtful=frozenset(self._doubtful))


class ReflinkView(RootView):
    """A root whose changed files are copied by reflink before the freeze or during the walk."""

    how = REFLINK

    def __init__(
        self, path: bytes, previous: FrozenRoot | None, area: Area, early: EarlyCopies
    ) -> None:
        super().__init__(path, previous)
        self._area = area
        self._early = early
        self._device = os.stat(self._real).st_dev
        self._copies_fd = area.copies_fd()
        self._older = area.older()
        self._kept: list[bytes] = []
        self._new = array("Q")

    def close(self) -> None:
        """See ``RootView``."""
        super().close()
        os.close(self._copies_fd)

    def is_elsewhere(self, path: bytes, status: os.stat_result) -> bool:  # noqa: ARG002
        """See ``RootView``."""
        return status.st_dev != self._device

    def can_copy(self, status: os.stat_result) -> bool:
        """See ``RootView``."""
        return status.st_size > READ_AT_ONCE_BYTES and status.st_dev == self._device

    def keep_copy(self, entry: Entry) -> bool:
        """See ``RootView``."""
        copy = self.previous.find(entry) if self.previous is not None else None
        if copy is None or copy.number not in self._older:
            return False
        self._kept.append(copy.packed())
        return True

    def copy(self, directory_fd: int, name: bytes) -> FrozenFile:
        """See ``RootView``."""
        for attempt in range(1, ATTEMPTS + 1):
            fd = os.open(name, _OPEN, dir_fd=directory_fd)
            try:
                frozen, number = self._copy_open(fd)
            finally:
                os.close(fd)
            is_done = not frozen.is_being_written or attempt == ATTEMPTS
            if is_done or not is_replaced(directory_fd, name, frozen.status):
                break
            os.unlink(frozen.name, dir_fd=self._copies_fd)
        before = frozen.status
        self._new.extend((before.st_ino, before.st_ctime_ns + SIGN, before.st_size, number))
        return frozen

    def _copy_open(self, fd: int) -> tuple[FrozenFile, int]:
        """Copy an open file; returns the copy and its number."""
        # Closing the descriptor ends the lease, which saves the call that gives it back.
        has_writer = kernel.hold_lease(fd)
        before = os.fstat(fd)
        early = self._early.take(before)
        for attempt in range(1, ATTEMPTS + 1):
            number = self._add_copy(fd) if early is None else early
            after = os.fstat(fd)
            is_torn = not is_unwritten(before, after, is_sure=has_writer is False)
            if not is_torn or attempt == ATTEMPTS:
                break
            os.unlink(copy_name(number), dir_fd=self._copies_fd)
            before, early = after, None
        is_written = is_torn or has_writer is True
        name = copy_name(number)
        return FrozenFile(self._copies_fd, name, before, read_xattrs(fd), is_written), number

    def _add_copy(self, fd: int) -> int:
        try:
            return self._area.add_copy(fd, self._copies_fd)
        except OSError as error:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise SourceError(CHANGED_TYPE) from error
            raise

    def record(self) -> RootRecord:
        """See ``RootView``."""
        # If there was no room for new copies, those of older snapshots are gone.
        packed = self._kept if self._older else []
        for at in range(0, len(self._new), 4):
            with contextlib.suppress(OSError):
                packed.append(self._packed(*self._new[at : at + 4]))
        return RootRecord(self.path, REFLINK, copies=Copies.of(packed))

    def _packed(self, ino: int, ctime: int, size_bytes: int, number: int) -> bytes:
        fd = os.open(copy_name(number), _OPEN, dir_fd=self._copies_fd)
        try:
            return Copy.of((ino, ctime - SIGN, size_bytes), number, fd).packed()
        finally:
            os.close(fd)
