"""Frozen copies that serve a restore, and the proof that they hold what the store does.

Capture leaves copy-on-write copies of the newest snapshots' files (capture/frozen.py). A restore
shares their blocks instead of decoding chunks; a copy that is gone, was touched, or lies on
another file system is passed over, and the store serves as if there were none. Decision 0009.
"""

import errno
import os
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from ciuic.capture import kernel
from ciuic.capture.extents import Range, changed_ranges, data_ranges
from ciuic.capture.frozen import FrozenRoot, open_frozen
from ciuic.clock import Clock
from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.model import WHOLE, Entry, Root, SnapshotSummary, Trouble
from ciuic.scan import DirectoryHandle
from ciuic.store import Store
from ciuic.store.manifest import Manifest
from ciuic.verbs.browse import Located, root_entry, walk
from ciuic.verbs.pieces import held, windows

__all__ = [
    "HOT_BYTES_MIN",
    "HotCopies",
    "HotReport",
    "HotSnapshot",
    "has_same_bytes",
    "share_blocks",
    "verify_hot",
]

HOT_BYTES_MIN: Final = 16 * 1024 + 1
"""Smaller files are written from the store: one write is shorter than finding a copy."""
_COMPARED_BYTES: Final = 1024 * 1024
_WORKERS_MAX: Final = 8
_NEVER: Final = {errno.EXDEV, errno.EOPNOTSUPP, errno.ENOTTY, errno.ENOSYS}
"""Two file systems that can't share blocks now never will."""
_GONE: Final = "its hot copy is gone, or was touched after it was made; restore takes the store's"
_ALL_GONE: Final = "none of its hot copies can be opened; restore takes the store's"


class HotCopies:
    """The hot copies of one snapshot; nothing is opened before it is asked for.

    All methods may be called from any thread. Nothing raises: what can't be had isn't there.
    """

    def __init__(self, store: Store, manifest: Manifest) -> None:
        self._store_id = store.header.store_id
        self._snapshot_id = manifest.summary.id
        self._roots = [root.path for root in manifest.roots if root.tree]
        self._frozen: dict[bytes, FrozenRoot | None] = {}
        self._sharing: dict[tuple[int, int], bool] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Give up all descriptors."""
        for frozen in self._frozen.values():
            if frozen is not None:
                frozen.close()
        self._frozen = {}

    def open(self, path: bytes, entry: Entry) -> int | None:
        """A read-only descriptor of a file's hot copy, as long as the file; the caller closes it.

        Args:
            path: Absolute, as the snapshot has it.
            entry: As the snapshot has it.

        Returns:
            None where there is no copy that is still what was recorded of it, or where the
            file was in flux: then the copy may be of another moment than what was stored.
        """
        if not entry.is_file or entry.state != WHOLE or entry.size_bytes < HOT_BYTES_MIN:
            return None
        root = self._root_of(path)
        if root is None or not {b"", b".", b".."}.isdisjoint(path[1:].split(b"/")):
            return None
        with self._lock:
            if root not in self._frozen:
                self._frozen[root] = open_frozen(self._store_id, self._snapshot_id, root)
            frozen = self._frozen[root]
            fd = frozen.open(path, entry) if frozen is not None else None
        if fd is not None and os.fstat(fd).st_size != entry.size_bytes:
            os.close(fd)
            return None
        return fd

    def shares_blocks(self, copy_fd: int, directory: DirectoryHandle) -> bool:
        """Files in a directory can share the blocks of a copy: tried once on one without a name.

        Only then do equal places of their extents mean equal bytes.
        """
        pair = (os.fstat(copy_fd).st_dev, os.fstat(directory.fd).st_dev)
        known = self._sharing.get(pair)
        if known is not None:
            return known
        try:
            flags = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC
            fd = os.open(b".", flags, 0o600, dir_fd=directory.fd)
            try:
                kernel.clone_file(copy_fd, fd)
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno in _NEVER:
                self._sharing[pair] = False
            return False
        self._sharing[pair] = True
        return True

    def _root_of(self, path: bytes) -> bytes | None:
        for root in self._roots:
            if path.startswith(root.rstrip(b"/") + b"/"):
                return root
        return None


def share_blocks(copy_fd: int, fd: int) -> bool:
    """Make an empty file share all blocks of a copy; False, and it is empty, where that fails.

    A copy that somebody touches meanwhile is not taken.
    """
    before = os.fstat(copy_fd)
    try:
        kernel.clone_file(copy_fd, fd)
    except OSError:
        return False
    after, made = os.fstat(copy_fd), os.fstat(fd)
    return (before.st_ctime_ns, before.st_size) == (
        after.st_ctime_ns,
        after.st_size,
    ) and made.st_size == before.st_size


def has_same_bytes(copy_fd: int, fd: int) -> bool:
    """An open file has the bytes of a copy that it may share blocks with.

    Only what does not share blocks is read, up to the first difference. A file that is being
    written meanwhile is not the same, nor is one with zeros written out where the copy has holes.

    Raises:
        OSError: One of them can't be read.
    """
    before, size = os.fstat(fd), os.fstat(copy_fd).st_size
    if before.st_size != size or _data_bytes(fd) > _data_bytes(copy_fd):
        return False
    ranges = changed_ranges(copy_fd, size, fd, size)
    for start, length_bytes in [Range(0, size)] if ranges is None else ranges:
        end = start + length_bytes
        for at in range(start, end, _COMPARED_BYTES):
            length = min(_COMPARED_BYTES, end - at)
            if os.pread(copy_fd, length, at) != os.pread(fd, length, at):
                return False
    after = os.fstat(fd)
    return (before.st_mtime_ns, before.st_ctime_ns, size) == (
        after.st_mtime_ns,
        after.st_ctime_ns,
        after.st_size,
    )


def _data_bytes(fd: int) -> int:
    """How much of a file is neither hole nor preallocated; 0 where nothing tells."""
    return sum([one.length_bytes for one in data_ranges(fd) or ()])


class HotSnapshot(NamedTuple):
    """What was found of one snapshot's hot copies.

    Attributes:
        copies: Those that were read.
        damaged: Paths whose copy does not hold what the snapshot does.
    """

    id: str
    copies: int
    damaged: tuple[Trouble, ...]


class HotReport(NamedTuple):
    """The outcome of reading hot copies."""

    snapshots: tuple[HotSnapshot, ...]
    read_bytes: int
    chunks: int
    total_s: float

    @property
    def ok(self) -> bool:
        """Every copy that there is holds what the store does."""
        return not any(one.damaged for one in self.snapshots)

    @property
    def copies(self) -> int:
        """How many were read."""
        return sum(one.copies for one in self.snapshots)

    def as_json(self) -> dict[str, Any]:
        """The document of ``ciuic verify --hot --json``: verify's own, and ``copies``."""
        return {
            "ok": self.ok,
            "read_bytes": self.read_bytes,
            "chunks": self.chunks,
            "copies": self.copies,
            "total_s": round(self.total_s, 6),
            "snapshots": [
                {
                    "id": one.id,
                    "ok": not one.damaged,
                    "copies": one.copies,
                    "damaged": [bad.as_json() for bad in one.damaged],
                }
                for one in self.snapshots
            ],
        }


