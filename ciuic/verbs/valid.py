"""What to take instead of what is damaged: the nearest valid snapshot, and older whole versions.

Valid means here: as far as is known. Trees are read, chunks are looked up, and what a scrub or
the verification that asks has found to be lost counts as lost; nothing else is read.
"""

import contextlib
from typing import Final

from ciuic.catalog import list_snapshots
from ciuic.errors import CorruptionError, SnapshotNotFoundError, UnknownFormatError
from ciuic.model import FLUX, UNREADABLE, SnapshotSummary, VerifyReport, VerifySnapshot
from ciuic.store import Store
from ciuic.store.frame import KINDS
from ciuic.store.manifest import Manifest
from ciuic.store.survey import Survey, known_lost
from ciuic.verbs.browse import Locator

__all__ = ["with_alternatives"]

_TRIES_MAX: Final = 20_000
"""Paths that are looked for in older snapshots, in all: a ruin must not take hours to describe."""


def with_alternatives(store: Store, report: VerifyReport) -> VerifyReport:
    """The same report, and for each damaged snapshot and path what to take instead.

    Raises:
        StoreError: The store itself can't be used.
    """
    if report.ok:
        return report
    search = _Search(store, report)
    return VerifyReport(
        tuple([one if one.ok else search.complete(one) for one in report.snapshots]),
        report.read_bytes,
        report.chunks,
        report.total_s,
        report.bad,
        report.unreachable,
    )


class _Search:
    def __init__(self, store: Store, report: VerifyReport) -> None:
        self._store = store
        self._snapshots = list_snapshots(store)
        bad = report.bad | known_lost(store)
        self._survey = Survey(store, {name for name in bad if not _can_be_had(store, name)})
        self._valid = {one.id: True for one in report.snapshots if one.ok}
        self._manifests: dict[str, Manifest | None] = {}
        self._tries_left = _TRIES_MAX

    def complete(self, damaged: VerifySnapshot) -> VerifySnapshot:
        """The same snapshot, and what to take instead."""
        order = [one.id for one in self._snapshots]
        at = order.index(damaged.id) if damaged.id in order else -1
        # With itself first: parity or another pack may give back all that is damaged.
        older, newer = self._snapshots[max(at, 0) :], self._snapshots[: max(at, 0)]
        nearest = next(
            (one.id for one in (*older, *reversed(newer)) if self._is_valid(one.id)), None
        )
        intact = {one.path: self._intact_in(one.path, older) for one in damaged.damaged}
        found = {path: name for path, name in intact.items() if name is not None}
        return VerifySnapshot(damaged.id, damaged.damaged, nearest, found)

    def _is_valid(self, snapshot_id: str) -> bool:
        if snapshot_id not in self._valid:
            self._valid[snapshot_id] = self._survey.is_sound(snapshot_id)
        return self._valid[snapshot_id]

    def _intact_in(self, path: bytes, older: list[SnapshotSummary]) -> str | None:
        """The newest of these snapshots that has the path whole, and can give it back."""
        if not path.startswith(b"/"):
            return None  # a manifest
        for snapshot in older:
            if not self._tries_left:
                return None
            self._tries_left -= 1
            manifest = self._manifest(snapshot.id)
            if manifest is None:
                continue
            try:
                located = Locator(self._store, manifest).find(path)
            except (CorruptionError, UnknownFormatError):
                continue
            if located is None:
                continue
            entry = located.entry
            if entry.state not in {FLUX, UNREADABLE} and self._survey.entry_is_sound(entry):
                return snapshot.id
        return None

    def _manifest(self, snapshot_id: str) -> Manifest | None:
        if snapshot_id not in self._manifests:
            try:
                self._manifests[snapshot_id] = self._store.manifest(snapshot_id)
            except (CorruptionError, SnapshotNotFoundError, UnknownFormatError):
                self._manifests[snapshot_id] = None
        return self._manifests[snapshot_id]


def _can_be_had(store: Store, name: bytes) -> bool:
    for kind in KINDS:
        with contextlib.suppress(CorruptionError, UnknownFormatError):
            store.reader.chunk(name, kind=kind)
            return True
    return False
