"""Frames are read, decoded and hashed: by several processes at once, and here what they doubt.

Decoding takes threads that share an interpreter hardly less time than one of them. What a process
finds sound is sound; whatever else it says, or fails to say, is looked at once more in this one,
which can ask the catalog, the other packs and the disk again.
"""

import os
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple

from ciuic.errors import CiuicError, CorruptionError, UnknownFormatError
from ciuic.memory import prepare_for_bulk
from ciuic.processes import Processes
from ciuic.store import Store
from ciuic.store.frame import chunk_id
from ciuic.store.index import ChunkPlace
from ciuic.store.reader import StoreReader

__all__ = ["Checker", "Frames", "Needed", "OnProgress", "answering"]

_FRAME: Final = struct.Struct("<32sQII?")
_NEEDED: Final = struct.Struct("<32sBII")
_NUMBER: Final = struct.Struct("<I")
_WORKERS_MAX: Final = 8
_WINDOW: Final = 4
"""Batches under way for each worker."""
_BATCH_BYTES: Final = 4 * 1024 * 1024
"""Asking costs a tenth of a millisecond, as much as a tenth of a MiB."""
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


class _Task(NamedTuple):
    """A frame to check.

    Attributes:
        place: Where it lies.
        needed: What it must hold.
        keep: What comes next may be a difference from it.
    """

    place: ChunkPlace
    needed: Sequence[Needed]
    keep: bool


class Checker:
    """Reads, decodes and hashes frames while others are still being found; a context manager.

    Args:
        store: Where they are.
        progress: Told how far it is once all have been found.

    Attributes:
        bad: Chunks that can't be had; complete after ``finish``.
        read_bytes: Stored bytes of the frames so far.
    """

    def __init__(self, store: Store, progress: OnProgress | None = None) -> None:
        self.bad: set[bytes] = set()
        self.read_bytes = 0
        self._store = store
        self._progress = progress
        self._done = 0
        self._waiting: list[_Task] = []
        self._waiting_bytes = 0
        self._under_way: deque[Future[list[bytes]]] = deque()
        workers = min(_WORKERS_MAX, len(os.sched_getaffinity(0)))
        self._window = _WINDOW * workers
        self._pool = ThreadPoolExecutor(workers, "verify")
        is_worth_it = sum(store.pack_files().values()) >= _WORTH_BYTES
        self._processes = Processes(__name__, [store.path]) if is_worth_it else None

    def __enter__(self) -> "Checker":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        if self._processes is not None:
            self._processes.close()

    def begin(self, place: ChunkPlace, needed: Sequence[Needed]) -> None:
        """Check a frame that no other one is likely to be a difference from.

        Raises:
            StoreError: The store itself can't be read.
        """
        self._add([_Task(place, needed, keep=False)])

    def finish(self, frames: Frames) -> None:
        """Check the others, in the order they lie on the disk, and wait for all.

        Raises:
            StoreError: As above.
        """
        total = self._done + len(frames)
        for keys in _together(frames):
            self._add([_Task(*frames[key], keep=len(keys) > 1) for key in keys])
            if self._progress is not None:
                self._progress(self._done, total)
        self._submit()
        while self._under_way:
            self.bad.update(self._under_way.popleft().result())

    def _add(self, tasks: Sequence[_Task]) -> None:
        size_bytes = sum([task.place.frame_bytes for task in tasks])
        self._done += len(tasks)
        self.read_bytes += size_bytes
        self._waiting += tasks
        self._waiting_bytes += size_bytes
        if self._waiting_bytes >= _BATCH_BYTES:
            self._submit()

    def _submit(self) -> None:
        batch, self._waiting, self._waiting_bytes = self._waiting, [], 0
        self._under_way.append(self._pool.submit(_check_batch, self._store, self._processes, batch))
        if len(self._under_way) >= self._window:
            self.bad.update(self._under_way.popleft().result())


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


def _check_batch(store: Store, processes: Processes | None, batch: Sequence[_Task]) -> list[bytes]:
    answer = processes.ask(_encode(batch)) if processes is not None else None
    if answer is not None:
        batch = [batch[number] for (number,) in _NUMBER.iter_unpack(answer)]
    return [name for task in batch for name in _lost(store, task)]


def _lost(store: Store, task: _Task) -> list[bytes]:
    """The needed chunks that can't be had, neither here nor from another pack."""
    try:
        if _is_sound(store.reader, task):
            return []
    except (CorruptionError, UnknownFormatError):
        pass
    return [one.name for one in task.needed if not _readable(store, one)]


def _is_sound(reader: StoreReader, task: _Task) -> bool:
    # What parity gives back is damaged all the same, and to be named.
    _, plain = reader.frame(task.place, heal=False, keep=task.keep)
    view = memoryview(plain)
    return all(
        chunk_id(one.kind, view[one.start_bytes : one.start_bytes + one.length_bytes]) == one.name
        for one in task.needed
    )


def _readable(store: Store, one: Needed) -> bool:
    """Ask again before calling it damage: cables fail too, and another pack may have it."""
    try:
        store.reader.chunk(one.name, kind=one.kind, heal=False)
    except (CorruptionError, UnknownFormatError):  # a store that fails is no damage of a chunk
        return False
    return True


def _encode(batch: Sequence[_Task]) -> bytes:
    parts: list[bytes] = []
    for (pack, offset, frame_bytes, *_), needed, keep in batch:
        parts.append(_FRAME.pack(pack, offset, frame_bytes, len(needed), keep))
        parts += [_NEEDED.pack(*one) for one in needed]
    return b"".join(parts)


def _decode(request: bytes) -> Iterator[_Task]:
    at = 0
    while at < len(request):
        pack, offset, frame_bytes, count, keep = _FRAME.unpack_from(request, at)
        begin, at = at + _FRAME.size, at + _FRAME.size + count * _NEEDED.size
        needed = [Needed._make(one) for one in _NEEDED.iter_unpack(request[begin:at])]
        place = ChunkPlace(
            pack, offset, frame_bytes, needed[0].start_bytes, needed[0].length_bytes, needed[0].kind
        )
        yield _Task(place, needed, keep)


def answering(store_path: str) -> Callable[[bytes], bytes]:
    """What a process does: which frames of a batch are not known to be sound."""
    prepare_for_bulk()
    known = _Known()
    reader = StoreReader(store_path, lambda: known, _no_index)

    def answer(request: bytes) -> bytes:
        doubtful = bytearray()
        known.clear()
        for number, task in enumerate(_decode(request)):
            try:
                is_sound = _is_sound(reader, task)
            except CiuicError:
                is_sound = False
            if not is_sound:
                doubtful += _NUMBER.pack(number)
            elif task.keep:
                known.add(task)
        return bytes(doubtful)

    return answer


class _Known:
    """Places of the chunks of a batch, for those that are differences from others in it."""

    def __init__(self) -> None:
        self._places: dict[bytes, ChunkPlace] = {}

    def clear(self) -> None:
        self._places.clear()

    def add(self, task: _Task) -> None:
        for name, kind, start, length in task.needed:
            pack, offset, frame_bytes, *_ = task.place
            self._places[name] = ChunkPlace(pack, offset, frame_bytes, start, length, kind)

    def places(self, ids: Sequence[bytes]) -> dict[bytes, ChunkPlace]:
        return {name: self._places[name] for name in ids if name in self._places}

    def stored_again(self) -> set[bytes]:
        return set()


def _no_index(_without: bytes) -> _Known:
    raise CorruptionError("what it is a difference from is not in the same batch")
