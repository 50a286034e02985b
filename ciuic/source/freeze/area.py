"""Areas: the directories that hold reflink copies.

    <place>/.ciuic-frozen/<store ID>/
        records/<snapshot ID>    the record of a snapshot's copies, with a checksum
        copies/<number>          reflink copies of single files; the ID of the snapshot that has
                                 made a copy gives its first eight digits
        trees/<snapshot ID>.<n>  read-only snapshots of subvolumes
        store                    the path of the store's header

On btrfs, root makes ``.ciuic-frozen`` as a subvolume of its own. So what ciuic writes there is no
change of the subvolume around it (``generation``).

The copies serve two purposes: the next snapshot compares their extents with a file instead of
reading the file, and a restore copies from them by reflink. Nothing depends on them. A record is
written before the snapshot's manifest and is valid for that snapshot only.

Any number of snapshots use an area at once, each with a part of its own:

    - A run creates its record first, empty, and holds its lock (flock) until its snapshot has been
      committed or has failed. While it does, the record, and the copies and trees whose names come
      from the snapshot's ID, are its own. Copies of files that have not changed stay where they
      are: the new record names them, too. So a run shares the lock of its parent's record.
    - A record that another run has locked stays. One that no run has locked is complete, or was
      left by a killed run. A copy that neither a record nor a run accounts for is a leftover, and
      the next run removes it.
    - One process at a time removes; the others leave that to a later run, and wait for nothing.
"""

import contextlib
import errno
import fcntl
import os
import re
from collections.abc import Callable, Collection, Sequence
from typing import Final

from ciuic.ids import SnapshotId
from ciuic.source.freeze.interface import AREA_NAME
from ciuic.source.freeze.private import (
    PRIVATE_MODE,
    is_own,
    is_private,
    locked,
    make_top,
    opened,
    start_of,
)
from ciuic.source.freeze.records import Record, RootRecord, encode_record
from ciuic.system import durable, kernel
from ciuic.system.hashing import data_id

__all__ = ["Area", "copy_name"]

