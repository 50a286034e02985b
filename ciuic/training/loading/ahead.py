"""Reads frames ahead of the threads that decode them, with their delta chains."""

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from ciuic.ids import ChunkId
from ciuic.store.index.places import ChunkPlace
from ciuic.store.packs.direct_reads import STRETCH_BYTES_MAX, DirectReads, Stretch, are_cold
from ciuic.store.packs.reader import StoreReader
from ciuic.store.records.kinds import CHAIN_MAX

__all__ = ["Ahead", "reading_ahead"]

_AHEAD_BYTES: Final = 8 * 1024 * 1024
"""Stored bytes that the kernel is asked for at once."""
_AHEAD_BATCHES: Final = 4
"""How many times as much it may read ahead."""
_DIRECT_BYTES_MIN: Final = 16 * 1024 * 1024
"""For fewer bytes, a thread and its buffers take longer than they save."""
_DENSE_SHARE: Final = 2
"""Frames that fill less than half of their stretch are read one by one."""


@contextlib.contextmanager
def reading_ahead(reader: StoreReader, chunk_ids: Sequence[ChunkId]) -> Iterator["Ahead"]:
    """Read ahead while the block reads frames in this order.

    Args:
        reader: Has the places of all chunks: see ``StoreReader.prepare_reads``.
        chunk_ids: A chunk of each frame.
    """
    own = [reader.prepared.get(chunk_id) for chunk_id in chunk_ids]
    size_bytes = sum([place.frame_bytes for place in own if place is not None])
    stretches, numbers = _stretches(own) if size_bytes >= _DIRECT_BYTES_MIN else ([], [])
    if not stretches or not are_cold(reader.packs, stretches):
        yield Ahead(reader, own, [_with_chain(reader.prepared, one) for one in chunk_ids])
        return
    chains = [
        _with_chain(reader.prepared, one)[number >= 0 :]
        for one, number in zip(chunk_ids, numbers, strict=True)
    ]
    direct = DirectReads(reader.packs, stretches)
    try:
        yield Ahead(reader, own, chains, direct, numbers)
    finally:
        direct.close()


class Ahead:
    """Frames that are read ahead.

    Args:
        reader: Reads the others.
        own: The place of each frame; None: not known.
        places: For each frame, what the kernel is to read ahead for it.
        direct: Reads stretches of frames past the page cache; None: nothing does.
        numbers: The stretch of each frame; -1: it is in none.
    """

    def __init__(
        self,
        reader: StoreReader,
        own: Sequence[ChunkPlace | None],
        places: Sequence[Sequence[ChunkPlace]],
        direct: DirectReads | None = None,
        numbers: Sequence[int] = (),
    ) -> None:
        self._reader = reader
        self._own = own
        self._direct = direct
        self._numbers = numbers
        self._batches = _batches(places)

    @contextlib.contextmanager
    def frame(self, number: int) -> Iterator[memoryview | None]:
        """Give the bytes of a frame to the block, if they were read already; else None."""
        places = self._batches.get(number)
        if places is not None:
            self._reader.read_ahead(places)
        place = self._own[number]
        if self._direct is None or place is None or self._numbers[number] < 0:
            yield None
            return
        try:
            yield self._direct.frame(self._numbers[number], place)
        finally:
            self._direct.done(self._numbers[number])


def _stretches(places: Iterable[ChunkPlace | None]) -> tuple[list[Stretch], list[int]]:
    """Join neighboring frames of one pack; returns the stretches, and the number of each frame's.

    Args:
        places: The frames; in each pack, in their order there.
    """
    stretches: list[Stretch] = []
    numbers = []
    filled_bytes = 0
    for place in places:
        if place is None or place.frame_bytes > STRETCH_BYTES_MAX:
            numbers.append(-1)
            continue
        begin, end = place.offset_bytes, place.offset_bytes + place.frame_bytes
        last = stretches[-1] if stretches else None
        filled_bytes += place.frame_bytes
        if (
            last is not None
            and last.pack_id == place.pack_id
            and last.end <= begin
            and end - last.begin <= min(STRETCH_BYTES_MAX, _DENSE_SHARE * filled_bytes)
        ):
            stretches[-1] = last._replace(end=end, uses=last.uses + 1)
        else:
            stretches.append(Stretch(place.pack_id, begin, end, 1))
            filled_bytes = place.frame_bytes
        numbers.append(len(stretches) - 1)
    return stretches, numbers


def _batches(places: Sequence[Sequence[ChunkPlace]]) -> dict[int, list[ChunkPlace]]:
    """Return the places that the kernel is to read ahead when the frame of a number is reached."""
    found: dict[int, list[ChunkPlace]] = {}
    batch: list[ChunkPlace] = []
    begins, size_bytes = deque([0] * _AHEAD_BATCHES), 0
    for number, of_frame in enumerate(places):
        batch += of_frame
        size_bytes += sum([place.frame_bytes for place in of_frame])
        if size_bytes >= _AHEAD_BYTES or number == len(places) - 1:
            found.setdefault(begins.popleft(), []).extend(batch)
            begins.append(number + 1)
            batch, size_bytes = [], 0
    return found


def _with_chain(places: Mapping[ChunkId, ChunkPlace], chunk_id: ChunkId) -> list[ChunkPlace]:
    """Return the place of a chunk and those of its delta chain, as far as they are known."""
    found: list[ChunkPlace] = []
    left = [chunk_id]
    while left and len(found) <= CHAIN_MAX:
        place = places.get(left.pop())
        if place is not None:
            found.append(place)
            left += place.delta_bases
    return found
