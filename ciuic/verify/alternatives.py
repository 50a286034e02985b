"""For damaged snapshots and paths: the nearest valid snapshot, and the newest intact version.

A snapshot counts as valid if no damage is known. Trees are read and chunks are looked up. Chunks
that a scrub or this verification has found to be lost count as lost. File content is not read.
"""

import contextlib
from typing import Final

from ciuic.catalog import known_lost, list_snapshots
from ciuic.errors import CorruptionError, SnapshotNotFoundError, UnknownFormatError
from ciuic.ids import ChunkId, SnapshotId
from ciuic.model import BEING_WRITTEN, UNREADABLE, SnapshotSummary
from ciuic.store.records.kinds import KINDS
from ciuic.store.records.manifest import Manifest
from ciuic.store.store import Store
from ciuic.verify.report import VerifyReport, VerifySnapshot
from ciuic.view.damage import DamageSurvey
from ciuic.view.located import Located
from ciuic.view.locator import Locator

__all__ = ["with_alternatives"]

_TRIES_MAX: Final = 20_000
"""Paths that are looked for in older snapshots. More would take hours in a badly damaged store."""


def with_alternatives(store: Store, report: VerifyReport) -> VerifyReport:
    """Return the same report, with what to use instead of each damaged snapshot and path.

    Raises:
        StoreError: The store itself cannot be used.
    """
    if report.ok:
        return report
    search = _Search(store, report)
    return VerifyReport(
        tuple([result if result.ok else search.complete(result) for result in report.snapshots]),
        report.read_bytes,
        report.chunks,
        report.total_s,
        report.bad,
        report.unreachable,
        report.copies,
        report.removed,
    )


class _Search:
    """Searches the other snapshots of a store."""

    def __init__(self, store: Store, report: VerifyReport) -> None:
        self._store = store
        self._snapshots = list_snapshots(store)
        bad = report.bad | known_lost(store)
        lost = {chunk_id for chunk_id in bad if not _is_readable(store, chunk_id)}
        self._survey = DamageSurvey(store, lost)
        self._valid = {result.id: True for result in report.snapshots if result.ok}
        self._manifests: dict[SnapshotId, Manifest | None] = {}
        self._tries_left = _TRIES_MAX

    def complete(self, damaged: VerifySnapshot) -> VerifySnapshot:
        """Return the same result, with what to use instead."""
        own = next((found for found in self._snapshots if found.id == damaged.id), None)
        snapshots = [
            found for found in self._snapshots if own is None or found.owner.is_same(own.owner)
        ]
        at = 0 if own is None else snapshots.index(own)
        # The snapshot itself comes first: parity or another pack may restore all damaged chunks.
        older, newer = snapshots[at:], snapshots[:at]
        candidates = (*older, *reversed(newer))
        nearest = next((found.id for found in candidates if self._is_valid(found.id)), None)
        # Relative paths name damaged manifests.
        paths = [warning.path for warning in damaged.damaged if warning.path.startswith(b"/")]
        return VerifySnapshot(damaged.id, damaged.damaged, nearest, self._intact(paths, older))

    def _is_valid(self, snapshot_id: SnapshotId) -> bool:
        if snapshot_id not in self._valid:
            self._valid[snapshot_id] = self._survey.is_sound(snapshot_id)
        return self._valid[snapshot_id]

    def _intact(self, paths: list[bytes], older: list[SnapshotSummary]) -> dict[bytes, SnapshotId]:
        """For each path, the newest of these snapshots that has it intact.

        The outer loop is over snapshots, so that the chunks of all paths are looked up together.
        """
        found: dict[bytes, SnapshotId] = {}
        types: dict[bytes, int] = {}
        for snapshot in older:
            waiting = [path for path in paths if path not in found][: self._tries_left]
            if not waiting:
                break
            self._tries_left -= len(waiting)
            found.update(dict.fromkeys(self._whole_in(snapshot.id, waiting, types), snapshot.id))
        return found

    def _whole_in(
        self, snapshot_id: SnapshotId, paths: list[bytes], types: dict[bytes, int]
    ) -> list[bytes]:
        """Return the paths that this snapshot has intact.

        Args:
            snapshot_id: The snapshot.
            paths: The paths.
            types: What each path is in the first snapshot that has it: a directory is no older
                version of a file.
        """
        manifest = self._manifest(snapshot_id)
        if manifest is None:
            return []
        locator = Locator(self._store, manifest)
        located: list[Located] = []
        for path in paths:
            with contextlib.suppress(CorruptionError, UnknownFormatError):
                found = locator.find(path)
                if (
                    found is None
                    or types.setdefault(path, found.entry.file_type) != found.entry.file_type
                ):
                    continue
                if found.entry.state not in {BEING_WRITTEN, UNREADABLE}:
                    located.append(found)
        sound = self._survey.entries_are_sound([found.entry for found in located])
        return [found.path for found, is_sound in zip(located, sound, strict=True) if is_sound]

    def _manifest(self, snapshot_id: SnapshotId) -> Manifest | None:
        if snapshot_id not in self._manifests:
            try:
                self._manifests[snapshot_id] = self._store.manifest(snapshot_id)
            except (CorruptionError, SnapshotNotFoundError, UnknownFormatError):
                self._manifests[snapshot_id] = None
        return self._manifests[snapshot_id]


def _is_readable(store: Store, chunk_id: ChunkId) -> bool:
    """Return whether a pack or parity gives the chunk. Its kind is not known: all are tried."""
    for kind in KINDS:
        with contextlib.suppress(CorruptionError, UnknownFormatError):
            store.reader.chunk(chunk_id, kind=kind)
            return True
    return False
