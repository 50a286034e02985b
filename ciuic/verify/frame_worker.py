"""Reading, decoding and hashing the frames of a batch: what each process of ``frame_checks`` does.

A process imports this module and little else, so it is ready in half the time.
"""

import contextlib
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, NamedTuple

from ciuic.codec import get_ready
from ciuic.errors import CiuicError, CorruptionError, UnknownFormatError
from ciuic.ids import ChunkId, PackId
from ciuic.store.directory.pack_files import PackFiles
from ciuic.store.index.places import ChunkPlace
from ciuic.store.packs.reader import StoreReader
from ciuic.store.records.kinds import DATA, chunk_id_of
from ciuic.system.buffers import prepare_for_bulk
from ciuic.verify.tasks import Needed, Task

__all__ = [
    "HAS_NUMBERS",
    "answering",
    "decode_answer",
    "encode_batch",
    "read_sound",
    "task_fault",
]

HAS_NUMBERS: Final = b"numbers"
"""The last argument of ``answering`` for a store whose frames hold arrays of numbers."""
_FRAME: Final = struct.Struct("<32sQII?32s")
_NEEDED: Final = struct.Struct("<32sBII")
_NUMBER: Final = struct.Struct("<I")


def task_fault(reader: StoreReader, task: Task) -> str:
    """Read a frame again; returns what is wrong with it, or an empty string."""
    try:
        frame = read_sound(reader, task)
    except (CorruptionError, UnknownFormatError) as error:
        return error.message
    return "" if frame is not None else "it decodes to other bytes than were stored"


class _Sound(NamedTuple):
    """What a sound frame holds: chunks of one kind, with their lengths."""

    kind: int
    chunks: Sequence[tuple[ChunkId, int]]


def read_sound(reader: StoreReader, task: Task) -> _Sound | None:
    """Read a frame; None if it does not hold the chunks that it must hold."""
    # Without parity: a frame that only parity can restore is damaged, and must be reported.
    frame, plain = reader.frame(
        task.place, repair=False, keep=task.keep, header_id=task.header_id, once=True
    )
    if task.header_id:
        return _Sound(frame.kind, frame.chunks) if frame.holds_its_chunks(plain) else None
    view = memoryview(plain)
    is_sound = all(
        chunk_id_of(chunk.kind, view[chunk.start_bytes : chunk.start_bytes + chunk.length_bytes])
        == chunk.chunk_id
        for chunk in task.needed
    )
    return _Sound(frame.kind, frame.chunks) if is_sound else None


def encode_batch(batch: Sequence[Task]) -> bytes:
    """Return a batch as a request to a process."""
    parts: list[bytes] = []
    for (pack_id, offset, frame_bytes, *_), needed, keep, header_id, _ in batch:
        parts.append(_FRAME.pack(pack_id, offset, frame_bytes, len(needed), keep, header_id))
        parts += [_NEEDED.pack(*chunk) for chunk in needed]
    return b"".join(parts)


def decode_answer(answer: bytes) -> list[int]:
    """Return the numbers of the frames of a batch that a process did not find sound."""
    return [number for (number,) in _NUMBER.iter_unpack(answer)]


def _decode(request: bytes) -> Iterator[Task]:
    at = 0
    while at < len(request):
        pack_id, offset, frame_bytes, count, keep, header_id = _FRAME.unpack_from(request, at)
        begin, at = at + _FRAME.size, at + _FRAME.size + count * _NEEDED.size
        needed = [Needed._make(fields) for fields in _NEEDED.iter_unpack(request[begin:at])]
        # The chunk's place in the frame does not matter: the whole frame is read.
        place = ChunkPlace(pack_id, offset, frame_bytes, 0, 0, DATA)
        yield Task(place, needed, keep, b"" if needed else header_id)


def answering(store_path: str, expected: bytes) -> Callable[[bytes], bytes]:
    """Return the function that a process runs: it returns which frames of a batch are not sound."""
    prepare_for_bulk()
    get_ready(numbers=expected == HAS_NUMBERS)
    known = _BatchPlaces()
    reader = StoreReader(store_path, PackFiles(store_path), lambda: known, _no_index)

    def answer(request: bytes) -> bytes:
        unsound = bytearray()
        known.clear()
        for number, task in enumerate(_decode(request)):
            frame = None
            with contextlib.suppress(CiuicError):
                frame = read_sound(reader, task)
            if frame is None:
                unsound += _NUMBER.pack(number)
            elif task.keep:
                known.add(task.place, frame)
        return bytes(unsound)

    return answer


class _BatchPlaces:
    """Places of the chunks of a batch: other frames of the batch may be deltas from them."""

    def __init__(self) -> None:
        self._places: dict[ChunkId, ChunkPlace] = {}

    def clear(self) -> None:
        self._places.clear()

    def add(self, place: ChunkPlace, frame: _Sound) -> None:
        start = 0
        for chunk_id, length in frame.chunks:
            self._places[chunk_id] = place._replace(
                start_bytes=start, length_bytes=length, kind=frame.kind
            )
            start += length

    def places(self, chunk_ids: Sequence[ChunkId]) -> dict[ChunkId, ChunkPlace]:
        known = self._places
        return {chunk_id: known[chunk_id] for chunk_id in chunk_ids if chunk_id in known}

    def stored_again(self) -> set[ChunkId]:
        return set()


def _no_index(_without: Collection[PackId]) -> _BatchPlaces:
    raise CorruptionError("its delta base is not in the same batch")
