"""Lists snapshots, and finds one by ID, prefix, ``latest``, ``latest-valid`` or time.

A snapshot exists if its manifest's file does, and is listed unless its newest mark says that it is
forgotten. The chunk index has a copy of what manifests say, so
that a list need not read a thousand small files: a row counts while its file has not changed.
"""

import contextlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

import msgspec

from ciuic.errors import (
    CorruptionError,
    SnapshotNotFoundError,
    StoreError,
    StoreFullError,
    UnknownFormatError,
    UsageError,
)
from ciuic.ids import SnapshotId, matching_ids
from ciuic.model import SnapshotSummary, complete_ones, newest_first
from ciuic.store.index.database import IndexDamagedError
from ciuic.store.records.manifest import decode_manifest
from ciuic.store.store import Store
from ciuic.system.clock import from_local_text, local_time_text
from ciuic.units import counted

__all__ = [
    "HOW_TO_TAKE",
    "LATEST",
    "LATEST_VALID",
    "all_snapshots",
    "ambiguous",
    "check_tags",
    "damaged_before",
    "damaged_manifests",
    "damaged_since",
    "find_snapshot",
    "labelled",
    "latest_snapshot",
    "list_snapshots",
    "lost_manifest",
    "lost_snapshots",
    "passed_over",
    "remember",
    "unreadable",
]

_TAG_MAX: Final = 64
_CANDIDATES_SHOWN: Final = 5

LATEST: Final = "latest"
LATEST_VALID: Final = "latest-valid"
HOW_TO_TAKE: Final = (
    "Take one with 'ciuic snapshot'; without a configuration, with"
    " 'ciuic --store DIR snapshot PATH'."
)
"""The hint for a store without snapshots."""
_Rows = Mapping[SnapshotId, tuple[int, int, bytes]]
_PREFIX: Final = re.compile(r"(?:cs-)?[0-9a-f]+")
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SnapshotSummary)


def list_snapshots(store: Store) -> list[SnapshotSummary]:
    """Return every listed snapshot whose manifest can be read; those taken last come first."""
    return _survey(store, _recorded(store))[0]


def all_snapshots(store: Store) -> list[SnapshotSummary]:
    """Do as ``list_snapshots``, with the forgotten snapshots whose manifest is there."""
    return _survey(store, _recorded(store), is_forgotten_too=True)[0]


class Unreadable(NamedTuple):
    """What can't be read of the snapshots, and why.

    Attributes:
        manifests: Manifests that are damaged or gone.
        marks: Newest marks of listed snapshots, which count as pinned because of that.
    """

    manifests: dict[SnapshotId, str]
    marks: dict[SnapshotId, str]


def unreadable(store: Store) -> Unreadable:
    """Return which manifests and marks can't be read."""
    recorded = _recorded(store)
    found, damaged = _survey(store, recorded)
    for snapshot_id in _lost(store, recorded):
        damaged[snapshot_id] = f"its file is gone; {_remedy(store, snapshot_id)}"
    marks = {summary.id: summary.mark_problem for summary in found if summary.mark_problem}
    return Unreadable(damaged, marks)


def damaged_manifests(store: Store) -> dict[SnapshotId, str]:
    """Return what is wrong with each manifest that is damaged or gone, by its snapshot."""
    return unreadable(store).manifests


def labelled(store: Store, summary: SnapshotSummary) -> SnapshotSummary:
    """Return what a manifest says, with the present tags and the present pin."""
    row = _row_of(_recorded(store), summary.id)
    return store.marks.labelled(summary, store.marks.newest(), row.mark if row else 0)


def damaged_since(store: Store, latest: SnapshotSummary) -> dict[SnapshotId, str]:
    """Return the damaged manifests that are newer than the newest readable snapshot.

    The time comes from the chunk index or a copy of the manifest; if neither has it, from the time
    of modification of the damaged file.
    """
    damaged = damaged_manifests(store)
    if not damaged:
        return {}
    known = _known_of(store, damaged)
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


