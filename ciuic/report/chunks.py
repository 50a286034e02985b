"""Lists the chunks of files, with the frames that hold them and the cost of reading each.

Nothing is decoded: the place of a chunk is in the chunk index, everything else in the header of its
frame. Memory does not grow with a file or a snapshot.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple

from ciuic import codec
from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.ids import ChunkId, PackId
from ciuic.model import Entry
from ciuic.store.index.places import ChunkPlace
from ciuic.store.records.kinds import CHAIN_MAX
from ciuic.store.store import Store
from ciuic.view.chunk_plan import windows

__all__ = ["NO_CHUNK", "Frames", "StoredChunk", "StoredFrame", "codec_name", "file_chunks"]

_CODECS: Final = {
    codec.RAW: "raw",
    codec.ZSTD: "zstd",
    codec.PLANES: "planes",
    codec.DELTA: "delta",
    codec.SPARSE: "sparse",
}
NO_CHUNK: Final = ChunkId(b"")
"""The ID of a hole, and the delta base of a chunk that is not a delta."""
_KEPT_MAX: Final = 16_384
"""Cached frames and delta chains: neighboring chunks are often in the same frame."""
_FRAMES_MAX: Final = CHAIN_MAX + 1
_TOO_LONG: Final = f"its delta chain has more than {CHAIN_MAX} deltas"


class StoredFrame(NamedTuple):
    """A frame: its place, and values from its header.

    Attributes:
        pack_id: The pack that holds it.
        offset_bytes: Where it begins in the pack.
        frame_bytes: Its length, header included.
        plain_bytes: Length of all its chunks, decoded.
        codec: Number of the codec.
        delta_bases: The chunks that it is a delta from; none if it is not a delta.
    """

    pack_id: PackId
    offset_bytes: int
    frame_bytes: int
    plain_bytes: int
    codec: int
    delta_bases: tuple[ChunkId, ...]

    def share_bytes(self, length_bytes: int) -> int:
        """Return the share of the frame's stored bytes for a part of its plain bytes."""
        return round(self.frame_bytes * length_bytes / max(1, self.plain_bytes))


class StoredChunk(NamedTuple):
    """A range of a file, as it is stored.

    Attributes:
        offset_bytes: Offset in the file.
        length_bytes: Length of the range.
        id: ID of the chunk; empty for a hole, which takes no space.
        start_bytes: Where the range begins in the chunk.
        chain: Its frame, then the frame of its delta base, and so on.
        delta_bases: The chunks of the delta chain, without its own.
        what: Why the chain is unknown; empty if it is known.
    """

    offset_bytes: int
    length_bytes: int
    id: ChunkId
    start_bytes: int = 0
    chain: tuple[StoredFrame, ...] = ()
    delta_bases: tuple[ChunkId, ...] = ()
    what: str = ""

    @property
    def stored_bytes(self) -> int:
        """Return its share of its own frame."""
        return self.chain[0].share_bytes(self.length_bytes) if self.chain else 0

    @property
    def read_bytes(self) -> int:
        """Return the bytes that a read needs: its whole frame, and those of its delta chain."""
        return sum([frame.frame_bytes for frame in self.chain])


DeltaChain = tuple[tuple[StoredFrame, ...], tuple[ChunkId, ...], str]
"""Frames, delta bases, and why the chain is incomplete: see ``StoredChunk``."""


class Frames:
    """Looks up how chunks are stored, with a cache."""

    def __init__(self, store: Store) -> None:
        self._reader = store.reader
        self._frames: OrderedDict[tuple[PackId, int], StoredFrame] = OrderedDict()
        self._chains: OrderedDict[ChunkId, DeltaChain] = OrderedDict()

    def chain(self, chunk_id: ChunkId, place: ChunkPlace | None) -> DeltaChain:
        """Return the delta chain of a chunk, beginning with its own frame."""
        found: list[StoredFrame] = []
        delta_bases: list[ChunkId] = []
        waiting = [(chunk_id, place)]
        try:
            while waiting:
                chunk_id, place = waiting.pop(0)
                if place is None:
                    what = f"chunk {chunk_id.hex()[:12]} is in no pack"
                    return tuple(found), tuple(delta_bases), what
                if len(found) == _FRAMES_MAX:
                    return tuple(found), tuple(delta_bases), _TOO_LONG
                frame = self._frame(place)
                found.append(frame)
                below = [base for base in frame.delta_bases if base not in delta_bases]
                delta_bases += below
                if len(below) == 1 and not waiting and below[0] in self._chains:
                    return _cut(found, delta_bases, self._chains[below[0]])
                places = self._reader.places(below) if below else {}
                waiting += [(base, places.get(base)) for base in below]
        except (CorruptionError, UnknownFormatError) as error:
            return tuple(found), tuple(delta_bases), error.message
        return tuple(found), tuple(delta_bases), ""

    def cached(self, chunk_id: ChunkId, place: ChunkPlace | None) -> DeltaChain:
        """Return the same as ``chain``, from the cache if it was asked for recently."""
        found = self._chains.get(chunk_id)
        if found is None:
            found = self._chains[chunk_id] = self.chain(chunk_id, place)
            if len(self._chains) > _KEPT_MAX:
                self._chains.popitem(last=False)
        return found

    def _frame(self, place: ChunkPlace) -> StoredFrame:
        key = place.pack_id, place.offset_bytes
        found = self._frames.get(key)
        if found is None:
            header = self._reader.header(place)
            found = StoredFrame(
                *key, place.frame_bytes, header.plain_bytes, header.codec, header.delta_bases
            )
            self._frames[key] = found
            if len(self._frames) > _KEPT_MAX:
                self._frames.popitem(last=False)
        return found


def _cut(found: list[StoredFrame], delta_bases: list[ChunkId], rest: DeltaChain) -> DeltaChain:
    """Join a chain and its rest, cut to the maximum length to bound the size of the cache."""
    frames, further, what = rest
    is_long = len(found) + len(frames) > _FRAMES_MAX
    return (
        (*found, *frames)[:_FRAMES_MAX],
        (*delta_bases, *further)[:_FRAMES_MAX],
        _TOO_LONG if is_long else what,
    )


def file_chunks(store: Store, frames: Frames, entry: Entry) -> Iterator[StoredChunk]:
    """Yield the chunks of a regular file in order.

    Raises:
        CorruptionError: Its recipe is damaged.
    """
    for window in windows(store.reader, entry):
        places = store.reader.places(list({part.piece.id for part in window if part.piece.id}))
        for offset, piece in window:
            if not piece.id:
                yield StoredChunk(offset, piece.length_bytes, NO_CHUNK)
                continue
            chunk_id = ChunkId(piece.id)
            chain, delta_bases, what = frames.cached(chunk_id, places.get(chunk_id))
            yield StoredChunk(
                offset, piece.length_bytes, chunk_id, piece.start_bytes, chain, delta_bases, what
            )


def codec_name(number: int) -> str:
    """Return the common name of a codec."""
    return _CODECS.get(number, f"codec {number}")
