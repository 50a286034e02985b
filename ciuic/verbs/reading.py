"""File contents -> chunks in the store, in parallel and within bounded memory.

    reader threads: large files, block by block      worker threads: hash, look up, encode;
                                                     small files whole, many at a time

Reading, hashing and compressing release the interpreter's lock, so two threads use two cores.
A source error spoils the one entry that it is about; a store error ends the run.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple, TypeVar

from ciuic.capture import (
    ATTEMPTS,
    Extent,
    FrozenFile,
    FrozenRoot,
    OpenFile,
    Range,
    changed_ranges,
    data_ranges,
    read_small,
    source_faults,
)
from ciuic.chunking import Chunker, ContentChunker, FixedChunker, TensorChunker, is_rewritten
from ciuic.chunking.content import IS_COMPILED
from ciuic.chunking.tensors import MAGIC_BYTES, Span, layout
from ciuic.chunking.tensors.described import NAMES_BYTES_MAX, called_by_pickle
from ciuic.clock import Clock
from ciuic.codec import looks_like_numbers
from ciuic.errors import CancelledError, CorruptionError, SourceError, TornReadError, VanishedError
from ciuic.hashing import data_id
from ciuic.model import FLUX, GONE_MODE, UNREADABLE, WHOLE, Entry
from ciuic.scan import DirectoryHandle, read_xattrs, storable_ns
from ciuic.store import Store
from ciuic.store.header import CONTENT, FIXED
from ciuic.store.nodes import HOLE, Piece, RecipeBuilder, iter_pieces
from ciuic.store.writer import StoreWriter
from ciuic.verbs.earlier import METADATA, Called, EarlierChunks, EarlierOfNamed
from ciuic.verbs.tracking import Gap, Kept, believed, believed_whole, respell

__all__ = ["ContentReader", "FluxSink", "Wanted"]

SMALL_BYTES: Final = 256 * 1024
_READERS: Final = 2
_WORKERS_MAX: Final = 8
_IN_FLIGHT_BYTES: Final = 32 * 1024 * 1024
_TASK_BYTES: Final = 256 * 1024
_LOOKS: Final = 4
_LOOK_BYTES: Final = 2048
_TASK_CHUNKS: Final = 64
"""Chunks are stored so many at a time: the crumbs of a scattered change are 4 KiB each."""

Argument = TypeVar("Argument")

FluxSink = Callable[[bytes, tuple[int, int], str], None]
"""Told a path, its device and inode, and what shows that it is in flux, if not a writer."""


Earlier = Callable[[Sequence[Span] | None, Callable[[], bytes], Called], EarlierChunks | None]
"""Given a file's tensors, and what reads the ``METADATA`` beside it and the names within it if they
are needed, finds its last version."""


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
        earlier: Finds the last version of the file by its tensors, at whatever path it was.
    """

    directory: DirectoryHandle
    entry: Entry
    status: os.stat_result
    is_frozen: bool = False
    clone: FrozenFile | None = None
    old: Entry | None = None
    previous: FrozenRoot | None = None
    earlier: Earlier | None = None

    @property
    def path(self) -> bytes:
        """Absolute, as the snapshot will have it."""
        return self.directory.join(self.entry.name)


