"""Contents of files -> the target: compare with what stands there, write what differs.

A file that is right already stays, with its inode. Others are written under temporary names, in
the order that their chunks lie in the packs, and wait to be published. Of a large file that
differs, the ranges that are right are copied within the kernel, which shares their blocks on
btrfs and XFS; the rest is written past the page cache, where the file system allows it.
"""

import errno
import functools
import itertools
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from ciuic.errors import CancelledError, CorruptionError, UnknownFormatError
from ciuic.hashing import data_id
from ciuic.memory import BufferPool
from ciuic.model import WHOLE, Entry, RestoreReport, Trouble
from ciuic.scan import DirectoryHandle, read_xattrs
from ciuic.store import Store
from ciuic.store.frame import DATA, check_chunk
from ciuic.store.index import ChunkPlace
from ciuic.store.nodes import Piece, iter_pieces
from ciuic.verbs.take import Progress
from ciuic.verbs.target import (
    RUN_AGAIN,
    apply_metadata,
    same_metadata,
    target_faults,
    temporary_prefix,
)

__all__ = ["Filler", "Job", "Ledger", "Written"]

_WORKERS_MAX: Final = 8
_SMALL_FILES: Final = 2048
_SMALL_BYTES: Final = 64 * 1024 * 1024
_WINDOW_PIECES: Final = 256
_COMPARED_TOGETHER: Final = 64
_DIRECT_BYTES_MIN: Final = 8 * 1024 * 1024
"""Smaller files are better left in the page cache: somebody reads them next."""
_ALIGNMENT: Final = 4096
_BUFFER_BYTES: Final = 1024 * 1024
_OPEN_TEMPORARY: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_DIRECT: Final = os.O_WRONLY | os.O_DIRECT | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_OLD: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_buffers: Final = BufferPool(_BUFFER_BYTES)
_numbers: Final = itertools.count()


class Job(NamedTuple):
    """A regular file to be placed; ``old`` is what stands at its place, if that is a file."""

    directory: DirectoryHandle
    name: bytes
    entry: Entry
    path: bytes
    old: os.stat_result | None

    @property
    def place(self) -> bytes:
        """Where the file goes."""
        return self.directory.join(self.name)


class Written(NamedTuple):
    """A file that is complete under a temporary name."""

    job: Job
    temporary: bytes


class Ledger:
    """Keeps a restore's report; may be written by several threads.

    Attributes:
        failed_paths: Paths that are not as the snapshot has them.
    """

    def __init__(self, report: RestoreReport) -> None:
        self._report = report
        self._lock = threading.Lock()
        self.failed_paths: set[bytes] = set()

    def kept(self) -> None:
        """A file was right already."""
        with self._lock:
            self._report.kept_files += 1

    def written(self, size_bytes: int, *, cloned_bytes: int = 0) -> None:
        """A file was written, or would be."""
        with self._lock:
            self._report.written_files += 1
            self._report.written_bytes += size_bytes
            self._report.cloned_bytes += cloned_bytes

    def deleted(self, files: int) -> None:
        """Files were removed, or would be."""
        with self._lock:
            self._report.deleted_files += files

    def note(self, path: bytes, what: str) -> None:
        """Something that a person should know of a path that is restored."""
        with self._lock:
            self._report.notes.append(Trouble(path, what))

    def refused(self, path: bytes, refused: list[str]) -> None:
        """Metadata of a restored path that this user may not set."""
        with self._lock:
            self._report.failed.extend([Trouble(path, what) for what in refused])

    def failed(self, path: bytes, what: str) -> None:
        """A path that could not be restored for a reason of the target's."""
        with self._lock:
            self.failed_paths.add(path)
            self._report.failed.append(Trouble(path, what))

    def lost(self, path: bytes, what: str, *, damaged: bool = True) -> None:
        """A path whose content this snapshot does not have; an older one may.

        Args:
            path: As the snapshot has it.
            what: Why, in words.
            damaged: The store is damaged; otherwise the source was unreadable at the time.
        """
        self.failed(path, what)
        with self._lock:
            self._report.damaged_paths.add(path)
            self._report.damaged |= damaged

    def progress(self, sink: Progress | None, path: bytes) -> None:
        """Tell a progress display how far things are."""
        if sink is not None:
            sink.update(self._report.written_files, self._report.written_bytes, path)


