"""Lists snapshots. The manifests decide; the rows of the chunk index save reading them."""

import contextlib
import os
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from ciuic.errors import (
    CorruptionError,
    SnapshotNotFoundError,
    StoreError,
    StoreFullError,
    UnknownFormatError,
)
from ciuic.ids import SnapshotId
from ciuic.model import SnapshotSummary, complete_ones, newest_first
from ciuic.store.index.database import IndexDamagedError
from ciuic.store.records.layout import is_snapshot_id
from ciuic.store.store import Store

__all__ = [
    "Rows",
    "Survey",
    "all_snapshots",
    "labelled",
    "latest_snapshot",
    "list_snapshots",
    "lost_ids",
    "read_rows",
    "remember",
    "row_of",
    "survey",
]

Rows = Mapping[SnapshotId, tuple[int, int, bytes]]
"""Size and time of modification of a manifest's file, and the encoded summary. A row counts while
the file has not changed."""
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(SnapshotSummary)


class Survey(NamedTuple):
    """What the manifests of a store say.

    Attributes:
        found: The snapshots that can be read; those taken last come first.
        damaged: The manifests that cannot be read, and why.
        parents: The parents of snapshots that were taken in this store. It had them, so one that
            has no manifest and is not retired is lost.
    """

    found: list[SnapshotSummary]
    damaged: dict[SnapshotId, str]
    parents: set[SnapshotId]


def list_snapshots(store: Store) -> list[SnapshotSummary]:
    """Return every listed snapshot whose manifest can be read; those taken last come first."""
    return survey(store, read_rows(store)).found


def all_snapshots(store: Store) -> list[SnapshotSummary]:
    """Like ``list_snapshots``, with the forgotten snapshots whose manifest is there."""
    return survey(store, read_rows(store), is_forgotten_too=True).found


def labelled(store: Store, summary: SnapshotSummary, *, to_change: bool = False) -> SnapshotSummary:
    """Return what a manifest says, with the present tags and the present pin.

    Args:
        store: The open store.
        summary: From the manifest.
        to_change: See ``Marks.labelled``.
    """
    row = row_of(read_rows(store), summary.id)
    known = row.mark if row else 0
    return store.marks.labelled(summary, store.marks.newest(), known, to_change=to_change)


def latest_snapshot(store: Store) -> SnapshotSummary | None:
    """Return the complete snapshot that was committed last; None in a store without one."""
    return next(iter(newest_first(complete_ones(list_snapshots(store)))), None)


def remember(store: Store, *summaries: SnapshotSummary) -> StoreError | None:
    """Copy summaries of committed snapshots into the chunk index, so that a list is one query.

    Returns:
        The error, if it failed. It is not raised, because the snapshot exists already. The next
        list reads the manifest instead, as it does if the store is not open for writing.
    """
    if not store.writable:
        return None
    try:
        statuses = store.manifests.files()
        for summary in summaries:
            status = statuses.get(summary.id)
            if status is not None and not summary.mark_problem:
                _put(store, summary, status)
        store.index.commit()
    except StoreError as error:
        return error
    return None


def read_rows(store: Store) -> dict[SnapshotId, tuple[int, int, bytes]]:
    """Return the chunk index's rows about manifests; empty if it cannot be read."""
    with contextlib.suppress(IndexDamagedError):
        index = store.existing_index
        if index is not None:
            return index.snapshots()
    return {}


def row_of(recorded: Rows, snapshot_id: SnapshotId) -> SnapshotSummary | None:
    """Return what a row says about this snapshot: a damaged row must not invent another one."""
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, KeyError):
        summary = _decoder.decode(recorded[snapshot_id][2])
        if summary.id == snapshot_id:
            return summary
    return None


