"""Finds the snapshot that a text means: an ID, a prefix, ``latest``, a time or a tag."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ciuic.catalog.listing import labelled, list_snapshots
from ciuic.catalog.lost import (
    damaged_manifests,
    damaged_since,
    known_lost,
    known_of,
    lost_manifest,
    lost_snapshots,
)
from ciuic.errors import CorruptionError, SnapshotNotFoundError, StoreError, UsageError
from ciuic.ids import SnapshotId, matching_ids
from ciuic.model import SnapshotSummary, complete_ones, covers, newest_first
from ciuic.store.store import Store
from ciuic.system.clock import from_local_text, local_time_text
from ciuic.units import counted

__all__ = [
    "HOW_TO_TAKE",
    "LATEST",
    "LATEST_VALID",
    "ambiguous",
    "check_tags",
    "find_snapshot",
    "holding_roots",
    "means_otherwise",
    "passed_over",
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
_PREFIX: Final = r"(?:cs-)?[0-9a-f]+"


def find_snapshot(
    store: Store,
    text: str,
    *,
    holding: Sequence[bytes] = (),
    tagged: bool = False,
    untagged: str = "",
    listed: Sequence[SnapshotSummary] | None = None,
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
        tagged: What is none of these may be a tag: it means the newest snapshot that has it. A
            word without ``cs-`` that is both the beginning of an ID and a tag is refused.
        untagged: For the message, if the caller has found that ``text`` is no tag either.
        listed: All listed snapshots, newest first, if the caller has them.

    Raises:
        UsageError: ``text`` cannot mean a snapshot.
        SnapshotNotFoundError: No snapshot matches, or more than one.
        CorruptionError: The snapshot's manifest is damaged.
    """
    if re.fullmatch(_PREFIX, text):
        if tagged and not text.startswith("cs-"):
            known = list_snapshots(store) if listed is None else listed
            named = _with_tag(complete_ones(known), text)
            if named is not None:
                return _unless_id(store, text, named)
        return _by_prefix(store, text)
    known = list_snapshots(store) if listed is None else listed
    snapshots = holding_roots(complete_ones(known), holding)
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
        named = _with_tag(snapshots, text) if tagged else None
        if named is not None:
            return named
        why = "no snapshot has this tag" if tagged else untagged
        more, tag = (f", and {why}", ", a tag") if why else ("", "")
        raise UsageError(
            f"'{text}' is not a snapshot's ID{more}",
            hint=f"Give cs- and hex digits, 'latest', 'latest-valid'{tag}, or a time such as"
            " '2026-06-15 14:30'.",
        )
    for snapshot in snapshots:
        if snapshot.taken_ns <= until_ns:
            return snapshot
    oldest = f"; the oldest is from {local_time_text(snapshots[-1].taken_ns)}" if snapshots else ""
    raise SnapshotNotFoundError(f"no snapshot was taken at or before {text}{oldest}")


def passed_over(store: Store, text: str, found: SnapshotSummary) -> dict[SnapshotId, str]:
    """Return the damaged manifests that ``text`` may mean instead of what ``find_snapshot`` found.

    An ID means one snapshot, and ``latest-valid`` no damaged one, so the result is empty for them.
    """
    if text == LATEST:
        return damaged_since(store, found)
    until_ns = None if re.fullmatch(_PREFIX, text) else from_local_text(text)
    if until_ns is None:
        return {}
    damaged = damaged_manifests(store)
    known = known_of(store, damaged)
    snapshots = list_snapshots(store) if damaged else []
    parents = {summary.parent for summary in snapshots if summary.taken_ns <= found.taken_ns}

    def may_be_meant(snapshot_id: SnapshotId) -> bool:
        if snapshot_id in known:
            taken_ns = known[snapshot_id].taken_ns
            return (found.taken_ns, found.id) < (taken_ns, snapshot_id) and taken_ns <= until_ns
        is_newer = store.manifests.written_ns(snapshot_id) > found.taken_ns
        return snapshot_id not in parents and is_newer

    return {snapshot_id: what for snapshot_id, what in damaged.items() if may_be_meant(snapshot_id)}


def ambiguous(
    text: str, taken_ns: Mapping[SnapshotId, int | None], where: str = ""
) -> SnapshotNotFoundError:
    """Return the error for a prefix that several snapshots have, with the times of the newest.

    Args:
        text: The prefix.
        taken_ns: When each of the snapshots was taken; None if its manifest cannot be read.
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


def means_otherwise(tag: str) -> bool:
    """Return whether a tag cannot stand for an ID, because it means another snapshot there."""
    is_id = tag.startswith("cs-") and re.fullmatch(_PREFIX, tag) is not None
    return is_id or tag in {LATEST, LATEST_VALID} or from_local_text(tag) is not None


def check_tags(tags: Iterable[str]) -> None:
    """Refuse tags that a table cannot show or a script cannot split.

    Raises:
        UsageError: A tag is empty, too long, or has a character that is not allowed.
    """
    for tag in tags:
        if not 1 <= len(tag) <= _TAG_MAX or "|" in tag or "," in tag or not tag.isprintable():
            raise UsageError(
                f"{tag[:_TAG_MAX]!r} cannot be a tag",
                hint=f"A tag has 1 to {_TAG_MAX} printable characters, without '|' and ','.",
            )


def _with_tag(snapshots: list[SnapshotSummary], tag: str) -> SnapshotSummary | None:
    named = [snapshot for snapshot in snapshots if tag in snapshot.tags]
    return newest_first(named)[0] if named else None


def _unless_id(store: Store, text: str, named: SnapshotSummary) -> SnapshotSummary:
    """Return a snapshot that was named by a tag, unless the tag may be meant as an ID."""
    for snapshot_id in matching_ids(text, store.manifests.ids()):
        if snapshot_id != named.id:
            raise SnapshotNotFoundError(
                f"'{text}' is ambiguous: it is a tag of {named.id}, and the ID {snapshot_id}"
                " begins with it",
                hint=f"Give {named.id} or {snapshot_id}.",
            )
    return named


def holding_roots(
    snapshots: list[SnapshotSummary], paths: Sequence[bytes]
) -> list[SnapshotSummary]:
    """Return the snapshots whose roots hold all paths; all snapshots if none does."""
    return [snapshot for snapshot in snapshots if covers(snapshot.roots, paths)] or snapshots


def _latest_valid(store: Store, snapshots: list[SnapshotSummary]) -> SnapshotSummary:
    # Imported here because only this case reads trees.
    from ciuic.view.damage import DamageSurvey

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


def _time_of(store: Store, snapshot_id: SnapshotId) -> int | None:
    try:
        return store.manifest(snapshot_id).summary.taken_ns
    except StoreError:
        return None
