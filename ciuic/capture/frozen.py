"""Frozen copies: where they lie, what is recorded of them, and when they are given up.

    <place>/.ciuic-frozen/<store ID>/
        copies/<number>          clones of single files
        trees/<snapshot ID>.<n>  read-only snapshots of subvolumes
        records/<snapshot ID>    what was frozen for a snapshot, sealed
        store                    where the store's header is

They serve two ends: the next snapshot compares extents with them instead of reading a file, and a
restore clones from them. Nothing depends on them. A copy is believed only as long as its own inode,
size, change time and extents are what the record says, so whoever touches one loses the copy and
not the truth. A record is written before the snapshot's manifest and holds for that snapshot only;
what no record names is left over from a run that was killed, and goes.
"""

import bisect
import contextlib
import errno
import fcntl
import json
import mmap
import os
import re
import stat
import struct
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from ciuic import durable
from ciuic.capture import kernel
from ciuic.capture.extents import fingerprint
from ciuic.hashing import ID_BYTES, data_id
from ciuic.model import Entry
from ciuic.scan import mount_of, mounts

__all__ = [
    "AREA_NAME",
    "Area",
    "Copies",
    "Copy",
    "FrozenRoot",
    "RootRecord",
    "candidate_places",
    "copy_name",
    "frozen_snapshots",
    "give_up",
    "is_short_of_space",
    "open_directory_beneath",
    "open_frozen",
]

AREA_NAME: Final = b".ciuic-frozen"
"""A directory of this name is never part of a snapshot."""
_COPIES: Final = b"copies"
_TREES: Final = b"trees"
_RECORDS: Final = b"records"
_STORE: Final = b"store"
_MODE: Final = 0o700
_COPY_MODE: Final = 0o400
_MAGIC: Final = b"ciuic frozen copies 1\n"
_HEAD: Final = struct.Struct(">I")
_SIGN: Final = 1 << 63
_U64_MAX: Final = 2**64 - 1
_COPY_NAME: Final = re.compile(rb"[0-9a-f]{16}")
_PATH_BYTES_MAX: Final = 4096
_HEADER_BYTES_MAX: Final = 1024 * 1024
_KEY: Final = struct.Struct(">QQQ")
_RECORD: Final = struct.Struct(">QQQQQQ16s")
_SHORT_FRACTION: Final = 0.05
_SHORT_BYTES: Final = 20 << 30
"""Frozen copies go when less than a twentieth of their file system is free, or less than this."""
_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_COPY: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_COPY: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Copy(NamedTuple):
    """What is recorded of one clone.

    Attributes:
        key: Inode, change time and size of the file that was cloned.
        number: Its name in ``copies/``.
        ino: The clone's own inode.
        ctime_ns: The clone's own change time.
        print: Fingerprint of the clone's extents; zeros where the file system has no map.
    """

    key: tuple[int, int, int]
    number: int
    ino: int
    ctime_ns: int
    print: bytes

    @classmethod
    def of(cls, key: tuple[int, int, int], number: int, fd: int) -> "Copy":
        """What there is to record of an open clone."""
        status = os.fstat(fd)
        return cls(key, number, status.st_ino, status.st_ctime_ns, fingerprint(fd) or bytes(16))

    def matches(self, fd: int, size_bytes: int) -> bool:
        """The open file is the clone as it was recorded."""
        status = os.fstat(fd)
        return (
            (status.st_ino, status.st_ctime_ns) == (self.ino, self.ctime_ns)
            and status.st_size == size_bytes == self.key[2]
            and (fingerprint(fd) or bytes(16)) == self.print
        )

    def packed(self) -> bytes:
        """64 bytes that sort by the key."""
        ino, ctime_ns, size_bytes = self.key
        return _RECORD.pack(
            ino, ctime_ns + _SIGN, size_bytes, self.number, self.ino, self.ctime_ns, self.print
        )


