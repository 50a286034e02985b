"""What a pack lists of itself, for a second look after one of its frames could not be read.

A pack holds each frame's header twice: in front of the payload and in the footer. It may also hold
two copies of a chunk. Nothing here is read as long as every frame is sound.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.ids import ChunkId, PackId
from ciuic.store.format.pack import PackedFrame
from ciuic.store.index.places import ChunkPlace

__all__ = ["ListedFrames"]

_PACKS_MAX: Final = 2


class _Listed:
    """The frames of one pack by offset, and those that hold a chunk of an earlier frame."""

    def __init__(self, frames: list[PackedFrame]) -> None:
        self.frames = {packed.offset_bytes: packed for packed in frames}
        first: dict[ChunkId, PackedFrame] = {}
        self.several: dict[ChunkId, list[PackedFrame]] = {}
        for packed in frames:
            for chunk_id, _ in packed.frame.chunks:
                if first.setdefault(chunk_id, packed) is not packed:
                    self.several.setdefault(chunk_id, [first[chunk_id]]).append(packed)


class ListedFrames:
    """The lists of the packs that were asked for last. May be used from any thread.

    Args:
        read: Returns the frames that a pack lists in its footer, or that are salvaged from it.
    """

    def __init__(self, read: Callable[[PackId], list[PackedFrame]]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._packs: OrderedDict[PackId, _Listed] = OrderedDict()

    def frame(self, place: ChunkPlace) -> PackedFrame | None:
        """Return what the pack lists at a place; None if it lists no frame of this length there."""
        packed = self._of(place.pack_id).frames.get(place.offset_bytes)
        fits = packed is not None and packed.frame.total_bytes == place.frame_bytes
        return packed if fits else None

    def copies(self, chunk_id: ChunkId, pack_id: PackId) -> Iterator[ChunkPlace]:
        """Yield the places of a chunk in a pack that holds it more than once."""
        for packed in self._of(pack_id).several.get(chunk_id, ()):
            frame, start = packed.frame, 0
            for listed_id, length in frame.chunks:
                if listed_id == chunk_id:
                    yield ChunkPlace(
                        pack_id,
                        packed.offset_bytes,
                        frame.total_bytes,
                        start,
                        length,
                        frame.kind,
                        frame.delta_bases,
                    )
                start += length

    def _of(self, pack_id: PackId) -> _Listed:
        with self._lock:
            listed = self._packs.get(pack_id)
            if listed is None:
                try:
                    frames = self._read(pack_id)
                except (CorruptionError, UnknownFormatError):
                    frames = []
                listed = self._packs[pack_id] = _Listed(frames)
            self._packs.move_to_end(pack_id)
            while len(self._packs) > _PACKS_MAX:
                self._packs.popitem(last=False)
            return listed