def passed_over(store: Store, text: str, found: SnapshotSummary) -> dict[SnapshotId, str]:
    """Return the damaged manifests that ``text`` may mean instead of what ``find_snapshot`` found.

    An ID means one snapshot, and ``latest-valid`` no damaged one, so the result is empty for them.
    """
    if text == LATEST:
        return damaged_since(store, found)
    until_ns = None if _PREFIX.fullmatch(text) else from_local_text(text)
    if until_ns is None:
        return {}
    damaged = damaged_manifests(store)
    known = _known_of(store, damaged)
    snapshots = list_snapshots(store) if damaged else []
    parents = {summary.parent for summary in snapshots if summary.taken_ns <= found.taken_ns}

    def may_be_meant(snapshot_id: SnapshotId) -> bool:
        if snapshot_id in known:
            taken_ns = known[snapshot_id].taken_ns
            return (found.taken_ns, found.id) < (taken_ns, snapshot_id) and taken_ns <= until_ns
        is_newer = store.manifests.written_ns(snapshot_id) > found.taken_ns
        return snapshot_id not in parents and is_newer

    return {snapshot_id: what for snapshot_id, what in damaged.items() if may_be_meant(snapshot_id)}


def damaged_before(store: Store, later: SnapshotSummary) -> dict[SnapshotId, str]:
    """Return the damaged manifests that are not known to be newer than another snapshot."""
    damaged = damaged_manifests(store)
    known = _known_of(store, damaged)
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

    They are known from copies of manifests, from damaged manifests that a repair has set aside, and
    from the chunk index. Their chunks must stay, because the file may be put back.
    """
    return _lost(store, _recorded(store))


def lost_manifest(store: Store, snapshot_id: SnapshotId) -> CorruptionError:
    """Return the error for a manifest that is gone, with the remedy as its hint."""
    remedy = _remedy(store, snapshot_id)
    return CorruptionError(
        f"the manifest of {snapshot_id} is gone", hint=f"{remedy[0].upper()}{remedy[1:]}."
    )


def latest_snapshot(store: Store) -> SnapshotSummary | None:
    """Return the complete snapshot that was committed last; None in a store without one."""
    return next(iter(newest_first(complete_ones(list_snapshots(store)))), None)


def find_snapshot(
    store: Store, text: str, *, holding: Sequence[bytes] = (), tagged: bool = False
) -> SnapshotSummary:
    """Return the snapshot that ``text`` means: an ID, a prefix of an ID, ``latest``, or a time.

    A time means the newest snapshot that is not after it. ``latest`` is the snapshot that was
    committed last, which is not the newest by time if the clock was set back. ``latest-valid`` is
    the last snapshot that can be restored in full, as far as is known without reading file content.
    Only an ID means a snapshot that is not complete.

    Args:
        store: The open store.
        text: What the user typed.
        holding: Paths. ``latest``, ``latest-valid`` and a time mean the newest snapshot whose roots
            hold all of them; if none does, they mean what they mean without paths.
        tagged: What is none of these may be a tag: it means the newest snapshot that has it.

    Raises:
        UsageError: ``text`` can't mean a snapshot.
        SnapshotNotFoundError: No snapshot matches, or more than one.
        CorruptionError: The snapshot's manifest is damaged.
    """
    if _PREFIX.fullmatch(text):
        return _by_prefix(store, text)
    snapshots = _holding(complete_ones(list_snapshots(store)), holding)
    if text in {LATEST, LATEST_VALID}:
        if not snapshots:
            for snapshot_id, what in damaged_manifests(store).items():
                raise CorruptionError(
                    f"no snapshot of the store can be read: {snapshot_id}: {what}",
                    hint="Run 'ciuic repair --apply': it takes manifests from their copies.",
                )
            raise SnapshotNotFoundError("the store has no snapshot yet", hint=HOW_TO_TAKE)
        snapshots = newest_first(snapshots)
        return snapshots[0] if text == LATEST else _latest_valid(store, snapshots)
    until_ns = from_local_text(text)
    if until_ns is None:
        named = [one for one in snapshots if text in one.tags] if tagged else []
        if named:
            return newest_first(named)[0]
        raise UsageError(
            f"'{text}' is not a snapshot's ID",
            hint=f"Give cs- and hex digits, 'latest', 'latest-valid'{', a tag' * tagged}, or a time"
            " such as '2026-06-15 14:30'.",
        )
    for snapshot in snapshots:
        if snapshot.taken_ns <= until_ns:
            return snapshot
    oldest = f"; the oldest is from {local_time_text(snapshots[-1].taken_ns)}" if snapshots else ""
    raise SnapshotNotFoundError(f"no snapshot was taken at or before {text}{oldest}")


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


def _holding(snapshots: list[SnapshotSummary], paths: Sequence[bytes]) -> list[SnapshotSummary]:
    """Return the snapshots whose roots hold all paths; all snapshots if none does."""
    found = [
        snapshot
        for snapshot in snapshots
        if all(any(_is_within(path, root) for root in snapshot.roots) for path in paths)
    ]
    return found or snapshots


def _is_within(path: bytes, root: bytes) -> bool:
    return path == root or path.startswith(root.rstrip(b"/") + b"/")


def _latest_valid(store: Store, snapshots: list[SnapshotSummary]) -> SnapshotSummary:
    # Imported here because only this case reads trees.
    from ciuic.view.damage import DamageSurvey, known_lost

    survey = DamageSurvey(store, known_lost(store))
    for snapshot in snapshots:
        if survey.is_sound(snapshot.id):
            return snapshot
    what = (
        "the only snapshot"
        if len(snapshots) == 1
        else f"each of the {counted(len(snapshots), 'snapshot')}"
    )
    raise CorruptionError(
        f"{what} is damaged",
        hint="'ciuic verify --all' names the damaged paths; 'ciuic restore' restores the others.",
    )


def _by_prefix(store: Store, text: str) -> SnapshotSummary:
    there = matching_ids(text, store.manifests.ids())
    unlisted = store.trash.unlisted(there)
    found = [snapshot_id for snapshot_id in there if snapshot_id not in unlisted]
    if len(found) == 1:
        return labelled(store, store.manifest(found[0]).summary)
    if found:
        raise ambiguous(text, {found: _time_of(store, found) for found in found})
    wanted = text if text.startswith("cs-") else f"cs-{text}"
    for snapshot_id in matching_ids(text, lost_snapshots(store)):
        raise lost_manifest(store, snapshot_id)
    forgotten = matching_ids(text, store.trash.ids()) if unlisted else []
    if len(forgotten) == 1:
        raise SnapshotNotFoundError(
            f"{forgotten[0]} was forgotten",
            hint=f"'ciuic forget --undo {forgotten[0]}' brings it back.",
        )
    raise SnapshotNotFoundError(f"there is no snapshot {wanted}")


def ambiguous(
    text: str, taken_ns: Mapping[SnapshotId, int | None], where: str = ""
) -> SnapshotNotFoundError:
    """Return the error for a prefix that several snapshots have, with the times of the newest.

    Args:
        text: The prefix.
        taken_ns: When each of the snapshots was taken; None if its manifest can't be read.
        where: The place of the snapshots, if they are not listed.
    """
    newest = sorted(taken_ns.items(), key=lambda found: found[1] or 0, reverse=True)
    some = [
        f"{snapshot_id} from {'an unknown time' if when is None else local_time_text(when)}"
        for snapshot_id, when in newest[:_CANDIDATES_SHOWN]
    ]
    if len(newest) > len(some):
        some.append(f"{len(newest) - len(some):,} more")
    prefix = text if text.startswith("cs-") else f"cs-{text}"
    count = counted(len(newest), "snapshot")
    return SnapshotNotFoundError(
        f"{prefix} is ambiguous{where}: the IDs of {count} begin with it: {', '.join(some)}",
        hint="Give more digits of the ID.",
    )


def _time_of(store: Store, snapshot_id: SnapshotId) -> int | None:
    try:
        return store.manifest(snapshot_id).summary.taken_ns
    except StoreError:
        return None


def _lost(store: Store, recorded: _Rows) -> list[SnapshotId]:
    remembered = store.manifests.remembered_ids() | store.marks.newest().keys()
    missed = store.trash.find_missing({*remembered, *recorded})
    # Look twice: another process may have brought a snapshot back between two listings.
    missed = store.trash.find_missing(missed) if missed else missed
    return sorted(
        [
            snapshot_id
            for snapshot_id in missed
            if snapshot_id in remembered or _row_of(recorded, snapshot_id) is not None
        ]
    )


def _known_of(
    store: Store, snapshot_ids: Iterable[SnapshotId]
) -> dict[SnapshotId, SnapshotSummary]:
    """Return the summaries of damaged manifests, as far as the chunk index or a copy has them."""
    recorded = _recorded(store)
    found = {snapshot_id: _last_known(store, recorded, snapshot_id) for snapshot_id in snapshot_ids}
    return {snapshot_id: summary for snapshot_id, summary in found.items() if summary is not None}


def _last_known(store: Store, recorded: _Rows, snapshot_id: SnapshotId) -> SnapshotSummary | None:
    """Return the summary of a damaged manifest from the chunk index or its copy; else None."""
    summary = _row_of(recorded, snapshot_id)
    if summary is not None:
        return summary
    copy = store.manifests.copies.read(snapshot_id)
    return None if copy is None else decode_manifest(copy, snapshot_id).summary


def _remedy(store: Store, snapshot_id: SnapshotId) -> str:
    if store.manifests.copies.read(snapshot_id) is not None:
        return "'ciuic repair --apply' puts it back from its copy"
    return (
        f"put snapshots/{snapshot_id}.json back from a copy of the store, or abandon the snapshot"
        f" with 'ciuic forget {snapshot_id}'"
    )


def _row_of(recorded: _Rows, snapshot_id: SnapshotId) -> SnapshotSummary | None:
    """Return what a row says about this snapshot: a damaged row must not invent another one."""
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, KeyError):
        summary = _decoder.decode(recorded[snapshot_id][2])
        if summary.id == snapshot_id:
            return summary
    return None


def _survey(
    store: Store, recorded: _Rows, *, is_forgotten_too: bool = False
) -> tuple[list[SnapshotSummary], dict[SnapshotId, str]]:
    found, fresh, damaged = [], [], {}
    # The marks first: a purge removes a manifest before its marks, which say that it is forgotten.
    marks = store.marks.newest()
    listed = store.manifests.files()
    for snapshot_id, status in listed.items():
        row = _row_of(recorded, snapshot_id)
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
            _correct_rows(store, fresh, gone)
    found.sort(key=lambda summary: (summary.taken_ns, summary.id), reverse=True)
    return found, damaged


def _correct_rows(
    store: Store, fresh: Iterable[tuple[SnapshotSummary, os.stat_result]], gone: _Rows
) -> None:
    """Record summaries in the chunk index, and drop the rows of snapshots that are gone."""
    try:
        for summary, status in fresh:
            _put(store, summary, status)
        store.index.drop_snapshots(gone.keys() - _lost(store, gone) if gone else ())
        if not store.index_keeper.is_alone:
            # Another process that adds could not record its packs until this one commits.
            store.index.commit()
    except StoreFullError:  # on a full disk, forget must still work
        if not store.index_keeper.is_alone:
            store.index.rollback()


def _is_current(recorded: _Rows, snapshot_id: SnapshotId, status: os.stat_result | None) -> bool:
    row = recorded.get(snapshot_id)
    return bool(row and status and row[:2] == (status.st_size, status.st_mtime_ns))


def _recorded(store: Store) -> dict[SnapshotId, tuple[int, int, bytes]]:
    """Return the chunk index's rows about manifests; empty if it can't be read."""
    with contextlib.suppress(IndexDamagedError):
        index = store.existing_index
        if index is not None:
            return index.snapshots()
    return {}


def _put(store: Store, summary: SnapshotSummary, status: os.stat_result) -> None:
    store.index.put_snapshot(
        summary.id, status.st_size, status.st_mtime_ns, summary.taken_ns, _encoder.encode(summary)
    )


def check_tags(tags: Iterable[str]) -> None:
    """Refuse tags that a table cannot show or a script cannot split.

    Raises:
        UsageError: A tag is empty, too long, or has a character that is not allowed.
    """
    for tag in tags:
        if not 1 <= len(tag) <= _TAG_MAX or "|" in tag or "," in tag or not tag.isprintable():
            raise UsageError(
                f"{tag[:_TAG_MAX]!r} can't be a tag",
                hint=f"A tag has 1 to {_TAG_MAX} printable characters, without '|' and ','.",
            )