class Copies:
    """A sorted table of 64 bytes a clone, in a record's file or in memory."""

    def __init__(self, data: bytes | mmap.mmap = b"", first: int = 0, count: int = 0) -> None:
        self._data = data
        self._first = first
        self._count = count

    @classmethod
    def of(cls, packed: Iterable[bytes]) -> "Copies":
        """The table of records in any order."""
        ordered = sorted(packed)
        return cls(b"".join(ordered), 0, len(ordered))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, at: int) -> bytes:
        start = self._first + at * _RECORD.size
        return self._data[start : start + _RECORD.size]

    def raw(self) -> bytes:
        """All of it."""
        return self._data[self._first : self._first + self._count * _RECORD.size]

    def numbers(self) -> Iterator[int]:
        """The names in ``copies/`` that it speaks of."""
        return (one[3] for one in _RECORD.iter_unpack(self.raw()))

    def find(self, ino: int, ctime_ns: int, size_bytes: int) -> Copy | None:
        """The clone of a file in this state."""
        wanted = _KEY.pack(ino, ctime_ns + _SIGN, size_bytes)
        at = bisect.bisect_left(self, wanted, 0, self._count)
        if at == self._count or not self[at].startswith(wanted):
            return None
        _, _, _, number, own_ino, own_ctime_ns, found = _RECORD.unpack(self[at])
        return Copy((ino, ctime_ns, size_bytes), number, own_ino, own_ctime_ns, found)


class RootRecord(NamedTuple):
    """What was frozen of one root.

    Attributes:
        path: The root.
        how: "subvolume" or "reflink".
        tree: Name in ``trees/`` of the subvolume that holds it, or empty.
        inside: Path of the root within that subvolume, without a leading slash.
        uuid: Of that subvolume.
        generation: Of that subvolume, once it had been made.
        copies: The clones of its files.
    """

    path: bytes
    how: str
    tree: bytes = b""
    inside: bytes = b""
    uuid: bytes = b""
    generation: int = 0
    copies: "Copies" = Copies()


