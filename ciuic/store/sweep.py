"""What each pack is worth to the snapshots that are kept.

What is in a pack is read from its footer and never taken from the catalog: a wrong row must not
cost data. That is so of what chunks are a difference from, too. A pack whose footer can't be read
may hold anything, and is not touched; what its chunks build on, as far as its parity or what is
left of it tells, must be there when it is mended. Where a chunk lies in several packs one copy is
kept, and only after it has been read and found sound: one that stands alone, if there is any.
"""

import contextlib
import functools
import os
from collections.abc import Callable
from typing import Final, NamedTuple

from ciuic.errors import CorruptionError, UnknownFormatError, UnreachableError
from ciuic.hashing import checksum
from ciuic.store import layout
from ciuic.store.faults import store_faults
from ciuic.store.files import open_regular, read_at
from ciuic.store.frame import DATA, Frame, check_chunk, decode_frame
from ciuic.store.inspect import healed_frames
from ciuic.store.mark import Marks
from ciuic.store.pack import PackedFrame, read_footer
from ciuic.store.reader import StoreReader

__all__ = [
    "DEAD_FRACTION",
    "Census",
    "PackUse",
    "is_worn",
    "kept_chunks",
    "pack_path",
    "read_chunks",
    "read_frames",
    "read_payload",
    "take_census",
]

DEAD_FRACTION: Final = 0.2
"""Of a pack that is left alone, and of a frame that is copied as it is: decision 0013."""
_REPEATED_MAX: Final = 200_000
"""Chunks that are looked for in several packs; of more, every copy counts as needed."""
_ANSWERS_KEPT: Final = 1024
_CHUNKS_KEPT: Final = 50_000
"""Of footers that are not read a second time; a few MB of memory."""


class PackUse(NamedTuple):
    """What a pack is worth.

    Attributes:
        pack: The pack's ID.
        size_bytes: Length of the file.
        dead_bytes: How many of them nobody needs; the footer counts as needed.
        needed_chunks: Chunks that are needed, and kept here.
        dead_chunks: The others.
    """

    pack: bytes
    size_bytes: int
    dead_bytes: int
    needed_chunks: int
    dead_chunks: int

    @property
    def dead_fraction(self) -> float:
        """The part of it that nobody needs."""
        return self.dead_bytes / self.size_bytes


class Census(NamedTuple):
    """All packs of a store.

    Attributes:
        uses: Packs whose content is known, in the order of their IDs.
        unreadable: Packs whose footer is damaged, and their sizes.
        keepers: For chunks that lie in several packs, the one that keeps them.
        several: For chunks of which more than one copy stays, since none makes up for the others,
            the pack of each of these.
    """

    uses: tuple[PackUse, ...]
    unreadable: dict[bytes, int]
    keepers: dict[bytes, bytes]
    several: dict[bytes, list[bytes]]


def take_census(
    store_path: str,
    reader: StoreReader,
    packs: dict[bytes, int],
    marks: Marks,
    *,
    check: Callable[[int], None],
) -> Census:
    """Read the footers of all packs.

    Args:
        store_path: The store's directory.
        reader: Gives what chunks are a difference from.
        packs: Sizes of the packs that are there, by ID.
        marks: Of all that snapshots need; what that is a difference from is added.
        check: Told how many packs are done; raises to end the work.

    Raises:
        UnknownFormatError: A pack holds something of a later version: what that needs besides
            can't be known.
        UnreachableError: A pack can't be opened: neither can what it needs.
    """
    known: dict[bytes, list[PackedFrame]] = {}
    unreadable = _follow_references(store_path, packs, marks, known, check)
    uses: list[PackUse] = []
    repeated: set[bytes] = set()
    for name, size in sorted(packs.items()):
        if name in unreadable:
            continue
        check(len(packs))
        frames = known.pop(name, None) or read_frames(store_path, name)
        kept = []
        for one in frames:
            needed, again = marks.tick_off(one.frame.kind, [chunk for chunk, _ in one.frame.chunks])
            kept.append(needed)
            repeated.update(again[: max(0, _REPEATED_MAX - len(repeated))])
        uses.append(_use(name, size, frames, kept))
    keepers: dict[bytes, bytes] = {}
    several: dict[bytes, list[bytes]] = {}
    if repeated:
        keepers, several = _choose_keepers(
            store_path, reader, uses, repeated, lambda: check(len(packs))
        )
        for at, use in enumerate(uses):
            check(len(packs))
            frames = read_frames(store_path, use.pack)
            kept = [kept_chunks(use.pack, one.frame, marks, keepers) for one in frames]
            uses[at] = _use(use.pack, use.size_bytes, frames, kept)
    return Census(tuple(uses), unreadable, keepers, several)


