"""Reads a large chunk straight into the caller's memory: no copy of it is made or kept.

This module reads undamaged stores only. It leaves everything unusual to ``StoreReader.chunk``,
which knows other places of a chunk, repairs, and says what is wrong.
"""

from collections.abc import Mapping

from ciuic import codec
from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.ids import ChunkId
from ciuic.store.format.frame import (
    FRAME_BYTES_MAX,
    Frame,
    check_delta_bases,
    parse_header,
)
from ciuic.store.index.places import ChunkPlace
from ciuic.store.packs.open_packs import OpenPacks
from ciuic.store.records.kinds import CHAIN_MAX, DATA
from ciuic.system.hashing import data_id

__all__ = ["read_straight"]


def read_straight(
    packs: OpenPacks,
    places: Mapping[ChunkId, ChunkPlace],
    chunk_id: ChunkId,
    out: memoryview,
    raw: memoryview | None = None,
) -> bool:
    """Read a chunk of file content that has a frame of its own.

    The chunk is hashed and compared with its ID. Its delta bases are not: a wrong base makes a
    wrong chunk.

    Args:
        packs: The packs of the store.
        places: The places of the chunk and of its delta chain.
        chunk_id: The chunk.
        out: Writable memory, as long as the chunk. Its content is arbitrary if this returns False.
        raw: The frame, if the caller has read it; None: it is read here.

    Returns:
        Whether ``out`` has the chunk.

    Raises:
        StoreError: The store failed.
    """
    place = places.get(chunk_id)
    if place is None or place.length_bytes != len(out):
        return False
    try:
        frame, payload = _stored(packs, place, raw)
        if frame.kind != DATA or len(frame.chunks) != 1 or frame.plain_bytes != len(out):
            return False
        _decode(frame, payload, _bases(packs, places, frame, CHAIN_MAX), out)
    except (CorruptionError, UnknownFormatError):
        return False
    return data_id(out) == chunk_id


def _stored(
    packs: OpenPacks, place: ChunkPlace, raw: memoryview | None = None
) -> tuple[Frame, memoryview]:
    """Read a frame, if it is not given; returns its header and its payload."""
    if place.frame_bytes > FRAME_BYTES_MAX:
        raise CorruptionError("it is longer than a frame can be")
    if raw is None:
        raw = memoryview(packs.read(place))
    frame = parse_header(raw)
    if frame.total_bytes != len(raw):
        raise CorruptionError("the frame does not have the length in the chunk index")
    return frame, raw[frame.header_bytes :]


def _decode(
    frame: Frame, payload: memoryview, bases: list[memoryview], out: memoryview | None = None
) -> bytes | memoryview:
    """Decode a frame without its payload's checksum: what it would find, the chunk's ID finds too.

    No other thread of Python runs while a checksum is computed.
    """
    check_delta_bases(frame)
    return codec.decode(frame.codec, payload, frame.plain_bytes, *bases, out=out)


def _bases(
    packs: OpenPacks, places: Mapping[ChunkId, ChunkPlace], frame: Frame, deltas_left: int
) -> list[memoryview]:
    """Return the bytes of each delta base of a frame.

    Args:
        packs: The packs of the store.
        places: The places of the chunks below.
        frame: The frame.
        deltas_left: How many more deltas the chain may have.
    """
    if not frame.is_delta:
        return []
    check_delta_bases(frame)
    if not deltas_left:
        raise CorruptionError("its delta chain is too long")
    found = []
    for base in frame.delta_bases:
        place = places.get(base)
        if place is None:
            raise CorruptionError("a delta base is in no known place")
        below, payload = _stored(packs, place)
        plain = _decode(below, payload, _bases(packs, places, below, deltas_left - 1))
        found.append(memoryview(plain)[place.start_bytes :][: place.length_bytes])
    return found
