"""A listing of all chunks in memory, from the footers of the packs.

A command that needs every chunk of a store would query the chunk index a hundred thousand times.
The footers contain the same answers in sequence, and the name of a pack has a hash of its footer.
A listing is incomplete: it lacks packs whose footers cannot be read and chunks above its limit, and
a prune may have moved chunks since. Look up chunks that are not listed in the chunk index.
"""

from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from ciuic.codec import RAW, ZSTD
from ciuic.ids import ChunkId, PackId
from ciuic.store.format.delta_graph import count_deltas
from ciuic.store.format.frame import Frame
from ciuic.store.format.pack import PackedFrame
from ciuic.store.index.places import ChunkPlace
from ciuic.store.place.packs import Packs, listed_frames
from ciuic.store.records.kinds import DATA
from ciuic.system.hashing import ID_BYTES, data_id

__all__ = ["Listing"]

_CHUNKS_MAX: Final = 500_000
"""About 100 MB: a chunk takes 160 bytes, a frame 50."""
_NUMBER_SHIFT: Final = 32
_NEEDED: Final = 1 << 31
_LENGTH: Final = _NEEDED - 1
"""A chunk's value is one number: its frame's number, a bit for needed, and its length."""
_ALONE: Final = 0
_SHARED: Final = 1
_NODES: Final = 2
"""What a frame contains: one chunk of file content, several of them, or nodes."""