def verify_hot(store: Store, snapshots: Iterable[SnapshotSummary], *, clock: Clock) -> HotReport:
    """Read every hot copy of some snapshots and compare it with what the store has.

    Whole chunks are compared by their hash, slices with the bytes of the store.

    Raises:
        StoreError: The store itself can't be used. Damage is not raised but reported.
    """
    began_s = clock.monotonic_s()
    workers = min(_WORKERS_MAX, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(workers, "verify") as pool:
        proof = _Proof(store, pool)
        results = tuple([proof.of_snapshot(one) for one in snapshots])
    return HotReport(results, proof.read_bytes, proof.chunks, clock.monotonic_s() - began_s)


class _Proof:
    """Compares copies with the store.

    Attributes:
        read_bytes: Read from copies so far.
        chunks: Compared so far.
    """

    def __init__(self, store: Store, pool: ThreadPoolExecutor) -> None:
        self._store = store
        self._pool = pool
        self._copies = 0
        self.read_bytes = 0
        self.chunks = 0

    def of_snapshot(self, summary: SnapshotSummary) -> HotSnapshot:
        before = self._copies
        damaged: list[Trouble] = []
        try:
            manifest = self._store.manifest(summary.id)
        except (CorruptionError, UnknownFormatError) as error:
            damaged.append(Trouble(os.fsencode(f"snapshots/{summary.id}.json"), error.message))
            return HotSnapshot(summary.id, 0, tuple(damaged))
        copies = HotCopies(self._store, manifest)
        try:
            for root in manifest.roots:
                frozen = open_frozen(self._store.header.store_id, summary.id, root.path)
                if frozen is not None and root.tree:
                    damaged.extend(self._of_root(root, frozen, copies))
                    frozen.close()
        finally:
            copies.close()
        return HotSnapshot(summary.id, self._copies - before, tuple(damaged))

    def _of_root(self, root: Root, frozen: FrozenRoot, copies: HotCopies) -> Iterator[Trouble]:
        before, lost = self._copies, 0
        try:
            for path, entry in walk(self._store, Located(root.path, root_entry(self._store, root))):
                if not entry.is_file or entry.size_bytes < HOT_BYTES_MIN or entry.state != WHOLE:
                    continue
                fd = copies.open(path, entry)
                if fd is not None:
                    yield from self._of_copy(path, entry, fd)
                elif frozen.find(entry) is not None:
                    yield Trouble(path, _GONE)
                else:
                    lost += 1
        except (CorruptionError, UnknownFormatError) as error:
            yield Trouble(root.path, f"the store's tree can't be read: {error.message}")
        # Of a single file nobody knows whether a frozen subvolume had it; of all of them one does.
        if frozen.how == "subvolume" and lost and self._copies == before:
            yield Trouble(root.path, _ALL_GONE)

    def _of_copy(self, path: bytes, entry: Entry, fd: int) -> Iterator[Trouble]:
        self._copies += 1
        bad, first = 0, 0
        try:
            for window in windows(self._store.reader, entry):
                found = held(self._store.reader, self._pool, fd, window)
                self.chunks += sum(1 for part in window if part.piece.id)
                for part, same in zip(window, found, strict=True):
                    first = first if bad or same else part.offset
                    bad += not same
            self.read_bytes += entry.size_bytes
        except (CorruptionError, UnknownFormatError) as error:
            yield Trouble(path, f"the store can't say what it must hold: {error.message}")
        finally:
            os.close(fd)
        if bad:
            yield Trouble(
                path,
                f"its hot copy differs from the store in {bad:,} pieces, first at byte {first:,}",
            )
