"""Starts the threads that read files, when the first file has to be read.

A snapshot that finds nothing new reads no file: it does not load the code that does.
"""

import os
from typing import Final, Protocol, TypeVar

from ciuic.model import Entry
from ciuic.snapshot.read.reader_context import ReaderContext
from ciuic.snapshot.read.source_file import SourceFile
from ciuic.system.buffers import prepare_for_bulk

__all__ = ["LateReaders", "Readers", "Reading"]

_WORKERS_MAX: Final = 8

Result_co = TypeVar("Result_co", covariant=True)


class Reading(Protocol[Result_co]):
    """Work of the reader threads, in progress or done."""

    def done(self) -> bool:
        """Return whether ``result`` would not wait."""
        ...

    def result(self) -> Result_co:
        """Wait for the work and return its result, or raise its error."""
        ...


class Readers(Protocol):
    """Reads and stores the content of files; see ``ContentReader``."""

    def submit_small(self, files: list[SourceFile]) -> Reading[list[Entry | None]]:
        """Store small files together; waits when too many batches are in progress."""
        ...

    def submit_large(self, file: SourceFile) -> Reading[Entry | None]:
        """Store a large file; waits when too many are in progress."""
        ...

    def close(self) -> None:
        """Stop what is in progress and end the threads."""
        ...


class LateReaders:
    """A ``ContentReader`` that is made for the first file.

    Args:
        context: What the readers share.
        threads: How many threads hash and encode; 0: one for each core, eight at most.
        memory_bytes: How much may be in progress.

    Attributes:
        batches_max: Maximum number of batches of small files in progress.
    """

    def __init__(self, context: ReaderContext, *, threads: int, memory_bytes: int) -> None:
        self._context = context
        self._workers = threads or min(_WORKERS_MAX, len(os.sched_getaffinity(0)))
        self._memory_bytes = memory_bytes
        self.batches_max = 4 * self._workers
        self._readers: Readers | None = None

    def is_small(self, status: os.stat_result) -> bool:
        """Return whether a file is read whole, in a batch; a file with holes is not."""
        size_bytes = status.st_size
        return size_bytes <= self._context.small_bytes and status.st_blocks * 512 >= size_bytes

    def submit_small(self, files: list[SourceFile]) -> Reading[list[Entry | None]]:
        """See ``Readers``."""
        return self._started().submit_small(files)

    def submit_large(self, file: SourceFile) -> Reading[Entry | None]:
        """See ``Readers``."""
        return self._started().submit_large(file)

    def close(self) -> None:
        """Stop what is in progress and end the threads."""
        self._context.stop()
        if self._readers is not None:
            self._readers.close()

    def _started(self) -> Readers:
        if self._readers is None:
            # Imported here: see the docstring of the module.
            from ciuic.snapshot.read.content_reader import ContentReader

            prepare_for_bulk()
            self._readers = ContentReader(
                self._context, workers=self._workers, memory_bytes=self._memory_bytes
            )
        return self._readers
