"""Prove that snapshots can be restored.

Without checksums: every manifest and tree is read and checked. Every chunk is looked up, and its
pack must be long enough to contain it. With checksums every chunk is also read, decoded and hashed.
The report names each damaged path of a snapshot once.
"""

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Final, NamedTuple

from ciuic.catalog import damaged_manifests, list_snapshots
from ciuic.catalog.removed import removed_among
from ciuic.ids import ChunkId, SnapshotId
from ciuic.model import PathWarning, SnapshotSummary
from ciuic.store.store import Store
from ciuic.system.buffers import collect_rarely, prepare_for_bulk
from ciuic.system.clock import Clock
from ciuic.verify.by_footers import Listed
from ciuic.verify.report import VerifyReport, VerifySnapshot
from ciuic.verify.survey import SnapshotSurvey
from ciuic.verify.tasks import OnProgress, Task, in_order

__all__ = ["verify_all", "verify_snapshots"]

_BULK_BYTES: Final = 16 * 1024 * 1024
"""A smaller store is verified before more memory is of use."""


def verify_all(
    store: Store, *, checksum: bool, clock: Clock, progress: OnProgress | None = None
) -> VerifyReport:
    """Verify every snapshot, including those whose manifests cannot be read."""
    broken = damaged_manifests(store)
    report = _verify(
        store,
        list_snapshots(store),
        broken,
        checksum=checksum,
        clock=clock,
        progress=progress,
        every=True,
    )
    return VerifyReport(
        report.snapshots,
        report.read_bytes,
        report.chunks,
        report.total_s,
        report.bad,
        tuple(
            [
                PathWarning(os.fsencode(f"packs/{pack_id.hex()}"), error.message)
                for pack_id, error in sorted(store.unreachable_packs().items())
            ]
        ),
        report.copies,
        report.removed,
    )


def verify_snapshots(
    store: Store,
    snapshots: Iterable[SnapshotSummary],
    broken: Mapping[SnapshotId, str],
    *,
    checksum: bool,
    clock: Clock,
    progress: OnProgress | None = None,
) -> VerifyReport:
    """Verify some snapshots. What they share is checked once.

    Args:
        store: An open store.
        snapshots: The snapshots to verify.
        broken: Other snapshots whose manifests cannot be read, and why: added to the report.
        checksum: Also read, decode and hash every chunk.
        clock: Measures how long it takes.
        progress: Receives the stored bytes that were read.

    Raises:
        StoreError: The store itself cannot be used. Damage is reported, not raised.
    """
    return _verify(
        store, snapshots, broken, checksum=checksum, clock=clock, progress=progress, every=False
    )


class _Findings(NamedTuple):
    """What a verification found, without the snapshots whose manifests cannot be read.

    Attributes:
        damage: Damaged paths of each snapshot.
        bad: Chunks that cannot be read.
        copies: Frames that cannot be used, and whose chunks can be read from elsewhere.
        read_bytes: Stored bytes of frames that were read.
        chunks: How many were checked.
    """

    damage: dict[SnapshotId, list[PathWarning]]
    bad: set[ChunkId]
    copies: tuple[PathWarning, ...]
    read_bytes: int
    chunks: int


def _verify(
    store: Store,
    snapshots: Iterable[SnapshotSummary],
    broken: Mapping[SnapshotId, str],
    *,
    checksum: bool,
    clock: Clock,
    progress: OnProgress | None,
    every: bool,
) -> VerifyReport:
    collect_rarely()
    began_s = clock.monotonic_s()
    chosen = list(snapshots)
    if checksum:
        found = _read_chunks(store, chosen, progress, every=every)
    else:
        found = _look_up_chunks(store, chosen)
    removed = removed_among(store, [one.id for one in chosen if found.damage[one.id]])
    results = [
        VerifySnapshot(snapshot.id, tuple(found.damage[snapshot.id]))
        for snapshot in chosen
        if snapshot.id not in removed
    ]
    for snapshot_id, what in sorted(broken.items()):
        place = os.fsencode(f"snapshots/{snapshot_id}.json")
        results.append(VerifySnapshot(snapshot_id, (PathWarning(place, what),)))
    total_s = clock.monotonic_s() - began_s
    return VerifyReport(
        tuple(results),
        found.read_bytes,
        found.chunks,
        total_s,
        frozenset(found.bad),
        copies=found.copies,
        removed=tuple(sorted(removed)),
    )


def _look_up_chunks(store: Store, chosen: list[SnapshotSummary]) -> _Findings:
    """Verify without reading file content."""
    # Imported here: a verification with checksums finds out itself which chunks are lost.
    from ciuic.catalog import known_lost

    bad = known_lost(store)  # chunks that a scrub has found to be lost
    survey = SnapshotSurvey(store, bad)
    damage = {snapshot.id: survey.damage(snapshot) for snapshot in chosen}
    copies = _damaged_copies(store, bad, (), set())
    return _Findings(damage, bad, copies, 0, survey.chunks)


def _read_chunks(
    store: Store, chosen: list[SnapshotSummary], progress: OnProgress | None, *, every: bool
) -> _Findings:
    """Verify with checksums. After damage, a second walk finds the paths that it affects."""
    # Imported here because a verification without checksums is short, and needs no threads.
    from ciuic.verify.frame_checks import Checker

    packs = store.pack_files()
    packs_bytes = sum(packs.values())
    if packs_bytes >= _BULK_BYTES:
        prepare_for_bulk()
    with Checker(store, packs_bytes, progress) as checker:
        # For a part of the snapshots, the chunk index reads less than the footers of all packs.
        listed = Listed(store, packs if every else ())
        checker.expect(numbers=listed.has_numbers or not every)
        survey = SnapshotSurvey(store, set(), checker, listed)
        damage = {snapshot.id: survey.damage(snapshot) for snapshot in chosen}
        groups, left_bytes = listed.left()
        left_bytes += sum([place.frame_bytes for place, _ in survey.frames.values()])
        checker.finish(itertools.chain(in_order(survey.frames), groups), left_bytes)
        checker.look_again(listed.needed_in(checker.doubtful))
    if checker.bad:
        again = SnapshotSurvey(store, checker.bad)
        damage = {snapshot.id: again.damage(snapshot) for snapshot in chosen}
    copies = _damaged_copies(store, checker.bad, checker.unsound, listed.repeated())
    for task in checker.unsound:
        store.reader.suspect(task.place)
    if store.reader.suspects:
        # Imported here, as above.
        from ciuic.store.damage_records import note_found

        note_found(store)
    read_bytes = checker.read_bytes + listed.node_bytes
    return _Findings(damage, checker.bad, copies, read_bytes, survey.chunks + listed.chunks)


def _damaged_copies(
    store: Store, bad: Set[ChunkId], unsound: Sequence[Task], repeated: Set[ChunkId]
) -> tuple[PathWarning, ...]:
    """Return the frames that cannot be used although their chunks can be read from elsewhere."""
    if not (store.reader.damaged or unsound or repeated):
        return ()
    # Imported only now: it reads damaged packs, and most stores have none.
    from ciuic.verify.damaged_copies import damaged_copies, tasks_of_copies

    suspects = itertools.chain(unsound, tasks_of_copies(store, repeated))
    return damaged_copies(store, bad, suspects)
