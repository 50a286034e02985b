"""Which snapshots exist, and finding one by ID, prefix, ``latest``, ``latest-valid`` or time.

A snapshot exists if its manifest's file does. The catalog database only saves reading a
thousand small files to print a list: a row counts as long as its file is as it was.
"""

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import Final

import msgspec

from ciuic.clock import from_local_text, local_time_text
from ciuic.errors import (
    CorruptionError,
    SnapshotNotFoundError,
    StoreError,
    StoreFullError,
    UnknownFormatError,
    UsageError,
)
from ciuic.model import SnapshotSummary, newest_first
from ciuic.store import Store
from ciuic.store.index import IndexDamagedError
from ciuic.store.manifest import decode_manifest

__all__ = [
    "LATEST",
    "chain_lengths",
    "damaged_manifests",
    "damaged_since",
    "find_snapshot",
    "latest_snapshot",
    "list_snapshots",
    "lost_manifest",
    "lost_snapshots",
    "remember",
]

LATEST: Final = "latest"
LATEST_VALID: Final = "latest-valid"
_Rows = Mapping[str, tuple[int, int, bytes]]
_PREFIX: Final = re.compile(r"(?:cs-)?[0-9a-f]+")
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SnapshotSummary)


def list_snapshots(store: Store) -> list[SnapshotSummary]:
    """Every committed snapshot whose manifest can be read, newest first by the time taken."""
    return _survey(store, _recorded(store))[0]


def damaged_manifests(store: Store) -> dict[str, str]:
    """Snapshots whose manifest is damaged or gone, and what is wrong with it."""
    recorded = _recorded(store)
    damaged = _survey(store, recorded)[1]
    for name in _lost(store, recorded):
        damaged[name] = f"its file is gone; {_what_helps(store, name)}"
    return damaged


def damaged_since(store: Store, latest: SnapshotSummary) -> dict[str, str]:
    """Those of ``damaged_manifests`` that are newer than the newest that can be read.

    When they were taken the catalog or a copy says; if neither does, when the damaged file was
    written.
    """
    damaged = damaged_manifests(store)
    if not damaged:
        return {}
    recorded = _recorded(store)
    known = [_last_known(store, recorded, name) for name in damaged]
    snapshots = list_snapshots(store)
    order = newest_first([*snapshots, *[one for one in known if one is not None]])
    newer = {one.id for one in takewhile(lambda one: one.id != latest.id, order)}
    unknown = damaged.keys() - {one.id for one in known if one is not None}
    unknown -= {one.parent for one in snapshots}  # it was there before its child
    newer |= {name for name in unknown if store.manifest_written_ns(name) > latest.taken_ns}
    return {name: what for name, what in damaged.items() if name in newer}


def lost_snapshots(store: Store) -> list[str]:
    """Snapshots that nobody has forgotten, and whose manifest is gone.

    Copies of manifests tell of them, damaged ones that a repair has set aside, and the catalog.
    What they need must stay: the file may be put back.
    """
    return _lost(store, _recorded(store))


def lost_manifest(store: Store, snapshot_id: str) -> CorruptionError:
    """That a manifest is gone, and what can be done about it."""
    helps = _what_helps(store, snapshot_id)
    return CorruptionError(
        f"the manifest of {snapshot_id} is gone", hint=f"{helps[0].upper()}{helps[1:]}."
    )


def latest_snapshot(store: Store) -> SnapshotSummary | None:
    """The snapshot that was committed last; None in a store without any."""
    return next(iter(newest_first(list_snapshots(store))), None)


def chain_lengths(snapshots: Iterable[SnapshotSummary]) -> dict[str, int]:
    """How many snapshots lie between each one and its base; 0 for a base.

    Where a parent was forgotten the count ends: what is left of the chain is counted.
    """
    known = {one.id: one for one in snapshots}
    found: dict[str, int] = {}
    for one in sorted(known.values(), key=lambda one: (one.taken_ns, one.id)):
        is_alone = one.kind == "base" or one.parent not in known
        found[one.id] = 0 if is_alone else found.get(one.parent or "", 0) + 1
    return found


def find_snapshot(store: Store, text: str) -> SnapshotSummary:
    """The snapshot that ``text`` means: an ID, a prefix of one, ``latest``, or a time.

    A time means the newest snapshot that is not after it. ``latest`` is the one that was committed
    last, which is another one where the clock was set back since; ``latest-valid`` the last one
    that can be restored whole, as far as is known without reading its files' content.

    Raises:
        UsageError: ``text`` can't mean a snapshot.
        SnapshotNotFoundError: None answers to it, or more than one.
        CorruptionError: It is there and its manifest is damaged.
    """
    if _PREFIX.fullmatch(text):
        return _by_prefix(store, text)
    snapshots = list_snapshots(store)
    if text in {LATEST, LATEST_VALID}:
        if not snapshots:
            for name, what in damaged_manifests(store).items():
                raise CorruptionError(
                    f"no snapshot of the store can be read: {name}: {what}",
                    hint="'ciuic repair' shows what can be mended.",
                )
            raise SnapshotNotFoundError(
                "the store has no snapshot yet", hint="Take one with 'ciuic snapshot'."
            )
        snapshots = newest_first(snapshots)
        return snapshots[0] if text == LATEST else _latest_valid(store, snapshots)
    until_ns = from_local_text(text)
    if until_ns is None:
        raise UsageError(
            f"'{text}' is not a snapshot's ID",
            hint="Give cs- and hex digits, 'latest', 'latest-valid', or a time such as"
            " '2026-06-15 14:30'.",
        )
    for snapshot in snapshots:
        if snapshot.taken_ns <= until_ns:
            return snapshot
    oldest = f"; the oldest is of {local_time_text(snapshots[-1].taken_ns)}" if snapshots else ""
    raise SnapshotNotFoundError(f"no snapshot was taken by {text}{oldest}")