class Filler:
    """Fills files. ``add`` and ``flush`` are called from one thread; the work is done by several.

    Attributes:
        written: Files that wait to be published.
        written_bytes: How long they are together.
        unwritten_links: Files with several names that a dry run would write.
    """

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        *,
        dry_run: bool,
        cancelled: Callable[[], bool],
        progress: Progress | None,
    ) -> None:
        self._reader = store.reader
        self._ledger = ledger
        self._dry_run = dry_run
        self._cancelled = cancelled
        self._progress = progress
        self._prefix = temporary_prefix()
        # Twice the cores: while one decodes, another waits for the disk.
        workers = min(_WORKERS_MAX, 2 * len(os.sched_getaffinity(0)))
        self._pool = ThreadPoolExecutor(workers, "restore")
        self._lock = threading.Lock()
        self._default_acls: WeakKeyDictionary[DirectoryHandle, bool] = WeakKeyDictionary()
        self._small: list[Job] = []
        self._small_bytes = 0
        self.written: list[Written] = []
        self.written_bytes = 0
        self.unwritten_links: set[bytes] = set()

    def close(self) -> None:
        """End the threads and remove what was not published."""
        self._pool.shutdown(cancel_futures=True)
        for one in self.written:
            _discard(one.job, one.temporary)

    def temporary_name(self) -> bytes:
        """A name for something that is not whole yet."""
        return b"%s%016x" % (self._prefix, next(_numbers))

    def add(self, job: Job) -> None:
        """Place a file, now or with others like it."""
        if job.entry.level:
            self._place_large(job)
            return
        self._small.append(job)
        self._small_bytes += job.entry.size_bytes
        if len(self._small) >= _SMALL_FILES or self._small_bytes >= _SMALL_BYTES:
            self.flush()

    def flush(self) -> None:
        """Place the files of one chunk that have gathered."""
        jobs, self._small, self._small_bytes = self._small, [], 0
        changed = [job for job, right in zip(jobs, self._compared(jobs), strict=True) if not right]
        if self._dry_run:
            for job in changed:
                self._would_write(job)
            return
        empty = [job for job in changed if _is_empty(job)]
        self._run([functools.partial(self._write_small, job, b"") for job in empty])
        places = self._reader.places([job.entry.content for job in changed if not _is_empty(job)])
        frames: dict[tuple[bytes, int], list[Job]] = defaultdict(list)
        for job in changed:
            place = places.get(job.entry.content)
            if place is not None:
                frames[place.pack, place.offset_bytes].append(job)
            elif not _is_empty(job):
                self._ledger.lost(job.path, "its content is missing from the store")
        ordered = [frames[key] for key in sorted(frames)]
        self._run([functools.partial(self._write_frame, part, places) for part in ordered])
        self._ledger.progress(self._progress, jobs[-1].path if jobs else b"")

    def _compared(self, jobs: list[Job]) -> list[bool]:
        """Which files are right already; their metadata is put right at once."""
        step = _COMPARED_TOGETHER
        slices = [jobs[at : at + step] for at in range(0, len(jobs), step)]
        return [one for part in self._pool.map(self._compare_slice, slices) for one in part]

    def _compare_slice(self, jobs: list[Job]) -> list[bool]:
        return [job.old is not None and self._is_right(job) for job in jobs]

    def _is_right(self, job: Job) -> bool:
        """A file of one chunk has the entry's content."""
        if _is_untouched(job):
            self._ledger.kept()
            return True
        if job.old is None or job.old.st_size != job.entry.size_bytes:
            return False
        fd = _open_old(job)
        if fd < 0:
            return False
        try:
            data = os.pread(fd, job.entry.size_bytes + 1, 0)
            if len(data) != job.entry.size_bytes or (data and data_id(data) != job.entry.content):
                return False
            return self._keep(job, fd)
        except OSError:
            # Neither readable nor to be mended: writing it anew is what is left to try.
            return False
        finally:
            os.close(fd)

    def _keep(self, job: Job, fd: int) -> bool:
        """The content is right: put metadata right where it is not. False to write it anew.

        An inode with further names is not touched, unless it is the very one of the snapshot:
        they may lie outside of what is restored.
        """
        status = os.fstat(fd)
        if not same_metadata(job.entry, status) or job.entry.xattrs != read_xattrs(fd):
            is_own = job.entry.link_dev and status.st_ino == job.entry.ino
            if status.st_nlink > 1 and not is_own:
                return False
            if not self._dry_run:
                self._ledger.refused(job.path, apply_metadata(fd, job.entry, status))
        self._ledger.kept()
        return True

    def _write_frame(self, jobs: list[Job], places: dict[bytes, ChunkPlace]) -> None:
        """Write all files whose content lies in one frame."""
        try:
            _, plain = self._reader.frame(places[jobs[0].entry.content])
        except (CorruptionError, UnknownFormatError):
            plain = b""
        view = memoryview(plain)
        for job in jobs:
            place = places[job.entry.content]
            part = view[place.start_bytes : place.start_bytes + place.length_bytes]
            try:
                self._write_small(job, self._checked(job, part))
            except (CorruptionError, UnknownFormatError) as error:
                self._ledger.lost(job.path, error.message)

    def _checked(self, job: Job, part: memoryview) -> bytes | memoryview:
        """The content of a small file: what the frame gave, or what can be had elsewhere."""
        found: bytes | memoryview = part
        try:
            check_chunk(DATA, job.entry.content, part)
        except CorruptionError:
            found = self._reader.chunk(job.entry.content, kind=DATA)
        if len(found) != job.entry.size_bytes:
            raise CorruptionError("its content does not have the length of the file")
        return found

    def _write_small(self, job: Job, data: bytes | memoryview) -> None:
        def fill(fd: int, _temporary: bytes) -> int:
            _write_all(fd, data, 0)
            return 0

        self._write(job, fill)

    def _write(self, job: Job, fill: Callable[[int, bytes], int]) -> None:
        """Write a file under a temporary name; ``fill`` returns how much it cloned."""
        temporary = self.temporary_name()
        try:
            with target_faults(job.place):
                fd = os.open(temporary, _OPEN_TEMPORARY, 0o600, dir_fd=job.directory.fd)
                try:
                    cloned_bytes = fill(fd, temporary)
                    bare = not job.entry.xattrs and not self._hands_down(job.directory)
                    refused = apply_metadata(fd, job.entry, os.fstat(fd), bare=bare)
                except BaseException:
                    _discard(job, temporary)
                    raise
                finally:
                    os.close(fd)
        except OSError as error:
            self._ledger.failed(job.path, os.strerror(error.errno or 0))
            return
        with self._lock:
            self.written.append(Written(job, temporary))
            self.written_bytes += job.entry.size_bytes
        self._ledger.refused(job.path, refused)
        self._ledger.written(job.entry.size_bytes, cloned_bytes=cloned_bytes)

    def _hands_down(self, directory: DirectoryHandle) -> bool:
        """Files that are made in this directory are born with an ACL."""
        known = self._default_acls.get(directory)
        if known is None:
            names = [name for name, _ in read_xattrs(directory.fd)]
            known = self._default_acls[directory] = b"system.posix_acl_default" in names
        return known

    def _place_large(self, job: Job) -> None:
        """Place a file of many pieces."""
        if _is_untouched(job):
            self._ledger.kept()
            return
        old_fd = _open_old(job)
        try:
            right = self._right_pieces(job, old_fd)
            same_size = job.old is not None and job.old.st_size == job.entry.size_bytes
            if old_fd >= 0 and same_size and all(right) and self._keep(job, old_fd):
                return
            if self._dry_run:
                self._would_write(job, cloned_bytes=self._right_bytes(job, right))
            else:
                self._write(job, lambda fd, name: self._fill_large(job, fd, name, old_fd, right))
        except (CorruptionError, UnknownFormatError) as error:
            self._ledger.lost(job.path, error.message)
        finally:
            if old_fd >= 0:
                os.close(old_fd)

    def _would_write(self, job: Job, *, cloned_bytes: int = 0) -> None:
        """A dry run comes to a file that differs."""
        self._ledger.written(job.entry.size_bytes, cloned_bytes=cloned_bytes)
        if job.entry.link_dev:
            self.unwritten_links.add(job.path)

    def _right_bytes(self, job: Job, right: bytearray) -> int:
        pieces = iter_pieces(self._reader.node, job.entry)
        pairs = zip(pieces, right, strict=False)  # no old file: nothing is right
        return sum([one.length_bytes for one, is_right in pairs if is_right and one.id])

    def _right_pieces(self, job: Job, old_fd: int) -> bytearray:
        """One byte a piece: 1 where the old file holds the same bytes at the same place."""
        right = bytearray()
        if old_fd >= 0:
            ranges = _ranges(iter_pieces(self._reader.node, job.entry))
            while part := list(islice(ranges, _WINDOW_PIECES)):
                self._check_cancelled()
                right.extend(self._pool.map(lambda one: _holds(old_fd, *one), part))
        return right

    def _fill_large(
        self, job: Job, fd: int, temporary: bytes, old_fd: int, right: bytearray
    ) -> int:
        """Write the pieces of a file, a window at a time in the order they lie in the packs."""
        os.ftruncate(fd, job.entry.size_bytes)
        output = _Output(fd, _open_direct(job, temporary))
        cloned_bytes = 0
        try:
            numbered = enumerate(_ranges(iter_pieces(self._reader.node, job.entry)))
            while part := list(islice(numbered, _WINDOW_PIECES)):
                self._check_cancelled()
                data = [one for _, one in part if one[1].id]
                copied = {one[0] for number, one in part if right[number : number + 1] == b"\1"}
                self._write_window(job, output, old_fd, data, copied)
                cloned_bytes += sum([one.length_bytes for at, one in data if at in copied])
                self._ledger.progress(self._progress, job.path)
        finally:
            output.close()
        return cloned_bytes

    def _write_window(
        self,
        job: Job,
        output: "_Output",
        old_fd: int,
        data: list[tuple[int, Piece]],
        copied: set[int],
    ) -> None:
        places = self._reader.places([piece.id for at, piece in data if at not in copied])

        def where(one: tuple[int, Piece]) -> tuple[bytes, int]:
            place = places.get(one[1].id)
            return (place.pack, place.offset_bytes) if place else (b"", one[0])

        def write(offset: int, piece: Piece) -> None:
            if offset in copied:
                output.copy(old_fd, offset, piece.length_bytes)
                return
            chunk = self._reader.chunk(piece.id, kind=DATA)
            if len(chunk) != piece.length_bytes:
                raise CorruptionError("a chunk does not have the length of its piece")
            with target_faults(job.place):
                output.write(chunk, offset)

        self._run([functools.partial(write, *one) for one in sorted(data, key=where)])

    def _check_cancelled(self) -> None:
        if self._cancelled():
            raise CancelledError("the restore was interrupted", hint=RUN_AGAIN)

    def _run(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Run tasks side by side; when all have ended, the first error of one is raised."""
        futures = [self._pool.submit(task) for task in tasks]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]


class _Output:
    """A large file that is being written, past the page cache where that can be.

    Args:
        fd: The file.
        direct_fd: The same file with O_DIRECT; -1 if the file system refuses that.
    """

    def __init__(self, fd: int, direct_fd: int) -> None:
        self._fd = fd
        self._direct_fd = direct_fd

    def close(self) -> None:
        """Close the second descriptor; the first is its owner's."""
        if self._direct_fd >= 0:
            os.close(self._direct_fd)

    def copy(self, source_fd: int, offset: int, length: int) -> None:
        """Take a range from another file, within the kernel."""
        while length:
            copied = os.copy_file_range(source_fd, self._fd, length, offset, offset)
            if copied == 0:
                raise CorruptionError("the old file became shorter while it was read")
            offset += copied
            length -= copied

    def write(self, data: bytes | memoryview, offset: int) -> None:
        """Write at a place of the file."""
        view = memoryview(data)
        direct = 0
        if self._direct_fd >= 0 and offset % _ALIGNMENT == 0:
            direct = len(view) // _ALIGNMENT * _ALIGNMENT
            self._write_direct(view[:direct], offset)
        _write_all(self._fd, view[direct:], offset + direct)

    def _write_direct(self, view: memoryview, offset: int) -> None:
        buffer = _buffers.take()
        try:
            for at in range(0, len(view), _BUFFER_BYTES):
                part = view[at : at + _BUFFER_BYTES]
                buffer[: len(part)] = part
                with memoryview(buffer) as aligned, aligned[: len(part)] as block:
                    self._write_block(block, offset + at)
        finally:
            _buffers.give_back(buffer)

    def _write_block(self, block: memoryview, offset: int) -> None:
        try:
            _write_all(self._direct_fd, block, offset)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # Some file systems take the flag and refuse the write.
            _write_all(self._fd, block, offset)


def _is_empty(job: Job) -> bool:
    return not job.entry.content


def _is_untouched(job: Job) -> bool:
    """The file is the very one that was snapshotted: nobody has changed its inode since."""
    old, entry = job.old, job.entry
    return (
        old is not None
        and entry.state == WHOLE
        and old.st_ino == entry.ino
        and old.st_ctime_ns == entry.ctime_ns
        and old.st_mtime_ns == entry.mtime_ns
        and old.st_size == entry.size_bytes
        and old.st_mode == entry.mode
    )


def _open_old(job: Job) -> int:
    """The file that stands at the place; -1 if there is none, or it can't be read."""
    if job.old is None:
        return -1
    try:
        return os.open(job.name, _OPEN_OLD, dir_fd=job.directory.fd)
    except OSError:
        return -1


def _open_direct(job: Job, temporary: bytes) -> int:
    """A second descriptor of a temporary file, with O_DIRECT; -1 where that is refused."""
    if job.entry.size_bytes < _DIRECT_BYTES_MIN:
        return -1
    try:
        return os.open(temporary, _OPEN_DIRECT, dir_fd=job.directory.fd)
    except OSError:
        return -1


def _discard(job: Job, temporary: bytes) -> None:
    try:
        os.unlink(temporary, dir_fd=job.directory.fd)
    except OSError:
        return  # the next restore into this directory removes it


def _ranges(pieces: Iterator[Piece]) -> Iterator[tuple[int, Piece]]:
    offset = 0
    for piece in pieces:
        yield offset, piece
        offset += piece.length_bytes


def _holds(fd: int, offset: int, piece: Piece) -> bool:
    """The file has the piece's bytes at this place; an unreadable file has not."""
    try:
        if piece.id:
            data = os.pread(fd, piece.length_bytes, offset)
            return len(data) == piece.length_bytes and data_id(data) == piece.id
        return _is_hole(fd, offset, piece.length_bytes)
    except OSError:
        return False


def _is_hole(fd: int, offset: int, length: int) -> bool:
    try:
        return os.lseek(fd, offset, os.SEEK_DATA) >= offset + length
    except OSError:
        return os.fstat(fd).st_size >= offset + length  # ENXIO: nothing but a hole from here


def _write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view = view[written:]
        offset += written
