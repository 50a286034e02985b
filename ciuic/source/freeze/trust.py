"""Open reflink copies that can still be trusted.

A copy is trusted only while its inode, size, change time and extents are as recorded. If a program
changes a copy, the copy becomes useless, but no snapshot becomes wrong.
"""

import os
import stat
import threading
from collections.abc import Sequence
from typing import Final

from ciuic.ids import SnapshotId
from ciuic.model import Entry
from ciuic.source.directory import open_directory_beneath
from ciuic.source.freeze.area import Area, copy_name
from ciuic.source.freeze.copies import Copy
from ciuic.source.freeze.places import areas_of
from ciuic.source.freeze.records import RootRecord
from ciuic.system import kernel

__all__ = ["FrozenRoot", "open_frozen"]

_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_COPY: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class FrozenRoot:
    """The reflink copies of one root of one snapshot that still exist."""

    def __init__(self, area: Area, record: RootRecord) -> None:
        self.area = area
        self.how = record.how
        self.record = record
        self._lock = threading.Lock()
        self._tree_fd: int | None = None
        self._copies_fd: int | None = None

    def close(self) -> None:
        """Close the descriptors."""
        for fd in (self._tree_fd, self._copies_fd):
            if fd is not None and fd >= 0:
                os.close(fd)
        self._tree_fd = self._copies_fd = None

    def open(self, path: bytes, entry: Entry) -> int | None:
        """Open the reflink copy of a regular file for reading; the caller closes the descriptor.

        Args:
            path: Absolute path in the snapshot.
            entry: The file's entry in the snapshot.

        Returns:
            None if the file has no copy, or the copy is no longer as recorded.
        """
        try:
            if self.how == "subvolume":
                return self._open_in_tree(path, entry)
            return self._open_copy(entry)
        except OSError:
            return None

    def subvolume(self) -> kernel.SubvolumeInfo | None:
        """Return the frozen subvolume; None if there is none, or it is not as recorded.

        Raises:
            OSError: It cannot be opened.
        """
        if self.how != "subvolume":
            return None
        top = os.open(self.area.tree_path(self.record.tree), _OPEN_DIRECTORY)
        try:
            return self._as_recorded(top)
        finally:
            os.close(top)

    def _as_recorded(self, top: int) -> kernel.SubvolumeInfo | None:
        info = kernel.subvolume_info(top)
        is_same = (info.uuid, info.generation) == (self.record.uuid, self.record.generation)
        return info if is_same and info.is_readonly else None

    def find(self, entry: Entry) -> Copy | None:
        """Return the record of a file's copy without opening the copy; None if it has no copy."""
        return self.record.copies.find(entry.ino, entry.ctime_ns, entry.size_bytes)

    def _open_copy(self, entry: Entry) -> int | None:
        copy = self.find(entry)
        if copy is None:
            return None
        with self._lock:
            if self._copies_fd is None:
                self._copies_fd = self.area.copies_fd()
        fd = os.open(copy_name(copy.number), _OPEN_COPY, dir_fd=self._copies_fd)
        if copy.matches(fd, entry.size_bytes):
            return fd
        os.close(fd)
        return None

    def _open_in_tree(self, path: bytes, entry: Entry) -> int | None:
        with self._lock:
            if self._tree_fd is None:
                self._tree_fd = self._open_tree()
        root = self.record.path
        below = path[len(root) :].strip(b"/") if path != root else b""
        if self._tree_fd < 0 or not below or entry.ino in self.record.doubtful:
            return None
        fd = _open_beneath(self._tree_fd, below.split(b"/"))
        if _is_entry(os.fstat(fd), entry):
            return fd
        os.close(fd)
        return None

    def _open_tree(self) -> int:
        """Open the root within the frozen subvolume; -1 if the subvolume is not as recorded."""
        top = os.open(self.area.tree_path(self.record.tree), _OPEN_DIRECTORY)
        try:
            if self._as_recorded(top) is None:
                return -1
            return open_directory_beneath(top, self.record.inside)
        finally:
            os.close(top)


def open_frozen(
    store_id: str, snapshot_id: SnapshotId, root: bytes, *, user: Area | None = None
) -> FrozenRoot | None:
    """Return the reflink copies of a root of a snapshot; None if they no longer exist.

    Args:
        store_id: The store.
        snapshot_id: The snapshot.
        root: One of its roots.
        user: The area of a run that will keep them: if they are there, no other run removes them.
    """
    for found in areas_of(store_id, [root]):
        area = user if user is not None and user.path == found.path else found
        record = area.hold(snapshot_id) if area is user else area.record(snapshot_id)
        for recorded in record.roots if record is not None else []:
            if recorded.path == root:
                return FrozenRoot(area, recorded)
    return None


def _is_entry(status: os.stat_result, entry: Entry) -> bool:
    """Return whether a file in a frozen subvolume is the file of the snapshot's entry."""
    return (
        stat.S_ISREG(status.st_mode)
        and status.st_ino == entry.ino
        and status.st_size == entry.size_bytes
        and status.st_mtime_ns == entry.mtime_ns
        and status.st_ctime_ns == entry.ctime_ns
    )


def _open_beneath(top: int, names: Sequence[bytes]) -> int:
    """Open a file below a directory without following a symlink."""
    directory = open_directory_beneath(top, b"/".join(names[:-1]))
    try:
        return os.open(names[-1], _OPEN_COPY, dir_fd=directory)
    finally:
        os.close(directory)
