"""Contents of files -> the target: compare with what stands there, write what differs.

A file that is right already stays, with its inode. Others are made under temporary names and wait
to be published: from a hot copy where there is one, by sharing its blocks; else from the store,
in the order that their chunks lie in the packs. Of a large file that differs, the ranges that are
right are copied within the kernel, which shares their blocks on btrfs and XFS; the rest is
written past the page cache, where the file system allows it.
"""

import contextlib
import functools
import itertools
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from ciuic.capture import is_settled, same_content
from ciuic.errors import CancelledError, CorruptionError, UnknownFormatError
from ciuic.hashing import data_id
from ciuic.model import WHOLE, Entry, RestoreReport, Trouble
from ciuic.scan import DirectoryHandle, read_xattrs
from ciuic.store import Store
from ciuic.store.frame import DATA, check_chunk
from ciuic.store.index import ChunkPlace
from ciuic.verbs.hot import HOT_BYTES_MIN, HotCopies, has_same_bytes, share_blocks
from ciuic.verbs.output import Output, write_all
from ciuic.verbs.pieces import Part, held, in_frames, plain_parts, windows
from ciuic.verbs.progress import Progress
from ciuic.verbs.target import (
    RUN_AGAIN,
    apply_metadata,
    raise_if_ending,
    same_metadata,
    target_faults,
    temporary_prefix,
)

__all__ = ["Filler", "Job", "Ledger", "Written", "discard"]

_WORKERS_MAX: Final = 8
_GATHERED_FILES: Final = 2048
_GATHERED_BYTES: Final = 64 * 1024 * 1024
_COMPARED_TOGETHER: Final = 64
_CLONED_TOGETHER: Final = 4
_COPIED_TOGETHER_BYTES: Final = 32 * 1024 * 1024
_DIRECT_BYTES_MIN: Final = 8 * 1024 * 1024
"""Smaller files are better left in the page cache: somebody reads them next."""
_IN_FLUX: Final = "was in flux when the snapshot was taken: it may hold a mixture of two states"
_OPEN_TEMPORARY: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_DIRECT: Final = os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC
_OPEN_OLD: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

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