_COPIES: Final = b"copies"
_TREES: Final = b"trees"
_RECORDS: Final = b"records"
_STORE: Final = b"store"
_COPY_MODE: Final = 0o400
_RECORD_MODE: Final = 0o600
_COPY_NAME: Final = rb"[0-9a-f]{16}"
_COUNT_BITS: Final = 32
"""A number has as many bits for a count, after as many that come from the snapshot's ID."""
_FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT))
_PATH_BYTES_MAX: Final = 4096
_HEADER_BYTES_MAX: Final = 1024 * 1024
_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_RECORD: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Area:
    """The reflink copies of one store on one file system.

    Reading needs no lock. The owner of the parent directory may replace the area by another
    directory at any time. So changes go through the descriptor of the locked directory, not through
    its path.
    """

    def __init__(self, path: bytes) -> None:
        self.path = path
        self._inner = path
        self._lock_fd = -1
        self._record_fd = -1
        self._record_name = b""
        self._number = 0
        self._held: dict[SnapshotId, int] = {}
        self._older: set[int] | None = None

    @classmethod
    def find(cls, place: bytes, store_id: str) -> "Area | None":
        """Return the area in a directory, if it exists and only this user can access it."""
        path = os.path.join(place, AREA_NAME)
        inner = os.path.join(path, store_id.encode())
        return cls(inner) if is_own(path) and is_own(inner) else None

    @classmethod
    def make(
        cls, place: bytes, header_path: str, store_id: str, *, in_subvolume: bool = False
    ) -> "Area":
        """Return the area in a directory, locked against its removal; make it if it is missing.

        Areas of stores that no longer exist are removed.

        Args:
            place: The directory.
            header_path: Path of the store's header. An area belongs to a store as long as that
                file exists and has the store's ID.
            store_id: ID of the store.
            in_subvolume: Make it in a btrfs subvolume of its own, if possible.

        Raises:
            OSError: The area cannot be made or written, belongs to another user, or is being
                removed.
        """
        path = os.path.join(place, AREA_NAME)
        inner = os.path.join(path, store_id.encode())
        make_top(place, in_subvolume=in_subvolume)
        for directory in (path, inner):
            with contextlib.suppress(FileExistsError):
                os.mkdir(directory, PRIVATE_MODE)
            if not is_own(directory):
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
                os.mkdir(os.path.join(self._inner, name), PRIVATE_MODE)
        path = os.path.join(self._inner, _STORE)
        wanted = os.fsencode(os.path.abspath(header_path))
        with contextlib.suppress(OSError):
            if start_of(path, _PATH_BYTES_MAX) == wanted:
                return  # a full disk would refuse to write it again
        with open(path, "wb") as file:
            file.write(wanted)

    def _is_orphan(self) -> bool:
        """Return whether the store of this area is no longer at its path."""
        try:
            area = os.open(self.path, _OPEN_DIRECTORY)
            try:
                if not is_private(os.fstat(area)):
                    return False  # another user has replaced the directory
                header_path = start_of(_STORE, _PATH_BYTES_MAX, area)
            finally:
                os.close(area)
            return os.path.basename(self.path) not in start_of(header_path, _HEADER_BYTES_MAX)
        except (OSError, ValueError):
            return True

    def _remove(self) -> None:
        self.lock(alone=True)
        try:
            self.clean(self.finished())
            os.unlink(os.path.join(self._inner, _STORE))
            for name in (_COPIES, _TREES, _RECORDS):
                os.rmdir(os.path.join(self._inner, name))
            os.rmdir(self.path)
        finally:
            self.close()

    def lock(self, *, alone: bool = False) -> None:
        """Keep other processes from removing the area.

        Args:
            alone: Keep them from using it as well.

        Raises:
            BlockingIOError: Another process removes the area, or, alone, uses it.
            PermissionError: The area belongs to another user.
        """
        fd = os.open(self.path, _OPEN_DIRECTORY)
        try:
            if not is_private(os.fstat(fd)):
                raise PermissionError(f"{os.fsdecode(self.path)} belongs to another user")
            fcntl.flock(fd, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        self._lock_fd = fd
        self._inner = b"/proc/self/fd/%d" % fd

    def close(self) -> None:
        """Release all locks."""
        self.end()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1
            self._inner = self.path

    def begin(self, snapshot_id: SnapshotId) -> None:
        """Create the record of this snapshot and lock it: new copies now belong to the snapshot.

        Raises:
            OSError: It cannot be created; nothing is left behind.
        """
        self._record_name = os.fsencode(snapshot_id)
        self._record_fd = self._with_room(self._new_record)
        self._number = (_first_digits(self._record_name) << _COUNT_BITS) + 1

    def _new_record(self) -> int:
        path = self._record_path(self._record_name)
        while True:
            fd = os.open(path, _NEW, _RECORD_MODE)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                if os.fstat(fd).st_nlink:
                    return fd
            except OSError:
                os.close(fd)
                os.unlink(path)
                raise
            os.close(fd)  # before it was locked, another run took it for a leftover

    def end(self) -> None:
        """Give up the locks of records: from now on, a written record protects its copies."""
        if self._record_fd >= 0:
            os.close(self._record_fd)
            self._record_fd = -1
        self._let_go()

    def hold(self, snapshot_id: SnapshotId) -> Record | None:
        """Return the record of a snapshot, and let no process remove it until ``end``.

        If the file system is full, this run itself removes it.

        Returns:
            None if it is missing or damaged, or another process removes it.
        """
        if snapshot_id not in self._held:
            try:
                fd = os.open(self._record_path(os.fsencode(snapshot_id)), _OPEN_RECORD)
            except OSError:
                return None
            self._held[snapshot_id] = fd
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._held.pop(snapshot_id))
                return None
        return self.record(snapshot_id)

    def _let_go(self) -> None:
        for fd in self._held.values():
            os.close(fd)
        self._held = {}

    def older(self) -> set[int]:
        """Return the numbers of the copies that were there at the first call.

        It is emptied if they have had to make room.
        """
        if self._older is None:
            self._older = self.numbers()
        return self._older

    def add_copy(self, fd: int, copies_fd: int) -> int:
        """Make a reflink copy of an open file; returns the number of the copy.

        If the file system is full, the reflink copies of older snapshots are removed first, except
        those that other runs use.

        Raises:
            OSError: The file cannot be copied; nothing is left behind.
        """
        return self._with_room(lambda: self._add_copy(fd, copies_fd))

    def _with_room(self, make: Callable[[], int]) -> int:
        try:
            return make()
        except OSError as error:
            if error.errno not in _FULL:
                raise
            self._let_go()
            self.older().clear()
            if not self.clean(self.finished()):
                raise
        return make()

    def _add_copy(self, fd: int, copies_fd: int) -> int:
        number, copy_fd = self._new_copy(copies_fd)
        try:
            kernel.clone_file(fd, copy_fd)
        except OSError:
            os.unlink(copy_name(number), dir_fd=copies_fd)
            raise
        finally:
            os.close(copy_fd)
        return number

    def _new_copy(self, copies_fd: int) -> tuple[int, int]:
        """Create an empty copy; returns its number and a descriptor."""
        while True:
            number, self._number = self._number, self._number + 1
            # Of a billion pairs of snapshots, one has the same first digits.
            with contextlib.suppress(FileExistsError):
                return number, os.open(copy_name(number), _NEW, _COPY_MODE, dir_fd=copies_fd)

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
        """Return the record of a snapshot; None if it is missing, damaged or not yet written."""
        return Record.read(self._record_path(os.fsencode(snapshot_id)))

    def _record_path(self, name: bytes) -> bytes:
        return os.path.join(self._inner, _RECORDS, name)

    def write_record(self, taken_ns: int, roots: Sequence[RootRecord]) -> None:
        """Write the record of the snapshot that has begun; it is durable when this returns."""
        path = os.fsdecode(self._record_path(self._record_name))
        durable.write_open(self._record_fd, path, encode_record(taken_ns, roots))

    def finished(self) -> set[SnapshotId]:
        """Return the snapshots with a record that no run is about to write or commit."""
        return {
            SnapshotId(os.fsdecode(name))
            for name in self._record_names()
            if not self._is_live(name)
        }

    def _record_names(self) -> list[bytes]:
        return os.listdir(os.path.join(self._inner, _RECORDS))

    def _is_live(self, name: bytes) -> bool:
        """Return whether the run that has created a record holds its lock."""
        try:
            with locked(self._record_path(name), fcntl.LOCK_SH):
                return False
        except BlockingIOError:
            return True
        except FileNotFoundError:
            return False

    def clean(self, snapshot_ids: Collection[SnapshotId]) -> list[SnapshotId]:
        """Remove the records of these snapshots, and what killed runs have left.

        What a run uses stays: its own record, copies and trees, and its parent's. Nothing happens
        if another process is removing at this moment.

        Returns:
            The snapshots that have lost their copies.
        """
        directory = os.path.join(self._inner, _RECORDS)
        try:
            with locked(directory, fcntl.LOCK_EX):
                # Listed first: what is listed here belongs to a run that is still live below, or
                # that has ended and has written its record, or to no run.
                copies = os.listdir(os.path.join(self._inner, _COPIES))
                trees = os.listdir(os.path.join(self._inner, _TREES))
                live = [name for name in self._record_names() if self._is_live(name)]
                removed = self._remove_records(set(map(os.fsencode, snapshot_ids)))
                # Read last: a run writes its record before it gives up the one of its parent.
                numbers, names = self._accounted_for()
        except BlockingIOError:
            return []
        parts = {_first_digits(name) for name in live}
        self._remove_copies(
            [
                name
                for name in copies
                if (number := _number(name)) not in numbers and number >> _COUNT_BITS not in parts
            ]
        )
        self._remove_trees(
            [name for name in trees if name not in names and name.rpartition(b".")[0] not in live]
        )
        return removed

    def _remove_records(self, unwanted: set[bytes]) -> list[SnapshotId]:
        """Remove unwanted and damaged records that no run uses; returns those that were sound.

        Records go first, so that no reader trusts copies that are partly removed.
        """
        removed = []
        for name in self._record_names():
            path = self._record_path(name)
            if name not in unwanted and Record.read(path) is not None:
                continue
            with (
                contextlib.suppress(BlockingIOError, FileNotFoundError),
                locked(path, fcntl.LOCK_EX),
            ):
                is_sound = Record.read(path) is not None
                if name in unwanted or not is_sound:
                    durable.remove_file(os.fsdecode(path))
                    removed += [SnapshotId(os.fsdecode(name))] * is_sound
        return removed

    def _accounted_for(self) -> tuple[set[int], set[bytes]]:
        """Return the numbers of the copies and the names of the trees that a record has."""
        numbers: set[int] = set()
        names = set()
        for name in self._record_names():
            record = Record.read(self._record_path(name))
            for root in record.roots if record is not None else ():
                numbers.update(root.copies.numbers())
                names.add(root.tree)
        return numbers, names

    def _remove_copies(self, names: Sequence[bytes]) -> None:
        directory = os.path.join(self._inner, _COPIES)
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(directory, name))

    def _remove_trees(self, names: Sequence[bytes]) -> None:
        with opened(os.path.join(self._inner, _TREES)) as fd:
            for name in names:
                # Two processes may remove the leftovers of the same run.
                with contextlib.suppress(FileNotFoundError):
                    kernel.remove_subvolume(fd, name)


def copy_name(number: int) -> bytes:
    """Return the name of a copy in ``copies/``."""
    return b"%016x" % number


def _first_digits(name: bytes) -> int:
    """Return the first half of the numbers of the copies that the run with this record makes."""
    return int.from_bytes(data_id(name)[: _COUNT_BITS // 8], "big")


def _number(name: bytes) -> int:
    """Return the number of the copy of this name; -1 if it is not the name of a copy."""
    return int(name, 16) if re.fullmatch(_COPY_NAME, name) else -1
