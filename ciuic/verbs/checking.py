"""Frames are read, decoded and hashed: by several processes at once, and here what they doubt.

Decoding takes threads that share an interpreter hardly less time than one of them. What a process
finds sound is sound; whatever else it says, or fails to say, is looked at once more in this one,
which can ask the catalog, the other packs and the disk again.
"""

import contextlib
import itertools
import os
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple

from ciuic.codec import get_ready
from ciuic.errors import CiuicError, CorruptionError, UnknownFormatError
from ciuic.memory import prepare_for_bulk
from ciuic.processes import Processes
from ciuic.store import Store
from ciuic.store.frame import DATA, Frame, chunk_id, holds_its_chunks
from ciuic.store.index import ChunkPlace
from ciuic.store.reader import StoreReader

__all__ = ["Checker", "Frames", "Needed", "OnProgress", "Task", "answering", "in_order"]

_FRAME: Final = struct.Struct("<32sQII?32s")
_NEEDED: Final = struct.Struct("<32sBII")
_NUMBER: Final = struct.Struct("<I")
_WORKERS_MAX: Final = 8
_WINDOW: Final = 4
"""Batches under way for each worker."""
_BATCH_BYTES: Final = 4 * 1024 * 1024
"""Asking costs a tenth of a millisecond, as much as a tenth of a MiB."""
_HAS_NUMBERS: Final = b"numbers"
_WORTH_BYTES: Final = 64 * 1024 * 1024
"""Of packs: fewer are read before a process is ready."""

OnProgress = Callable[[int, int], None]
"""Told frames checked and frames in all."""


class Needed(NamedTuple):
    """A chunk that a frame must hold."""

    name: bytes
    kind: int
    start_bytes: int
    length_bytes: int


_Key = tuple[bytes, int]
Frames = dict[_Key, tuple[ChunkPlace, list[Needed]]]
"""By pack and offset: where a frame lies, and what it must hold."""


class Task(NamedTuple):
    """A frame to check.

    Attributes:
        place: Where it lies.
        needed: What it must hold; nothing for one that is listed.
        keep: What comes next may be a difference from it.
        header_id: Of one that is listed: what its header hashes to. It must hold all that this
            names.
        number: Of one that is listed.
    """

    place: ChunkPlace
    needed: Sequence[Needed]
    keep: bool
    header_id: bytes = b""
    number: int = -1


class _Doubt(NamedTuple):
    """What a batch leaves: chunks that can't be had, and listed frames that are not sound."""

    names: list[bytes]
    frames: list[int]


class Checker:
    """Reads, decodes and hashes frames while others are still being found; a context manager.

    Args:
        store: Where they are.
        packs_bytes: Length of all packs together.
        progress: Told how far it is once all have been found.

    Attributes:
        bad: Chunks that can't be had; complete after ``finish``.
        doubtful: Frames that are listed and not sound, by their numbers; likewise. What of their
            chunks can be had all the same, ``look_again`` tells.
        read_bytes: Stored bytes of the frames so far.
    """

    def __init__(self, store: Store, packs_bytes: int, progress: OnProgress | None = None) -> None:
        self.bad: set[bytes] = set()
        self.doubtful: set[int] = set()
        self.read_bytes = 0
        self._store = store
        self._progress = progress
        self._done = 0
        self._waiting: list[Task] = []
        self._waiting_bytes = 0
        self._under_way: deque[Future[_Doubt]] = deque()
        workers = min(_WORKERS_MAX, len(os.sched_getaffinity(0)))
        self._window = _WINDOW * workers
        self._pool = ThreadPoolExecutor(workers, "verify")
        is_worth_it = packs_bytes >= _WORTH_BYTES
        self._processes = Processes(__name__, [store.path]) if is_worth_it else None

    def __enter__(self) -> "Checker":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        if self._processes is not None:
            self._processes.close()

    def expect(self, *, numbers: bool) -> None:
        """What is to be checked has numbers in it, or has not: that takes longer to get ready."""
        if self._processes is not None:
            self._processes.begin(_HAS_NUMBERS if numbers else b"")

    def begin(self, task: Task) -> None:
        """Check a frame that no other one is likely to be a difference from.

        Raises:
            StoreError: The store itself can't be read.
        """
        self._add([task])

    def begin_all(self, groups: Iterable[list[Task]]) -> None:
        """Check frames, of which those in a group may be differences from others in it.

        Raises:
            StoreError: As above.
        """
        for group in groups:
            self._add(group)

    def finish(self, groups: Iterable[list[Task]], count: int) -> None:
        """Check the last ones, so many, and wait for all.

        Raises:
            StoreError: As above.
        """
        total = self._done + count
        for group in groups:
            self._add(group)
            if self._progress is not None:
                self._progress(self._done, total)
        self._submit()
        while self._under_way:
            self._settle()

    def look_again(self, names: Iterable[bytes]) -> None:
        """Find out which of these chunks of file content can't be had, wherever they lie.

        Raises:
            StoreError: As above.
        """
        needed = [Needed(name, DATA, 0, 0) for name in names]
        can_be_had = self._pool.map(_readable, itertools.repeat(self._store), needed)
        self.bad.update([one.name for one, can in zip(needed, can_be_had, strict=True) if not can])

    def _add(self, tasks: Sequence[Task]) -> None:
        size_bytes = sum([task.place.frame_bytes for task in tasks])
        self._done += len(tasks)
        self.read_bytes += size_bytes
        self._waiting += tasks
        self._waiting_bytes += size_bytes
        if self._waiting_bytes >= _BATCH_BYTES:
            self._submit()

    def _submit(self) -> None:
        batch, self._waiting, self._waiting_bytes = self._waiting, [], 0
        # The disk begins while those before it are decoded.
        self._store.reader.expect([task.place for task in batch])
        self._under_way.append(self._pool.submit(_check_batch, self._store, self._processes, batch))
        if len(self._under_way) >= self._window:
            self._settle()

    def _settle(self) -> None:
        names, frames = self._under_way.popleft().result()
        self.bad.update(names)
        self.doubtful.update(frames)


