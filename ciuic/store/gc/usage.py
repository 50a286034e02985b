"""Measures how much of each pack the kept snapshots need.

The chunks of a pack and their delta bases are read from the pack's footer and not from the chunk
index: a wrong row must not cost data. A pack whose footer cannot be read may contain anything, and
is not touched. Its delta bases, as far as its parity or the rest of the pack names them, count as
needed: a repair needs them. If a chunk is in several packs, one copy is kept, preferably one
without base and one that no record of damage names, and only after it was read and found sound.
"""

import contextlib
import functools
import os
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from ciuic.errors import CorruptionError, UnknownFormatError, UnreachableError
from ciuic.ids import ChunkId, PackId
from ciuic.store.directory.faults import store_faults
from ciuic.store.format.frame import Frame, decode_frame
from ciuic.store.format.pack import PackedFrame
from ciuic.store.gc.mark import Marks
from ciuic.store.health.salvage import repaired_frames
from ciuic.store.packs.reader import StoreReader
from ciuic.store.place.packs import OpenPack, Packs, footer_of, walked_frames
from ciuic.store.records import layout
from ciuic.store.records.kinds import DATA, check_chunk
from ciuic.system.hashing import checksum

__all__ = [
    "DEAD_FRACTION",
    "PackUsage",
    "Usage",
    "follow_delta_bases",
    "is_fragmented",
    "is_sound",
    "kept_chunks",
    "measure_usage",
    "pack_path",
    "read_chunks",
    "read_frames",
    "read_payload",
]

DEAD_FRACTION: Final = 0.2
"""The most garbage in a pack that stays, and in a frame that is copied: decision 0013."""
_REPEATED_MAX: Final = 200_000
"""The most chunks whose copies are compared; of further chunks, every copy counts as needed."""
_ANSWERS_KEPT: Final = 1024
_CHUNKS_KEPT: Final = 50_000
"""The most chunks in footers that are kept instead of read again: a few MB of memory."""


class PackUsage(NamedTuple):
    """How much of a pack is needed.

    Attributes:
        pack_id: The pack.
        size_bytes: Length of the file.
        dead_bytes: Bytes that no snapshot needs; the footer counts as needed.
        needed_chunks: The number of needed chunks that this pack keeps.
        dead_chunks: The number of other chunks.
    """

    pack_id: PackId
    size_bytes: int
    dead_bytes: int
    needed_chunks: int
    dead_chunks: int

    @property
    def dead_fraction(self) -> float:
        """The share of the pack that no snapshot needs."""
        return self.dead_bytes / self.size_bytes


class Usage(NamedTuple):
    """The usage of all packs of a store.

    Attributes:
        uses: Packs whose content is known, in the order of their IDs.
        unreadable: Packs whose footer is damaged, and their sizes.
        retained: For chunks that are in several packs, the pack that keeps them.
        several: For chunks whose copies must all stay, the packs of these copies.
    """

    uses: tuple[PackUsage, ...]
    unreadable: dict[PackId, int]
    retained: dict[ChunkId, PackId]
    several: dict[ChunkId, list[PackId]]


def measure_usage(
    packs: Packs,
    reader: StoreReader,
    sizes: dict[PackId, int],
    marks: Marks,
    *,
    check: Callable[[int], None],
    shut_packs: Collection[PackId] = (),
) -> Usage:
    """Measure the usage of all packs from their footers.

    Args:
        packs: The store's packs.
        reader: Reads delta bases.
        sizes: Sizes of the packs to measure, by ID.
        marks: The marks of all chunks that snapshots need; their delta bases are added.
        check: Receives the number of measured packs; raises to end the work.
        shut_packs: Packs that another prune has condemned: their delta bases count, but their
        chunks do not.

    Raises:
        UnknownFormatError: A pack contains frames of a later version, whose delta bases are
            unknown.
        UnreachableError: A pack cannot be opened, so its delta bases are unknown.
    """
    known: dict[PackId, list[PackedFrame]] = {}
    unreadable = follow_delta_bases(packs, sizes, marks, check=check, known=known)
    uses: list[PackUsage] = []
    repeated: set[ChunkId] = set()
    for pack_id, size in sorted(sizes.items()):
        if pack_id in unreadable or pack_id in shut_packs:
            continue
        check(len(sizes))
        frames = known.pop(pack_id, None) or read_frames(packs, pack_id)
        kept = []
        for packed in frames:
            chunk_ids = [chunk_id for chunk_id, _ in packed.frame.chunks]
            needed, again = marks.tick_off(packed.frame.kind, chunk_ids)
            kept.append(needed)
            repeated.update(again[: max(0, _REPEATED_MAX - len(repeated))])
        uses.append(_use(pack_id, size, frames, kept))
    if not repeated:
        return Usage(tuple(uses), unreadable, {}, {})
    choice = _choose_retained(packs, reader, uses, repeated, lambda: check(len(sizes)))
    for at, use in enumerate(uses):
        check(len(sizes))
        frames = read_frames(packs, use.pack_id)
        kept = [kept_chunks(use.pack_id, packed.frame, marks, choice.retained) for packed in frames]
        uses[at] = _use(use.pack_id, use.size_bytes, frames, kept)
    return Usage(tuple(uses), unreadable, choice.retained, choice.several)


