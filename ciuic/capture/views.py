"""A root as one snapshot sees it: the live directory, a frozen one, or clones of its files."""

import contextlib
import os
import stat
from array import array
from typing import Final, NamedTuple

from ciuic.capture import kernel
from ciuic.capture.early import READ_AT_ONCE_BYTES, EarlyClones
from ciuic.capture.frozen import (
    Area,
    Copies,
    Copy,
    FrozenRoot,
    RootRecord,
    copy_name,
    open_directory_beneath,
)
from ciuic.capture.providers import IN_PLACE, REFLINK, SUBVOLUME
from ciuic.capture.reading import ATTEMPTS, same_content
from ciuic.errors import SourceError
from ciuic.model import Entry
from ciuic.scan import DirectoryHandle, mounts, open_root, read_xattrs

__all__ = ["FrozenFile", "ReflinkView", "RootView", "SubvolumeView"]

_EMPTY_SUBVOLUME_INODE: Final = 2
"""What btrfs shows in a snapshot where another subvolume was: an empty directory."""
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SIGN: Final = 1 << 63


class FrozenFile(NamedTuple):
    """A file of which a clone was made.

    Attributes:
        directory_fd: Of the area's clones.
        name: Of the clone.
        status: Of the file at that moment.
        xattrs: Of the file at that moment.
        is_flux: Somebody had it open for writing, or it changed at every attempt.
    """

    directory_fd: int
    name: bytes
    status: os.stat_result
    xattrs: tuple[tuple[bytes, bytes], ...]
    is_flux: bool


class RootView:
    """A root that is read in place; what can be frozen is a subclass.

    Attributes:
        path: The root.
        previous: What an earlier snapshot froze of this root, if that is still there.
    """

    how = IN_PLACE

    def __init__(self, path: bytes, previous: FrozenRoot | None = None) -> None:
        self.path = path
        self.previous = previous
        self._real = os.path.realpath(path)

    def close(self) -> None:
        """Give up the descriptors."""
        if self.previous is not None:
            self.previous.close()

    def open_top(self) -> DirectoryHandle:
        """The directory to walk.

        Raises:
            SourceError: It is missing, or can't be read.
        """
        return open_root(self.path)

    def is_elsewhere(self, path: bytes, status: os.stat_result) -> bool:  # noqa: ARG002
        """A directory of this root is not frozen with it: a mount point, another subvolume."""
        return False

    def open_live(self, path: bytes) -> DirectoryHandle:
        """The live directory behind a path of a frozen root.

        Raises:
            OSError: It can't be opened, or is not a directory any longer.
        """
        top = os.open(self._real, _OPEN_DIRECTORY)
        try:
            return DirectoryHandle(open_directory_beneath(top, self._below(path)), path)
        finally:
            os.close(top)

    def can_clone(self, status: os.stat_result) -> bool:  # noqa: ARG002
        """A regular file is worth a clone, and one can be made."""
        return False

    def keep(self, entry: Entry) -> bool:  # noqa: ARG002
        """Go on with an earlier snapshot's clone of a file that has not changed since."""
        return False

    def clone(self, directory_fd: int, name: bytes, status: os.stat_result) -> FrozenFile:
        """Clone a file and take down its metadata, all of one moment.

        Args:
            directory_fd: Of its directory.
            name: Its name there.
            status: What the listing saw of it, a moment ago.

        Raises:
            OSError: It can't be cloned; the caller reads it in place.
            SourceError: It is not a regular file any longer.
        """
        raise NotImplementedError

    def record(self) -> RootRecord | None:
        """What was frozen, to be recorded; None if nothing was."""
        return None

    def _live_path(self, path: bytes) -> bytes:
        return os.path.join(self._real, self._below(path))

    def _below(self, path: bytes) -> bytes:
        return path[len(self.path.rstrip(b"/")) :].lstrip(b"/")


