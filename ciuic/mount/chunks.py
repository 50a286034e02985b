"""Chunks of mounted files: read when they are needed, or ahead of a sequential reader.

The kernel asks for 128 KiB at a time, and a chunk may have a megabyte. So chunks are kept, in
bounded memory, and other threads decode the next ones while the first one is handed over.
"""

import concurrent.futures
import os
import signal
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from ciuic.errors import StoreError
from ciuic.ids import ChunkId
from ciuic.store.packs.reader import StoreReader
from ciuic.store.records.kinds import DATA
from ciuic.view.chunk_plan import Part, group_by_frame

__all__ = ["Chunks"]

_KEPT_BYTES: Final = 48 * 1024 * 1024
_EXPECTED_BYTES: Final = 24 * 1024 * 1024
"""How many bytes may wait to be decoded, of all files together."""
_THREADS_MAX: Final = 4


def _leave_signals() -> None:
    """Block all signals in this thread: a signal must end the main thread's wait for requests."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


class Chunks:
    """The chunks of a store that were read last. ``get`` and ``expect`` are for one thread."""

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._kept: OrderedDict[ChunkId, bytes | memoryview] = OrderedDict()
        self._kept_bytes = 0
        self._expected: dict[ChunkId, Future[None]] = {}
        self._expected_bytes = 0
        self._pool = ThreadPoolExecutor(
            min(_THREADS_MAX, len(os.sched_getaffinity(0))), initializer=_leave_signals
        )

    def close(self) -> None:
        """Stop reading ahead."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def get(self, chunk_id: ChunkId) -> memoryview:
        """Return the bytes of a chunk, checked.

        Raises:
            CorruptionError: The chunk is missing or damaged.
            StoreError: The store failed.
        """
        with self._lock:
            found = self._find(chunk_id)
            expected = self._expected.get(chunk_id)
        if found is None and expected is not None:
            concurrent.futures.wait([expected])
            with self._lock:
                found = self._find(chunk_id)
        if found is None:
            found = self._read(chunk_id)
        return memoryview(found)

    def expect(self, parts: Sequence[Part]) -> bool:
        """Have the chunks of these parts read by other threads.

        Returns:
            False if too many chunks are expected already; nothing is read then.
        """
        with self._lock:
            wanted = [
                part
                for part in parts
                if part.piece.id
                and part.piece.id not in self._kept
                and part.piece.id not in self._expected
            ]
            if wanted and self._expected_bytes > _EXPECTED_BYTES:
                return False
        for group in group_by_frame(self._reader, wanted):
            # The chunks of a frame by one thread: two would decode the frame twice.
            lengths = {part.piece.id: part.piece.length_bytes for part in group}
            with self._lock:
                future = self._pool.submit(self._read_all, lengths)
                self._expected.update(dict.fromkeys(lengths, future))
                self._expected_bytes += sum(lengths.values())
        return True

    def _find(self, chunk_id: ChunkId) -> bytes | memoryview | None:
        found = self._kept.get(chunk_id)
        if found is not None:
            self._kept.move_to_end(chunk_id)
        return found

    def _read_all(self, lengths: dict[ChunkId, int]) -> None:
        try:
            for chunk_id in lengths:
                self._read(chunk_id)
        except (StoreError, OSError, MemoryError):
            return  # a reader that needs the chunk reads it again, and gets the error
        finally:
            with self._lock:
                for chunk_id in lengths:
                    self._expected.pop(chunk_id, None)
                self._expected_bytes -= sum(lengths.values())

    def _read(self, chunk_id: ChunkId) -> bytes | memoryview:
        chunk = self._reader.chunk(chunk_id, kind=DATA)
        if isinstance(chunk, memoryview) and len(chunk) < len(memoryview(chunk.obj)):
            chunk = bytes(chunk)  # a view would keep its whole frame in memory
        with self._lock:
            if chunk_id not in self._kept:
                self._kept[chunk_id] = chunk
                self._kept_bytes += len(chunk)
            while self._kept_bytes > _KEPT_BYTES and len(self._kept) > 1:
                _, old = self._kept.popitem(last=False)
                self._kept_bytes -= len(old)
        return chunk
