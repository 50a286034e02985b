"""Writes and removes the records of damage, which tell every machine which copies are damaged.

    damaged/<pack>-damaged-<begin>-<end>-<random>    in a directory
    packs/<pack>-damaged-<begin>-<end>-<random>      in a bucket

No record is replaced, and no name is used twice. So each may be created, and deleted, at any time
without a lock or a lease: a request that arrives late only concerns that record. docs/protocol.md,
"Damage that all machines know".
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from ciuic.errors import CorruptionError, StoreError
from ciuic.ids import PackId
from ciuic.store.directory.folder import Folder
from ciuic.store.directory.ownership import refuse_foreign
from ciuic.store.format.pack import PackedFrame
from ciuic.store.health.soundness import sound_payload
from ciuic.store.index.places import ChunkPlace
from ciuic.store.parity.rebuild import open_parity_reader
from ciuic.store.place.packs import RecordFolder, listed_frames
from ciuic.store.records import layout
from ciuic.store.records.damage import RECORDS_MAX, ByteSpan, KnownDamage, merged
from ciuic.store.store import Store

__all__ = ["forget_gone_packs", "note_found", "note_read"]

_SPANS_MAX: Final = 8
"""The most records that one reading of a pack makes. Then they also name what is between."""
_ONCE_BYTES: Final = 8
_REMOVED_AT_ONCE: Final = 1000
"""Records that a server deletes with one request."""


def note_read(
    store: Store, pack_id: PackId, damaged: Iterable[ByteSpan], before: KnownDamage, added: int = 0
) -> int:
    """Note what a process that has read a whole pack found, in place of earlier records.

    Errors are ignored: then the records stay as they are. A store that this process must not change
    gets no record.

    Args:
        store: The store, open or open for writing.
        pack_id: The pack.
        damaged: What is damaged in it; empty: it can be relied on.
        before: The records that were there before the process began to read it. Later ones may be
            of damage that came since, so they stay.
        added: How many more there are since, of what the process found in other packs.

    Returns:
        How many more there are now; negative: fewer.
    """
    old = before.names_of(pack_id)
    spans = list(damaged)
    more = 0
    if not (old or spans):
        return more
    with contextlib.suppress(StoreError):
        folder = _folder(store)
        found = _joined(spans, max(RECORDS_MAX - before.count - added, 0) + len(old))
        more = len(found)  # even if an error comes: some may be there
        # First, so that the damage is on record at every moment.
        _create(folder, pack_id, found)
        if old:
            folder.remove_durably(old)
            more -= len(old)
    return more


def note_found(store: Store) -> None:
    """Note the damage that this process has met while it read chunks: see ``note_read``.

    Each frame is read again first. What a record names already is not noted again.
    """
    suspects = store.reader.suspects
    if not suspects:
        return
    with contextlib.suppress(StoreError):
        folder = _folder(store)
        sizes = store.pack_files()
        known = store.packs.damage()
        free = RECORDS_MAX - known.count
        places: dict[PackId, list[ChunkPlace]] = {}
        for place in suspects:
            if place.pack_id in sizes:
                places.setdefault(place.pack_id, []).append(place)
        for pack_id, found in sorted(places.items()):
            if free <= 0:
                return
            spans = _damaged(store, pack_id, found)
            joined = _joined([one for one in spans if not known.covers(pack_id, one)], free)
            _create(folder, pack_id, joined)
            free -= len(joined)


def forget_gone_packs(store: Store, check: Callable[[], None] = lambda: None) -> None:
    """Remove the records of packs that are gone: their names are never used again.

    Errors are ignored: the next call does it.

    Args:
        store: Open for writing; the packs were listed since.
        check: Called often; raises to end the work.
    """
    # These were listed before the packs: a pack that has come since is no reason for a record here.
    known = store.packs.damage()
    if not known:
        return
    with contextlib.suppress(StoreError):
        if store.bucket is None:
            there = store.pack_files().keys() | store.unreachable_packs().keys()
        else:
            there = store.bucket.records(layout.PACKS).names(layout.parse_pack_name)
        gone = sorted(known.packs() - there)
        names = [name for one in gone for name in known.names_of(one)]
        for begin in range(0, len(names), _REMOVED_AT_ONCE):
            check()
            _folder(store).remove_durably(names[begin : begin + _REMOVED_AT_ONCE])


def _folder(store: Store) -> RecordFolder:
    """Return the folder of the records.

    Raises:
        StoreError: This process must not change the store.
    """
    if store.header.problem_for_writers:
        raise StoreError(store.header.problem_for_writers)
    if store.bucket is not None:
        return store.bucket.records(layout.PACKS)
    refuse_foreign(store.path, store.owner)
    return Folder(store.path, layout.DAMAGED, is_owners=True)


def _joined(spans: Iterable[ByteSpan], count_max: int) -> list[ByteSpan]:
    """Join spans until a reading of a pack may make a record of each; none if it may make none."""
    return merged(spans, min(_SPANS_MAX, count_max)) if count_max > 0 else []


def _create(folder: RecordFolder, pack_id: PackId, spans: Sequence[ByteSpan]) -> None:
    if spans:
        folder.make()
    for span in spans:
        name = layout.damage_name(pack_id, *span, os.urandom(_ONCE_BYTES))
        # A process without a lock must leave nothing in ``tmp/``, and an empty file needs nothing.
        folder.mark(name)


def _damaged(store: Store, pack_id: PackId, places: Iterable[ChunkPlace]) -> Iterator[ByteSpan]:
    """Read frames again; yield those whose payload is damaged, and that nothing gives back."""
    listed = {packed.offset_bytes: packed for packed in listed_frames(store.packs, pack_id)}
    for offset in sorted({place.offset_bytes for place in places}):
        packed = listed.get(offset)
        if packed is not None and not _is_given_back(store, pack_id, packed):
            yield ByteSpan(offset, offset + packed.frame.total_bytes)


def _is_given_back(store: Store, pack_id: PackId, packed: PackedFrame) -> bool:
    opened = store.packs.open(pack_id)
    if _is_sound(opened.read, packed):
        return True
    if opened.fd < 0:
        # What was fetched from a bucket is kept on this machine, and may be damaged only there.
        is_doubtful = opened.doubt(packed.offset_bytes, packed.frame.total_bytes)
        return is_doubtful and _is_sound(opened.read, packed)
    with (
        contextlib.suppress(CorruptionError),
        open_parity_reader(store.path, pack_id, opened.fd) as reader,
    ):
        return _is_sound(reader.read, packed)
    return False


def _is_sound(read: Callable[[int, int], bytes], packed: PackedFrame) -> bool:
    with contextlib.suppress(CorruptionError):
        # The footer has a second copy of the header.
        return sound_payload(read, packed) is not None
    return False
