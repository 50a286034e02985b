"""Store the chunks of a large file: worker threads hash and encode them in batches."""

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from ciuic.chunking import Chunker
from ciuic.ids import ChunkId
from ciuic.snapshot.bases.last_version import ChunkBases, LastVersion
from ciuic.snapshot.read.changed_ranges import Kept
from ciuic.snapshot.read.recipe_writer import RecipeWriter
from ciuic.store.packs.writer import StoreWriter
from ciuic.system.hashing import data_id

__all__ = ["TASK_BYTES", "ChunkPipeline", "WorkerMark"]

TASK_BYTES: Final = 256 * 1024
_TASK_CHUNKS: Final = 64
"""Maximum number of chunks in one task: the pieces of a scattered change are 4 KiB each."""


class WorkerMark(threading.local):
    """Whether the current thread is a worker thread."""

    is_worker = False

    def set(self) -> None:
        """Mark this thread as a worker."""
        self.is_worker = True


class _Batch:
    """The chunks that one task stores, and the kept pieces between them, in order."""

    def __init__(self, delta_base: LastVersion | None, chunker: Chunker) -> None:
        self.delta_base = delta_base
        self.chunker = chunker
        self.items: list[Kept | tuple[int, memoryview]] = []
        self.count = 0
        self.size_bytes = 0
        self.future: Future[list[ChunkId]] | None = None

    @property
    def is_full(self) -> bool:
        return self.size_bytes >= TASK_BYTES or self.count >= _TASK_CHUNKS

    def add(self, offset_bytes: int, view: memoryview) -> None:
        self.items.append((offset_bytes, view))
        self.count += 1
        self.size_bytes += len(view)

    def chunks(self) -> list[tuple[int, memoryview]]:
        return [item for item in self.items if not isinstance(item, Kept)]

    def cancel(self) -> None:
        if self.future is not None:
            self.future.cancel()

    def write(self, recipe: RecipeWriter) -> None:
        chunk_ids = iter(self.future.result() if self.future is not None else [])
        for item in self.items:
            if isinstance(item, Kept):
                recipe.add_kept(item)
            else:
                offset_bytes, view = item
                recipe.add_data(offset_bytes, len(view), next(chunk_ids))


class ChunkPipeline:
    """Stores chunks in worker threads, within bounded memory.

    Args:
        writer: Stores the chunks.
        workers: The threads that hash and encode.
        mark: Tells whether the current thread is one of them.
        batches_max: Maximum number of batches of one file in progress.
    """

    def __init__(
        self, writer: StoreWriter, workers: ThreadPoolExecutor, mark: WorkerMark, batches_max: int
    ) -> None:
        self._writer = writer
        self._workers = workers
        self._mark = mark
        self._batches_max = batches_max

    def store(
        self,
        recipe: RecipeWriter,
        chunks: Iterator[tuple[int, memoryview]],
        kept: Iterator[Kept],
        delta_base: LastVersion | None,
        chunker: Chunker,
    ) -> None:
        """Store chunks and add them to a recipe, in order, with the kept pieces between them.

        Args:
            recipe: Receives chunks and pieces.
            chunks: Offset and bytes of each chunk.
            kept: Pieces of the old recipe.
            delta_base: The last version of the file, if there is one.
            chunker: The chunker that cut the chunks.

        Raises:
            StoreError: A chunk cannot be stored.
        """
        in_progress: deque[_Batch] = deque()
        next_kept = next(kept, None)
        batch = _Batch(delta_base, chunker)
        try:
            for offset_bytes, view in chunks:
                while next_kept is not None and next_kept.offset_bytes < offset_bytes:
                    batch.items.append(next_kept)
                    next_kept = next(kept, None)
                batch.add(offset_bytes, view)
                if batch.is_full:
                    self._begin(batch)
                    in_progress.append(batch)
                    batch = _Batch(delta_base, chunker)
                    if len(in_progress) > self._batches_max:
                        in_progress.popleft().write(recipe)
            self._begin(batch)
            in_progress.append(batch)
            while in_progress:
                in_progress.popleft().write(recipe)
        finally:
            for left in in_progress:
                left.cancel()
        while next_kept is not None:
            recipe.add_kept(next_kept)
            next_kept = next(kept, None)

    def _begin(self, batch: _Batch) -> None:
        """Start to store a batch; a worker stores it at once, or workers would wait for workers."""
        if self._mark.is_worker:
            batch.future = Future()
            batch.future.set_result(self._store_batch(batch))
        else:
            batch.future = self._workers.submit(self._store_batch, batch)

    def _store_batch(self, batch: _Batch) -> list[ChunkId]:
        chunks = batch.chunks()
        chunk_ids = [ChunkId(data_id(view)) for _, view in chunks]
        offsets = {
            chunk_id: offset for chunk_id, (offset, _) in zip(chunk_ids, chunks, strict=True)
        }
        bases = None
        if batch.delta_base is not None:
            bases = ChunkBases(batch.delta_base, offsets)
        widths = {
            chunk_id: batch.chunker.width_bytes(offset) for chunk_id, offset in offsets.items()
        }
        data = [(chunk_id, view) for chunk_id, (_, view) in zip(chunk_ids, chunks, strict=True)]
        self._writer.add_data(data, bases, widths)
        return chunk_ids
