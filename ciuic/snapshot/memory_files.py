"""Store the bytes of files that exist only in memory.

Files are cut as on disk, so a tensor that is also in a file on disk is stored once.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from ciuic.chunking import Chunker
from ciuic.formats.headers import Span
from ciuic.snapshot.bases.last_version import LastVersion
from ciuic.snapshot.read.chunk_pipeline import TASK_BYTES, ChunkPipeline, WorkerMark
from ciuic.snapshot.read.cutting import Cutter
from ciuic.snapshot.read.reader_context import ReaderContext
from ciuic.snapshot.read.recipe_writer import RecipeWriter
from ciuic.snapshot.read.source_file import Recipe

__all__ = ["BaseFinder", "MemoryFile", "MemoryFiles"]

_WORKERS_MAX: Final = 8
_IN_PROGRESS_BYTES: Final = 32 * 1024 * 1024
_BLOCK_BYTES: Final = 1024 * 1024

BaseFinder = Callable[[int, tuple[Span, ...] | None], LastVersion | None]
"""Finds the last version of a file by its length and its tensors."""


@dataclass(frozen=True, slots=True)
class MemoryFile:
    """A regular file that exists only in memory.

    Attributes:
        path: Relative to the root of its snapshot, without ``.`` and ``..``.
        parts: Its bytes are these, one after the other. They must not change until the snapshot is
            committed or has failed.
        mode: Its permission bits after a restore.
    """

    path: bytes
    parts: tuple[bytes | memoryview, ...]
    mode: int = 0o600

    @property
    def size_bytes(self) -> int:
        """The length of the file."""
        return sum([len(part) for part in self.parts])


class _Content:
    """Random access to the bytes of a file, without a copy where a range is in one part."""

    def __init__(self, parts: Sequence[bytes | memoryview]) -> None:
        self._parts = [memoryview(part).cast("B") for part in parts if len(part)]
        self._ends = list(accumulate([len(part) for part in self._parts]))
        self._at = 0

    @property
    def size_bytes(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, offset_bytes: int, length_bytes: int) -> bytes:
        return bytes(self.view(offset_bytes, length_bytes))

    def view(self, offset_bytes: int, length_bytes: int) -> memoryview:
        """Return these bytes; fewer at the end of the file."""
        end = min(offset_bytes + length_bytes, self.size_bytes)
        found = []
        for at in range(self._part_at(offset_bytes), len(self._parts)):
            begin = self._ends[at] - len(self._parts[at])
            if begin >= end:
                break
            found.append(self._parts[at][max(offset_bytes - begin, 0) : end - begin])
        return found[0] if len(found) == 1 else memoryview(b"".join(found))

    def _part_at(self, offset_bytes: int) -> int:
        """Return the number of the part that holds an offset; most reads go forward."""
        at = self._at
        if at and offset_bytes < self._ends[at - 1]:
            at = 0
        while at < len(self._ends) and self._ends[at] <= offset_bytes:
            at += 1
        self._at = at
        return at


class MemoryFiles:
    """Stores files from memory, with a thread for each core.

    Args:
        context: The store, its writer, and the limits of a snapshot.
    """

    def __init__(self, context: ReaderContext) -> None:
        self._context = context
        self._cutter = Cutter(context)
        workers = min(_WORKERS_MAX, len(os.sched_getaffinity(0)))
        mark = WorkerMark()
        self._workers = ThreadPoolExecutor(workers, "encode", initializer=mark.set)
        batches = max(_IN_PROGRESS_BYTES // max(context.chunk_bytes, TASK_BYTES), 2 * workers)
        self._pipeline = ChunkPipeline(context.writer, self._workers, mark, batches)

    def store(self, file: MemoryFile, find_base: BaseFinder) -> Recipe:
        """Store one file; returns its recipe.

        Raises:
            StoreError: The store failed.
            CancelledError: The snapshot was interrupted.
        """
        content = _Content(file.parts)
        cutting = self._cutter.cutting_of(content.size_bytes, read=content.read, look=content.read)
        recipe = RecipeWriter(self._context.writer)
        chunks = cutting.chunker.chunks(self._blocks(content, cutting.chunker))
        base = find_base(content.size_bytes, cutting.spans)
        self._pipeline.store(recipe, chunks, iter(()), base, cutting.chunker)
        return recipe.finish(content.size_bytes)

    def close(self) -> None:
        """End the threads."""
        self._workers.shutdown(cancel_futures=True)

    def _blocks(self, content: _Content, chunker: Chunker) -> Iterator[tuple[int, memoryview]]:
        at = 0
        while at < content.size_bytes:
            self._context.check_stopped()
            end = chunker.block_end(at, max(_BLOCK_BYTES, self._context.chunk_bytes))
            block = content.view(at, end - at)
            self._context.count(len(block))
            yield at, block
            at += len(block)
