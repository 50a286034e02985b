"""Manifests that are damaged or gone: which snapshots they were of, and what to do; lost chunks."""

import contextlib
from collections.abc import Iterable
from itertools import takewhile
from typing import NamedTuple

from ciuic.catalog.listing import Rows, list_snapshots, lost_ids, read_rows, row_of, survey
from ciuic.errors import CorruptionError, StoreError
from ciuic.ids import ChunkId, SnapshotId
from ciuic.model import SnapshotSummary, newest_first
from ciuic.store.records.manifest import decode_manifest
from ciuic.store.store import Store

__all__ = [
    "Unreadable",
    "damaged_before",
    "damaged_manifests",
    "damaged_since",
    "known_damaged",
    "known_lost",
    "known_of",
    "lacks_manifests",
    "list_and_check",
    "lost_manifest",
    "lost_snapshots",
    "unreadable",
]


class Unreadable(NamedTuple):
    """What cannot be read of the snapshots, and why.

    Attributes:
        manifests: Manifests that are damaged or gone.
        marks: Newest marks of listed snapshots, which count as pinned because of that.
    """

    manifests: dict[SnapshotId, str]
    marks: dict[SnapshotId, str]


def unreadable(store: Store) -> Unreadable:
    """Return which manifests and marks cannot be read."""
    return list_and_check(store)[1]


def list_and_check(store: Store) -> tuple[list[SnapshotSummary], Unreadable]:
    """Return what ``list_snapshots`` and ``unreadable`` return, of one look at the store."""
    recorded = read_rows(store)
    found, damaged, parents = survey(store, recorded)
    for snapshot_id in lost_ids(store, recorded, parents):
        damaged[snapshot_id] = f"its file is gone; {_remedy(store, snapshot_id)}"
    marks = {summary.id: summary.mark_problem for summary in found if summary.mark_problem}
    return found, Unreadable(damaged, marks)


def damaged_manifests(store: Store) -> dict[SnapshotId, str]:
    """Return what is wrong with each manifest that is damaged or gone, by its snapshot."""
    return unreadable(store).manifests


def damaged_since(store: Store, latest: SnapshotSummary) -> dict[SnapshotId, str]:
    """Return the damaged manifests that are newer than the newest readable snapshot.

    The time comes from the chunk index or a copy of the manifest; if neither has it, from the time
    of modification of the damaged file.
    """
    damaged = damaged_manifests(store)
    if not damaged:
        return {}
    known = known_of(store, damaged)
    snapshots = list_snapshots(store)
    order = newest_first([*snapshots, *known.values()])
    newer = {summary.id for summary in takewhile(lambda summary: summary.id != latest.id, order)}
    unknown = damaged.keys() - known.keys()
    unknown -= {summary.parent for summary in snapshots}  # a parent is older than its child
    newer |= {
        snapshot_id
        for snapshot_id in unknown
        if store.manifests.written_ns(snapshot_id) > latest.taken_ns
    }
    return {snapshot_id: what for snapshot_id, what in damaged.items() if snapshot_id in newer}


def damaged_before(store: Store, later: SnapshotSummary) -> dict[SnapshotId, str]:
    """Return the damaged manifests that are not known to be newer than another snapshot."""
    damaged = damaged_manifests(store)
    known = known_of(store, damaged)
    end = (later.taken_ns, later.id)
    newer = {
        snapshot_id
        for snapshot_id, summary in known.items()
        if (summary.taken_ns, snapshot_id) >= end
    }
    left_out = newer | {later.id}
    return {
        snapshot_id: what for snapshot_id, what in damaged.items() if snapshot_id not in left_out
    }


def lost_snapshots(store: Store) -> list[SnapshotId]:
    """Return the snapshots that were not forgotten and whose manifest is gone.

    They are known from copies of manifests, from damaged manifests that a repair has set aside,
    from marks, from the chunk index, and from snapshots of this store that have them as parents.
    Their chunks must stay, because the file may be put back.
    """
    recorded = read_rows(store)
    return lost_ids(store, recorded, survey(store, recorded).parents)


def lost_manifest(store: Store, snapshot_id: SnapshotId) -> CorruptionError:
    """Return the error for a manifest that is gone, with the remedy as its hint."""
    remedy = _remedy(store, snapshot_id)
    return CorruptionError(
        f"the manifest of {snapshot_id} is gone", hint=f"{remedy[0].upper()}{remedy[1:]}."
    )


def known_damaged(store: Store) -> dict[str, tuple[str, int]]:
    """Return the manifests and marks that the last scrub of this machine found damaged or gone.

    Returns:
        By path in the store: what is wrong, and when that was found, in nanoseconds since 1970.
    """
    with contextlib.suppress(StoreError):
        index = store.existing_index
        if index is not None:
            return index.damaged_documents()
    return {}


def lacks_manifests(store: Store) -> bool:
    """Return whether some manifest cannot be read: nothing shows what its snapshot needs.

    That of a forgotten snapshot counts: the snapshot can be brought back.
    """
    return bool(damaged_manifests(store) or store.trash.survey()[1])


def known_lost(store: Store) -> set[ChunkId]:
    """Return chunks that the chunk index remembers as lost; empty without a chunk index."""
    with contextlib.suppress(StoreError):
        index = store.existing_index
        if index is not None:
            return index.lost_chunks()
    return set()


def known_of(store: Store, snapshot_ids: Iterable[SnapshotId]) -> dict[SnapshotId, SnapshotSummary]:
    """Return the summaries of damaged manifests, as far as the chunk index or a copy has them."""
    recorded = read_rows(store)
    found = {snapshot_id: _last_known(store, recorded, snapshot_id) for snapshot_id in snapshot_ids}
    return {snapshot_id: summary for snapshot_id, summary in found.items() if summary is not None}


def _last_known(store: Store, recorded: Rows, snapshot_id: SnapshotId) -> SnapshotSummary | None:
    """Return the summary of a damaged manifest from the chunk index or its copy; else None."""
    summary = row_of(recorded, snapshot_id)
    if summary is not None:
        return summary
    copy = store.manifests.copies.read(snapshot_id)
    return None if copy is None else decode_manifest(copy, snapshot_id).summary


def _remedy(store: Store, snapshot_id: SnapshotId) -> str:
    if store.manifests.copies.read(snapshot_id) is not None:
        return "'ciuic repair --apply' puts it back from its copy"
    return (
        f"put snapshots/{snapshot_id}.json back from a copy of the store, as"
        f" 'ciuic repair --from COPY --apply' does, or abandon the snapshot with"
        f" 'ciuic forget {snapshot_id}'"
    )