def _follow_references(
    store_path: str,
    packs: dict[bytes, int],
    marks: Marks,
    known: dict[bytes, list[PackedFrame]],
    check: Callable[[int], None],
) -> dict[bytes, int]:
    """Mark what is needed to decode what is needed; returns the packs without a sound footer.

    What some packs hold, as many as there is room for, is left in ``known``.
    """
    unreadable: dict[bytes, int] = {}
    room = _CHUNKS_KEPT
    for number, (name, size) in enumerate(sorted(packs.items())):
        check(number)
        try:
            frames = read_frames(store_path, name)
            _add_references(marks, frames)
            count = sum([len(one.frame.chunks) for one in frames])
            if count <= room:
                room -= count
                known[name] = frames
        except UnreachableError:
            raise  # what its chunks build on would be taken for garbage
        except CorruptionError:
            unreadable[name] = size
            with contextlib.suppress(CorruptionError):
                _add_references(marks, read_frames(store_path, name, heal=True))
    marks.follow_references()
    return unreadable


def _add_references(marks: Marks, frames: list[PackedFrame]) -> None:
    for _, frame, _ in frames:
        if frame.is_delta:
            for name, _ in frame.chunks:
                marks.add_reference(name, frame.reference)


def read_frames(store_path: str, name: bytes, *, heal: bool = False) -> list[PackedFrame]:
    """What a pack's footer lists.

    Args:
        store_path: The store's directory.
        name: The pack's ID.
        heal: Of a damaged footer, what its parity or the rest of the pack tells.

    Raises:
        CorruptionError: The footer is damaged.
        UnknownFormatError: It lists something of a later version.
    """
    path = pack_path(store_path, name)
    try:
        with store_faults("read", path):
            fd = open_regular(path)
            try:
                return healed_frames(store_path, name, fd) if heal else read_footer(fd, name)
            finally:
                os.close(fd)
    except UnknownFormatError as error:
        raise UnknownFormatError(
            f"pack {name.hex()[:12]}: {error.message}; what it needs can't be known"
        ) from error


def kept_chunks(pack: bytes, frame: Frame, marks: Marks, keepers: dict[bytes, bytes]) -> list[bool]:
    """For each chunk of a frame whether it is needed, and this is the pack that keeps it."""
    names = [name for name, _ in frame.chunks]
    needed = marks.needed(frame.kind, names)
    if not keepers:
        return needed
    return [
        is_needed and keepers.get(name, pack) == pack
        for name, is_needed in zip(names, needed, strict=True)
    ]


def is_worn(frame: Frame, kept: list[bool]) -> bool:
    """So much of a frame is garbage that its other chunks are worth encoding again."""
    return _dead_plain_bytes(frame, kept) > DEAD_FRACTION * frame.plain_bytes


def pack_path(store_path: str, name: bytes) -> str:
    """The file of a pack."""
    return os.path.join(store_path, layout.PACKS, layout.pack_name(name))


def read_payload(fd: int, one: PackedFrame) -> bytes:
    """The stored bytes of a frame.

    Raises:
        CorruptionError: They are not what was written.
    """
    frame = one.frame
    payload = read_at(fd, frame.stored_bytes, one.offset_bytes + frame.header_bytes)
    if len(payload) != frame.stored_bytes or checksum(payload) != frame.payload_checksum:
        raise CorruptionError("a frame's payload does not match its checksum")
    return payload


