"""Pieces of a large file: which of them a file in the target has already, and their bytes.

A recipe of slices may name the same few chunks thousands of times. So pieces are handled a window
at a time and grouped by frame: per window, each frame is decoded once and each chunk is hashed
once, however many slices it has.
"""

import os
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.ids import ChunkId
from ciuic.model import Entry
from ciuic.store.packs.reader import StoreReader
from ciuic.store.records.kinds import DATA
from ciuic.store.records.recipe_nodes import Piece, cut, iter_pieces
from ciuic.system.hashing import data_id
from ciuic.system.workers.threads import Workers

__all__ = ["Part", "group_by_frame", "matching_parts", "read_parts", "windows"]

_WINDOW_PIECES: Final = 8192
_WINDOW_BYTES: Final = 256 * 1024 * 1024
_HASHED_TOGETHER_BYTES: Final = 1024 * 1024


class Part(NamedTuple):
    """A piece at its place in a file."""

    offset: int
    piece: Piece


class _HasPiece(Protocol):
    """The part of ``Part`` that is used."""

    @property
    def offset(self) -> int: ...

    @property
    def piece(self) -> Piece: ...


P = TypeVar("P", bound=_HasPiece)


def windows(reader: StoreReader, entry: Entry) -> Iterator[list[Part]]:
    """Yield the pieces of a file in order, in lists of limited length.

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


def group_by_frame(
    reader: StoreReader,
    parts: Iterable[P],
    *,
    reads_ahead: bool = True,
    written: Container[ChunkId] = (),
) -> list[list[P]]:
    """Return the parts that are not holes, by frame, in the order of the frames in the packs.

    Args:
        reader: Reads the chunks.
        parts: The parts.
        reads_ahead: See ``StoreReader.prepare_reads``.
        written: See there.
    """
    wanted = [part for part in parts if part.piece.id]
    places = reader.places(list({part.piece.id for part in wanted}))
    reader.prepare_reads(places, reads_ahead=reads_ahead, written=written)
    groups: dict[tuple[bytes, int], list[P]] = {}
    for part in wanted:
        place = places.get(part.piece.id)
        # A chunk that is in no pack gets a group of its own, and only that group fails.
        key = (place.pack_id, place.offset_bytes) if place else (b"", part.offset)
        groups.setdefault(key, []).append(part)
    return [groups[key] for key in sorted(groups)]


def read_parts(
    reader: StoreReader, group: Sequence[Part]
) -> Iterator[tuple[int, memoryview | bytes]]:
    """Yield offset and bytes of each part of one frame. Each of its chunks is read once.

    Raises:
        CorruptionError: A chunk is missing or damaged, or is shorter than its pieces require.
    """
    by_chunk: dict[ChunkId, list[Part]] = {}
    for part in group:
        by_chunk.setdefault(part.piece.id, []).append(part)
    for chunk_id, parts in by_chunk.items():
        chunk = memoryview(reader.chunk(chunk_id, kind=DATA))
        for offset, piece in parts:
            yield offset, cut(chunk, piece)


def matching_parts(
    reader: StoreReader, workers: Workers, fd: int, window: Sequence[Part]
) -> bytearray:
    """Return one byte for each part: 1 if an open file has the same bytes at the same place.

    Whole chunks are compared by hash. Slices are compared with the bytes in the store; if these
    cannot be read, the result is 0.
    """
    found = bytearray(len(window))
    numbers = {part.offset: number for number, part in enumerate(window)}
    for offsets in workers.map(lambda parts: _match_whole(fd, parts), _batches(window)):
        for offset in offsets:
            found[numbers[offset]] = 1
    slices = _slices(reader, [part for at, part in enumerate(window) if not found[at]])
    groups = group_by_frame(reader, slices)
    for offsets in workers.map(lambda group: _match_slices(reader, fd, group), groups):
        for offset in offsets:
            found[numbers[offset]] = 1
    return found


def _slices(reader: StoreReader, parts: Iterable[Part]) -> list[Part]:
    """Return the parts that are not whole chunks."""
    data = [part for part in parts if part.piece.id]
    places = reader.places(list({part.piece.id for part in data}))
    return [
        part
        for part in data
        if part.piece.id in places and part.piece.length_bytes != places[part.piece.id].length_bytes
    ]


def _batches(window: Sequence[Part]) -> Iterator[list[Part]]:
    """Yield parts in lists that are long enough for a task of a thread."""
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


def _match_whole(fd: int, parts: Iterable[Part]) -> list[int]:
    """Return the offsets of the parts that are whole chunks or holes, and that the file has."""
    return [offset for offset, piece in parts if _has_whole(fd, offset, piece)]


def _has_whole(fd: int, offset: int, piece: Piece) -> bool:
    """Return whether the file has this chunk or hole at this place; False if it is unreadable."""
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


def _match_slices(reader: StoreReader, fd: int, group: Sequence[Part]) -> list[int]:
    """Return the offsets of the parts of one frame that the file has."""
    same = []
    try:
        for offset, plain in read_parts(reader, group):
            if os.pread(fd, len(plain), offset) == plain:
                same.append(offset)
    except (CorruptionError, UnknownFormatError, OSError):
        return same  # a restore that needs the bytes will report why they cannot be read
    return same