def follow_delta_bases(
    packs: Packs,
    sizes: dict[PackId, int],
    marks: Marks,
    *,
    check: Callable[[int], None],
    known: dict[PackId, list[PackedFrame]] | None = None,
) -> dict[PackId, int]:
    """Mark the delta bases of needed chunks; returns the packs without a sound footer.

    ``known`` receives the frames of the first packs, up to ``_CHUNKS_KEPT`` chunks. See
    ``measure_usage``.
    """
    known = {} if known is None else known
    unreadable: dict[PackId, int] = {}
    chunks_left = _CHUNKS_KEPT
    for number, (pack_id, size) in enumerate(sorted(sizes.items())):
        check(number)
        try:
            frames = read_frames(packs, pack_id)
            _add_delta_bases(marks, frames)
            count = sum([len(packed.frame.chunks) for packed in frames])
            if count <= chunks_left:
                chunks_left -= count
                known[pack_id] = frames
        except UnreachableError:
            raise  # the delta bases of its chunks would count as garbage
        except CorruptionError:
            unreadable[pack_id] = size
            with contextlib.suppress(CorruptionError):
                _add_delta_bases(marks, read_frames(packs, pack_id, repair=True))
    marks.follow_delta_bases()
    return unreadable


def _add_delta_bases(marks: Marks, frames: list[PackedFrame]) -> None:
    for _, frame, _ in frames:
        for base in frame.delta_bases:
            for chunk_id, _ in frame.chunks:
                marks.add_delta_base(chunk_id, base)


def read_frames(packs: Packs, pack_id: PackId, *, repair: bool = False) -> list[PackedFrame]:
    """Return the frames that a pack's footer lists.

    Args:
        packs: The store's packs.
        pack_id: The pack.
        repair: If the footer is damaged, list what the parity or the rest of the pack names.

    Raises:
        CorruptionError: The footer is damaged, or the pack is gone.
        UnknownFormatError: It lists frames of a later version.
    """
    try:
        opened = packs.open(pack_id)
        if not repair:
            return footer_of(opened, pack_id)
        if opened.fd < 0:
            return list(walked_frames(opened))
        with store_faults("read", opened.name):
            return repaired_frames(_store_of(opened), pack_id, opened.fd)
    except UnknownFormatError as error:
        raise UnknownFormatError(
            f"pack {pack_id.hex()[:12]}: {error.message}; what it needs cannot be known"
        ) from error


def _store_of(opened: OpenPack) -> str:
    return os.path.dirname(os.path.dirname(opened.name))


def kept_chunks(
    pack_id: PackId, frame: Frame, marks: Marks, retained: dict[ChunkId, PackId]
) -> list[bool]:
    """Return for each chunk of a frame whether it is needed and this pack keeps it."""
    chunk_ids = [chunk_id for chunk_id, _ in frame.chunks]
    needed = marks.needed(frame.kind, chunk_ids)
    if not retained:
        return needed
    return [
        is_needed and retained.get(chunk_id, pack_id) == pack_id
        for chunk_id, is_needed in zip(chunk_ids, needed, strict=True)
    ]


def is_fragmented(frame: Frame, kept: list[bool]) -> bool:
    """Return whether a frame has enough garbage that its other chunks are encoded again."""
    return _dead_plain_bytes(frame, kept) > DEAD_FRACTION * frame.plain_bytes


def pack_path(store_path: str, pack_id: PackId) -> str:
    """Return the path of a pack."""
    return os.path.join(store_path, layout.PACKS, layout.pack_name(pack_id))


def read_payload(opened: OpenPack, packed: PackedFrame) -> bytes:
    """Read the stored payload of a frame.

    Raises:
        CorruptionError: The payload is damaged.
    """
    try:
        return _payload_once(opened, packed)
    except CorruptionError:
        # What was fetched from a bucket is kept on this machine, and may be damaged only there.
        if not opened.doubt(packed.offset_bytes, packed.frame.total_bytes):
            raise
    return _payload_once(opened, packed)


def _payload_once(opened: OpenPack, packed: PackedFrame) -> bytes:
    frame = packed.frame
    payload = opened.read(frame.stored_bytes, packed.offset_bytes + frame.header_bytes)
    if len(payload) != frame.stored_bytes or checksum(payload) != frame.payload_checksum:
        raise CorruptionError("a frame's payload does not match its checksum")
    return payload