class _NotClonedError(Exception):
    """A hot copy can't serve a file after all; the store will."""


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

    def in_flux(self, path: bytes) -> None:
        """A file is put back that somebody was writing when the snapshot was taken."""
        self.note(path, _IN_FLUX)
        with self._lock:
            self._report.flux.append(path)

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
        written_bytes: How much of them is new data, which a barrier has to bring to the disk.
        unwritten_links: Files with several names that a dry run would write.
    """

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        *,
        taken_ns: int,
        hot: HotCopies | None,
        dry_run: bool,
        cancelled: Callable[[], bool],
        progress: Progress | None,
    ) -> None:
        self._reader = store.reader
        self._taken_ns = taken_ns
        self._hot = hot
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
        self._latest_acl: tuple[DirectoryHandle | None, bool] = (None, False)
        self._gathered: list[Job] = []
        self._gathered_bytes = 0
        self.written: list[Written] = []
        self.written_bytes = 0
        self.unwritten_links: set[bytes] = set()

    def close(self) -> None:
        """End the threads and remove what was not published."""
        self._pool.shutdown(cancel_futures=True)
        self._latest_acl = (None, False)
        for one in self.written:
            discard(one)

    def temporary_name(self) -> bytes:
        """A name for something that is not whole yet."""
        return b"%s%016x" % (self._prefix, next(_numbers))

    def add(self, job: Job) -> None:
        """Place a file, now or with others like it."""
        self._gathered.append(job)
        if not job.entry.level:
            self._gathered_bytes += job.entry.size_bytes
        if len(self._gathered) >= _GATHERED_FILES or self._gathered_bytes >= _GATHERED_BYTES:
            self.flush()

    def flush(self) -> None:
        """Place the files that have gathered."""
        jobs, self._gathered, self._gathered_bytes = self._gathered, [], 0
        left = self._unsettled(jobs)
        self._place_small([job for job in left if not job.entry.level])
        for job in left:
            if job.entry.level:
                self._place_large(job)
        self._ledger.progress(self._progress, jobs[-1].path if jobs else b"")

    def _unsettled(self, jobs: list[Job]) -> list[Job]:
        """Keep what is right already, put back what has a hot copy; returns the others."""
        self._check_cancelled()
        # Where nothing stands and there is no hot copy, there is nothing to compare with.
        new = [job for job in jobs if job.old is None and job.entry.size_bytes < HOT_BYTES_MIN]
        light = [job for job in jobs if job.old and job.entry.size_bytes < HOT_BYTES_MIN]
        heavy = [job for job in jobs if job.entry.size_bytes >= HOT_BYTES_MIN]
        parts = [*_parts(light, _COMPARED_TOGETHER), *_parts(heavy, _CLONED_TOGETHER)]
        return new + [job for left in self._pool.map(self._settle, parts) for job in left]

    def _settle(self, jobs: list[Job]) -> list[Job]:
        self._check_cancelled()
        return [job for job in jobs if not self._is_settled(job)]

    def _is_settled(self, job: Job) -> bool:
        if _is_untouched(job, self._taken_ns):
            self._ledger.kept()
            return True
        if self._from_hot_copy(job):
            return True
        return not job.entry.level and job.old is not None and self._is_right(job)

    def _from_hot_copy(self, job: Job) -> bool:
        """Keep a file that is like its hot copy, or put the copy in its place; False for neither.

        Nothing that goes wrong here is an error: the store has the file as well.
        """
        copy_fd = self._hot.open(job.path, job.entry) if self._hot is not None else None
        if self._hot is None or copy_fd is None:
            return False
        try:
            if not self._hot.shares_blocks(copy_fd, job.directory):
                return False
            if self._is_like(job, copy_fd):
                return True
            if self._dry_run:
                self._would_write(job, cloned_bytes=job.entry.size_bytes)
                return True
            return self._write_clone(job, copy_fd)
        finally:
            os.close(copy_fd)

    def would_clone(self, path: bytes, entry: Entry, directory: DirectoryHandle) -> int:
        """How many bytes of a new file, on this directory's file system, a hot copy would serve."""
        copy_fd = self._hot.open(path, entry) if self._hot is not None else None
        if self._hot is None or copy_fd is None:
            return 0
        try:
            return entry.size_bytes if self._hot.shares_blocks(copy_fd, directory) else 0
        finally:
            os.close(copy_fd)

    def _is_like(self, job: Job, copy_fd: int) -> bool:
        """What stands there has the copy's bytes, and its metadata is right now."""
        fd = _open_old(job)
        if fd < 0:
            return False
        try:
            return has_same_bytes(copy_fd, fd) and self._keep(job, fd)
        except OSError:
            return False
        finally:
            os.close(fd)

    def _write_clone(self, job: Job, copy_fd: int) -> bool:
        def fill(fd: int) -> int:
            if not share_blocks(copy_fd, fd):
                raise _NotClonedError
            return job.entry.size_bytes

        try:
            self._write(job, fill)
        except _NotClonedError:
            return False
        return True

    def _place_small(self, jobs: list[Job]) -> None:
        """Place files of one chunk that differ."""
        if self._dry_run:
            for job in jobs:
                self._would_write(job)
            return
        empty = [job for job in jobs if _is_empty(job)]
        self._run([functools.partial(self._write_small, job, b"") for job in empty])
        lost = self._reader.lost or {}
        for job in jobs:
            if job.entry.content in lost:
                self._ledger.lost(job.path, lost[job.entry.content])
        jobs = [job for job in jobs if job.entry.content not in lost]
        places = self._reader.places([job.entry.content for job in jobs if not _is_empty(job)])
        frames: dict[tuple[bytes, int], list[Job]] = defaultdict(list)
        for job in jobs:
            place = places.get(job.entry.content)
            if place is not None:
                frames[place.pack, place.offset_bytes].append(job)
            elif not _is_empty(job):
                self._ledger.lost(job.path, "its content is missing from the store")
        ordered = [frames[key] for key in sorted(frames)]
        self._run([functools.partial(self._write_frame, part, places) for part in ordered])

    def _is_right(self, job: Job) -> bool:
        """A file of one chunk has the entry's content."""
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
        def fill(fd: int) -> int:
            write_all(fd, data, 0)
            return 0

        self._write(job, fill)

    def _write(self, job: Job, fill: Callable[[int], int]) -> None:
        """Write a file under a temporary name; ``fill`` returns how much it cloned."""
        temporary = self.temporary_name()
        try:
            fd = os.open(temporary, _OPEN_TEMPORARY, 0o600, dir_fd=job.directory.fd)
            try:
                cloned_bytes = fill(fd)
                bare = not job.entry.xattrs and not self._hands_down(job.directory)
                refused = apply_metadata(fd, job.entry, os.fstat(fd), bare=bare)
            except BaseException:
                discard(Written(job, temporary))
                raise
            finally:
                os.close(fd)
        except OSError as error:
            raise_if_ending(error, job.place)
            self._ledger.failed(job.path, os.strerror(error.errno or 0))
            return
        with self._lock:
            self.written.append(Written(job, temporary))
            self.written_bytes += job.entry.size_bytes - cloned_bytes
        if refused:
            self._ledger.refused(job.path, refused)
        self._ledger.written(job.entry.size_bytes, cloned_bytes=cloned_bytes)

    def _hands_down(self, directory: DirectoryHandle) -> bool:
        """Files that are made in this directory are born with an ACL."""
        # Most files follow one of the same directory; a pair is read and written in one step.
        latest, answer = self._latest_acl
        if latest is directory:
            return answer
        known = self._default_acls.get(directory)
        if known is None:
            names = [name for name, _ in read_xattrs(directory.fd)]
            known = self._default_acls[directory] = b"system.posix_acl_default" in names
        self._latest_acl = (directory, known)
        return known

    def _place_large(self, job: Job) -> None:
        """Place a file of many pieces."""
        old_fd = _open_old(job)
        try:
            before = os.fstat(old_fd) if old_fd >= 0 else None
            right = self._right_pieces(job, old_fd)
            same_size = before is not None and before.st_size == job.entry.size_bytes
            if old_fd >= 0 and same_size and all(right) and self._keep(job, old_fd):
                return
            if self._dry_run:
                self._would_write(job, cloned_bytes=self._right_bytes(job, right))
            else:
                self._refuse_lost(job, right)
                self._write(job, lambda fd: self._fill_from_both(job, fd, old_fd, before, right))
        except (CorruptionError, UnknownFormatError) as error:
            self._ledger.lost(job.path, error.message)
        finally:
            if old_fd >= 0:
                os.close(old_fd)

    def _refuse_lost(self, job: Job, right: bytearray) -> None:
        """Nothing is written of a file of which something is known not to be had.

        Raises:
            CorruptionError: That is so, or the recipe is damaged.
        """
        lost = self._reader.lost
        if lost:
            parts = itertools.chain.from_iterable(windows(self._reader, job.entry))
            flags = itertools.chain(right, itertools.repeat(0))
            for part, is_right in zip(parts, flags, strict=False):
                if not is_right and part.piece.id in lost:
                    raise CorruptionError(lost[part.piece.id])

    def _would_write(self, job: Job, *, cloned_bytes: int = 0) -> None:
        """A dry run comes to a file that differs."""
        self._ledger.written(job.entry.size_bytes, cloned_bytes=cloned_bytes)
        if job.entry.link_dev:
            self.unwritten_links.add(job.path)

    def _right_bytes(self, job: Job, right: bytearray) -> int:
        if not right:
            return 0
        parts = itertools.chain.from_iterable(windows(self._reader, job.entry))
        pairs = zip(parts, right, strict=True)
        return sum([one.piece.length_bytes for one, is_right in pairs if is_right and one.piece.id])

    def _right_pieces(self, job: Job, old_fd: int) -> bytearray:
        """One byte a piece: 1 where the old file holds the same bytes at the same place."""
        right = bytearray()
        if old_fd >= 0:
            for window in windows(self._reader, job.entry):
                self._check_cancelled()
                right.extend(held(self._reader, self._pool, old_fd, window))
        return right

    def _fill_from_both(
        self, job: Job, fd: int, old_fd: int, before: os.stat_result | None, right: bytearray
    ) -> int:
        """Write a file from the store and from what stands at its place."""
        cloned_bytes = self._fill_large(job, fd, old_fd, right)
        if cloned_bytes and before is not None and not same_content(before, os.fstat(old_fd)):
            # Somebody writes to it: what was copied need not be what was hashed before.
            os.ftruncate(fd, 0)
            return self._fill_large(job, fd, -1, bytearray())
        return cloned_bytes

    def _fill_large(self, job: Job, fd: int, old_fd: int, right: bytearray) -> int:
        """Write the pieces of a file, a window at a time in the order they lie in the packs."""
        os.ftruncate(fd, job.entry.size_bytes)
        output = Output(fd, _open_direct(job, fd))
        cloned_bytes = number = 0
        try:
            for window in windows(self._reader, job.entry):
                self._check_cancelled()
                flags = right[number : number + len(window)] or bytes(len(window))
                number += len(window)
                pairs = [one for one in zip(window, flags, strict=True) if one[0].piece.id]
                copied = [part for part, is_right in pairs if is_right]
                self._write_window(
                    job, output, old_fd, copied, [part for part, is_right in pairs if not is_right]
                )
                with target_faults(job.place):
                    output.write_edges()
                cloned_bytes += sum([part.piece.length_bytes for part in copied])
                self._ledger.progress(self._progress, job.path)
        finally:
            output.close()
        return cloned_bytes

    def _write_window(
        self, job: Job, output: Output, old_fd: int, copied: list[Part], fresh: list[Part]
    ) -> None:
        def copy(offset: int, length_bytes: int) -> None:
            output.copy(old_fd, offset, length_bytes)

        def write(group: list[Part]) -> None:
            for offset, plain in plain_parts(self._reader, group):
                with target_faults(job.place):
                    output.write(plain, offset)

        tasks = [functools.partial(copy, *stretch) for stretch in _stretches(copied)]
        groups = in_frames(self._reader, fresh)
        self._run(tasks + [functools.partial(write, group) for group in groups])

    def _check_cancelled(self) -> None:
        if self._cancelled():
            raise CancelledError("the restore was interrupted", hint=RUN_AGAIN)

    def _run(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Run tasks side by side; when all have ended, the first error of one is raised."""
        futures = [self._pool.submit(task) for task in tasks]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]


def _parts(jobs: list[Job], count: int) -> Iterator[list[Job]]:
    for at in range(0, len(jobs), count):
        yield jobs[at : at + count]


def _stretches(parts: list[Part]) -> Iterator[tuple[int, int]]:
    """Offset and length of each run of parts that follow one another, up to a useful length."""
    begin = end = 0
    for offset, piece in parts:
        if offset != end or end - begin >= _COPIED_TOGETHER_BYTES:
            if end > begin:
                yield begin, end - begin
            begin = offset
        end = offset + piece.length_bytes
    if end > begin:
        yield begin, end - begin


def _is_empty(job: Job) -> bool:
    return not job.entry.content


def _is_untouched(job: Job, taken_ns: int) -> bool:
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
        and is_settled(entry.mtime_ns, entry.ctime_ns, taken_ns)
    )


def _open_old(job: Job) -> int:
    """The file that stands at the place; -1 if there is none, or it can't be read."""
    if job.old is None:
        return -1
    try:
        return os.open(job.name, _OPEN_OLD, dir_fd=job.directory.fd)
    except OSError:
        return -1


def _open_direct(job: Job, fd: int) -> int:
    """A second descriptor of a temporary file, with O_DIRECT; -1 where that is refused."""
    if job.entry.size_bytes < _DIRECT_BYTES_MIN:
        return -1
    try:
        # Not by its name: whoever owns the directory may have put something else there.
        return os.open(b"/proc/self/fd/%d" % fd, _OPEN_DIRECT)
    except OSError:
        return -1


def discard(one: Written) -> None:
    """Remove a file that gets no name; if that fails, the next restore into its directory does."""
    with contextlib.suppress(OSError):
        os.unlink(one.temporary, dir_fd=one.job.directory.fd)
