"""Which files in which snapshots need lost chunks."""

import contextlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ciuic.catalog import all_snapshots, known_lost
from ciuic.documents import Document
from ciuic.errors import CancelledError, SnapshotNotFoundError, StoreError
from ciuic.ids import ChunkId, PackId, SnapshotId
from ciuic.maintain.scrub.subject import Subject
from ciuic.maintain.watch import cancel_check
from ciuic.model import path_text
from ciuic.store.store import Store
from ciuic.view.damage import DamageSurvey

__all__ = ["CostSearch", "DamagedFile", "FileCost"]


class DamagedFile(NamedTuple):
    """A path that cannot be restored, and the snapshots where this is so, newest first."""

    path: bytes
    what: str
    snapshots: tuple[SnapshotId, ...]

    def as_json(self) -> Document:
        """Return a part of the document of ``ciuic scrub --json``."""
        return {
            "path": path_text(self.path),
            "what": self.what,
            "snapshots": list(self.snapshots),
        }


class FileCost(NamedTuple):
    """A damaged file, and the pack that lost its chunks.

    Attributes:
        file: The file.
        is_listed: It needs a chunk that the search was made for.
        pack_id: The pack that lost the first of these chunks; None if that is not known.
    """

    file: DamagedFile
    is_listed: bool
    pack_id: PackId | None


class _Found:
    """A damaged path while the search goes on."""

    def __init__(self, what: str, lost_ids: list[ChunkId], lost: Mapping[ChunkId, PackId | None]):
        self.what = what
        self.snapshots: list[SnapshotId] = []
        self.is_listed = bool(lost_ids)
        self.pack_id = lost[lost_ids[0]] if lost_ids else None


class CostSearch:
    """Finds the files that need lost chunks, in one or several calls.

    A search can be cancelled at any moment; the next call continues it. It starts again only if
    some of the lost chunks have been stored again meanwhile. Snapshots that were taken since the
    search began are left out: no snapshot refers to chunks that are known to be lost.

    Args:
        store_id: ID of the store that lost chunks.
        lost: The lost chunks, each with the pack that lost it; None if that is not known.

    Attributes:
        missing: Further chunks that snapshots need and no pack has.
        has_damage: A snapshot is damaged; one in the trash counts, since it can be brought back.
    """

    def __init__(self, store_id: str, lost: Mapping[ChunkId, PackId | None]) -> None:
        self._store_id = store_id
        self._lost = lost
        self._still_lost: set[ChunkId] = set()
        self._survey: DamageSurvey | None = None
        self._left: list[SnapshotId] = []
        self._in_trash: set[SnapshotId] = set()
        self._found: dict[bytes, _Found] = {}
        self.missing: set[ChunkId] = set()
        self.has_damage = False

    def find(
        self, subject: Subject, cancelled: Callable[[], bool] = lambda: False
    ) -> list[FileCost] | None:
        """Walk snapshots until all were walked, or ``cancelled`` turns true.

        Returns:
            Every damaged file, sorted by path; None if the search was cancelled.

        Raises:
            StoreError: The store cannot be used, or a different store is at its path; the next call
                starts again.
        """
        with subject.opened() as store, contextlib.suppress(CancelledError):
            try:
                store.refuse_other(self._store_id)
                self._walk(store, cancel_check(cancelled, "scrub was stopped"))
                store.refuse_other(self._store_id)
            except StoreError:
                self._survey = None
                raise
            return self._costs(store)
        return None

    def _walk(self, store: Store, check: Callable[[], None]) -> None:
        still_lost = _still_lost(store, self._lost)
        lost = still_lost | known_lost(store)
        if self._survey is None or not self._still_lost <= still_lost:
            self._still_lost = still_lost
            self._survey = DamageSurvey(store, lost)
            snapshots = [one for one in all_snapshots(store) if not one.purged]
            self._left = [one.id for one in reversed(snapshots)]
            self._in_trash = {one.id for one in snapshots if one.forgotten_ns is not None}
            self._found = {}
            self.missing = set()
            self.has_damage = False
        self._survey.resume(store, lost, check)
        while self._left:
            with contextlib.suppress(SnapshotNotFoundError):  # forgotten meanwhile
                self._note_damage(self._survey, self._left[-1])
            self._left.pop()
            check()

    def _note_damage(self, survey: DamageSurvey, snapshot_id: SnapshotId) -> None:
        if snapshot_id in self._in_trash:
            self.has_damage |= not survey.is_sound(snapshot_id)
            return
        for damaged in list(survey.damage(snapshot_id)):
            self.has_damage = True
            self.missing.update(
                [one for one in damaged.chunks.values() if one and one not in self._lost]
            )
            if damaged.path not in self._found:
                lost_ids = [
                    chunk_id for chunk_id in damaged.chunks.values() if chunk_id in self._lost
                ]
                self._found[damaged.path] = _Found(damaged.what, lost_ids, self._lost)
            self._found[damaged.path].snapshots.append(snapshot_id)

    def _costs(self, store: Store) -> list[FileCost]:
        listed = store.listed_ids()
        costs = []
        for path, found in sorted(self._found.items()):
            snapshots = tuple(
                [snapshot_id for snapshot_id in found.snapshots if snapshot_id in listed]
            )
            if snapshots:
                file = DamagedFile(path, found.what, snapshots)
                costs.append(FileCost(file, found.is_listed, found.pack_id))
        return costs


def _still_lost(store: Store, lost: Mapping[ChunkId, PackId | None]) -> set[ChunkId]:
    """Return the lost chunks that no snapshot has stored again in another pack since."""
    index = store.existing_index
    places = {} if index is None else index.places(list(lost))
    return {
        chunk_id
        for chunk_id, pack_id in lost.items()
        if chunk_id not in places or places[chunk_id].pack_id == pack_id
    }