def lost_ids(store: Store, recorded: Rows, parents: Collection[SnapshotId]) -> list[SnapshotId]:
    """Return the snapshots that were not forgotten and whose manifest is gone, in order.

    Args:
        store: An open store.
        recorded: Rows of the chunk index.
        parents: See ``Survey``.
    """
    remembered = store.manifests.remembered_ids() | store.marks.newest().keys()
    missed = store.trash.find_missing({*remembered, *recorded, *parents})
    # A listing of a bucket can have a snapshot and lack its parent, if both came meanwhile.
    missed = {one for one in missed if one not in parents or not store.manifests.is_there(one)}
    # Look twice: another process may have brought a snapshot back between two listings.
    missed = store.trash.find_missing(missed) if missed else missed
    if not missed.isdisjoint(parents) and any(store.trash.retired.damage()):
        # A parent may be retired there. Until a repair, nothing is removed anyway.
        missed -= set(parents) - remembered - recorded.keys()
    return sorted(
        [
            snapshot_id
            for snapshot_id in missed
            if snapshot_id in remembered
            or snapshot_id in parents
            or row_of(recorded, snapshot_id) is not None
        ]
    )


def survey(store: Store, recorded: Rows, *, is_forgotten_too: bool = False) -> Survey:
    """Return the snapshots, and what is wrong with damaged manifests; correct the chunk index.

    Args:
        store: An open store. Its chunk index is corrected only if it is open for writing.
        recorded: The rows of the chunk index.
        is_forgotten_too: Return forgotten snapshots as well.
    """
    found, fresh, damaged = [], [], {}
    parents: set[SnapshotId] = set()
    # The marks first: a purge removes a manifest before its marks, which say that it is forgotten.
    marks = store.marks.newest()
    listed = store.manifests.files()
    for snapshot_id, status in listed.items():
        row = row_of(recorded, snapshot_id)
        summary = row if _is_current(recorded, snapshot_id, status) else None
        try:
            if summary is None:
                summary = store.manifest(snapshot_id).summary
        except (CorruptionError, UnknownFormatError) as error:
            if is_forgotten_too or not store.trash.unlisted([snapshot_id]):
                damaged[snapshot_id] = error.message
            continue
        except SnapshotNotFoundError:
            continue
        parent = summary.parent
        if parent and summary.store == store.header.store_id and is_snapshot_id(parent):
            parents.add(parent)
        if summary.forgotten_ns is not None:
            # Only the mark itself can say so: if it is damaged, the snapshot counts as listed.
            summary = msgspec.structs.replace(summary, mark=0, forgotten_ns=None, purged=False)
        # The row also remembers marks that are gone since: a pin must not be lost with its file.
        summary = store.marks.labelled(summary, marks, row.mark if row else 0)
        if summary.mark_problem and not store.manifests.has(snapshot_id):
            continue  # a prune has just deleted it
        if summary.forgotten_ns is None or is_forgotten_too:
            found.append(summary)
        is_new = summary is not row and summary != row
        if status is not None and is_new and not summary.mark_problem:
            fresh.append((summary, status))
    if store.writable:
        gone = {
            snapshot_id: row for snapshot_id, row in recorded.items() if snapshot_id not in listed
        }
        if fresh or gone:
            _correct_rows(store, fresh, gone, parents)
    found.sort(key=lambda summary: (summary.taken_ns, summary.id), reverse=True)
    return Survey(found, damaged, parents)


def _correct_rows(
    store: Store,
    fresh: Iterable[tuple[SnapshotSummary, os.stat_result]],
    gone: Rows,
    parents: Collection[SnapshotId],
) -> None:
    """Record summaries in the chunk index, and drop the rows of snapshots that are gone."""
    # Before the first change, which locks the index: a bucket may be asked.
    lost = lost_ids(store, gone, parents) if gone else ()
    try:
        for summary, status in fresh:
            _put(store, summary, status)
        store.index.drop_snapshots(gone.keys() - lost)
        if not store.index_keeper.is_alone:
            # Another process that adds could not record its packs until this one commits.
            store.index.commit()
    except StoreFullError:  # on a full disk, forget must still work
        if not store.index_keeper.is_alone:
            store.index.rollback()


def _is_current(recorded: Rows, snapshot_id: SnapshotId, status: os.stat_result | None) -> bool:
    """Return whether a row is about the manifest's file as it is now."""
    row = recorded.get(snapshot_id)
    return bool(row and status and row[:2] == (status.st_size, status.st_mtime_ns))


def _put(store: Store, summary: SnapshotSummary, status: os.stat_result) -> None:
    """Record the summary of a manifest whose file has this status."""
    store.index.put_snapshot(
        summary.id, status.st_size, status.st_mtime_ns, summary.taken_ns, _encoder.encode(summary)
    )
