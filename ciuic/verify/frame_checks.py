"""Reading, decoding and hashing frames, in several processes at once.

Threads that share an interpreter decode hardly faster than one thread. A process only reports which
frames are not sound. The main process checks these again, with the chunk index, other packs and a
second read. It also checks frames for which a process gave no answer.
"""

import contextlib
import itertools
import os
import struct
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple

from ciuic.codec import get_ready
from ciuic.errors import CiuicError, CorruptionError, UnknownFormatError
from ciuic.ids import ChunkId, PackId
from ciuic.store.directory.pack_files import PackFiles
from ciuic.store.index.places import ChunkPlace
from ciuic.store.packs.reader import StoreReader
from ciuic.store.records.kinds import DATA, chunk_id_of
from ciuic.store.store import Store
from ciuic.system.buffers import prepare_for_bulk
from ciuic.system.processes import Processes
from ciuic.verify.tasks import Needed, OnProgress, Task

__all__ = ["Checker", "answering", "task_fault"]

_FRAME: Final = struct.Struct("<32sQII?32s")
_NEEDED: Final = struct.Struct("<32sBII")
_NUMBER: Final = struct.Struct("<I")
_WORKERS_MAX: Final = 8
_WINDOW: Final = 4
"""Batches under way for each worker."""
_BATCH_BYTES: Final = 4 * 1024 * 1024
"""A request to a process takes a tenth of a millisecond, as long as checking a tenth of a MiB."""
_HAS_NUMBERS: Final = b"numbers"
_WORTH_BYTES: Final = 64 * 1024 * 1024
"""Smaller stores are read before a process is ready."""


class _Failures(NamedTuple):
    """Chunks of a batch that can't be read, and its frames that are not sound."""

    chunk_ids: list[ChunkId]
    unsound: list[Task]


class Checker:
    """Reads, decodes and hashes frames while a walk is still finding others; a context manager.

    Args:
        store: The store that has the frames.
        packs_bytes: Length of all packs together.
        progress: Receives the number of bytes that were read, and of all bytes once that is known.

    Attributes:
        bad: Chunks that can't be read; complete after ``finish`` and ``look_again``.
        doubtful: Numbers of listed frames that are not sound; complete after ``finish``. Their
            chunks may be readable from elsewhere: ``look_again`` finds out.
        unsound: Frames that are not sound; complete after ``finish``.
        read_bytes: Stored bytes of the frames that were passed to the checker.
    """

    def __init__(self, store: Store, packs_bytes: int, progress: OnProgress | None = None) -> None:
        self.bad: set[ChunkId] = set()
        self.doubtful: set[int] = set()
        self.unsound: list[Task] = []
        self.read_bytes = 0
        self._store = store
        self._progress = progress
        self._total_bytes = 0
        self._waiting: list[Task] = []
        self._waiting_bytes = 0
        self._under_way: deque[Future[_Failures]] = deque()
        workers = min(_WORKERS_MAX, len(os.sched_getaffinity(0)))
        self._window = _WINDOW * workers
        self._pool = ThreadPoolExecutor(workers, "verify")
        is_worth_it = packs_bytes >= _WORTH_BYTES and store.bucket is None
        self._processes = Processes(__name__, [store.path]) if is_worth_it else None

    def __enter__(self) -> "Checker":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        if self._processes is not None:
            self._processes.close()

    def expect(self, *, numbers: bool) -> None:
        """Start the processes; ``numbers``: some frames hold numbers, whose codec loads slowly."""
        if self._processes is not None:
            self._processes.begin(_HAS_NUMBERS if numbers else b"")

    def begin(self, task: Task) -> None:
        """Check a frame that is probably not a delta base.

        Raises:
            StoreError: The store itself can't be read.
        """
        self._add([task])

    def begin_groups(self, groups: Iterable[list[Task]]) -> None:
        """Check the frames of each group together: each delta follows its base.

        Raises:
            StoreError: The store itself can't be read.
        """
        for group in groups:
            self._add(group)

    def finish(self, groups: Iterable[list[Task]], left_bytes: int) -> None:
        """Check the last frames, ``left_bytes`` long, and wait until all frames are checked.

        Raises:
            StoreError: The store itself can't be read.
        """
        self._total_bytes = self.read_bytes + left_bytes
        self.begin_groups(groups)
        self._submit()
        while self._under_way:
            self._settle()

    def look_again(self, chunk_ids: Iterable[ChunkId]) -> None:
        """Find out which of these chunks of file content can't be read from any pack.

        Raises:
            StoreError: The store itself can't be read.
        """
        needed = [Needed(chunk_id, DATA, 0, 0) for chunk_id in chunk_ids]
        results = self._pool.map(_is_readable, itertools.repeat(self._store), needed)
        pairs = zip(needed, results, strict=True)
        self.bad.update([chunk.chunk_id for chunk, is_readable in pairs if not is_readable])

    def _add(self, tasks: Sequence[Task]) -> None:
        size_bytes = sum([task.place.frame_bytes for task in tasks])
        self.read_bytes += size_bytes
        self._waiting += tasks
        self._waiting_bytes += size_bytes
        if self._waiting_bytes >= _BATCH_BYTES:
            self._submit()

    def _submit(self) -> None:
        batch, self._waiting, self._waiting_bytes = self._waiting, [], 0
        # The disk reads these frames while the ones before them are decoded.
        self._store.reader.read_ahead([task.place for task in batch])
        self._under_way.append(self._pool.submit(_check_batch, self._store, self._processes, batch))
        if len(self._under_way) >= self._window:
            self._settle()
        if self._progress is not None:
            self._progress(self.read_bytes, self._total_bytes)

    def _settle(self) -> None:
        failures = self._under_way.popleft().result()
        self.bad.update(failures.chunk_ids)
        self.unsound += failures.unsound
        self.doubtful.update([task.number for task in failures.unsound if task.header_id])