class SubvolumeView(RootView):
    """A root in a read-only snapshot of its btrfs subvolume.

    Attributes:
        live_device: ``st_dev`` of the live files, which the snapshot does not share.
    """

    how = SUBVOLUME

    def __init__(
        self, path: bytes, previous: FrozenRoot | None, area: Area, record: RootRecord
    ) -> None:
        super().__init__(path, previous)
        self._area = area
        self._record = record
        self.live_device = os.stat(self._real).st_dev
        below = self._real.rstrip(b"/") + b"/"
        points = [one.point for one in mounts() if one.point.startswith(below)]
        self._mounted = frozenset([path.rstrip(b"/") + one[len(below) - 1 :] for one in points])

    def open_top(self) -> DirectoryHandle:
        """See ``RootView``."""
        frozen = os.path.join(self._area.tree_path(self._record.tree), self._record.inside)
        handle = open_root(frozen)
        handle.path = self.path
        return handle

    def is_elsewhere(self, path: bytes, status: os.stat_result) -> bool:
        """See ``RootView``."""
        return status.st_ino == _EMPTY_SUBVOLUME_INODE or path in self._mounted

    def is_written(self, path: bytes, status: os.stat_result) -> bool:
        """Whether somebody was writing to a file when it was frozen.

        A file that has changed since then counts: whoever did it may have been at it before.
        """
        try:
            fd = os.open(self._live_path(path), _OPEN)
        except OSError:
            return False
        try:
            now = os.fstat(fd)
            if now.st_ino != status.st_ino:
                return False
            return not same_content(status, now) or kernel.has_writer(fd) is True
        finally:
            os.close(fd)

    def record(self) -> RootRecord:
        """See ``RootView``."""
        return self._record


class ReflinkView(RootView):
    """A root whose changed files are cloned as the walk comes to them, if not ahead of it."""

    how = REFLINK

    def __init__(
        self, path: bytes, previous: FrozenRoot | None, area: Area, early: EarlyClones
    ) -> None:
        super().__init__(path, previous)
        self._area = area
        self._early = early
        self._device = os.stat(self._real).st_dev
        self._copies_fd = area.copies_fd()
        self._there = area.numbers()
        self._kept: list[bytes] = []
        self._new = array("Q")

    def close(self) -> None:
        """See ``RootView``."""
        super().close()
        os.close(self._copies_fd)

    def is_elsewhere(self, path: bytes, status: os.stat_result) -> bool:  # noqa: ARG002
        """See ``RootView``."""
        return status.st_dev != self._device

    def can_clone(self, status: os.stat_result) -> bool:
        """See ``RootView``."""
        return status.st_size > READ_AT_ONCE_BYTES and status.st_dev == self._device

    def keep(self, entry: Entry) -> bool:
        """See ``RootView``."""
        copy = self.previous.find(entry) if self.previous is not None else None
        if copy is None or copy.number not in self._there:
            return False
        self._kept.append(copy.packed())
        return True

    def clone(self, directory_fd: int, name: bytes, status: os.stat_result) -> FrozenFile:
        """See ``RootView``."""
        fd = os.open(name, _OPEN, dir_fd=directory_fd)
        try:
            before, early = status, self._early.take(status)
            for attempt in range(1, ATTEMPTS + 1):
                number = self._clone(fd) if early is None else early
                # The lease ends with the descriptor: giving it back is a call that this saves.
                has_writer = kernel.hold_lease(fd)
                after = os.fstat(fd)
                is_torn = not same_content(before, after)
                if not is_torn or attempt == ATTEMPTS:
                    break
                os.unlink(copy_name(number), dir_fd=self._copies_fd)
                before, early = after, None
            xattrs = read_xattrs(fd)
        finally:
            os.close(fd)
        self._new.extend((before.st_ino, before.st_ctime_ns + _SIGN, before.st_size, number))
        is_flux = is_torn or has_writer is True
        return FrozenFile(self._copies_fd, copy_name(number), before, xattrs, is_flux)

    def _clone(self, fd: int) -> int:
        try:
            return self._area.clone(fd, self._copies_fd)
        except OSError as error:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                what = "turned into something else while the snapshot was taken"
                raise SourceError(what) from error
            raise

    def record(self) -> RootRecord:
        """See ``RootView``."""
        fresh = self._new
        for at in range(0, len(fresh), 4):
            with contextlib.suppress(OSError):
                self._kept.append(self._described(*fresh[at : at + 4]))
        return RootRecord(self.path, REFLINK, copies=Copies.of(self._kept))

    def _described(self, ino: int, ctime: int, size_bytes: int, number: int) -> bytes:
        fd = os.open(copy_name(number), _OPEN, dir_fd=self._copies_fd)
        try:
            return Copy.of((ino, ctime - _SIGN, size_bytes), number, fd).packed()
        finally:
            os.close(fd)