class Area:
    """The frozen copies of one store on one file system.

    Only one process at a time changes an area: it holds a lock on it. Reading needs none.
    Whoever owns the directory above may give its name to another one at any time: what is changed
    is what is locked, whatever its name leads to.
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
        """The area in a place, if it is there and belongs to nobody else."""
        path = os.path.join(place, AREA_NAME)
        inner = os.path.join(path, store_id.encode())
        return cls(inner) if _is_own(path) and _is_own(inner) else None

    @classmethod
    def make(cls, place: bytes, header_path: str, store_id: str) -> "Area":
        """The area in a place, made if need be, and locked. Areas of stores that are gone go.

        Args:
            place: A directory.
            header_path: Of the store's header: as long as that file is there and has the
                store's ID in it, the area is not left over.
            store_id: Of the store.

        Raises:
            OSError: It can't be made or written, is another user's, or is locked.
        """
        path = os.path.join(place, AREA_NAME)
        inner = os.path.join(path, store_id.encode())
        for one in (path, inner):
            with contextlib.suppress(FileExistsError):
                os.mkdir(one, _MODE)
            if not _is_own(one):
                raise PermissionError(f"{os.fsdecode(one)} belongs to another user")
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
        """The store that this is for is not where it was, or another one is there."""
        try:
            with open(os.path.join(self.path, _STORE), "rb") as file:
                header_path = file.read(_PATH_BYTES_MAX)
            if not stat.S_ISREG(os.stat(header_path).st_mode):
                return True
            with open(header_path, "rb") as file:
                return os.path.basename(self.path) not in file.read(_HEADER_BYTES_MAX)
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
        """Keep other processes from changing the area.

        Raises:
            BlockingIOError: Another process has it.
            PermissionError: It is another user's.
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
        """Let go of the lock."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1
            self._inner = self.path

    def begin(self, snapshot_id: str) -> None:
        """What is frozen from now on belongs to this snapshot, which has no record yet."""
        self._number = self._first_number = max(self.numbers(), default=0) + 1
        self._tree_prefix = snapshot_id.encode() + b"."

    def end(self) -> None:
        """The present snapshot has a record, if it has anything frozen."""
        self._first_number, self._tree_prefix = 0, b""

    def clone(self, fd: int, copies_fd: int) -> int:
        """Clone an open file; returns the clone's number.

        When there is no room, the frozen copies of earlier snapshots make some.

        Raises:
            OSError: It can't be cloned; nothing is left behind.
        """
        try:
            return self._clone(fd, copies_fd)
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT} or not self.snapshots():
                raise
            self.keep_only([])
            return self._clone(fd, copies_fd)

    def _clone(self, fd: int, copies_fd: int) -> int:
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
        """A descriptor of the directory of copies."""
        return os.open(os.path.join(self._inner, _COPIES), _OPEN_DIRECTORY)

    def tree_path(self, name: bytes) -> bytes:
        """Where a frozen subvolume lies."""
        return os.path.join(self._inner, _TREES, name)

    def numbers(self) -> set[int]:
        """The copies that there are."""
        return set(map(_number, os.listdir(os.path.join(self._inner, _COPIES))))

    def snapshots(self) -> list[tuple[int, str]]:
        """Moment and ID of each snapshot that a record is there for, newest first."""
        found = []
        with contextlib.suppress(OSError):
            for name in os.listdir(os.path.join(self._inner, _RECORDS)):
                record = self.record(os.fsdecode(name))
                if record is not None:
                    found.append((record.taken_ns, os.fsdecode(name)))
        return sorted(found, reverse=True)

    def record(self, snapshot_id: str) -> "_Record | None":
        """The record of a snapshot, checked; None if it is not there or not whole."""
        return _Record.read(os.path.join(self._inner, _RECORDS, os.fsencode(snapshot_id)))

    def write_record(self, snapshot_id: str, taken_ns: int, roots: Sequence[RootRecord]) -> None:
        """Record what was frozen; durable when this returns."""
        directory = os.path.join(self._inner, _RECORDS)
        durable.write_whole(
            os.fsdecode(os.path.join(directory, os.fsencode(snapshot_id))),
            _encoded(taken_ns, roots),
            temporary_directory=os.fsdecode(directory),
            mode=0o600,
        )

    def keep_only(self, snapshot_ids: Collection[str]) -> list[str]:
        """Remove what no record of these snapshots names; returns whose records were removed.

        Records go first: what is only half removed is believed by nobody. What the present
        snapshot has frozen has no record yet, and stays.
        """
        removed = []
        used: set[int] = set()
        trees = set()
        records = os.path.join(self._inner, _RECORDS)
        for name in os.listdir(records):
            record = self.record(os.fsdecode(name))
            if record is None or os.fsdecode(name) not in snapshot_ids:
                durable.remove_file(os.fsdecode(os.path.join(records, name)))
                if record is not None:
                    removed.append(os.fsdecode(name))
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


class _Record:
    """What was frozen for one snapshot; its copies stay in the file, which is mapped."""

    def __init__(self, taken_ns: int, roots: list[RootRecord]) -> None:
        self.taken_ns = taken_ns
        self.roots = roots

    @classmethod
    def read(cls, path: bytes) -> "_Record | None":
        try:
            fd = os.open(path, _OPEN_COPY)
            try:
                data = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
            finally:
                os.close(fd)
        except (OSError, ValueError):
            return None
        end = len(data) - ID_BYTES
        if end < len(_MAGIC) + _HEAD.size or data[: len(_MAGIC)] != _MAGIC:
            return None
        with memoryview(data) as view:
            if data_id(view[:end]) != data[end:]:
                return None
        try:
            return cls(*_decoded(data, end))
        except (ValueError, TypeError, KeyError, RecursionError):
            return None


def _decoded(data: mmap.mmap, end: int) -> tuple[int, list[RootRecord]]:
    """Moment and roots of a record's file whose checksum is right; its own end is not counted.

    Raises:
        ValueError, TypeError, KeyError, RecursionError: It is no record, whoever sealed it.
    """
    start = len(_MAGIC) + _HEAD.size
    (length,) = _HEAD.unpack_from(data, len(_MAGIC))
    at = start + length
    if at > end:
        raise ValueError("its head is cut short")
    head: dict[str, Any] = json.loads(data[start:at])
    roots = []
    for one in head["roots"]:
        count = _whole_number(one["count"], 0, (end - at) // _RECORD.size)
        roots.append(
            RootRecord(
                path=bytes.fromhex(one["path"]),
                how=str(one["how"]),
                tree=_relative(one["tree"]),
                inside=_relative(one["inside"]),
                uuid=bytes.fromhex(one["uuid"]),
                generation=_whole_number(one["generation"], 0, _U64_MAX),
                copies=Copies(data, at, count),
            )
        )
        at += count * _RECORD.size
    return _whole_number(head["taken_ns"], -_SIGN, _U64_MAX), roots


def _whole_number(value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError("a number is out of range")
    return value


def _relative(digits: str) -> bytes:
    """A path, given in hex, that stays below where it begins."""
    path = bytes.fromhex(digits)
    if b"\0" in path or path.startswith(b"/") or b".." in path.split(b"/"):
        raise ValueError("a path leads elsewhere")
    return path


def _encoded(taken_ns: int, roots: Sequence[RootRecord]) -> bytes:
    head = {
        "taken_ns": taken_ns,
        "roots": [
            {
                "path": one.path.hex(),
                "how": one.how,
                "tree": one.tree.hex(),
                "inside": one.inside.hex(),
                "uuid": one.uuid.hex(),
                "generation": one.generation,
                "count": len(one.copies),
            }
            for one in roots
        ],
    }
    text = json.dumps(head).encode()
    body = b"".join([one.copies.raw() for one in roots])
    data = _MAGIC + _HEAD.pack(len(text)) + text + body
    return data + data_id(data)


class FrozenRoot:
    """What is still frozen of one root of one snapshot."""

    def __init__(self, area: Area, record: RootRecord) -> None:
        self.area = area
        self.how = record.how
        self._record = record
        self._lock = threading.Lock()
        self._tree_fd: int | None = None
        self._copies_fd: int | None = None

    def close(self) -> None:
        """Give up the descriptors."""
        for fd in (self._tree_fd, self._copies_fd):
            if fd is not None and fd >= 0:
                os.close(fd)
        self._tree_fd = self._copies_fd = None

    def open(self, path: bytes, entry: Entry) -> int | None:
        """A read-only descriptor of the frozen copy of a regular file, which the caller closes.

        Args:
            path: Absolute, as the snapshot has it.
            entry: As the snapshot has it.

        Returns:
            None where there is no copy, or none that is still what was recorded of it.
        """
        try:
            if self.how == "subvolume":
                return self._open_in_tree(path, entry)
            return self._open_copy(entry)
        except OSError:
            return None

    def find(self, entry: Entry) -> "Copy | None":
        """What is recorded of the clone of a file; nothing is opened."""
        return self._record.copies.find(entry.ino, entry.ctime_ns, entry.size_bytes)

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
        root = self._record.path
        below = path[len(root) :].strip(b"/") if path != root else b""
        if self._tree_fd < 0 or not below:
            return None
        fd = _open_beneath(self._tree_fd, below.split(b"/"))
        if _is_entry(os.fstat(fd), entry):
            return fd
        os.close(fd)
        return None

    def _open_tree(self) -> int:
        """The root within the frozen subvolume; -1 if that is not the one that was recorded."""
        top = os.open(self.area.tree_path(self._record.tree), _OPEN_DIRECTORY)
        try:
            info = kernel.subvolume_info(top)
            same = (info.uuid, info.generation) == (self._record.uuid, self._record.generation)
            if not same or not info.is_readonly:
                return -1
            return open_directory_beneath(top, self._record.inside)
        finally:
            os.close(top)


def open_frozen(store_id: str, snapshot_id: str, root: bytes) -> FrozenRoot | None:
    """What is still frozen of a root of a snapshot; None when there is nothing."""
    for area in _areas(store_id, [root]):
        record = area.record(snapshot_id)
        for one in record.roots if record is not None else []:
            if one.path == root:
                return FrozenRoot(area, one)
    return None


def frozen_snapshots(store_id: str, roots: Iterable[bytes]) -> list[tuple[str, list[str]]]:
    """For each area of a store's roots, its path and the snapshots in it, newest first."""
    return [
        (os.fsdecode(area.path), [name for _, name in area.snapshots()])
        for area in _areas(store_id, roots)
    ]


