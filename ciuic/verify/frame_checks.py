"""Checking frames, in several processes at once.

Threads that share an interpreter decode hardly faster than one thread. A process only reports which
frames are not sound. The main process checks these again, with the chunk index, other packs and a
second read. It also checks frames for which a process gave no answer. ``frame_worker`` is the code
of a process.
"""

import os
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.ids import ChunkId
from ciuic.store.records.kinds import DATA
from ciuic.store.store import Store
from ciuic.system.workers.threads import Pool, Running, start_pool
from ciuic.verify import frame_worker
from ciuic.verify.frame_worker import HAS_NUMBERS, decode_answer, encode_batch, read_sound
from ciuic.verify.tasks import Needed, OnProgress, Task

__all__ = ["Checker"]

_WORKERS_MAX: Final = 8
_WINDOW: Final = 4
"""Batches under way for each worker."""
_BATCH_BYTES: Final = 4 * 1024 * 1024
"""A request to a process takes a tenth of a millisecond, as long as checking a tenth of a MiB."""
_WORTH_BYTES: Final = 64 * 1024 * 1024
"""Smaller stores are read before a process is ready."""


class _Processes(Protocol):
    """The part of ``Processes`` that is used. Its module is loaded for large stores only."""

    def begin(self, last: bytes) -> None: ...

    def ask(self, request: bytes) -> bytes | None: ...

    def close(self) -> None: ...


class _Failures(NamedTuple):
    """Chunks of a batch that cannot be read, and its frames that are not sound."""

    chunk_ids: list[ChunkId]
    unsound: list[Task]


class Checker:
    """Reads, decodes and hashes frames while a walk is still finding others; a context manager.

    Args:
        store: The store that has the frames.
        packs_bytes: Length of all packs together.
        progress: Receives the number of bytes that were read, and of all bytes once that is known.

    Attributes:
        bad: Chunks that cannot be read; complete after ``finish`` and ``look_again``.
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
        self._under_way: deque[Running[_Failures]] = deque()
        self._workers = min(_WORKERS_MAX, len(os.sched_getaffinity(0)))
        self._window = _WINDOW * self._workers
        self._started: Pool | None = None
        is_worth_it = packs_bytes >= _WORTH_BYTES and store.bucket is None
        self._processes = _start_processes(store) if is_worth_it else None

    def __enter__(self) -> "Checker":
        return self

    def __exit__(self, *_: object) -> None:
        if self._started is not None:
            self._started.shutdown(cancel_futures=True)
        if self._processes is not None:
            self._processes.close()

    def expect(self, *, numbers: bool) -> None:
        """Start the processes; ``numbers``: some frames hold numbers, whose codec loads slowly."""
        if self._processes is not None:
            self._processes.begin(HAS_NUMBERS if numbers else b"")

    def begin(self, task: Task) -> None:
        """Check a frame that is probably not a delta base.

        Raises:
            StoreError: The store itself cannot be read.
        """
        self._add([task])

    def begin_groups(self, groups: Iterable[list[Task]]) -> None:
        """Check the frames of each group together: each delta follows its base.

        Raises:
            StoreError: The store itself cannot be read.
        """
        for group in groups:
            self._add(group)

    def finish(self, groups: Iterable[list[Task]], left_bytes: int) -> None:
        """Check the last frames, ``left_bytes`` long, and wait until all frames are checked.

        Raises:
            StoreError: The store itself cannot be read.
        """
        self._total_bytes = self.read_bytes + left_bytes
        self.begin_groups(groups)
        if not self._under_way:
            # A small store is checked before a thread has started.
            self._note(_check_batch(self._store, self._processes, self._next_batch()))
            return
        self._submit()
        while self._under_way:
            self._settle()

    def look_again(self, chunk_ids: Iterable[ChunkId]) -> None:
        """Find out which of these chunks of file content cannot be read from any pack.

        Raises:
            StoreError: The store itself cannot be read.
        """
        needed = [Needed(chunk_id, DATA, 0, 0) for chunk_id in chunk_ids]
        if not needed:
            return
        results = self._pool().map(partial(_is_readable, self._store), needed)
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
        batch = self._next_batch()
        check = partial(_check_batch, self._store, self._processes, batch)
        self._under_way.append(self._pool().submit(check))
        if len(self._under_way) >= self._window:
            self._settle()

    def _next_batch(self) -> list[Task]:
        batch, self._waiting, self._waiting_bytes = self._waiting, [], 0
        # The disk reads these frames while the ones before them are decoded.
        self._store.reader.read_ahead([task.place for task in batch])
        if self._progress is not None:
            self._progress(self.read_bytes, self._total_bytes)
        return batch

    def _pool(self) -> Pool:
        if self._started is None:
            self._started = start_pool(self._workers, "verify")
        return self._started

    def _settle(self) -> None:
        self._note(self._under_way.popleft().result())

    def _note(self, failures: _Failures) -> None:
        self.bad.update(failures.chunk_ids)
        self.unsound += failures.unsound
        self.doubtful.update([task.number for task in failures.unsound if task.header_id])


def _start_processes(store: Store) -> _Processes:
    # Imported here: most stores are smaller.
    from ciuic.system.workers.processes import Processes

    return Processes(frame_worker.__name__, [store.path])


def _check_batch(store: Store, processes: _Processes | None, batch: Sequence[Task]) -> _Failures:
    """Check frames in a process, and check again here what it did not find sound."""
    answer = processes.ask(encode_batch(batch)) if processes is not None else None
    if answer is not None:
        batch = [batch[number] for number in decode_answer(answer)]
    unsound = [task for task in batch if not _is_sound_here(store, task)]
    needed = [chunk for task in unsound for chunk in task.needed]
    chunk_ids = [chunk.chunk_id for chunk in needed if not _is_readable(store, chunk)]
    return _Failures(chunk_ids, unsound)


def _is_sound_here(store: Store, task: Task) -> bool:
    try:
        return read_sound(store.reader, task) is not None
    except (CorruptionError, UnknownFormatError):
        return False


def _is_readable(store: Store, chunk: Needed) -> bool:
    """Return whether a second read, or another pack, gives the chunk: the cable may be at fault."""
    try:
        store.reader.chunk(chunk.chunk_id, kind=chunk.kind, repair=False)
    except (CorruptionError, UnknownFormatError):  # an I/O error of the store passes through
        return False
    return True
