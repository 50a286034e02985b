"""File contents -> chunks in the store, in parallel and within bounded memory.

    reader threads: large files, block by block      worker threads: hash, look up, encode;
                                                     small files whole, many at a time

Reading, hashing and compressing release the interpreter's lock, so two threads use two cores.
A source error spoils the one entry that it is about; a store error ends the run.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple, TypeVar

from ciuic.capture import (
    ATTEMPTS,
    FrozenFile,
    FrozenRoot,
    OpenFile,
    read_small,
    source_faults,
)
from ciuic.chunking import FixedChunker
from ciuic.clock import Clock
from ciuic.errors import CancelledError, SourceError, TornReadError, VanishedError
from ciuic.hashing import data_id
from ciuic.model import FLUX, GONE_MODE, UNREADABLE, WHOLE, Entry
from ciuic.scan import DirectoryHandle, read_xattrs, storable_ns
from ciuic.store import Store
from ciuic.store.nodes import HOLE, Piece, RecipeBuilder
from ciuic.store.writer import StoreWriter

__all__ = ["ContentReader", "FluxSink", "Wanted"]

SMALL_BYTES: Final = 256 * 1024
_READERS: Final = 2
_WORKERS_MAX: Final = 8
_IN_FLIGHT_BYTES: Final = 48 * 1024 * 1024

Argument = TypeVar("Argument")

FluxSink = Callable[[bytes, tuple[int, int], str], None]
"""Told a path, its device and inode, and what shows that it is in flux, if not a writer."""


class Wanted(NamedTuple):
    """A regular file whose content is to be stored.

    Attributes:
        directory: Where it is.
        entry: Filled in from what is read; before that only its name counts.
        status: What the listing saw, for a file that can't be read.
        is_frozen: The directory is a frozen one: nobody writes to the file.
        clone: What is read instead of the file, with the metadata that belongs to it.
        old: What the parent snapshot says of the file at this path.
        previous: Where a frozen copy of that may be.
    """

    directory: DirectoryHandle
    entry: Entry
    status: os.stat_result
    is_frozen: bool = False
    clone: FrozenFile | None = None
    old: Entry | None = None
    previous: FrozenRoot | None = None

    @property
    def path(self) -> bytes:
        """Absolute, as the snapshot will have it."""
        return self.directory.join(self.entry.name)


class ContentReader:
    """Stores the content of files and fills in their entries.

    Args:
        store: Where the parent's recipes are.
        writer: Where the chunks go.
        trouble: Told of every path that is spoiled; called from several threads.
        flux: Told of every file that is in flux, its device and inode, and how that shows, if
            not by a writer; likewise.
        cancelled: Asked between blocks.
        clock: Tells when the last live file had been read.

    Attributes:
        read_bytes: Read from the source until now.
        captured_s: Monotonic moment at which the last file that is not frozen had been read.
    """

    def __init__(
        self,
        store: Store,
        writer: StoreWriter,
        *,
        trouble: Callable[[bytes, str], None],
        flux: FluxSink,
        cancelled: Callable[[], bool],
        clock: Clock,
    ) -> None:
        chunk_bytes = store.header.chunking.size_bytes
        self._store = store
        self._writer = writer
        self._chunker = FixedChunker(chunk_bytes)
        self._trouble = trouble
        self._flux = flux
        self._cancelled = cancelled
        self._clock = clock
        self._uid = os.geteuid()
        self._small_bytes = min(SMALL_BYTES, chunk_bytes)
        workers = min(_WORKERS_MAX, len(os.sched_getaffinity(0)))
        self._workers = ThreadPoolExecutor(workers, "encode")
        self._readers = ThreadPoolExecutor(_READERS, "read")
        in_flight = max(_IN_FLIGHT_BYTES // chunk_bytes, 2 * workers)
        self._window = in_flight // _READERS
        self._batches = threading.Semaphore(4 * workers)
        self._large = threading.Semaphore(4 * _READERS)
        self._count_lock = threading.Lock()
        self._stopped = False
        self.read_bytes = 0
        self.captured_s = 0.0

    def is_small(self, status: os.stat_result) -> bool:
        """The file is best read whole, together with others like it; holes need a closer look."""
        size = status.st_size
        return size <= self._small_bytes and status.st_blocks * 512 >= size

    def submit_small(self, files: list[Wanted]) -> "Future[None]":
        """Store small files together; waits when too many are under way."""
        return self._submit(self._workers, self._batches, self._store_small, files)

    def submit_large(self, file: Wanted) -> "Future[None]":
        """Store a large file; waits when too many are under way."""
        return self._submit(self._readers, self._large, self._store_large, file)

    def close(self) -> None:
        """Stop what is under way and end the threads."""
        self._stopped = True
        self._readers.shutdown(cancel_futures=True)
        self._workers.shutdown(cancel_futures=True)

    def _submit(
        self,
        pool: ThreadPoolExecutor,
        room: threading.Semaphore,
        work: Callable[[Argument], None],
        argument: Argument,
    ) -> "Future[None]":
        room.acquire()
        future = pool.submit(work, argument)
        future.add_done_callback(lambda _: room.release())
        return future

    def _check_stopped(self) -> None:
        if self._stopped or self._cancelled():
            raise CancelledError("the snapshot was interrupted")

    def _store_small(self, files: list[Wanted]) -> None:
        self._check_stopped()
        chunks = []
        read_bytes = 0
        for file in files:
            try:
                data = self._read_small(file)
            except SourceError as error:
                self._spoil(file, error)
                continue
            read_bytes += len(data)
            if data:
                file.entry.content = data_id(data)
                chunks.append((file.entry.content, data))
        if not all(file.is_frozen for file in files):
            self.captured_s = self._clock.monotonic_s()
        self._writer.add_data(chunks)
        self._count(read_bytes)

    def _read_small(self, file: Wanted) -> bytes:
        entry, clone = file.entry, file.clone
        if clone is not None:
            small = read_small(clone.directory_fd, clone.name, owned=True, frozen=True)
            _fill(entry, clone.status, clone.xattrs, len(small.data))
            return small.data
        owned = self._uid in {0, file.status.st_uid}
        small = read_small(file.directory.fd, entry.name, owned=owned, frozen=file.is_frozen)
        if small.is_torn or small.has_writer:
            self._mark_flux(file, small.status, is_torn=small.is_torn)
        _fill(entry, small.status, small.xattrs, len(small.data))
        return small.data

    def _store_large(self, file: Wanted) -> None:
        try:
            opened = self._open(file)
        except SourceError as error:
            self._spoil(file, error)
            return
        try:
            if file.is_frozen or file.clone is not None:
                self._store_frozen(file, opened)
            else:
                self._store_live(file, opened)
        except SourceError as error:
            self._spoil(file, error)
        finally:
            opened.close()

    def _store_frozen(self, file: Wanted, opened: OpenFile) -> None:
        entry = file.entry
        entry.content, entry.level, size = self._spell(opened)
        if file.clone is not None:
            _fill(entry, file.clone.status, file.clone.xattrs, size)
            return
        with source_faults():
            xattrs = read_xattrs(opened.fd)
        _fill(entry, opened.before, xattrs, size)

    def _store_live(self, file: Wanted, opened: OpenFile) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            content, level, size = self._spell(opened)
            is_torn = False
            try:
                opened.check_unchanged(size)
            except TornReadError:
                is_torn = True
                if attempt < ATTEMPTS:
                    opened.look_again()
                    continue
            break
        self.captured_s = self._clock.monotonic_s()
        if is_torn or opened.has_writer:
            self._mark_flux(file, opened.before, is_torn=is_torn)
        file.entry.content = content
        file.entry.level = level
        with source_faults():
            xattrs = read_xattrs(opened.fd)
        _fill(file.entry, opened.before, xattrs, size)

    def _spell(self, opened: OpenFile) -> tuple[bytes, int, int]:
        """Store a file's data once through; returns content, level and the length found."""
        spelling = _Spelling(self._writer)
        under_way: deque[tuple[int, int, Future[bytes]]] = deque()
        try:
            for offset, view in self._chunks(opened):
                under_way.append((offset, len(view), self._workers.submit(self._store_chunk, view)))
                if len(under_way) > self._window:
                    spelling.add_data(*_result(under_way.popleft()))
            while under_way:
                spelling.add_data(*_result(under_way.popleft()))
        finally:
            for _, _, future in under_way:
                future.cancel()
        return spelling.finish(0 if opened.ended_early else opened.before.st_size)

    def _chunks(self, opened: OpenFile) -> Iterator[tuple[int, memoryview]]:
        for extent in opened.extents():
            for offset, block in opened.blocks(extent):
                self._check_stopped()
                self._count(len(block))
                at = offset
                for view in self._chunker.cuts(offset, block):
                    yield at, view
                    at += len(view)

    def _store_chunk(self, view: memoryview) -> bytes:
        name = data_id(view)
        self._writer.add_data([(name, view)])
        return name

    def _open(self, file: Wanted) -> OpenFile:
        if file.clone is not None:
            return OpenFile(file.clone.directory_fd, file.clone.name, owned=True, private=True)
        owned = self._uid in {0, file.status.st_uid}
        return OpenFile(file.directory.fd, file.entry.name, owned=owned, private=file.is_frozen)

    def _spoil(self, file: Wanted, error: SourceError) -> None:
        _fill(file.entry, file.status, (), file.status.st_size)
        file.entry.state = UNREADABLE
        if isinstance(error, VanishedError):
            file.entry.mode = GONE_MODE
        file.entry.content = b""
        file.entry.level = 0
        self._trouble(file.path, error.message)

    def _mark_flux(self, file: Wanted, status: os.stat_result, *, is_torn: bool) -> None:
        file.entry.state = FLUX
        what = f"changed while it was read, {ATTEMPTS} times over" if is_torn else ""
        self._flux(file.path, (status.st_dev, status.st_ino), what)

    def _count(self, read_bytes: int) -> None:
        with self._count_lock:
            self.read_bytes += read_bytes


