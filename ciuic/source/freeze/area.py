"""Areas: the directories that hold reflink copies.

    <place>/.ciuic-frozen/<store ID>/
        copies/<number>          reflink copies of single files
        trees/<snapshot ID>.<n>  read-only snapshots of subvolumes
        records/<snapshot ID>    the record of a snapshot's copies, with a checksum
        store                    the path of the store's header

On btrfs, root makes ``.ciuic-frozen`` as a subvolume of its own. So what ciuic writes there is no
change of the subvolume around it (``generation``).

The copies serve two purposes: the next snapshot compares their extents with a file instead of
reading the file, and a restore copies from them by reflink. Nothing depends on them. A record is
written before the snapshot's manifest and is valid for that snapshot only. A copy that no record
names was left by a killed run; the next run removes it.
"""

import contextlib
import errno
import fcntl
import os
import re
import stat
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from ciuic.ids import SnapshotId
from ciuic.source.freeze.interface import AREA_NAME
from ciuic.source.freeze.records import Record, RootRecord, encode_record
from ciuic.system import durable, kernel

__all__ = ["Area", "copy_name", "make_top", "opened"]

_COPIES: Final = b"copies"
_TREES: Final = b"trees"
_RECORDS: Final = b"records"
_STORE: Final = b"store"
_MODE: Final = 0o700
_OTHERS_WRITE: Final = 0o022
_COPY_MODE: Final = 0o400
_COPY_NAME: Final = rb"[0-9a-f]{16}"
_PATH_BYTES_MAX: Final = 4096
_HEADER_BYTES_MAX: Final = 1024 * 1024
_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_COPY: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Area:
    """The reflink copies of one store on one file system.

    Only the process that holds the area's lock changes it; reading needs no lock. The owner of the
    parent directory may replace the area by another directory at any time. So changes go through
    the descriptor of the locked directory, not through its path.
    """

    def __init__(self, path: bytes) -> None:
        self.path = path
        self._inner = path
        self._lock_fd = -1
        self._number = 0
        self._first_number = 0
        self._tree_prefix = b""

    @classmethod
    def find(cls, place: bytes, store_id: str) -> "Area | None":
        """Return the area in a directory, if it exists and only this user can access it."""
        path = os.path.join(place, AREA_NAME)
        inner = os.path.join(path, store_id.encode())
        return cls(inner) if _is_own(path) and _is_own(inner) else None

    @classmethod
    def make(
        cls, place: bytes, header_path: str, store_id: str, *, in_subvolume: bool = False
    ) -> "Area":
        """Return the area in a directory, locked; make it if it is missing.

        Areas of stores that no longer exist are removed.

        Args:
            place: The directory.
            header_path: Path of the store's header. An area belongs to a store as long as that
                file exists and has the store's ID.
            store_id: ID of the store.
            in_subvolume: Make it in a btrfs subvolume of its own, if possible.

        Raises:
            OSError: The area cannot be made or written, belongs to another user, or is locked.
        """
        path = os.path.join(place, AREA_NAME)
        inner = os.path.join(path, store_id.encode())
        make_top(place, in_subvolume=in_subvolume)
        for directory in (path, inner):
            with contextlib.suppress(FileExistsError):
                os.mkdir(directory, _MODE)
            if not _is_own(directory):
                raise PermissionError(f"{os.fsdecode(directory)} belongs to another user")
        area = cls(inner)
        area.lock()
        try:
            area._furnish(header_path)
        except OSError:
            area.close()
            raise
        for name in os.listdir(path):
            other = cls(os.path.join(path, name))
            if other.path != inner and other._is_orphan():
                with contextlib.suppress(OSError):
                    other._remove()
        return area

    def _furnish(self, header_path: str) -> None:
        for name in (_COPIES, _TREES, _RECORDS):
            with contextlib.suppress(FileExistsError):
                os.mkdir(os.path.join(self._inner, name), _MODE)
        with open(os.path.join(self._inner, _STORE), "wb") as file:
            file.write(os.fsencode(os.path.abspath(header_path)))

    def _is_orphan(self) -> bool:
        """Return whether the store of this area is no longer at its path."""
        try:
            area = os.open(self.path, _OPEN_DIRECTORY)
            try:
                if not _is_private(os.fstat(area)):
                    return False  # another user has replaced the directory
                header_path = _start_of(_STORE, _PATH_BYTES_MAX, area)
            finally:
                os.close(area)
            return os.path.basename(self.path) not in _start_of(header_path, _HEADER_BYTES_MAX)
        except (OSError, ValueError):
            return True

    def _remove(self) -> None:
        self.lock()
        try:
            self.keep_only([])
            os.unlink(os.path.join(self._inner, _STORE))
            for name in (_COPIES, _TREES, _RECORDS):
                os.rmdir(os.path.join(self._inner, name))
            os.rmdir(self.path)
        finally:
            self.close()

    def lock(self) -> None:
        """Lock the area against changes by other processes.

        Raises:
            BlockingIOError: Another process holds the lock.
            PermissionError: The area belongs to another user.
        """
        fd = os.open(self.path, _OPEN_DIRECTORY)
        try:
            if not _is_private(os.fstat(fd)):
                raise PermissionError(f"{os.fsdecode(self.path)} belongs to another user")
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        self._lock_fd = fd
        self._inner = b"/proc/self/fd/%d" % fd

    def close(self) -> None:
        """Release the lock."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1
            self._inner = self.path

    def begin(self, snapshot_id: SnapshotId) -> None:
        """Assign new copies to this snapshot, which has no record yet, so that they are kept."""
        self._number = self._first_number = max(self.numbers(), default=0) + 1
        self._tree_prefix = snapshot_id.encode() + b"."

    def end(self) -> None:
        """Stop protecting the copies of the current snapshot: from now on, its record does."""
        self._first_number, self._tree_prefix = 0, b""

    def add_copy(self, fd: int, copies_fd: int) -> int:
        """Make a reflink copy of an open file; returns the number of the copy.

        If the file system is full, the reflink copies of older snapshots are removed first.

        Raises:
            OSError: The file cannot be copied; nothing is left behind.
        """
        try:
            return self._add_copy(fd, copies_fd)
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT} or not self.snapshots():
                raise
            self.keep_only([])
            return self._add_copy(fd, copies_fd)

    def _add_copy(self, fd: int, copies_fd: int) -> int:
        number, self._number = self._number, self._number + 1
        copy_fd = os.open(copy_name(number), _NEW_COPY, _COPY_MODE, dir_fd=copies_fd)
        try:
            kernel.clone_file(fd, copy_fd)
        except OSError:
            os.unlink(copy_name(number), dir_fd=copies_fd)
            raise
        finally:
            os.close(copy_fd)
        return number

    def copies_fd(self) -> int:
        """Open the directory of copies; the caller closes the descriptor."""
        return os.open(os.path.join(self._inner, _COPIES), _OPEN_DIRECTORY)

    def tree_path(self, name: bytes) -> bytes:
        """Return the path of a frozen subvolume."""
        return os.path.join(self._inner, _TREES, name)

    def numbers(self) -> set[int]:
        """Return the numbers of all copies."""
        return set(map(_number, os.listdir(os.path.join(self._inner, _COPIES))))

    def snapshots(self) -> list[tuple[int, SnapshotId]]:
        """Return time and ID of each snapshot that has a record, newest first."""
        found = []
        with contextlib.suppress(OSError):
            for name in os.listdir(os.path.join(self._inner, _RECORDS)):
                snapshot_id = SnapshotId(os.fsdecode(name))
                record = self.record(snapshot_id)
                if record is not None:
                    found.append((record.taken_ns, snapshot_id))
        return sorted(found, reverse=True)

    def record(self, snapshot_id: SnapshotId) -> Record | None:
        """Return the record of a snapshot; None if it is missing or damaged."""
        return Record.read(os.path.join(self._inner, _RECORDS, os.fsencode(snapshot_id)))

    def write_record(
        self, snapshot_id: SnapshotId, taken_ns: int, roots: Sequence[RootRecord]
    ) -> None:
        """Write the record of a snapshot; it is durable when this returns."""
        directory = os.path.join(self._inner, _RECORDS)
        durable.write_whole(
            os.fsdecode(os.path.join(directory, os.fsencode(snapshot_id))),
            encode_record(taken_ns, roots),
            temporary_directory=os.fsdecode(directory),
            mode=0o600,
        )

    def keep_only(self, snapshot_ids: Collection[SnapshotId]) -> list[SnapshotId]:
        """Remove the records of all other snapshots, and every copy that no record names.

        Records go first, so that no reader trusts copies that are partly removed. The copies of the
        current snapshot have no record yet, and stay.

        Returns:
            The snapshots whose records were removed.
        """
        removed = []
        used: set[int] = set()
        trees = set()
        records = os.path.join(self._inner, _RECORDS)
        for name in os.listdir(records):
            snapshot_id = SnapshotId(os.fsdecode(name))
            record = self.record(snapshot_id)
            if record is None or snapshot_id not in snapshot_ids:
                durable.remove_file(os.fsdecode(os.path.join(records, name)))
                if record is not None:
                    removed.append(snapshot_id)
                continue
            for root in record.roots:
                used.update(root.copies.numbers())
                trees.add(root.tree)
        self._remove_trees(trees)
        self._remove_copies(used)
        return removed

    def _remove_copies(self, used: set[int]) -> None:
        directory = os.path.join(self._inner, _COPIES)
        for name in os.listdir(directory):
            number = _number(name)
            if number not in used and not 0 < self._first_number <= number:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(directory, name))

    def _remove_trees(self, used: set[bytes]) -> None:
        fd = os.open(os.path.join(self._inner, _TREES), _OPEN_DIRECTORY)
        try:
            for name in map(os.fsencode, os.listdir(fd)):
                if name not in used and not (
                    self._tree_prefix and name.startswith(self._tree_prefix)
                ):
                    kernel.remove_subvolume(fd, name)
        finally:
            os.close(fd)


def make_top(place: bytes, *, in_subvolume: bool) -> None:
    """Make the directory of all areas in a place, unless it exists.

    Args:
        place: The directory.
        in_subvolume: Make it a btrfs subvolume, if possible.

    Raises:
        OSError: It cannot be made.
    """
    path = os.path.join(place, AREA_NAME)
    if in_subvolume:
        with contextlib.suppress(OSError), opened(place) as fd:
            kernel.create_subvolume(fd, AREA_NAME)
        with contextlib.suppress(OSError):
            _make_private(path)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, _MODE)


def _make_private(path: bytes) -> None:
    """Take the rights of others from a new subvolume: the kernel makes it like any directory.

    Only while it is empty, and only if no other user could have put anything there.
    """
    with opened(path) as fd:
        status = os.fstat(fd)
        is_own = status.st_uid == os.geteuid() and not status.st_mode & _OTHERS_WRITE
        if is_own and not _is_private(status) and not os.listdir(fd):
            os.fchmod(fd, _MODE)


@contextlib.contextmanager
def opened(path: bytes) -> Iterator[int]:
    """Open a directory for the duration of the block; a symlink is refused."""
    fd = os.open(path, _OPEN_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def copy_name(number: int) -> bytes:
    """Return the name of a copy in ``copies/``."""
    return b"%016x" % number


def _number(name: bytes) -> int:
    """Return the number of the copy of this name; -1 if it is not the name of a copy."""
    return int(name, 16) if re.fullmatch(_COPY_NAME, name) else -1


def _start_of(path: bytes, bytes_max: int, directory: int | None = None) -> bytes:
    """Return the first bytes of a regular file; b"" for other files, which might block."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    with open(fd, "rb") as file:
        return file.read(bytes_max) if stat.S_ISREG(os.fstat(fd).st_mode) else b""


def _is_own(path: bytes) -> bool:
    """Return whether a path is a directory that only this user can access."""
    try:
        return _is_private(os.lstat(path))
    except OSError:
        return False


def _is_private(status: os.stat_result) -> bool:
    return (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == os.geteuid()
        and not stat.S_IMODE(status.st_mode) & 0o077
    )
