"""The search for chunks that no pack has, in reflink copies and live files."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from ciuic.catalog import all_snapshots
from ciuic.catalog.removed import was_removed
from ciuic.errors import (
    CancelledError,
    CorruptionError,
    SnapshotNotFoundError,
    UnknownFormatError,
)
from ciuic.ids import ChunkId, SnapshotId
from ciuic.maintain.repair.report import Remaining
from ciuic.maintain.repair.sources import Origin, find_in_file
from ciuic.maintain.watch import OnProgress
from ciuic.model import Entry, PathWarning, SnapshotSummary
from ciuic.store.records.kinds import DATA
from ciuic.store.records.manifest import Manifest
from ciuic.store.records.tree_nodes import read_root
from ciuic.store.store import Store
from ciuic.view.damage import DamageSurvey
from ciuic.view.locator import Locator
from ciuic.view.tree_walk import Cursor, PathBudget

__all__ = ["LostChunkSearch"]

_NAMED_MAX: Final = 1000
"""Damaged paths of a snapshot that are kept by name; the others are counted."""


class LostChunkSearch:
    """Searches the files of all snapshots for chunks that cannot be read from the store.

    Also those of forgotten snapshots, which can be brought back.

    Args:
        store: An open store.
        unreadable: Chunks that are known to be unreadable; more are added.
        cancelled: Asked often; ends the search when it turns true.

    Attributes:
        origins: Chunks that a reflink copy or a live file still has.
        lost: Chunks that were not found anywhere.
    """

    def __init__(
        self, store: Store, unreadable: set[ChunkId], cancelled: Callable[[], bool]
    ) -> None:
        self._store = store
        self._unreadable = unreadable
        self._cancelled = cancelled
        self._readable: set[ChunkId] = set()
        self._searched: tuple[Manifest, Locator] | None = None
        self.origins: dict[ChunkId, Origin] = {}
        self.lost: set[ChunkId] = set()

    def run(self, progress: OnProgress | None) -> tuple[Remaining, ...]:
        """Search the files of all snapshots; returns the listed ones that stay damaged."""
        snapshots = [one for one in all_snapshots(self._store) if not one.purged]
        survey = DamageSurvey(self._store, self._unreadable)
        damaged = []
        for number, snapshot in enumerate(snapshots):
            if self._cancelled():
                raise CancelledError("the repair was stopped")
            if self._search_snapshot(survey, snapshot.id) and snapshot.forgotten_ns is None:
                damaged.append(snapshot)
            if progress is not None:
                progress("snapshots", number + 1, len(snapshots))
        # Not before the search has ended: a later snapshot may have had the chunks.
        found = [self._remaining(survey, snapshot) for snapshot in damaged]
        return tuple([remaining for remaining in found if remaining.damaged_count])

    def _search_snapshot(self, survey: DamageSurvey, snapshot_id: SnapshotId) -> bool:
        """Search the damaged files of a snapshot; returns whether it has damage."""
        is_damaged = False
        with contextlib.suppress(SnapshotNotFoundError):
            for damaged in survey.damage(snapshot_id):
                # Without --apply, no prune waits for a repair.
                if not is_damaged and was_removed(self._store, snapshot_id):
                    return False
                is_damaged = True
                missing = {
                    chunk_id for chunk_id in damaged.chunks if not self._is_readable(chunk_id)
                }
                if missing:
                    self._search_file(snapshot_id, damaged.path, missing)
        return is_damaged

    def _search_file(self, snapshot_id: SnapshotId, path: bytes, missing: set[ChunkId]) -> None:
        if self._searched is None or self._searched[0].summary.id != snapshot_id:
            manifest = self._store.manifest(snapshot_id)
            self._searched = manifest, Locator(self._store, manifest)
        for origin in find_in_file(self._store, *self._searched, path, missing):
            self.origins[origin.chunk_id] = origin
        self.lost |= missing
        self.lost.difference_update(self.origins)

    def _is_readable(self, chunk_id: ChunkId) -> bool:
        if chunk_id in self.origins or chunk_id in self._readable:
            return True
        if chunk_id in self._unreadable:
            return False
        # The survey only checks that packs are long enough. Parity may restore a pack that is not.
        with contextlib.suppress(CorruptionError, UnknownFormatError):
            self._store.reader.chunk(chunk_id, kind=DATA)
            self._readable.add(chunk_id)
            return True
        self._unreadable.add(chunk_id)
        return False

    def _remaining(self, survey: DamageSurvey, snapshot: SnapshotSummary) -> Remaining:
        named: list[PathWarning] = []
        count, lost_files, has_lost_trees = 0, 0, False
        with contextlib.suppress(SnapshotNotFoundError):
            for damaged in survey.damage(snapshot.id):
                if damaged.chunks and all(map(self._is_readable, damaged.chunks)):
                    continue
                count += 1
                lost_files += not damaged.is_directory
                has_lost_trees |= damaged.is_directory
                if len(named) < _NAMED_MAX:
                    named.append(PathWarning(damaged.path, damaged.what))
        files = snapshot.files
        if has_lost_trees:
            files = sum(1 for _ in self._files(snapshot.id))
        files_left = max(0, files - lost_files)
        return Remaining(snapshot.id, tuple(named), count, files_left, snapshot.files)

    def _files(self, snapshot_id: SnapshotId) -> Iterator[Entry]:
        """Yield the regular files in the trees of a snapshot that can still be read."""
        budget = PathBudget(self._store.pack_lengths)
        get = self._store.reader.node
        waiting: list[tuple[Entry, int]] = []
        for root in self._store.manifest(snapshot_id).roots:
            with contextlib.suppress(CorruptionError, UnknownFormatError):
                if root.tree:
                    top = read_root(get, root.tree)
                    waiting += [(top, 0)] if top.content else []
        while waiting and not budget.is_spent:
            directory, depth = waiting.pop()
            with contextlib.suppress(CorruptionError, UnknownFormatError):
                for entry in Cursor(get, directory, depth=depth, budget=budget):
                    if entry.is_file:
                        yield entry
                    elif entry.is_directory and entry.content:
                        waiting.append((entry, depth + 1))
