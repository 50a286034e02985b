"""Where the chunks of all packs lie, by their footers: read once, asked in memory.

Whoever needs every chunk of a store asks the catalog a hundred thousand questions; the footers
hold the same answers side by side, and the name of a pack binds what its footer says. A listing
is never the last word: a pack whose footer can't be read is not in it, nor is what is over its
bound, and a prune may have moved chunks since. What is not found here is to be asked elsewhere.
"""

import contextlib
import os
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from ciuic.codec import RAW, ZSTD
from ciuic.errors import CorruptionError, StoreError, UnknownFormatError
from ciuic.hashing import ID_BYTES, data_id
from ciuic.store import layout
from ciuic.store.files import open_regular
from ciuic.store.frame import CHAIN_MAX, DATA, Frame
from ciuic.store.index import ChunkPlace
from ciuic.store.pack import PackedFrame, read_footer

__all__ = ["Listing"]

_CHUNKS_MAX: Final = 500_000
"""About 100 MB: a chunk takes 160 bytes, a frame 50."""
_NUMBER_SHIFT: Final = 32
_NEEDED: Final = 1 << 31
_LENGTH: Final = _NEEDED - 1
"""What is known of a chunk is one number: its frame's, whether it is needed, its own length."""
_ALONE: Final = 0
_SHARED: Final = 1
_NODES: Final = 2
"""What a frame holds: one chunk of file content, many, or nodes."""


class Listing:
    """Chunks and frames of a store; frames are numbered in the order they lie on the disk.

    Args:
        store_path: The store's directory.
        packs: Those to be listed. Once there are half a million chunks, the others are left out.

    Attributes:
        has_numbers: Some frames hold arrays of numbers.
    """

    def __init__(self, store_path: str, packs: Collection[bytes]) -> None:
        self._packs: list[bytes] = []
        self._pack_numbers = array("I")
        self._offsets = array("Q")
        self._lengths = array("I")
        self._kinds = bytearray()
        self._headers = bytearray()
        self._data: dict[bytes, int] = {}
        self._nodes: dict[tuple[int, bytes], tuple[int, int, int]] = {}
        self.has_numbers = False
        self._references: dict[int, bytes] = {}
        deltas: dict[bytes, int] = {}
        left = _CHUNKS_MAX
        for name in sorted(packs):
            frames = _frames_of(store_path, name)
            left -= sum([len(one.frame.chunks) for one in frames])
            if left < 0:
                break
            self._add(name, frames, deltas)
        self._add_deltas(deltas)

    def _add(self, pack: bytes, frames: Sequence[PackedFrame], deltas: dict[bytes, int]) -> None:
        self._packs.append(pack)
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
                self._references[number] = frame.reference
                deltas.update([(name, base | length) for name, length in frame.chunks])
            elif frame.kind == DATA:
                self._data.update([(name, base | length) for name, length in frame.chunks])
            else:
                start = 0
                for name, length in frame.chunks:
                    self._nodes[frame.kind, name] = number, start, length
                    start += length

    def _add_deltas(self, deltas: Mapping[bytes, int]) -> None:
        """Differences whose chains end in something that is listed; what stands alone is better."""
        for name, value in deltas.items():
            below = name
            for _ in range(CHAIN_MAX):
                if below in self._data:
                    break
                below = self._references[deltas[below] >> _NUMBER_SHIFT] if below in deltas else b""
            else:
                below = b""
            if below:
                self._data.setdefault(name, value)

    def __len__(self) -> int:
        return len(self._offsets)

    def look_up(
        self, names: Sequence[bytes], lengths: dict[bytes, int]
    ) -> tuple[list[bytes], set[int], int]:
        """Mark chunks of file content as needed.

        Args:
            names: Of the chunks.
            lengths: Length of each is added to it.

        Returns:
            Those that are not listed, frames that hold the others, and how many were not needed
            until now.
        """
        data = self._data
        unlisted: list[bytes] = []
        frames: set[int] = set()
        fresh = 0
        for name in names:
            value = data.get(name)
            if value is None:
                unlisted.append(name)
                continue
            if not value & _NEEDED:
                data[name] = value | _NEEDED
                frames.add(value >> _NUMBER_SHIFT)
                fresh += 1
            lengths[name] = value & _LENGTH
        return unlisted, frames, fresh

    def node(self, kind: int, name: bytes) -> tuple[int, int, int] | None:
        """The frame that a node lies in, where in it, and its length; None if it is not listed."""
        return self._nodes.get((kind, name))

    def place(self, number: int) -> ChunkPlace:
        """Where a frame lies; of its chunks it says nothing."""
        pack = self._packs[self._pack_numbers[number]]
        return ChunkPlace(pack, self._offsets[number], self._lengths[number], 0, 0, DATA)

    def header_id(self, number: int) -> bytes:
        """What a frame's header and table hash to, by the footer."""
        return bytes(self._headers[number * ID_BYTES : (number + 1) * ID_BYTES])

    def is_shared(self, number: int) -> bool:
        """Many small chunks of file content lie in this frame."""
        return self._kinds[number] == _SHARED

    def is_alone(self, number: int) -> bool:
        """A single chunk of file content lies in this frame."""
        return self._kinds[number] == _ALONE

    def deltas(self) -> Iterator[int]:
        """Frames that are differences."""
        return iter(self._references)

    def base(self, number: int) -> int | None:
        """The frame that this one is a difference from; None if it stands alone."""
        reference = self._references.get(number)
        value = None if reference is None else self._data.get(reference)
        return None if value is None else value >> _NUMBER_SHIFT

    def needed_in(self, frames: Collection[int]) -> list[bytes]:
        """Chunks that are needed and lie in one of these frames."""
        return [
            name
            for name, value in self._data.items()
            if value & _NEEDED and value >> _NUMBER_SHIFT in frames
        ]


def _kind_of(frame: Frame) -> int:
    if frame.kind != DATA:
        return _NODES
    return _SHARED if len(frame.chunks) > 1 and not frame.is_delta else _ALONE


def _frames_of(store_path: str, name: bytes) -> list[PackedFrame]:
    """None for a pack that can't be understood: others can tell better what of it can be had."""
    path = os.path.join(store_path, layout.PACKS, layout.pack_name(name))
    with contextlib.suppress(CorruptionError, UnknownFormatError, StoreError, OSError):
        fd = open_regular(path)
        try:
            return read_footer(fd, name)
        finally:
            os.close(fd)
    return []