class ContentReader:
    """Stores the content of files and fills in their entries.

    Args:
        store: Where the parent's recipes are.
        writer: Where the chunks go.
        believe: What a frozen copy shows to be unchanged is not read.
        trouble: Told of every path that is spoiled; called from several threads.
        flux: Told of every file that is in flux, its device and inode, and how that shows, if
            not by a writer; likewise.
        cancelled: Asked between blocks.
        clock: Tells when the last live file had been read.

    Attributes:
        batches_max: So many batches of small files are under way at most.
        read_bytes: Read from the source until now.
        captured_s: Monotonic moment at which the last file that is not frozen had been read.
    """

    def __init__(
        self,
        store: Store,
        writer: StoreWriter,
        *,
        believe: bool,
        trouble: Callable[[bytes, str], None],
        flux: FluxSink,
        cancelled: Callable[[], bool],
        clock: Clock,
    ) -> None:
        chunk_bytes = store.header.chunking.size_bytes
        self._store = store
        self._chunk_bytes = chunk_bytes
        self._believe = believe
        self._writer = writer
        self._fixed = FixedChunker(chunk_bytes)
        self._chunking = store.header.chunking
        self._trouble = trouble
        self._flux = flux
        self._cancelled = cancelled
        self._clock = clock
        self._uid = os.geteuid()
        self._small_bytes = min(SMALL_BYTES, chunk_bytes)
        workers = min(_WORKERS_MAX, len(os.sched_getaffinity(0)))
        self._workers = ThreadPoolExecutor(workers, "encode")
        self._readers = ThreadPoolExecutor(_READERS, "read")
        in_flight = max(_IN_FLIGHT_BYTES // max(chunk_bytes, _TASK_BYTES), 2 * workers)
        self._window = in_flight // _READERS
        self.batches_max = 4 * workers
        self._batches = threading.Semaphore(self.batches_max)
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
        if not all(file.is_frozen or file.clone is not None for file in files):
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
        entry.content, entry.level, size = self._spell(file, opened, self._tracked(file, opened))
        if file.clone is not None:
            _fill(entry, file.clone.status, file.clone.xattrs, size)
            return
        with source_faults():
            xattrs = read_xattrs(opened.fd)
        _fill(entry, opened.before, xattrs, size)

    def _store_live(self, file: Wanted, opened: OpenFile) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            content, level, size = self._spell(file, opened, None)
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

    def _tracked(self, file: Wanted, opened: OpenFile) -> "_Tracked | None":
        """What the parent has of a frozen file, if a frozen copy tells what has changed since.

        Of a file that was in flux, too: what was stored is what the copy holds.
        """
        old, previous = file.old, file.previous
        if old is None or previous is None or not old.level:
            return None
        fd = previous.open(file.path, old)
        if fd is None:
            return None
        try:
            size = opened.before.st_size
            changed = changed_ranges(fd, old.size_bytes, opened.fd, size)
            data = data_ranges(opened.fd)
            if changed is None or data is None:
                return None
            pieces = list(iter_pieces(self._store.reader.node, old))
        except CorruptionError:
            return None
        finally:
            os.close(fd)
        return _Tracked(pieces, changed, data, file.path)

    def _spell(
        self, file: Wanted, opened: OpenFile, tracked: "_Tracked | None"
    ) -> tuple[bytes, int, int]:
        """Store a file's data once through; returns content, level and the length found."""
        if tracked is not None and self._believe:
            # Where nothing has changed nothing is cut, and no header needs to be read.
            chunker, spans = self._cutting(opened) if tracked.changed else (self._fixed, None)
            plan = self._plan(opened, tracked, chunker)
            if plan is not None:
                earlier = self._earlier(file, opened, spans) if tracked.changed else None
                return self._spell_plan(opened, plan, tracked.data, chunker, earlier)
        chunker, spans = self._cutting(opened)
        spelling = _Spelling(self._writer)
        if tracked is not None:
            spelling = _Spelling(self._writer, self._expected(opened, tracked, chunker))
        chunks = self._chunks(opened, chunker)
        earlier = self._earlier(file, opened, spans)
        self._add_chunks(spelling, chunks, iter(()), earlier, chunker)
        if spelling.missed is not None and tracked is not None:
            what = f"change tracking missed a change at byte {spelling.missed}; please report it"
            self._trouble(tracked.path, what)
        return spelling.finish(0 if opened.ended_early else opened.before.st_size)

    def _earlier(
        self, file: Wanted, opened: OpenFile, spans: tuple[Span, ...] | None
    ) -> EarlierChunks | None:
        if file.earlier is None:
            return None

        def called() -> tuple[Span, ...] | None:
            try:
                peek = partial(self._peek, opened)
                return called_by_pickle(peek, opened.before.st_size, spans or ())
            finally:
                opened.peeked()

        return file.earlier(spans, lambda: self._metadata(file), called)

    def _metadata(self, file: Wanted) -> bytes:
        """What says of a distributed checkpoint what its files hold; empty if it can't be had.

        The one of another save tells wrong names, and they cost looks at the wrong chunks.
        """
        try:
            owned = self._uid in {0, file.status.st_uid}
            opened = OpenFile(file.directory.fd, METADATA, owned=owned, private=file.is_frozen)
        except SourceError:
            return b""
        try:
            if opened.before.st_size > NAMES_BYTES_MAX:
                return b""
            self._count(opened.before.st_size)
            return opened.peek(0, opened.before.st_size)
        except SourceError:
            return b""
        finally:
            opened.peeked()
            opened.close()

    def _cutting(self, opened: OpenFile) -> tuple[Chunker, tuple[Span, ...] | None]:
        """Where this file is cut, and its tensors if it is cut at them, by its headers now.

        A file that is written to meanwhile may have others a moment later: it is then read again,
        or in flux, and its bytes are right wherever they are cut.
        """
        size = opened.before.st_size
        if self._chunking.kind == FIXED or size <= self._small_bytes:
            return self._fixed, None

        try:
            spans = layout(partial(self._peek, opened), size)
            if spans is not None:
                return TensorChunker(spans, self._chunk_bytes), spans
            if self._chunking.kind != CONTENT or not IS_COMPILED or size <= self._chunk_bytes:
                return self._fixed, None
            if is_rewritten(opened.peek) or _holds_numbers(opened.peek, size):
                return self._fixed, None
            return self._by_content(), None
        finally:
            opened.peeked()

    def _peek(self, opened: OpenFile, offset: int, length: int) -> bytes:
        self._check_stopped()
        # The magic is not counted: so little of any file is read to tell what it is.
        if offset or length > MAGIC_BYTES:
            self._count(length)
        return opened.peek(offset, length)

    def _by_content(self) -> Chunker:
        """One for each file: it is not made for several threads."""
        return ContentChunker(
            self._chunk_bytes, self._chunking.average_bytes, self._chunking.least_bytes
        )

    def _plan(
        self, opened: OpenFile, tracked: "_Tracked", chunker: Chunker
    ) -> list[Kept | Gap] | None:
        """How to spell a file by what has changed; None if the store lacks what has not."""
        size = opened.before.st_size
        plan = list(respell(tracked.pieces, tracked.changed, size, chunker=chunker))
        wanted = {one.piece.id for one in plan if isinstance(one, Kept) and one.piece.id}
        return plan if self._store.index.known(list(wanted)) == wanted else None

    def _expected(self, opened: OpenFile, tracked: "_Tracked", chunker: Chunker) -> Iterator[Kept]:
        if isinstance(chunker, ContentChunker):
            size, places = opened.before.st_size, self._store.index.places
            return believed_whole(tracked.pieces, tracked.changed, size, places=places)
        return believed(
            tracked.pieces,
            tracked.changed,
            opened.before.st_size,
            chunker=chunker,
            chunk_bytes=self._chunk_bytes,
        )

    def _spell_plan(
        self,
        opened: OpenFile,
        plan: list[Kept | Gap],
        data: list[Range],
        chunker: Chunker,
        earlier: EarlierChunks | None,
    ) -> tuple[bytes, int, int]:
        spelling = _Spelling(self._writer)
        gaps = [one for one in plan if isinstance(one, Gap)]
        kept = iter([one for one in plan if isinstance(one, Kept)])
        blocks = opened.scattered_blocks(_data_in(gaps, data), chunker.block_end)
        chunks = chunker.chunks(self._counted(blocks))
        self._add_chunks(spelling, chunks, kept, earlier, chunker)
        return spelling.finish(opened.before.st_size)

    def _add_chunks(
        self,
        spelling: "_Spelling",
        chunks: Iterator[tuple[int, memoryview]],
        kept: Iterator[Kept],
        earlier: EarlierChunks | None,
        chunker: Chunker,
    ) -> None:
        """Store chunks, many at a time, and spell them in order with what is kept between them."""
        under_way: deque[_Batch] = deque()
        batch = _Batch(earlier, chunker)
        next_kept = next(kept, None)
        try:
            for offset, view in chunks:
                while next_kept is not None and next_kept.offset_bytes < offset:
                    batch.items.append(next_kept)
                    next_kept = next(kept, None)
                batch.items.append(offset)
                batch.views.append(view)
                batch.size_bytes += len(view)
                if batch.size_bytes >= _TASK_BYTES or len(batch.views) >= _TASK_CHUNKS:
                    batch.future = self._workers.submit(self._store_chunks, batch)
                    under_way.append(batch)
                    batch = _Batch(earlier, chunker)
                    if len(under_way) > self._window:
                        under_way.popleft().spell(spelling)
            batch.future = self._workers.submit(self._store_chunks, batch)
            under_way.append(batch)
            while under_way:
                under_way.popleft().spell(spelling)
        finally:
            for one in under_way:
                one.cancel()
        while next_kept is not None:
            spelling.add_kept(next_kept)
            next_kept = next(kept, None)

    def _chunks(self, opened: OpenFile, chunker: Chunker) -> Iterator[tuple[int, memoryview]]:
        for extent in opened.extents():
            yield from chunker.chunks(self._counted(opened.blocks(extent, chunker.block_end)))

    def _counted(
        self, blocks: Iterable[tuple[int, memoryview]]
    ) -> Iterator[tuple[int, memoryview]]:
        for offset, block in blocks:
            self._check_stopped()
            self._count(len(block))
            yield offset, block

    def _store_chunks(self, batch: "_Batch") -> list[bytes]:
        names = [data_id(view) for view in batch.views]
        offsets = dict(zip(names, batch.offsets, strict=True))
        earlier = EarlierOfNamed(batch.earlier, offsets) if batch.earlier is not None else None
        widths = {name: batch.chunker.width_bytes(offset) for name, offset in offsets.items()}
        self._writer.add_data(list(zip(names, batch.views, strict=True)), earlier, widths)
        return names

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
    """Data and the holes between it -> a chunk ID or a recipe.

    Args:
        writer: Where recipe nodes go.
        expected: What should come out again, by what is known to be unchanged.

    Attributes:
        missed: The first offset at which something else came out.
    """

    def __init__(self, writer: StoreWriter, expected: Iterator[Kept] | None = None) -> None:
        self._builder = RecipeBuilder(writer.put_node)
        self._first: Piece | None = None
        self._count = 0
        self._end = 0
        self._is_fresh = False
        self._expected = iter(()) if expected is None else expected
        self._expected_next = next(self._expected, None)
        self.missed: int | None = None

    def add_data(self, offset: int, length: int, name: bytes) -> None:
        self._add_hole(offset)
        self._compare(offset, length, name)
        self._is_fresh = True
        self._add(Piece(length, name))

    def add_kept(self, kept: Kept) -> None:
        self._add_hole(kept.offset_bytes)
        self._is_fresh = False  # it may be a slice: only a recipe can say so
        self._add(kept.piece)

    def _compare(self, offset: int, length: int, name: bytes) -> None:
        while self._expected_next is not None and self._expected_next.offset_bytes < offset:
            self._expected_next = next(self._expected, None)
        wanted = self._expected_next
        if wanted is None or wanted.offset_bytes != offset or wanted.piece.id == name:
            return
        if wanted.length_bytes != length:  # cut elsewhere, which is no change
            return
        if self.missed is None:
            self.missed = offset

    def finish(self, size_bytes: int) -> tuple[bytes, int, int]:
        """Content, level and length. A file that is shorter now ends where its data did."""
        self._add_hole(size_bytes)
        if self._first is None:
            return b"", 0, self._end
        if self._count == 1 and self._first.id != HOLE and self._is_fresh:
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


class _Tracked(NamedTuple):
    """What the parent snapshot has of a file, and where the file has changed since."""

    pieces: list[Piece]
    changed: list[Range]
    data: list[Range]
    path: bytes


class _Batch:
    """Chunks that are stored by one task, and what is kept between them, in order."""

    def __init__(self, earlier: EarlierChunks | None, chunker: Chunker) -> None:
        self.earlier = earlier
        self.chunker = chunker
        self.items: list[Kept | int] = []
        self.views: list[memoryview] = []
        self.size_bytes = 0
        self.future: Future[list[bytes]] | None = None

    @property
    def offsets(self) -> list[int]:
        return [one for one in self.items if not isinstance(one, Kept)]

    def cancel(self) -> None:
        if self.future is not None:
            self.future.cancel()

    def spell(self, spelling: _Spelling) -> None:
        names = self.future.result() if self.future is not None else []
        stored = iter(zip(self.views, names, strict=True))
        for item in self.items:
            if isinstance(item, Kept):
                spelling.add_kept(item)
            else:
                view, name = next(stored)
                spelling.add_data(item, len(view), name)


def _holds_numbers(read: Callable[[int, int], bytes], size_bytes: int) -> bool:
    """A file without a header that is known is an array of numbers all the same.

    Those are written over in place: cut at the same places, they are found to have moved a little.
    """
    step = size_bytes // (_LOOKS + 1) // 8 * 8
    return looks_like_numbers([read(step * at, _LOOK_BYTES) for at in range(1, _LOOKS + 1)])


def _data_in(gaps: list[Gap], data: list[Range]) -> Iterator[Extent]:
    """Where gaps have data; both in order."""
    at = 0
    for gap in gaps:
        end = gap.offset_bytes + gap.length_bytes
        while at < len(data) and data[at].offset_bytes + data[at].length_bytes <= gap.offset_bytes:
            at += 1
        inner = at
        while inner < len(data) and data[inner].offset_bytes < end:
            one = data[inner]
            first = max(gap.offset_bytes, one.offset_bytes)
            last = min(end, one.offset_bytes + one.length_bytes)
            yield Extent(first, last - first)
            inner += 1


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
