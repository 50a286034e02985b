"""Reads a large chunk straight into the caller's memory: no copy of it is made or kept.

This module reads undamaged stores only. It leaves everything unusual to ``StoreReader.chunk``,
which knows other places of a chunk, repairs, and says what is wrong.
"""

import contextlib
from collections.abc import Mapping
from typing import NamedTuple

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
from ciuic.store.packs.failures import ChunksWritten
from ciuic.store.packs.open_packs import OpenPacks
from ciuic.store.records.kinds import CHAIN_MAX, DATA
from ciuic.system.hashing import data_id

__all__ = ["read_straight"]


def read_straight(
    packs: OpenPacks,
    places: Mapping[ChunkId, ChunkPlace],
    chunk_id: ChunkId,
    out: memoryview,
    *,
    raw: memoryview | None = None,
    written: ChunksWritten | None = None,
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
        written: Chunks that need not be read from the packs; None: there are none.

    Returns:
        Whether ``out`` has the chunk.

    Raises:
        StoreError: The store failed.
    """
    place = places.get(chunk_id)
    if place is None or place.length_bytes != len(out):
        return False
    if written is not None and _copied(written, chunk_id, out):
        return True
    try:
        frame, payload = _stored(packs, place, raw)
        if frame.kind != DATA or len(frame.chunks) != 1 or frame.plain_bytes != len(out):
            return False
        with contextlib.ExitStack() as lent:
            bases = _Bases(packs, places, written, lent)
            _decode(frame, payload, bases.of(frame, CHAIN_MAX), out)
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
        raw = memoryview(packs.view(place))
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


def _copied(written: ChunksWritten, chunk_id: ChunkId, out: memoryview) -> bool:
    """Copy a chunk that is written already; return whether ``out`` has it."""
    with written.lend(chunk_id, len(out)) as found:
        if found is None:
            return False
        out[:] = found
    return data_id(out) == chunk_id


class _Bases(NamedTuple):
    """Where the delta bases of one chunk come from.

    Attributes:
        packs: The packs of the store.
        places: The places of the chunks below.
        written: Chunks that need not be read from the packs; None: there are none.
        lent: Gives memory back when the chunk is decoded.
    """

    packs: OpenPacks
    places: Mapping[ChunkId, ChunkPlace]
    written: ChunksWritten | None
    lent: contextlib.ExitStack

    def of(self, frame: Frame, deltas_left: int) -> list[memoryview]:
        """Return the bytes of each delta base of a frame.

        Args:
            frame: The frame.
            deltas_left: How many more deltas the chain may have.
        """
        if not frame.is_delta:
            return []
        check_delta_bases(frame)
        if not deltas_left:
            raise CorruptionError("its delta chain is too long")
        return [self._base(base, deltas_left) for base in frame.delta_bases]

    def _base(self, base: ChunkId, deltas_left: int) -> memoryview:
        place = self.places.get(base)
        if place is None:
            raise CorruptionError("a delta base is in no known place")
        if self.written is not None:
            found = self.lent.enter_context(self.written.lend(base, place.length_bytes))
            if found is not None:
                return found
        below, payload = _stored(self.packs, place)
        plain = _decode(below, payload, self.of(below, deltas_left - 1))
        return memoryview(plain)[place.start_bytes :][: place.length_bytes]