def remember(store: Store, summary: SnapshotSummary) -> None:
    """Copy a committed snapshot's summary into the catalog, so that a list is one query."""
    status = store.snapshot_files().get(summary.id)
    if status is None:
        return
    # The snapshot exists already; a full disk must not turn it into a failure now.
    with contextlib.suppress(StoreError):
        _put(store, summary, status)
        store.index.commit()


def _latest_valid(store: Store, snapshots: list[SnapshotSummary]) -> SnapshotSummary:
    # Here, as nothing else that looks for a snapshot reads trees.
    from ciuic.store.survey import Survey, known_lost

    survey = Survey(store, known_lost(store))
    for snapshot in snapshots:
        if survey.is_sound(snapshot.id):
            return snapshot
    what = "the only snapshot" if len(snapshots) == 1 else f"each of the {len(snapshots)} snapshots"
    raise CorruptionError(
        f"{what} is damaged",
        hint="'ciuic verify --all' names what is lost of each; 'ciuic restore' puts back the rest.",
    )


def _by_prefix(store: Store, text: str) -> SnapshotSummary:
    wanted = text if text.startswith("cs-") else f"cs-{text}"
    names = sorted(name for name in store.snapshot_files() if name.startswith(wanted))
    if wanted in names:
        names = [wanted]
    if not names:
        lost = [name for name in lost_snapshots(store) if name.startswith(wanted)]
        if lost:
            raise lost_manifest(store, lost[0])
        forgotten = [name for name in store.trashed_ids() if name.startswith(wanted)]
        if len(forgotten) == 1:
            raise SnapshotNotFoundError(
                f"{forgotten[0]} was forgotten",
                hint=f"'ciuic forget --undo {forgotten[0]}' brings it back.",
            )
        raise SnapshotNotFoundError(f"there is no snapshot {wanted}")
    if len(names) > 1:
        some = ", ".join(names[:5])
        raise SnapshotNotFoundError(
            f"{wanted} is ambiguous: {some}", hint="Give more digits of the ID."
        )
    return store.manifest(names[0]).summary


def _lost(store: Store, recorded: _Rows) -> list[str]:
    remembered = store.remembered_ids()
    missed = store.unaccounted_for({*remembered, *recorded})
    # What another process brings back meanwhile is gone only at the first look.
    missed = store.unaccounted_for(missed) if missed else missed
    return sorted([one for one in missed if one in remembered or _is_of(recorded[one][2], one)])


def _last_known(store: Store, recorded: _Rows, snapshot_id: str) -> SnapshotSummary | None:
    """What a manifest said before it was damaged, if anybody remembers."""
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, KeyError):
        summary = _decoder.decode(recorded[snapshot_id][2])
        if summary.id == snapshot_id:
            return summary
    copy = store.manifest_copy(snapshot_id)
    return None if copy is None else decode_manifest(copy, snapshot_id).summary


def _what_helps(store: Store, snapshot_id: str) -> str:
    if store.manifest_copy(snapshot_id) is not None:
        return "'ciuic repair --apply' puts it back from its copy"
    return (
        f"put snapshots/{snapshot_id}.json back from a copy of the store, or give the snapshot up"
        f" with 'ciuic forget {snapshot_id}'"
    )


def _is_of(row: bytes, snapshot_id: str) -> bool:
    """A row of the catalog is a snapshot's: one that has rotten must not invent another."""
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
        return _decoder.decode(row).id == snapshot_id
    return False


def _survey(store: Store, recorded: _Rows) -> tuple[list[SnapshotSummary], dict[str, str]]:
    found, fresh, damaged = [], [], {}
    listed = store.snapshot_files()
    for name, status in listed.items():
        row = recorded.get(name)
        if row and status and row[:2] == (status.st_size, status.st_mtime_ns):
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
                found.append(_decoder.decode(row[2]))
                continue
        try:
            summary = store.manifest(name).summary
        except (CorruptionError, UnknownFormatError) as error:
            damaged[name] = error.message
            continue
        except SnapshotNotFoundError:
            continue
        found.append(summary)
        if status is not None:
            fresh.append((summary, status))
    if store.writable:
        with contextlib.suppress(StoreFullError):  # what is listed can still be forgotten
            for summary, status in fresh:
                _put(store, summary, status)
            gone = {name: row for name, row in recorded.items() if name not in listed}
            store.index.drop_snapshots(gone.keys() - _lost(store, gone) if gone else ())
    found.sort(key=lambda one: (one.taken_ns, one.id), reverse=True)
    return found, damaged


def _recorded(store: Store) -> dict[str, tuple[int, int, bytes]]:
    """What the catalog says of the manifests; nothing if it can't be read."""
    with contextlib.suppress(IndexDamagedError):
        index = store.existing_index
        if index is not None:
            return index.snapshots()
    return {}


def _put(store: Store, summary: SnapshotSummary, status: os.stat_result) -> None:
    store.index.put_snapshot(
        summary.id, status.st_size, status.st_mtime_ns, summary.taken_ns, _encoder.encode(summary)
    )
