"""Chooses the snapshots to copy, by what the copy has, had and has forgotten."""

import shlex
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from ciuic.catalog import damaged_manifests, list_snapshots
from ciuic.copy.report import CopyReport
from ciuic.ids import SnapshotId
from ciuic.model import SnapshotSummary, newest_first
from ciuic.store.store import Store
from ciuic.units import counted, inflected

__all__ = ["announce_copies", "choose_snapshots", "differences"]

_REMOVED: Final = "the copy has removed it for good, and a store never uses an ID twice"


class _Held(NamedTuple):
    """The snapshots of the copy.

    Attributes:
        listed: Those that can be read.
        damaged: Those that cannot be read, and why.
        trashed: Those in its trash.
        used: Every ID in its trash, and every ID that is gone for good.
    """

    listed: dict[SnapshotId, SnapshotSummary]
    damaged: dict[SnapshotId, str]
    trashed: Collection[SnapshotId]
    used: Collection[SnapshotId]


def choose_snapshots(
    source: Store,
    copy: Store | None,
    named: Collection[SnapshotId],
    report: CopyReport,
    *,
    again: bool = False,
) -> list[SnapshotSummary]:
    """Return the snapshots to send, parents first; add the others to the report.

    Args:
        source: The store that has the snapshots.
        copy: The store that gets them; None if it does not exist yet.
        named: The snapshots that the user named; empty: all. A named snapshot that is there is sent
            again, as far as the copy lacks chunks of it.
        report: Receives the snapshots that are not sent.
        again: All snapshots that are there are sent again in the same way.

    Raises:
        CorruptionError: A record of the copy's retired IDs is damaged: any snapshot may be in it.
        StoreError: One of the stores cannot be read.
    """
    snapshots = list(reversed(newest_first(list_snapshots(source))))
    held = _held(copy)
    chosen = []
    for snapshot in snapshots:
        if named and snapshot.id not in named:
            continue
        there = held.listed.get(snapshot.id)
        if there is not None and snapshot.unmarked() != there.unmarked():
            what = "the copy has a different snapshot with this ID, and ciuic changes neither"
            report.refuse({snapshot.id: what}, is_damage=False)
        elif there is not None and not (named or again):
            report.present.append(snapshot.id)
        elif there is not None:
            chosen.append(snapshot)
        elif snapshot.id in held.damaged:
            what = f"its manifest in the copy cannot be read: {held.damaged[snapshot.id]}"
            report.refuse({snapshot.id: what}, is_damage=True)
        elif snapshot.id not in held.used:
            chosen.append(snapshot)
        elif named:
            what = _why_gone(report.copy, snapshot.id, is_in_trash=snapshot.id in held.trashed)
            report.refuse({snapshot.id: what}, is_damage=False)
        else:
            report.forgotten.append(snapshot.id)
    return chosen


def announce_copies(
    copy: Store,
    chosen: Sequence[SnapshotSummary],
    named: Collection[SnapshotId],
    report: CopyReport,
) -> list[SnapshotSummary]:
    """Announce the snapshots to send; returns them without those that the copy deleted meanwhile.

    Raises:
        CorruptionError: A record of the copy's retired IDs is damaged: any snapshot may be in it.
        StoreError: The copy cannot be read, or its bucket cannot be written to.
    """
    gone = copy.announce([snapshot.id for snapshot in chosen])
    if named:
        report.refuse(dict.fromkeys(sorted(gone), _REMOVED), is_damage=False)
    else:
        report.forgotten.extend(sorted(gone))
    return [snapshot for snapshot in chosen if snapshot.id not in gone]


def differences(source: Store, copy: Store, address: str) -> list[str]:
    """Say which snapshots of the copy this store has never had; the copy keeps them.

    Those that other stores have copied there are not named: many stores may share a copy.

    Args:
        source: The store that is copied.
        copy: The copy.
        address: Its directory or URL.

    Raises:
        StoreError: One of the stores cannot be read.
    """
    known = set(source.manifests.ids()) | set(source.trash.used_ids())
    others = [one for one in list_snapshots(copy) if one.id not in known]
    ahead = [one.id for one in others if one.store == copy.header.store_id]
    lost = [one.id for one in others if one.store == source.header.store_id]
    found = []
    if ahead:
        found.append(
            f"the copy is ahead: {_such_as(ahead)} taken there, and this store does not have"
            f" {inflected(len(ahead), 'it', 'them')}"
        )
    if lost:
        found.append(
            f"the copy has more of this store than the store itself: {_such_as(lost)} taken here."
            f" 'ciuic --store {shlex.quote(address)} copy --to {shlex.quote(source.name)}' brings"
            f" {inflected(len(lost), 'it', 'them')} back"
        )
    return found


def _such_as(ids: list[SnapshotId]) -> str:
    were = inflected(len(ids), "was", "were")
    return f"{counted(len(ids), 'snapshot')}, such as {ids[0]}, {were}"


def _held(copy: Store | None) -> _Held:
    if copy is None:
        return _Held({}, {}, (), ())
    copy.trash.retired.check()
    listed = {snapshot.id: snapshot for snapshot in list_snapshots(copy)}
    there = copy.manifests.ids()
    damaged = {one: what for one, what in damaged_manifests(copy).items() if one in there}
    return _Held(listed, damaged, copy.trash.ids(), copy.trash.used_ids())


def _why_gone(copy_path: str, snapshot_id: SnapshotId, *, is_in_trash: bool) -> str:
    if is_in_trash:
        return (
            "the copy has forgotten it;"
            f" 'ciuic --store {shlex.quote(copy_path)} forget --undo {snapshot_id}' brings it back"
        )
    return _REMOVED
