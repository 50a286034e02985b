"""Looking up where the chunks of snapshots are, many at a time, and collecting their frames."""

import contextlib
from collections.abc import Mapping, Set
from typing import Final

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.ids import ChunkId, PackId
from ciuic.store.index.places import ChunkPlace
from ciuic.store.packs.broken_chains import chunks_without_base
from ciuic.store.records.kinds import ALONE_BYTES, DATA, RECIPE, TREE
from ciuic.store.store import Store
from ciuic.verify.by_footers import Listed
from ciuic.verify.tasks import ChecksFrames, Frames, Needed, Task, in_order

__all__ = ["LOOKED_UP_TOGETHER", "ChunkLookup"]

LOOKED_UP_TOGETHER: Final = 500
"""Asked for one directory at a time, the chunk index takes twice as long."""
_LENGTHS_MAX: Final = 100_000
"""Chunks that are remembered to exist. A chunk that is needed again later is looked up again."""
_FRAMES_MAX: Final = 1 << 15
"""Frames that wait to be sorted before they are read: about 20 MB."""


class ChunkLookup:
    """Finds out which chunks exist, and which frames have to be checked for that.

    Args:
        store: The store.
        bad: Chunks that are known to be damaged.
        checker: Receives the frames of small files as soon as the walk has passed them, and other
            frames in large batches. None: frames are not collected.
        listed: Chunks that it lists are not looked up in the chunk index.

    Attributes:
        lengths: Of the chunks that exist; the most recent ones.
        frames: The frames that the checker has not received, and what each must contain.
        chunks: How many were looked up.
    """

    def __init__(
        self,
        store: Store,
        bad: Set[ChunkId],
        checker: ChecksFrames | None,
        listed: Listed | None,
    ) -> None:
        self._store = store
        self._bad = bad
        self._checker = checker
        self._listed = listed
        self._pack_sizes: dict[PackId, int] = {}
        self._nodes: dict[int, list[ChunkId]] = {RECIPE: [], TREE: []}
        self._shared: Frames = {}
        self.lengths: dict[ChunkId, int] = {}
        self.frames: Frames = {}
        self.chunks = 0
        self._measured: dict[ChunkId, int] = {}

    def read_node(self, kind: int, chunk_id: ChunkId) -> bytes:
        """Read a node of a tree or recipe.

        Raises:
            CorruptionError: It is missing or damaged.
        """
        found = self._listed.node(kind, chunk_id) if self._listed is not None else None
        if found is not None:
            return found
        data = self._store.reader.node(kind, chunk_id)
        # It exists, as it was read. Its place is looked up later, together with others.
        waiting = self._nodes[kind]
        waiting.append(chunk_id)
        if len(waiting) >= LOOKED_UP_TOGETHER:
            self.look_up_nodes()
        return data

    def measure(self, chunk_id: ChunkId) -> int:
        """Return the length of a chunk whose listed length is wrong, by reading it; -1: it cannot.

        The list may name a damaged copy of another length. Each chunk is read once.
        """
        if chunk_id not in self._measured:
            self._measured[chunk_id] = -1
            with contextlib.suppress(CorruptionError, UnknownFormatError):
                data = self._store.reader.chunk(chunk_id, kind=DATA, repair=False)
                self._measured[chunk_id] = len(data)
        return self._measured[chunk_id]

    def look_up_nodes(self) -> None:
        """Look up the nodes that were read since the last call."""
        for kind, chunk_ids in self._nodes.items():
            self.look_up(kind, chunk_ids)
            chunk_ids.clear()

    def look_up(self, kind: int, chunk_ids: list[ChunkId]) -> None:
        """Note the lengths of the chunks that exist, and the frames that contain them."""
        if len(self.lengths) > _LENGTHS_MAX:
            self.lengths.clear()
        if self._listed is not None and self._checker is not None and kind == DATA:
            chunk_ids, shared = self._listed.need(chunk_ids, self.lengths)
            for task in shared:
                self._checker.begin(task)
        new = [chunk_id for chunk_id in dict.fromkeys(chunk_ids) if chunk_id not in self.lengths]
        if new:
            places = self._sound_places(new)
            self.lengths.update(
                [(chunk_id, place.length_bytes) for chunk_id, place in places.items()]
            )
            self.chunks += len(places)
            if self._checker is not None:
                self._note_frames(kind, places)
        if self._checker is not None and len(self.frames) >= _FRAMES_MAX:
            self._checker.begin_groups(in_order(self.frames))
            self.frames.clear()

    def hand_over_shared(self, *, kept: int) -> None:
        """Give the checker the frames of small files, except the last ones.

        A walk meets the chunks of a frame one soon after the other. If a chunk is needed again
        later, its frame is read again.
        """
        while self._checker is not None and len(self._shared) > kept:
            frame = self._shared.pop(next(iter(self._shared)))
            self._checker.begin(Task(*frame, keep=False))

    def _sound_places(self, chunk_ids: list[ChunkId]) -> dict[ChunkId, ChunkPlace]:
        """Return the places of the chunks that are in a pack with all their delta bases."""
        reader = self._store.reader
        places = reader.places(chunk_ids)
        doubtful = self._not_fitting(chunk_ids, places)
        if doubtful:
            # The chunk index may be wrong. A restore would find them in the packs, too.
            places.update(reader.places_in_packs(doubtful))
        lost = set(self._not_fitting(doubtful, places))
        lost.update(chunks_without_base(reader, places, self._is_sound))
        return {chunk_id: place for chunk_id, place in places.items() if chunk_id not in lost}

    def _not_fitting(
        self, chunk_ids: list[ChunkId], places: dict[ChunkId, ChunkPlace]
    ) -> list[ChunkId]:
        """Return the chunks without a place in a pack that is long enough."""
        # Written out, as calling _fits for each of millions of chunks takes longer than the rest.
        sizes = self._pack_sizes
        for pack_id in {place.pack_id for place in places.values()} - sizes.keys():
            sizes[pack_id] = self._pack_size(pack_id)
        return [
            chunk_id
            for chunk_id in chunk_ids
            if (place := places.get(chunk_id)) is None
            or place.offset_bytes + place.frame_bytes > sizes[place.pack_id]
        ]

    def _note_frames(self, kind: int, places: Mapping[ChunkId, ChunkPlace]) -> None:
        """Note the frames of these chunks, and that each must hold its chunks."""
        for chunk_id, place in places.items():
            is_shared = kind == DATA and place.length_bytes < ALONE_BYTES and not place.delta_bases
            frames = self._shared if is_shared else self.frames
            needed = Needed(chunk_id, kind, place.start_bytes, place.length_bytes)
            key = (place.pack_id, place.offset_bytes)
            frame = frames.get(key)
            if frame is None:
                frames[key] = (place, [needed])
            else:
                frame[1].append(needed)

    def _is_sound(self, chunk_id: ChunkId, place: ChunkPlace) -> bool:
        return chunk_id not in self._bad and self._fits(place)

    def _fits(self, place: ChunkPlace) -> bool:
        """Return whether the pack is long enough to contain the frame."""
        if place.pack_id not in self._pack_sizes:
            self._pack_sizes[place.pack_id] = self._pack_size(place.pack_id)
        return place.offset_bytes + place.frame_bytes <= self._pack_sizes[place.pack_id]

    def _pack_size(self, pack_id: PackId) -> int:
        """Return the length of a pack; -1 if it is missing."""
        size_bytes = self._store.reader.pack_size(pack_id)
        return -1 if size_bytes is None else size_bytes
