"""Pieces of a large file: which of them a file holds, and their bytes from the store.

A recipe of slices names the same few chunks thousands of times. So pieces are handled a window at
a time, grouped by the frames that they lie in: each frame is decoded and each chunk is hashed once
a window, whatever the number of its slices.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Final, NamedTuple

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.hashing import data_id
from ciuic.model import Entry
from ciuic.store.frame import DATA
from ciuic.store.nodes import Piece, cut, iter_pieces
from ciuic.store.reader import StoreReader

__all__ = ["Part", "held", "in_frames", "plain_parts", "windows"]

_WINDOW_PIECES: Final = 8192
_WINDOW_BYTES: Final = 256 * 1024 * 1024
_HASHED_TOGETHER_BYTES: Final = 1024 * 1024


class Part(NamedTuple):
    """A piece at its place in a file."""

    offset: int
    piece: Piece


def windows(reader: StoreReader, entry: Entry) -> Iterator[list[Part]]:
    """The pieces of a file in order, so many at a time.

    Raises:
        CorruptionError: The recipe is damaged.
    """
    window: list[Part] = []
    begins = offset = 0
    for piece in iter_pieces(reader.node, entry):
        window.append(Part(offset, piece))
        offset += piece.length_bytes
        if len(window) >= _WINDOW_PIECES or offset - begins >= _WINDOW_BYTES:
            yield window
            window, begins = [], offset
    if window:
        yield window


def in_frames(reader: StoreReader, parts: Iterable[Part]) -> list[list[Part]]:
    """Parts that have bytes, grouped by frame, in the order that frames lie in the packs."""
    wanted = [part for part in parts if part.piece.id]
    places = reader.places(list({part.piece.id for part in wanted}))
    reader.expect(places.values())
    groups: dict[tuple[bytes, int], list[Part]] = {}
    for part in wanted:
        place = places.get(part.piece.id)
        # What is in no pack is a group of its own, and fails by itself.
        key = (place.pack, place.offset_bytes) if place else (b"", part.offset)
        groups.setdefault(key, []).append(part)
    return [groups[key] for key in sorted(groups)]


def plain_parts(
    reader: StoreReader, group: Sequence[Part]
) -> Iterator[tuple[int, memoryview | bytes]]:
    """Offset and bytes of each part of one frame; every chunk of it is decoded and hashed once.

    Raises:
        CorruptionError: A chunk is missing or damaged, or is shorter than its pieces want it.
    """
    by_chunk: dict[bytes, list[Part]] = {}
    for part in group:
        by_chunk.setdefault(part.piece.id, []).append(part)
    for name, parts in by_chunk.items():
        chunk = memoryview(reader.chunk(name, kind=DATA))
        for offset, piece in parts:
            yield offset, cut(chunk, piece)


def held(reader: StoreReader, pool: Executor, fd: int, window: Sequence[Part]) -> bytearray:
    """One byte a part: 1 where an open file has the same bytes at the same place.

    A whole chunk is known by its hash; a slice is compared with the store's own bytes, and counts
    as not held where those can't be had.
    """
    found = bytearray(len(window))
    numbers = {part.offset: number for number, part in enumerate(window)}
    for offsets in pool.map(lambda parts: _held_whole(fd, parts), _batches(window)):
        for offset in offsets:
            found[numbers[offset]] = 1
    slices = _slices(reader, [part for at, part in enumerate(window) if not found[at]])
    groups = in_frames(reader, slices)
    for offsets in pool.map(lambda group: _held_slices(reader, fd, group), groups):
        for offset in offsets:
            found[numbers[offset]] = 1
    return found


def _slices(reader: StoreReader, parts: Iterable[Part]) -> list[Part]:
    """Those parts that are not all of their chunk."""
    data = [part for part in parts if part.piece.id]
    places = reader.places(list({part.piece.id for part in data}))
    return [
        part
        for part in data
        if part.piece.id in places and part.piece.length_bytes != places[part.piece.id].length_bytes
    ]


def _batches(window: Sequence[Part]) -> Iterator[list[Part]]:
    """Parts whose bytes are worth a task of their own together."""
    batch: list[Part] = []
    size_bytes = 0
    for part in window:
        batch.append(part)
        size_bytes += part.piece.length_bytes
        if size_bytes >= _HASHED_TOGETHER_BYTES:
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch


def _held_whole(fd: int, parts: Iterable[Part]) -> list[int]:
    return [offset for offset, piece in parts if _holds(fd, offset, piece)]


def _holds(fd: int, offset: int, piece: Piece) -> bool:
    """The file has a whole chunk or a hole at this place; an unreadable file has not."""
    if piece.start_bytes:
        return False
    try:
        if piece.id:
            data = os.pread(fd, piece.length_bytes, offset)
            return len(data) == piece.length_bytes and data_id(data) == piece.id
        return _is_hole(fd, offset, piece.length_bytes)
    except OSError:
        return False


def _is_hole(fd: int, offset: int, length: int) -> bool:
    try:
        return os.lseek(fd, offset, os.SEEK_DATA) >= offset + length
    except OSError:
        return os.fstat(fd).st_size >= offset + length  # ENXIO: nothing but a hole from here


def _held_slices(reader: StoreReader, fd: int, group: Sequence[Part]) -> list[int]:
    same = []
    try:
        for offset, plain in plain_parts(reader, group):
            if os.pread(fd, len(plain), offset) == plain:
                same.append(offset)
    except (CorruptionError, UnknownFormatError, OSError):
        return same  # whoever needs the bytes is told why they can't be had
    return same