class _Spelling:
    """Data and the holes between it -> a chunk ID or a recipe."""

    def __init__(self, writer: StoreWriter) -> None:
        self._builder = RecipeBuilder(writer.put_node)
        self._first: Piece | None = None
        self._count = 0
        self._end = 0

    def add_data(self, offset: int, length: int, name: bytes) -> None:
        self._add_hole(offset)
        self._add(Piece(length, name))

    def finish(self, size_bytes: int) -> tuple[bytes, int, int]:
        """Content, level and length. A file that is shorter now ends where its data did."""
        self._add_hole(size_bytes)
        if self._first is None:
            return b"", 0, self._end
        if self._count == 1 and self._first.id != HOLE:
            return self._first.id, 0, self._end
        if self._count == 1:
            self._builder.add(self._first)
        name, level = self._builder.finish()
        return name, level + 1, self._end

    def _add_hole(self, until: int) -> None:
        if until > self._end:
            self._add(Piece(until - self._end, HOLE))

    def _add(self, piece: Piece) -> None:
        self._count += 1
        self._end += piece.length_bytes
        if self._first is None:
            self._first = piece
            return
        if self._count == 2:
            self._builder.add(self._first)
        self._builder.add(piece)


def _result(item: "tuple[int, int, Future[bytes]]") -> tuple[int, int, bytes]:
    return item[0], item[1], item[2].result()


def _fill(
    entry: Entry,
    status: os.stat_result,
    xattrs: tuple[tuple[bytes, bytes], ...],
    size_bytes: int,
) -> None:
    """Metadata as of the read: the file may have changed since its directory was listed."""
    entry.mode, entry.uid, entry.gid = status.st_mode, status.st_uid, status.st_gid
    entry.mtime_ns = storable_ns(status.st_mtime_ns)
    entry.ctime_ns = storable_ns(status.st_ctime_ns)
    entry.ino = status.st_ino
    entry.size_bytes = size_bytes
    entry.xattrs = xattrs
    if entry.state != FLUX:
        entry.state = WHOLE
