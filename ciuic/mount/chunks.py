"""Chunks of mounted files: read when they are needed, or ahead of a sequential reader.

The kernel asks for 128 KiB at a time, and a chunk may have a megabyte. So chunks are kept, in
bounded memory, and other threads decode the next ones while the first one is handed over.
"""

import concurrent.futures
import os
import signal
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from ciuic.errors import StoreError
from ciuic.ids import ChunkId
from ciuic.store.index.places import ChunkPlace
from ciuic.store.packs.reader import StoreReader
from ciuic.store.records.kinds import ALONE_BYTES, DATA
from ciuic.view.chunk_plan import Part, group_by_frame

__all__ = ["Chunks"]

_KEPT_BYTES: Final = 48 * 1024 * 1024
_EXPECTED_BYTES: Final = 24 * 1024 * 1024
"""How many bytes may wait to be decoded, of all files together."""
_BUFFERS_BYTES: Final = 8 * 1024 * 1024
_THREADS_MAX: Final = 4


def _leave_signals() -> None:
    """Block all signals in this thread: a signal must end the main thread's wait for requests."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


class _Buffer(bytearray):
    """Memory for chunks, which is used again: new memory costs as much time as a copy."""


class Chunks:
    """The chunks of a store that were read last. ``get`` and ``expect`` are for one thread."""

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._kept: OrderedDict[ChunkId, bytes | memoryview] = OrderedDict()
        self._kept_bytes = 0
        self._buffers: deque[_Buffer] = deque()
        self._buffers_bytes = 0
        self._lent: object = None
        """The chunk that ``get`` has returned last: its memory must stay as it is."""
        self._expected: dict[ChunkId, Future[None]] = {}
        self._expected_bytes = 0
        self._pool = ThreadPoolExecutor(
            min(_THREADS_MAX, len(os.sched_getaffinity(0))), initializer=_leave_signals
        )

    def close(self) -> None:
        """Stop reading ahead."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def get(self, chunk_id: ChunkId) -> memoryview:
        """Return the bytes of a chunk, checked. They are valid until the next call.

        Raises:
            CorruptionError: The chunk is missing or damaged.
            StoreError: The store failed.
        """
        with self._lock:
            found = self._lend(chunk_id)
            expected = self._expected.get(chunk_id)
        if found is None and expected is not None:
            concurrent.futures.wait([expected])
            with self._lock:
                found = self._lend(chunk_id)
        if found is None:
            found = self._read(chunk_id, 0, {}, lend=True)
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
            # Of this call: it will have been told of other chunks when these are read.
            places = self._reader.prepared
            with self._lock:
                future = self._pool.submit(self._read_all, lengths, places)
                self._expected.update(dict.fromkeys(lengths, future))
                self._expected_bytes += sum(lengths.values())
        return True

    def _lend(self, chunk_id: ChunkId) -> bytes | memoryview | None:
        found = self._kept.get(chunk_id)
        if found is not None:
            self._kept.move_to_end(chunk_id)
            self._lent = found
        return found

    def _read_all(self, lengths: dict[ChunkId, int], places: Mapping[ChunkId, ChunkPlace]) -> None:
        try:
            for chunk_id, length_bytes in lengths.items():
                self._read(chunk_id, length_bytes, places)
        except (StoreError, OSError, MemoryError):
            return  # a reader that needs the chunk reads it again, and gets the error
        finally:
            with self._lock:
                for chunk_id in lengths:
                    self._expected.pop(chunk_id, None)
                self._expected_bytes -= sum(lengths.values())

    def _read(
        self,
        chunk_id: ChunkId,
        length_bytes: int,
        places: Mapping[ChunkId, ChunkPlace],
        *,
        lend: bool = False,
    ) -> bytes | memoryview:
        """Read a chunk and keep it.

        Args:
            chunk_id: The chunk.
            length_bytes: Its length, if ``expect`` was told of it; else 0.
            places: Its place, and those of its delta chain, as far as they were looked up.
            lend: It is what ``get`` returns.
        """
        straight = self._read_straight(chunk_id, length_bytes, places)
        if straight is not None:
            chunk: bytes | memoryview = straight
        else:
            chunk = self._reader.chunk(chunk_id, kind=DATA)
            if isinstance(chunk, memoryview) and len(chunk) < len(memoryview(chunk.obj)):
                chunk = bytes(chunk)  # a view would keep its whole frame in memory
        with self._lock:
            if lend:
                self._lent = chunk
            if chunk_id not in self._kept:
                self._kept[chunk_id] = chunk
                self._kept_bytes += len(chunk)
            while self._kept_bytes > _KEPT_BYTES and len(self._kept) > 1:
                _, old = self._kept.popitem(last=False)
                self._kept_bytes -= len(old)
                if old is not self._lent:
                    self._recycle(old)
        return chunk

    def _read_straight(
        self, chunk_id: ChunkId, length_bytes: int, places: Mapping[ChunkId, ChunkPlace]
    ) -> memoryview | None:
        """Read a large chunk that is undamaged; None if it is another one."""
        if length_bytes < ALONE_BYTES:
            return None
        buffer = self._buffer(length_bytes)
        chunk = memoryview(buffer)[:length_bytes]
        if self._reader.read_into(chunk_id, chunk, places):
            return chunk
        with self._lock:
            self._recycle(chunk)
        return None

    def _recycle(self, chunk: bytes | memoryview) -> None:
        buffer = chunk.obj if isinstance(chunk, memoryview) else None
        if isinstance(buffer, _Buffer):
            self._buffers.append(buffer)
            self._buffers_bytes += len(buffer)
        while self._buffers_bytes > _BUFFERS_BYTES:
            self._buffers_bytes -= len(self._buffers.popleft())

    def _buffer(self, length_bytes: int) -> "_Buffer":
        """Return memory for a chunk, not much longer than it is."""
        with self._lock:
            for number, buffer in enumerate(self._buffers):
                if 0 <= len(buffer) - length_bytes <= length_bytes // 4:
                    del self._buffers[number]
                    self._buffers_bytes -= len(buffer)
                    return buffer
        return _Buffer(length_bytes)
