"""Store file contents in parallel and within bounded memory.

    reader threads: large files, block by block      worker threads: hash, look up, encode;
                                                     small files whole, many at a time

Reading, hashing and compressing release the interpreter's lock, so two threads use two cores.
A source error affects one entry only; a store error ends the run.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

from ciuic.model import Entry
from ciuic.snapshot.read.chunk_pipeline import TASK_BYTES, ChunkPipeline, WorkerMark
from ciuic.snapshot.read.large_files import LargeFiles
from ciuic.snapshot.read.reader_context import ReaderContext
from ciuic.snapshot.read.small_files import SmallFiles
from ciuic.snapshot.read.source_file import SourceFile

__all__ = ["ContentReader"]

_READERS: Final = 2
_WORKERS_MAX: Final = 8

Argument = TypeVar("Argument")
Result = TypeVar("Result")


class ContentReader:
    """Stores the content of files and returns their entries.

    Args:
        context: What the readers share.
        threads: How many threads hash and encode; 0: one for each core, eight at most.
        memory_bytes: How much may be in progress.

    Attributes:
        batches_max: Maximum number of batches of small files in progress.
    """

    def __init__(self, context: ReaderContext, *, threads: int, memory_bytes: int) -> None:
        self._context = context
        workers = threads or min(_WORKERS_MAX, len(os.sched_getaffinity(0)))
        mark = WorkerMark()
        self._workers = ThreadPoolExecutor(workers, "encode", initializer=mark.set)
        self._readers = ThreadPoolExecutor(_READERS, "read")
        batches = max(memory_bytes // max(context.chunk_bytes, TASK_BYTES), 2 * workers)
        pipeline = ChunkPipeline(context.writer, self._workers, mark, batches // _READERS)
        self._large = LargeFiles(context, pipeline)
        self._small = SmallFiles(context, self._large)
        self.batches_max = 4 * workers
        self._small_slots = threading.Semaphore(self.batches_max)
        self._large_slots = threading.Semaphore(4 * _READERS)

    def is_small(self, status: os.stat_result) -> bool:
        """Return whether a file is read whole, in a batch; a file with holes is not."""
        size_bytes = status.st_size
        return size_bytes <= self._context.small_bytes and status.st_blocks * 512 >= size_bytes

    def submit_small(self, files: list[SourceFile]) -> "Future[list[Entry | None]]":
        """Store small files together; waits when too many batches are in progress."""
        return self._submit(self._workers, self._small_slots, self._small.store, files)

    def submit_large(self, file: SourceFile) -> "Future[Entry | None]":
        """Store a large file; waits when too many are in progress."""
        return self._submit(self._readers, self._large_slots, self._large.store, file)

    def close(self) -> None:
        """Stop what is in progress and end the threads."""
        self._context.stop()
        self._readers.shutdown(cancel_futures=True)
        self._workers.shutdown(cancel_futures=True)

    @staticmethod
    def _submit(
        pool: ThreadPoolExecutor,
        slots: threading.Semaphore,
        work: Callable[[Argument], Result],
        argument: Argument,
    ) -> "Future[Result]":
        slots.acquire()
        future = pool.submit(work, argument)
        future.add_done_callback(lambda _: slots.release())
        return future