def _check_batch(store: Store, processes: Processes | None, batch: Sequence[Task]) -> _Failures:
    """Check frames in a process, and check again here what it did not find sound."""
    answer = processes.ask(_encode(batch)) if processes is not None else None
    if answer is not None:
        batch = [batch[number] for (number,) in _NUMBER.iter_unpack(answer)]
    unsound = [task for task in batch if not _is_sound_here(store, task)]
    needed = [chunk for task in unsound for chunk in task.needed]
    chunk_ids = [chunk.chunk_id for chunk in needed if not _is_readable(store, chunk)]
    return _Failures(chunk_ids, unsound)


def _is_sound_here(store: Store, task: Task) -> bool:
    try:
        return _read_sound(store.reader, task) is not None
    except (CorruptionError, UnknownFormatError):
        return False


def task_fault(reader: StoreReader, task: Task) -> str:
    """Read a frame again; returns what is wrong with it, or an empty string."""
    try:
        frame = _read_sound(reader, task)
    except (CorruptionError, UnknownFormatError) as error:
        return error.message
    return "" if frame is not None else "it decodes to other bytes than were stored"


class _Sound(NamedTuple):
    """What a sound frame holds: chunks of one kind, with their lengths."""

    kind: int
    chunks: Sequence[tuple[ChunkId, int]]


def _read_sound(reader: StoreReader, task: Task) -> _Sound | None:
    """Read a frame; None if it does not hold the chunks that it must hold."""
    # Without parity: a frame that only parity can restore is damaged, and must be reported.
    frame, plain = reader.frame(task.place, repair=False, keep=task.keep, header_id=task.header_id)
    if task.header_id:
        return _Sound(frame.kind, frame.chunks) if frame.holds_its_chunks(plain) else None
    view = memoryview(plain)
    is_sound = all(
        chunk_id_of(chunk.kind, view[chunk.start_bytes : chunk.start_bytes + chunk.length_bytes])
        == chunk.chunk_id
        for chunk in task.needed
    )
    return _Sound(frame.kind, frame.chunks) if is_sound else None


def _is_readable(store: Store, chunk: Needed) -> bool:
    """Return whether a second read, or another pack, gives the chunk: the cable may be at fault."""
    try:
        store.reader.chunk(chunk.chunk_id, kind=chunk.kind, repair=False)
    except (CorruptionError, UnknownFormatError):  # an I/O error of the store passes through
        return False
    return True


def _encode(batch: Sequence[Task]) -> bytes:
    parts: list[bytes] = []
    for (pack_id, offset, frame_bytes, *_), needed, keep, header_id, _ in batch:
        parts.append(_FRAME.pack(pack_id, offset, frame_bytes, len(needed), keep, header_id))
        parts += [_NEEDED.pack(*chunk) for chunk in needed]
    return b"".join(parts)


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
    get_ready(numbers=expected == _HAS_NUMBERS)
    known = _BatchPlaces()
    reader = StoreReader(store_path, PackFiles(store_path), lambda: known, _no_index)

    def answer(request: bytes) -> bytes:
        unsound = bytearray()
        known.clear()
        for number, task in enumerate(_decode(request)):
            frame = None
            with contextlib.suppress(CiuicError):
                frame = _read_sound(reader, task)
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