def read_chunks(
    frame: Frame, payload: bytes, kept: list[bool], reference: bytes | memoryview = b""
) -> list[tuple[bytes, bytes]]:
    """The kept chunks of a frame, decoded and checked.

    Args:
        frame: Its header.
        payload: Its stored bytes.
        kept: For each of its chunks whether it is wanted.
        reference: The chunk that a delta is a difference from.

    Raises:
        CorruptionError: One of them is not what its ID says.
        UnknownFormatError: The frame's codec is not known.
    """
    plain = memoryview(decode_frame(frame, payload, reference))
    found = []
    start = 0
    for (name, length), is_kept in zip(frame.chunks, kept, strict=True):
        if is_kept:
            part = plain[start : start + length]
            check_chunk(frame.kind, name, part)
            found.append((name, bytes(part)))
        start += length
    return found


def _use(name: bytes, size: int, frames: list[PackedFrame], kept: list[list[bool]]) -> PackUse:
    dead_bytes = needed = dead = 0
    for one, of_frame in zip(frames, kept, strict=True):
        count = sum(of_frame)
        needed += count
        dead += len(of_frame) - count
        if not count:
            dead_bytes += one.frame.total_bytes
        elif count < len(of_frame) and one.frame.plain_bytes:
            share = _dead_plain_bytes(one.frame, of_frame) / one.frame.plain_bytes
            dead_bytes += int(one.frame.total_bytes * share)
    return PackUse(name, size, dead_bytes, needed, dead)


def _dead_plain_bytes(frame: Frame, kept: list[bool]) -> int:
    return sum(
        [length for (_, length), is_kept in zip(frame.chunks, kept, strict=True) if not is_kept]
    )


def _choose_keepers(
    store_path: str,
    reader: StoreReader,
    uses: list[PackUse],
    repeated: set[bytes],
    check: Callable[[], None],
) -> tuple[dict[bytes, bytes], dict[bytes, list[bytes]]]:
    """For each chunk the pack with the least garbage whose copy is sound; see ``Census``.

    A chunk of which no copy is sound has no keeper: all of them stay, for a repair.
    """

    @functools.lru_cache(_ANSWERS_KEPT)
    def is_sound(pack: bytes, one: PackedFrame) -> bool:
        return _is_sound(store_path, reader, pack, one)

    places: dict[bytes, list[tuple[bytes, PackedFrame]]] = {}
    for use in sorted(uses, key=lambda one: (one.dead_fraction, one.pack)):
        for one in read_frames(store_path, use.pack):
            for name in {name for name, _ in one.frame.chunks} & repeated:
                places.setdefault(name, []).append((use.pack, one))
    keepers: dict[bytes, bytes] = {}
    several: dict[bytes, list[bytes]] = {}
    for name, found in places.items():
        if len({pack for pack, _ in found}) > 1:
            check()
            keeper = next((pack for pack, one in _enough(found) if is_sound(pack, one)), None)
            if keeper is not None:
                keepers[name] = keeper
        copies = [pack for pack, _ in found if keepers.get(name, pack) == pack]
        if len(copies) > 1:
            several[name] = copies
    return keepers, several


def _enough(found: list[tuple[bytes, PackedFrame]]) -> list[tuple[bytes, PackedFrame]]:
    """Copies of a chunk of which any single one makes up for all others, if it is sound.

    One that stands alone does. Of differences none may go that builds on something else than the
    one that stays: what that needs may have been dropped in favour of a difference from this.
    """
    alone = [(pack, one) for pack, one in found if not one.frame.is_delta]
    references = {one.frame.reference for _, one in found}
    return found if len(references) == 1 else alone


def _is_sound(store_path: str, reader: StoreReader, pack: bytes, one: PackedFrame) -> bool:
    """Every chunk of a frame can be read from this very pack, without any healing."""
    path = pack_path(store_path, pack)
    try:
        with store_faults("read", path):
            fd = open_regular(path)
            try:
                payload = read_payload(fd, one)
            finally:
                os.close(fd)
        base = reader.chunk(one.frame.reference, kind=DATA) if one.frame.is_delta else b""
        read_chunks(one.frame, payload, [True] * len(one.frame.chunks), base)
    except (CorruptionError, UnknownFormatError):
        return False
    return True