def read_chunks(
    frame: Frame, payload: bytes, kept: list[bool], delta_bases: Sequence[bytes | memoryview] = ()
) -> list[tuple[ChunkId, bytes]]:
    """Decode and check the kept chunks of a frame.

    Args:
        frame: The header.
        payload: The stored payload.
        kept: For each chunk whether to return it.
        delta_bases: The plain bytes of a delta's bases.

    Raises:
        CorruptionError: A chunk does not hash to its ID.
        UnknownFormatError: The frame's codec is not known.
    """
    plain = memoryview(decode_frame(frame, payload, *delta_bases))
    found = []
    start = 0
    for (chunk_id, length), is_kept in zip(frame.chunks, kept, strict=True):
        if is_kept:
            part = plain[start : start + length]
            check_chunk(frame.kind, chunk_id, part)
            found.append((chunk_id, bytes(part)))
        start += length
    return found


def _use(
    pack_id: PackId, size: int, frames: list[PackedFrame], kept: list[list[bool]]
) -> PackUsage:
    dead_bytes = needed = dead = 0
    for packed, of_frame in zip(frames, kept, strict=True):
        frame = packed.frame
        count = sum(of_frame)
        needed += count
        dead += len(of_frame) - count
        if not count:
            dead_bytes += frame.total_bytes
        elif count < len(of_frame) and frame.plain_bytes:
            share = _dead_plain_bytes(frame, of_frame) / frame.plain_bytes
            dead_bytes += int(frame.total_bytes * share)
    return PackUsage(pack_id, size, dead_bytes, needed, dead)


def _dead_plain_bytes(frame: Frame, kept: list[bool]) -> int:
    return sum(
        [length for (_, length), is_kept in zip(frame.chunks, kept, strict=True) if not is_kept]
    )


class _Copy(NamedTuple):
    """One copy of a chunk: a frame in a pack."""

    pack_id: PackId
    packed: PackedFrame


class _Choice(NamedTuple):
    """Which copies of chunks are kept; see ``Usage``."""

    retained: dict[ChunkId, PackId]
    several: dict[ChunkId, list[PackId]]


def _choose_retained(
    packs: Packs,
    reader: StoreReader,
    uses: list[PackUsage],
    repeated: set[ChunkId],
    check: Callable[[], None],
) -> _Choice:
    """Choose for each chunk, among the packs with a sound copy, the pack with the least garbage.

    Copies that a record of damage names come last. If a chunk has no sound copy, no pack is chosen,
    and all its copies stay for a repair.
    """

    @functools.lru_cache(_ANSWERS_KEPT)
    def is_readable(copy: _Copy) -> bool:
        return is_sound(packs, reader, copy.pack_id, copy.packed)

    damage = packs.damage()

    def is_on_record(copy: _Copy) -> bool:
        offset, length = copy.packed.offset_bytes, copy.packed.frame.total_bytes
        return damage.touches(copy.pack_id, offset, length)

    choice = _Choice({}, {})
    for chunk_id, copies in _copies(packs, uses, repeated).items():
        if len({copy.pack_id for copy in copies}) > 1:
            check()
            # No new snapshot relies on a copy that a record calls damaged, be the record wrong: the
            # next one would store the chunk again.
            trusted_first = sorted(_sufficient(copies), key=is_on_record)
            chosen = next(filter(is_readable, trusted_first), None)
            if chosen is not None:
                choice.retained[chunk_id] = chosen.pack_id
        retained = choice.retained.get(chunk_id)
        kept = [copy.pack_id for copy in copies if retained in (None, copy.pack_id)]
        if len(kept) > 1:
            choice.several[chunk_id] = kept
    return choice


def _copies(
    packs: Packs, uses: list[PackUsage], repeated: set[ChunkId]
) -> dict[ChunkId, list[_Copy]]:
    """Return the copies of chunks, first those in packs with the least garbage."""
    copies: dict[ChunkId, list[_Copy]] = {}
    for use in sorted(uses, key=lambda use: (use.dead_fraction, use.pack_id)):
        for packed in read_frames(packs, use.pack_id):
            for chunk_id in repeated.intersection([found for found, _ in packed.frame.chunks]):
                copies.setdefault(chunk_id, []).append(_Copy(use.pack_id, packed))
    return copies


def _sufficient(copies: list[_Copy]) -> list[_Copy]:
    """Return the copies of a chunk that can each replace all other copies, if they are sound.

    A copy without base can. A delta can replace only deltas with the same bases: the base of
    another delta may itself have been dropped in favor of a delta against this chunk.
    """
    alone = [copy for copy in copies if not copy.packed.frame.is_delta]
    delta_bases = {frozenset(copy.packed.frame.delta_bases) for copy in copies}
    return copies if len(delta_bases) == 1 else alone


def is_sound(packs: Packs, reader: StoreReader, pack_id: PackId, packed: PackedFrame) -> bool:
    """Return whether every chunk of a frame can be read from this pack, without parity."""
    frame = packed.frame
    try:
        payload = read_payload(packs.open(pack_id), packed)
        delta_bases = [reader.chunk(base, kind=DATA) for base in frame.delta_bases]
        read_chunks(frame, payload, [True] * len(frame.chunks), delta_bases)
    except (CorruptionError, UnknownFormatError):
        return False
    return True