class Listing:
    """The chunks and frames of a store. Frames are numbered in the order of packs and offsets.

    Args:
        packs: The store's packs.
        pack_ids: The packs to list. Packs beyond half a million chunks are left out.

    Attributes:
        has_numbers: Some frames contain arrays of numbers.
    """

    def __init__(self, packs: Packs, pack_ids: Collection[PackId]) -> None:
        self._packs: list[PackId] = []
        self._pack_numbers = array("I")
        self._offsets = array("Q")
        self._lengths = array("I")
        self._kinds = bytearray()
        self._headers = bytearray()
        self._data: dict[ChunkId, int] = {}
        self._nodes: dict[tuple[int, ChunkId], tuple[int, int, int]] = {}
        self.has_numbers = False
        self._repeated: set[ChunkId] = set()
        self._delta_bases: dict[int, tuple[ChunkId, ...]] = {}
        deltas: dict[ChunkId, int] = {}
        left = _CHUNKS_MAX
        for pack_id in sorted(pack_ids):
            frames = listed_frames(packs, pack_id)
            left -= sum([len(packed.frame.chunks) for packed in frames])
            if left < 0:
                break
            self._add(pack_id, frames, deltas)
        self._add_deltas(deltas)

    def _add(
        self, pack_id: PackId, frames: Sequence[PackedFrame], deltas: dict[ChunkId, int]
    ) -> None:
        self._packs.append(pack_id)
        for offset, frame, header in frames:
            number = len(self._offsets)
            self._kinds.append(_kind_of(frame))
            self._pack_numbers.append(len(self._packs) - 1)
            self._offsets.append(offset)
            self._lengths.append(frame.total_bytes)
            self._headers += data_id(header)
            self.has_numbers |= frame.codec not in {RAW, ZSTD}
            base = number << _NUMBER_SHIFT
            if frame.is_delta:
                self._delta_bases[number] = frame.delta_bases
                deltas.update([(chunk_id, base | length) for chunk_id, length in frame.chunks])
            elif frame.kind == DATA:
                self._add_data(frame, base)
            else:
                start = 0
                for node_id, length in frame.chunks:
                    self._nodes[frame.kind, node_id] = number, start, length
                    start += length

    def _add_data(self, frame: Frame, base: int) -> None:
        data = self._data
        if len(frame.chunks) == 1:
            ((chunk_id, length),) = frame.chunks
            if chunk_id in data:
                self._repeated.add(chunk_id)
            data[chunk_id] = base | length
            return
        count = len(data)
        data.update([(chunk_id, base | length) for chunk_id, length in frame.chunks])
        if len(data) != count + len(frame.chunks):
            self._repeated.update([chunk_id for chunk_id, _ in frame.chunks])

    def repeated(self) -> set[ChunkId]:
        """Return the needed chunks of file content that may have several copies."""
        return {chunk_id for chunk_id in self._repeated if self._data.get(chunk_id, 0) & _NEEDED}

    def _add_deltas(self, deltas: Mapping[ChunkId, int]) -> None:
        """List each delta whose chain ends in listed chunks, unless it is listed already."""
        graph: dict[ChunkId, tuple[ChunkId, ...]] = {}
        for chunk_id, value in deltas.items():
            if chunk_id not in self._data:
                below = self._delta_bases[value >> _NUMBER_SHIFT]
                graph[chunk_id] = below
                graph.update({base: () for base in below if base in self._data})
        counts = count_deltas(graph)
        for chunk_id, value in deltas.items():
            if graph.get(chunk_id) and chunk_id in counts:
                self._data[chunk_id] = value

    def __len__(self) -> int:
        return len(self._offsets)

    def look_up(
        self, chunk_ids: Sequence[ChunkId], lengths: dict[ChunkId, int]
    ) -> tuple[list[ChunkId], set[int], int]:
        """Mark chunks of file content as needed.

        Args:
            chunk_ids: The chunks.
            lengths: Filled with the length of each listed chunk.

        Returns:
            The chunks that are not listed, the frames of the others, and how many of the others
            were not needed before.
        """
        data = self._data
        unlisted: list[ChunkId] = []
        frames: set[int] = set()
        fresh = 0
        for chunk_id in chunk_ids:
            value = data.get(chunk_id)
            if value is None:
                unlisted.append(chunk_id)
                continue
            if not value & _NEEDED:
                data[chunk_id] = value | _NEEDED
                frames.add(value >> _NUMBER_SHIFT)
                fresh += 1
            lengths[chunk_id] = value & _LENGTH
        return unlisted, frames, fresh

    def node(self, kind: int, node_id: ChunkId) -> tuple[int, int, int] | None:
        """Return a node's frame, offset in it and length; None if the node is not listed."""
        return self._nodes.get((kind, node_id))

    def place(self, number: int) -> ChunkPlace:
        """Return the place of a frame; the fields for a chunk are not set."""
        pack = self._packs[self._pack_numbers[number]]
        return ChunkPlace(pack, self._offsets[number], self._lengths[number], 0, 0, DATA)

    def header_id(self, number: int) -> bytes:
        """Return the hash of a frame's header and table in the footer."""
        return bytes(self._headers[number * ID_BYTES : (number + 1) * ID_BYTES])

    def is_shared(self, number: int) -> bool:
        """Return whether a frame contains several chunks of file content."""
        return self._kinds[number] == _SHARED

    def is_alone(self, number: int) -> bool:
        """Return whether a frame contains a single chunk of file content."""
        return self._kinds[number] == _ALONE

    def deltas(self) -> Iterator[int]:
        """Iterate over the frames that are deltas."""
        return iter(self._delta_bases)

    def bases(self, number: int) -> list[int]:
        """Return the frames of a delta's bases; none if the frame is not a delta."""
        values = [self._data.get(base) for base in self._delta_bases.get(number, ())]
        return [value >> _NUMBER_SHIFT for value in values if value is not None]

    def needed_in(self, frames: Collection[int]) -> list[ChunkId]:
        """Return the needed chunks in these frames."""
        return [
            chunk_id
            for chunk_id, value in self._data.items()
            if value & _NEEDED and value >> _NUMBER_SHIFT in frames
        ]


def _kind_of(frame: Frame) -> int:
    if frame.kind != DATA:
        return _NODES
    return _SHARED if len(frame.chunks) > 1 and not frame.is_delta else _ALONE