def in_order(frames: Frames) -> Iterator[list[Task]]:
    """Frames in the order they lie on the disk, each followed by those that are deltas from it."""
    for keys in _together(frames):
        yield [Task(*frames[key], keep=len(keys) > 1) for key in keys]


def _together(frames: Frames) -> Iterator[list[_Key]]:
    """Frames in the order they lie on the disk, each followed by those that are deltas from it.

    So each is decoded once, and not once for every delta that builds on it.
    """
    references = {place.reference for place, _ in frames.values() if place.reference}
    keys = {
        one.name: key
        for key, (_, needed) in frames.items()
        for one in needed
        if one.name in references
    }
    deltas: dict[_Key, list[_Key]] = {}
    for key, (place, _) in frames.items():
        if place.reference in keys:
            deltas.setdefault(keys[place.reference], []).append(key)
    behind = {key for found in deltas.values() for key in found}
    for first in sorted(frames.keys() - behind):
        group = [first]
        for key in group:
            group += deltas.pop(key, ())
        yield group
    # What is left are rings, which no writer makes: they end as damage.
    yield from ([key] for found in deltas.values() for key in found)


def _check_batch(store: Store, processes: Processes | None, batch: Sequence[Task]) -> _Doubt:
    answer = processes.ask(_encode(batch)) if processes is not None else None
    if answer is not None:
        batch = [batch[number] for (number,) in _NUMBER.iter_unpack(answer)]
    unsound = [task for task in batch if not _is_sound_here(store, task)]
    names = [one.name for task in unsound for one in task.needed if not _readable(store, one)]
    return _Doubt(names, [task.number for task in unsound if task.header_id])


def _is_sound_here(store: Store, task: Task) -> bool:
    try:
        return _found_sound(store.reader, task) is not None
    except (CorruptionError, UnknownFormatError):
        return False


def _found_sound(reader: StoreReader, task: Task) -> Frame | None:
    """The frame, if it holds what it must."""
    # What parity gives back is damaged all the same, and to be named.
    frame, plain = reader.frame(task.place, heal=False, keep=task.keep, header_id=task.header_id)
    if task.header_id:
        return frame if holds_its_chunks(frame, plain) else None
    view = memoryview(plain)
    is_sound = all(
        chunk_id(one.kind, view[one.start_bytes : one.start_bytes + one.length_bytes]) == one.name
        for one in task.needed
    )
    return frame if is_sound else None


def _readable(store: Store, one: Needed) -> bool:
    """Ask again before calling it damage: cables fail too, and another pack may have it."""
    try:
        store.reader.chunk(one.name, kind=one.kind, heal=False)
    except (CorruptionError, UnknownFormatError):  # a store that fails is no damage of a chunk
        return False
    return True


def _encode(batch: Sequence[Task]) -> bytes:
    parts: list[bytes] = []
    for (pack, offset, frame_bytes, *_), needed, keep, header_id, _ in batch:
        parts.append(_FRAME.pack(pack, offset, frame_bytes, len(needed), keep, header_id))
        parts += [_NEEDED.pack(*one) for one in needed]
    return b"".join(parts)


def _decode(request: bytes) -> Iterator[Task]:
    at = 0
    while at < len(request):
        pack, offset, frame_bytes, count, keep, header_id = _FRAME.unpack_from(request, at)
        begin, at = at + _FRAME.size, at + _FRAME.size + count * _NEEDED.size
        needed = [Needed._make(one) for one in _NEEDED.iter_unpack(request[begin:at])]
        # Whatever else it holds, a whole frame is read.
        place = ChunkPlace(pack, offset, frame_bytes, 0, 0, DATA)
        yield Task(place, needed, keep, b"" if needed else header_id)


def answering(store_path: str, expected: bytes) -> Callable[[bytes], bytes]:
    """What a process does: which frames of a batch are not known to be sound."""
    prepare_for_bulk()
    get_ready(numbers=expected == _HAS_NUMBERS)
    known = _Known()
    reader = StoreReader(store_path, lambda: known, _no_index)

    def answer(request: bytes) -> bytes:
        doubtful = bytearray()
        known.clear()
        for number, task in enumerate(_decode(request)):
            frame = None
            with contextlib.suppress(CiuicError):
                frame = _found_sound(reader, task)
            if frame is None:
                doubtful += _NUMBER.pack(number)
            elif task.keep:
                known.add(task.place, frame)
        return bytes(doubtful)

    return answer


class _Known:
    """Places of the chunks of a batch, for those that are differences from others in it."""

    def __init__(self) -> None:
        self._places: dict[bytes, ChunkPlace] = {}

    def clear(self) -> None:
        self._places.clear()

    def add(self, place: ChunkPlace, frame: Frame) -> None:
        start = 0
        for name, length in frame.chunks:
            self._places[name] = place._replace(
                start_bytes=start, length_bytes=length, kind=frame.kind
            )
            start += length

    def places(self, ids: Sequence[bytes]) -> dict[bytes, ChunkPlace]:
        return {name: self._places[name] for name in ids if name in self._places}

    def stored_again(self) -> set[bytes]:
        return set()


def _no_index(_without: bytes) -> _Known:
    raise CorruptionError("what it is a difference from is not in the same batch")
