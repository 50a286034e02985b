"""Store file contents in parallel and within bounded memory.

    reader threads: large files, block by block      worker threads: hash, look up, encode;
                                                     small files whole, many at a time

Reading, hashing and compressing release the interpreter's lock, so two threads use two cores.
A source error affects one entry only; a store error ends the run.
"""

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

Argument = TypeVar("Argument")
Result = TypeVar("Result")


class ContentReader:
    """Stores the content of files and returns their entries.

    Args:
        context: What the readers share.
        workers: How many threads hash and encode.
        memory_bytes: How much may be in progress.
    """

    def __init__(self, context: ReaderContext, *, workers: int, memory_bytes: int) -> None:
        mark = WorkerMark()
        self._workers = ThreadPoolExecutor(workers, "encode", initializer=mark.set)
        self._readers = ThreadPoolExecutor(_READERS, "read")
        batches = max(memory_bytes // max(context.chunk_bytes, TASK_BYTES), 2 * workers)
        pipeline = ChunkPipeline(context.writer, self._workers, mark, batches // _READERS)
        self._large = LargeFiles(context, pipeline)
        self._small = SmallFiles(context, self._large)
        self._small_slots = threading.Semaphore(4 * workers)
        self._large_slots = threading.Semaphore(4 * _READERS)

    def submit_small(self, files: list[SourceFile]) -> "Future[list[Entry | None]]":
        """Store small files together; waits when too many batches are in progress."""
        return self._submit(self._workers, self._small_slots, self._small.store, files)

    def submit_large(self, file: SourceFile) -> "Future[Entry | None]":
        """Store a large file; waits when too many are in progress."""
        return self._submit(self._readers, self._large_slots, self._large.store, file)

    def close(self) -> None:
        """End the threads; what is in progress has been told to stop."""
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