def give_up(store_id: str, roots: Iterable[bytes], *, keep: int) -> list[str]:
    """Remove the frozen copies of all but the newest ``keep`` snapshots.

    Returns:
        The snapshots that have lost theirs. An area that is in use is left alone.
    """
    removed: set[str] = set()
    for area in _areas(store_id, roots):
        with contextlib.suppress(OSError):
            area.lock()
            try:
                removed.update(area.keep_only([name for _, name in area.snapshots()[:keep]]))
            finally:
                area.close()
    return sorted(removed)


def is_short_of_space(path: bytes) -> bool:
    """So little is free on a path's file system that frozen copies should not take any of it."""
    space = os.statvfs(path)
    free_bytes = space.f_bavail * space.f_frsize
    return free_bytes < min(_SHORT_FRACTION * space.f_blocks * space.f_frsize, _SHORT_BYTES)


def candidate_places(root: bytes) -> list[bytes]:
    """Where the area for a root may lie, best first: out of the root's way if that can be.

    The top of the mount serves all roots below it; a user who may not write there has the
    directory above the root, or the root itself.
    """
    real = os.path.realpath(root)
    mount = mount_of(real, mounts())
    if mount is None:
        return [real]
    above = os.path.dirname(real)
    places = [mount.point, above, real]
    return list(dict.fromkeys(one for one in places if one.startswith(mount.point)))


