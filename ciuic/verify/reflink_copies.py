"""Compare every reflink copy of a snapshot with the store."""

import os
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from ciuic.documents import Document
from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.ids import SnapshotId
from ciuic.model import CONSISTENT, Entry, PathWarning, Root, SnapshotSummary
from ciuic.source.freeze.interface import REFLINK_BYTES_MIN
from ciuic.source.freeze.trust import FrozenRoot, open_frozen
from ciuic.store.store import Store
from ciuic.system.clock import Clock
from ciuic.system.workers.threads import Workers
from ciuic.units import counted
from ciuic.view.chunk_plan import matching_parts, windows
from ciuic.view.listing import walk
from ciuic.view.located import Located, root_entry
from ciuic.view.reflinks import ReflinkCopies

__all__ = ["ReflinkReport", "ReflinkSnapshot", "verify_reflink_copies"]

_WORKERS_MAX: Final = 8
_GONE: Final = "its reflink copy is gone or was changed; restore uses the store"
_ALL_GONE: Final = "none of its reflink copies can be opened; restore uses the store"


class ReflinkSnapshot(NamedTuple):
    """The reflink copies of one snapshot.

    Attributes:
        copies: How many were read.
        damaged: Paths whose copy differs from the snapshot.
    """

    id: SnapshotId
    copies: int
    damaged: tuple[PathWarning, ...]


class ReflinkReport(NamedTuple):
    """The result of comparing reflink copies with the store."""

    snapshots: tuple[ReflinkSnapshot, ...]
    read_bytes: int
    chunks: int
    total_s: float

    @property
    def ok(self) -> bool:
        """No copy that was found differs from the store."""
        return not any(snapshot.damaged for snapshot in self.snapshots)

    @property
    def copies(self) -> int:
        """The number of copies that were read."""
        return sum(snapshot.copies for snapshot in self.snapshots)

    def as_json(self) -> Document:
        """Return what ``ciuic verify --hot --json`` prints: it also has ``copies``."""
        return {
            "ok": self.ok,
            "read_bytes": self.read_bytes,
            "chunks": self.chunks,
            "copies": self.copies,
            "total_s": round(self.total_s, 6),
            "snapshots": [
                {
                    "id": snapshot.id,
                    "ok": not snapshot.damaged,
                    "copies": snapshot.copies,
                    "damaged": [bad.as_json() for bad in snapshot.damaged],
                }
                for snapshot in self.snapshots
            ],
        }


def verify_reflink_copies(
    store: Store, snapshots: Iterable[SnapshotSummary], *, clock: Clock
) -> ReflinkReport:
    """Read every reflink copy of some snapshots and compare it with the store.

    Whole chunks are compared by their hash, slices byte by byte.

    Raises:
        StoreError: The store itself cannot be used. Damage is reported, not raised.
    """
    began_s = clock.monotonic_s()
    count = min(_WORKERS_MAX, len(os.sched_getaffinity(0)))
    with Workers(count, "verify") as workers:
        comparison = _Comparison(store, workers)
        results = tuple([comparison.of_snapshot(summary) for summary in snapshots])
    total_s = clock.monotonic_s() - began_s
    return ReflinkReport(results, comparison.read_bytes, comparison.chunks, total_s)


class _Comparison:
    """Compares copies with the store.

    Attributes:
        read_bytes: Bytes of copies that were read so far.
        chunks: How many were compared so far.
    """

    def __init__(self, store: Store, workers: Workers) -> None:
        self._store = store
        self._workers = workers
        self._copies = 0
        self.read_bytes = 0
        self.chunks = 0

    def of_snapshot(self, summary: SnapshotSummary) -> ReflinkSnapshot:
        before = self._copies
        damaged: list[PathWarning] = []
        try:
            manifest = self._store.manifest(summary.id)
        except (CorruptionError, UnknownFormatError) as error:
            damaged.append(PathWarning(os.fsencode(f"snapshots/{summary.id}.json"), error.message))
            return ReflinkSnapshot(summary.id, 0, tuple(damaged))
        copies = ReflinkCopies(self._store, manifest)
        try:
            for root in manifest.roots:
                frozen = open_frozen(self._store.header.store_id, summary.id, root.path)
                if frozen is not None and root.tree:
                    damaged.extend(self._of_root(root, frozen, copies))
                    frozen.close()
        finally:
            copies.close()
        return ReflinkSnapshot(summary.id, self._copies - before, tuple(damaged))

    def _of_root(
        self, root: Root, frozen: FrozenRoot, copies: ReflinkCopies
    ) -> Iterator[PathWarning]:
        before, lost = self._copies, 0
        try:
            for path, entry in walk(self._store, Located(root.path, root_entry(self._store, root))):
                if (
                    not entry.is_file
                    or entry.size_bytes < REFLINK_BYTES_MIN
                    or entry.state != CONSISTENT
                ):
                    continue
                fd = copies.open(path, entry)
                if fd is not None:
                    yield from self._of_copy(path, entry, fd)
                elif frozen.find(entry) is not None:
                    yield PathWarning(path, _GONE)
                else:
                    lost += 1
        except (CorruptionError, UnknownFormatError) as error:
            yield PathWarning(root.path, f"the store's tree cannot be read: {error.message}")
        # A frozen subvolume has no list of its files: some may be missing for a good reason. If all
        # are missing, the subvolume is damaged.
        if frozen.how == "subvolume" and lost and self._copies == before:
            yield PathWarning(root.path, _ALL_GONE)

    def _of_copy(self, path: bytes, entry: Entry, fd: int) -> Iterator[PathWarning]:
        self._copies += 1
        bad, first = 0, 0
        try:
            for window in windows(self._store.reader, entry):
                found = matching_parts(self._store.reader, self._workers, fd, window)
                self.chunks += sum(1 for part in window if part.piece.id)
                for part, same in zip(window, found, strict=True):
                    first = first if bad or same else part.offset
                    bad += not same
            self.read_bytes += entry.size_bytes
        except (CorruptionError, UnknownFormatError) as error:
            yield PathWarning(path, f"its content cannot be read from the store: {error.message}")
        finally:
            os.close(fd)
        if bad:
            yield PathWarning(
                path,
                f"its reflink copy differs from the store in {counted(bad, 'piece')},"
                f" first at byte {first:,}",
            )
