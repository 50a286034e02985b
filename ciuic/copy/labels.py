"""Brings to a copy what changed about snapshots since they were copied: their marks.

Tags, pins and notes   of two changes the later one counts, as far as it can be known: a change here
                       that was not sent yet replaces what the copy has
forgotten snapshots    the copy forgets them too, if it has no retention policy of its own
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from ciuic.catalog import labelled, list_snapshots, remember
from ciuic.copy.report import CopyReport
from ciuic.errors import StoreError
from ciuic.ids import SnapshotId
from ciuic.model import SnapshotSummary, newest_first
from ciuic.store.records.copy_record import CopyRecord
from ciuic.store.records.mark import Mark
from ciuic.store.store import Store

__all__ = ["NOTHING_SENT", "bring_back_there", "forget_there", "label", "label_present"]

NOTHING_SENT: Final[Mapping[SnapshotId, int]] = MappingProxyType({})
_TOGETHER: Final = 32
"""Snapshots whose marks get their names with one sync."""


def label_present(
    source: Store, copy: Store, report: CopyReport, sent: Mapping[SnapshotId, int]
) -> None:
    """Give snapshots that are there the tags, the pin and the note that they have here.

    Args:
        source: The store that was copied.
        copy: The copy, open for writing.
        report: Has the snapshots that are there; receives what fails.
        sent: For snapshots the number of the mark whose state was sent. For others, this sends the
            state if the copy has no mark of its own: an earlier run may have ended before it did.
    """
    present = set(report.present)
    if not present:
        return
    there = {snapshot.id: snapshot for snapshot in list_snapshots(copy) if snapshot.id in present}
    has_copies = copy.manifests.copies.ids()
    for state in list_snapshots(source):
        old = there.get(state.id)
        if old is None or state.mark_problem:
            continue
        is_own = bool(old.mark) if state.id not in sent else state.mark <= sent[state.id]
        if not is_own:
            error = label(copy, old, state, has_copy=state.id in has_copies)
            if error is not None:
                report.unlabelled.append(state.id)
                report.notes.append(f"{state.id} is there, but {error.message}")


def label(
    copy: Store, old: SnapshotSummary, state: SnapshotSummary, *, has_copy: bool
) -> StoreError | None:
    """Give a snapshot of the copy the tags, the pin and the note that it has in the source.

    The source may have changed them after the commit, so the manifest may not have them.

    Returns:
        The error, if it failed.
    """
    mark = Mark(state.tags, state.pinned, note=state.note)
    try:
        while mark != Mark(old.tags, old.pinned, note=old.note) and old.forgotten_ns is None:
            new = copy.marks.add(old, mark, copy=has_copy)
            if new is not None:
                return remember(copy, new)
            old = labelled(copy, old)  # another process has created that mark
    except StoreError as error:
        return error
    return None


def bring_back_there(source: Store, copy: Store, record: CopyRecord) -> list[SnapshotId]:
    """Bring back the copy's snapshots that were forgotten here and brought back; returns those.

    Raises:
        StoreError: One of the stores failed.
    """
    wanted = set(record.followed) & source.listed_ids() & set(copy.trash.ids())
    for snapshot_id in sorted(map(SnapshotId, wanted)):
        remember(copy, copy.trash.bring_back(snapshot_id).summary)
    return sorted(map(SnapshotId, wanted))


def forget_there(
    source: Store, copy: Store, now_ns: int, *, library_only: bool
) -> list[SnapshotId]:
    """Forget the snapshots of the copy that were forgotten here; returns those.

    The newest snapshot of the copy and pinned ones stay.

    Args:
        source: The store that was copied.
        copy: The copy, open for writing.
        now_ns: The time.
        library_only: Only those of the library, which no retention policy is about.

    Raises:
        StoreError: One of the stores failed; those that were not forgotten are still listed.
    """
    gone = source.trash.used_ids()
    found = [
        snapshot.id
        for snapshot in newest_first(list_snapshots(copy))[1:]
        if snapshot.id in gone
        and not snapshot.pinned
        and (snapshot.owner.is_library or not library_only)
    ]
    for begin in range(0, len(found), _TOGETHER):
        remember(copy, *copy.trash.forget(found[begin : begin + _TOGETHER], now_ns))
    return found