def copy_name(number: int) -> bytes:
    """Name of a clone in ``copies/``."""
    return b"%016x" % number


def _number(name: bytes) -> int:
    """The clone that a name stands for; -1 for a stranger."""
    return int(name, 16) if _COPY_NAME.fullmatch(name) else -1


def _areas(store_id: str, roots: Iterable[bytes]) -> list[Area]:
    found: dict[bytes, Area] = {}
    for root in roots:
        for place in candidate_places(root):
            area = Area.find(place, store_id)
            if area is not None:
                found.setdefault(area.path, area)
    return list(found.values())


def _is_own(path: bytes) -> bool:
    """A directory of this user's that nobody else can look into."""
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


def _is_entry(status: os.stat_result, entry: Entry) -> bool:
    """A file in a frozen subvolume is the one that the snapshot has."""
    return (
        stat.S_ISREG(status.st_mode)
        and status.st_ino == entry.ino
        and status.st_size == entry.size_bytes
        and status.st_mtime_ns == entry.mtime_ns
        and status.st_ctime_ns == entry.ctime_ns
    )


def open_directory_beneath(top: int, path: bytes) -> int:
    """A directory below another, no symlink on the way."""
    fd = os.dup(top)
    for name in path.split(b"/") if path else []:
        try:
            inner = os.open(name, _OPEN_DIRECTORY, dir_fd=fd)
        finally:
            os.close(fd)
        fd = inner
    return fd


def _open_beneath(top: int, names: Sequence[bytes]) -> int:
    """A file below a directory, no symlink on the way."""
    directory = open_directory_beneath(top, b"/".join(names[:-1]))
    try:
        return os.open(names[-1], _OPEN_COPY, dir_fd=directory)
    finally:
        os.close(directory)
