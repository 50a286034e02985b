"""Entries of a snapshot -> names in a directory, each whole or not at all.

A ``Placer`` walks a tree of the snapshot beside the target. Files that are right already stay,
with their inode. Others are written under temporary names, many at a time and in the order
that their chunks lie in the packs; a barrier then makes them durable and renames them.
"""

import os
import resource
import stat
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from types import TracebackType
from typing import Final, NamedTuple

from ciuic import durable
from ciuic.errors import CancelledError, CiuicError, CorruptionError, UnknownFormatError
from ciuic.hashing import data_id
from ciuic.model import FLUX, SKIPPED, UNREADABLE, WHOLE, Entry, RestoreReport, Trouble
from ciuic.scan import DirectoryHandle, Exclusions, read_xattrs
from ciuic.store import Store
from ciuic.store.frame import DATA, check_chunk
from ciuic.store.index import ChunkPlace
from ciuic.store.nodes import Piece, iter_pieces, iter_tree
from ciuic.verbs.take import Progress
from ciuic.verbs.target import (
    apply_metadata,
    apply_special_metadata,
    count_files,
    is_leftover,
    make_special,
    remove_tree,
    same_metadata,
    target_faults,
    temporary_prefix,
)

__all__ = ["Placer"]

_WORKERS_MAX: Final = 8
_SMALL_FILES: Final = 2048
_SMALL_BYTES: Final = 64 * 1024 * 1024
_WINDOW_PIECES: Final = 256
_BARRIER_FILES: Final = 16_384
_BARRIER_BYTES: Final = 4 * 1024 * 1024 * 1024
_OPEN_FILES_WANTED: Final = 65_536
_SLICE: Final = 64
_OPEN_TEMPORARY: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_OLD: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _Job(NamedTuple):
    """A regular file to be placed; ``old`` is what stands at its place, if that is a file."""

    directory: DirectoryHandle
    name: bytes
    entry: Entry
    path: bytes
    old: os.stat_result | None


class _Written(NamedTuple):
    """A file that is complete under a temporary name."""

    job: _Job
    temporary: bytes


class _Link(NamedTuple):
    """A further name of a file that is placed under another one."""

    first: _Job
    job: _Job


class _Level:
    """A directory of the target whose content is being placed.

    Attributes:
        handle: The open directory; None in a dry run where there is none.
        extra: Names that the snapshot does not have; filled when ``delete`` was asked for.
    """

    def __init__(
        self,
        handle: DirectoryHandle | None,
        entry: Entry,
        path: bytes,
        entries: Iterator[Entry],
        present: set[bytes],
    ) -> None:
        self.handle = handle
        self.entry = entry
        self.path = path
        self.entries = entries
        self.present = present
        self.extra: list[bytes] = []


class Placer:
    """Places entries; used in a ``with`` block, whose end is the last barrier."""

    def __init__(
        self,
        store: Store,
        report: RestoreReport,
        *,
        delete: bool,
        dry_run: bool,
        protected: Exclusions,
        cancelled: Callable[[], bool],
        progress: Progress | None,
    ) -> None:
        self._store = store
        self._report = report
        self._delete = delete
        self._dry_run = dry_run
        self._protected = protected
        self._cancelled = cancelled
        self._progress = progress
        own = os.stat(store.path)
        self._store_inode = (own.st_dev, own.st_ino)
        self._prefix = temporary_prefix()
        self._pool = ThreadPoolExecutor(min(_WORKERS_MAX, len(os.sched_getaffinity(0))), "restore")
        self._handles_max = _raised_open_files_limit() // 4
        self._small: list[_Job] = []
        self._small_bytes = 0
        self._written: list[_Written] = []
        self._written_bytes = 0
        self._closed: list[_Level] = []
        self._links: list[_Link] = []
        self._first_names: dict[tuple[int, int], _Job] = {}
        self._file_systems: dict[int, DirectoryHandle] = {}
        self._failed: set[bytes] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> "Placer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._finish()
        finally:
            self._pool.shutdown(cancel_futures=True)
            self._discard_unpublished()

    def place(
        self, directory: DirectoryHandle | None, name: bytes, entry: Entry, path: bytes
    ) -> None:
        """Place one entry, and all below it, under ``name`` in ``directory``."""
        levels: list[_Level] = []
        self._place_one(directory, name, entry, path, levels)
        while levels:
            if self._cancelled():
                raise CancelledError("the restore was interrupted")
            level = levels[-1]
            inner = self._next_entry(level)
            if inner is None:
                self._leave(levels.pop())
                continue
            inside = (
                level.path + inner.name if level.path == b"/" else (level.path + b"/" + inner.name)
            )
            if not _is_valid_name(inner.name):
                self._fail(inside, "the store gives it a name that no file can have", damaged=True)
                continue
            level.present.discard(inner.name)
            self._place_one(level.handle, inner.name, inner, inside, levels)

    def _next_entry(self, level: _Level) -> Entry | None:
        try:
            return next(level.entries, None)
        except (CorruptionError, UnknownFormatError) as error:
            self._fail(level.path, f"the directory can't be read: {error.message}", damaged=True)
            level.present.clear()  # what else the snapshot has is unknown: delete nothing
            return None

    def _place_one(
        self,
        directory: DirectoryHandle | None,
        name: bytes,
        entry: Entry,
        path: bytes,
        levels: list[_Level],
    ) -> None:
        try:
            with target_faults(path):
                if entry.is_directory:
                    self._place_directory(directory, name, entry, path, levels)
                elif entry.is_file:
                    self._place_file(directory, name, entry, path)
                else:
                    self._place_special(directory, name, entry, path)
        except OSError as error:
            self._fail(path, os.strerror(error.errno or 0))

    def _place_directory(
        self,
        directory: DirectoryHandle | None,
        name: bytes,
        entry: Entry,
        path: bytes,
        levels: list[_Level],
    ) -> None:
        if entry.state == UNREADABLE:
            self._fail(path, "could not be read when the snapshot was taken", lost=True)
        handle = self._open_directory(directory, name)
        if entry.state in {UNREADABLE, SKIPPED}:
            return
        present = set() if handle is None else set(handle.names())
        entries: Iterator[Entry] = iter(())
        if entry.content:
            entries = iter_tree(self._store.reader.node, entry.content, entry.level)
        levels.append(_Level(handle, entry, path, entries, present))

    def _open_directory(
        self, directory: DirectoryHandle | None, name: bytes
    ) -> DirectoryHandle | None:
        """The target's directory of this name, made if need be. A symlink is not followed."""
        status = _status(directory, name)
        if directory is None or (self._dry_run and not _is_directory(status)):
            return None
        if not _is_directory(status):
            if status is not None:
                os.unlink(name, dir_fd=directory.fd)
            os.mkdir(name, 0o700, dir_fd=directory.fd)
        handle = directory.child(name)
        self._file_systems.setdefault(os.fstat(handle.fd).st_dev, handle)
        return handle

    def _place_file(
        self, directory: DirectoryHandle | None, name: bytes, entry: Entry, path: bytes
    ) -> None:
        if entry.state == UNREADABLE:
            self._fail(path, "could not be read when the snapshot was taken", lost=True)
            return
        if entry.state == FLUX:
            note = "was in flux when the snapshot was taken: it may hold a mixture of two states"
            self._report.notes.append(Trouble(path, note))
        if directory is None:
            self._count_written(entry)
            return
        if not self._clear(directory, name, path):
            return
        status = _status(directory, name)
        job = _Job(directory, name, entry, path, status if _is_regular(status) else None)
        if entry.link_dev and self._is_further_name(job):
            return
        if entry.level == 0:
            self._small.append(job)
            self._small_bytes += entry.size_bytes
            if len(self._small) >= _SMALL_FILES or self._small_bytes >= _SMALL_BYTES:
                self._flush_small()
        else:
            self._place_large(job)
        if self._is_barrier_due():
            self._barrier()

    def _clear(self, directory: DirectoryHandle, name: bytes, path: bytes) -> bool:
        """Make a place free of a directory, for something else; False if it may not be."""
        if not _is_directory(_status(directory, name)):
            return True
        if not self._delete and directory.child(name).names():
            self._fail(path, "a directory that is not empty stands there; --delete replaces it")
            return False
        if not self._dry_run:
            removed = remove_tree(directory, name, self._store_inode)
            self._report.deleted_files += removed
        return True

    def _is_further_name(self, job: _Job) -> bool:
        """Remember a hard link; True if another name of the file is placed already."""
        key = (job.entry.link_dev, job.entry.ino)
        first = self._first_names.setdefault(key, job)
        if first is job:
            return False
        self._links.append(_Link(first, job))
        return True

    def _place_special(
        self, directory: DirectoryHandle | None, name: bytes, entry: Entry, path: bytes
    ) -> None:
        if directory is None:
            self._report.written_files += 1
            return
        if not self._clear(directory, name, path):
            return
        status = _status(directory, name)
        if status is not None and _is_same_special(directory, name, entry, status):
            self._report.kept_files += 1
            return
        self._report.written_files += 1
        if self._dry_run:
            return
        temporary = self._temporary_name()
        make_special(directory, temporary, entry)
        try:
            self._note_refused(path, apply_special_metadata(directory, temporary, entry))
            durable.publish_name(temporary, name, dir_fd=directory.fd)
        except OSError:
            os.unlink(temporary, dir_fd=directory.fd)
            raise

    def _flush_small(self) -> None:
        """Place the files of one chunk that have gathered."""
        jobs, self._small, self._small_bytes = self._small, [], 0
        changed = [job for job, same in zip(jobs, self._compared(jobs), strict=True) if not same]
        if self._dry_run:
            for job in changed:
                self._count_written(job.entry)
            return
        empty = [job for job in changed if not job.entry.content]
        self._run([lambda job=job: self._write_small(job, b"") for job in empty])  # type: ignore[misc]
        places = self._store.reader.places([job.entry.content for job in changed])
        frames: dict[tuple[bytes, int], list[_Job]] = defaultdict(list)
        for job in changed:
            if not job.entry.content:
                continue
            place = places.get(job.entry.content)
            if place is None:
                self._fail(job.path, "its content is missing from the store", damaged=True)
                continue
            frames[place.pack, place.offset_bytes].append(job)
        self._run(
            [
                lambda jobs=frames[key]: self._write_frame(jobs, places)  # type: ignore[misc]
                for key in sorted(frames)
            ]
        )

    def _compared(self, jobs: list[_Job]) -> list[bool]:
        """Which files are right already; their metadata is put right at once."""
        slices = [jobs[at : at + _SLICE] for at in range(0, len(jobs), _SLICE)]
        return [same for part in self._pool.map(self._compare_slice, slices) for same in part]

    def _compare_slice(self, jobs: list[_Job]) -> list[bool]:
        return [job.old is not None and self._is_right(job) for job in jobs]

    def _is_right(self, job: _Job) -> bool:
        """The file at the place has the entry's content; a file of one chunk."""
        if _is_untouched(job):
            self._keep()
            return True
        if job.old is None or job.old.st_size != job.entry.size_bytes:
            return False
        try:
            fd = os.open(job.name, _OPEN_OLD, dir_fd=job.directory.fd)
        except OSError:
            return False
        try:
            data = os.pread(fd, job.entry.size_bytes + 1, 0)
            if len(data) != job.entry.size_bytes:
                return False
            if data and data_id(data) != job.entry.content:
                return False
            self._keep_open(job, fd)
        except OSError:
            return False
        finally:
            os.close(fd)
        return True

    def _write_frame(self, jobs: list[_Job], places: dict[bytes, ChunkPlace]) -> None:
        """Write all files whose content lies in one frame."""
        try:
            _, plain = self._store.reader.frame(places[jobs[0].entry.content])
        except (CorruptionError, UnknownFormatError):
            plain = b""
        view = memoryview(plain)
        for job in jobs:
            place = places[job.entry.content]
            part = view[place.start_bytes : place.start_bytes + place.length_bytes]
            try:
                try:
                    check_chunk(DATA, job.entry.content, part)
                except CorruptionError:
                    part = memoryview(self._store.reader.chunk(job.entry.content, kind=DATA))
                if len(part) != job.entry.size_bytes:
                    raise CorruptionError("its content does not have the length of the file")
            except (CorruptionError, UnknownFormatError) as error:
                self._fail(job.path, error.message, damaged=True)
                continue
            self._write_small(job, part)

    def _write_small(self, job: _Job, data: bytes | memoryview) -> None:
        temporary = self._temporary_name()
        try:
            with target_faults(job.path):
                fd = os.open(temporary, _OPEN_TEMPORARY, 0o600, dir_fd=job.directory.fd)
                try:
                    _write_all(fd, data, 0)
                    self._complete(job, fd, temporary)
                except BaseException:
                    os.unlink(temporary, dir_fd=job.directory.fd)
                    raise
                finally:
                    os.close(fd)
        except OSError as error:
            self._fail(job.path, os.strerror(error.errno or 0))

    def _complete(self, job: _Job, fd: int, temporary: bytes) -> None:
        """All metadata of a file whose content is written; it then waits for the barrier."""
        refused = apply_metadata(fd, job.entry, os.fstat(fd))
        self._note_refused(job.path, refused)
        with self._lock:
            self._written.append(_Written(job, temporary))
            self._written_bytes += job.entry.size_bytes
        self._count_written(job.entry)

    def _place_large(self, job: _Job) -> None:
        """Place a file of many pieces; ranges that the old file has right come from there."""
        if _is_untouched(job):
            self._keep()
            return
        old_fd = _open_old(job)
        try:
            pieces = iter_pieces(self._store.reader.node, job.entry)
            right = self._right_pieces(job, old_fd)
            same_size = job.old is not None and job.old.st_size == job.entry.size_bytes
            if old_fd >= 0 and same_size and all(right):
                self._keep_open(job, old_fd)
            elif self._dry_run:
                self._count_written(job.entry)
            else:
                self._write_large(job, pieces, old_fd, right)
        except (CorruptionError, UnknownFormatError) as error:
            self._fail(job.path, error.message, damaged=True)
        finally:
            if old_fd >= 0:
                os.close(old_fd)

    def _right_pieces(self, job: _Job, old_fd: int) -> bytearray:
        """One byte a piece: 1 where the old file holds the same bytes at the same place."""
        if old_fd < 0:
            return bytearray()
        right = bytearray()
        ranges = _ranges(iter_pieces(self._store.reader.node, job.entry))
        while part := list(islice(ranges, _WINDOW_PIECES)):
            right.extend(self._pool.map(lambda one: _holds(old_fd, *one), part))
            if self._cancelled():
                raise CancelledError("the restore was interrupted")
        return right

    def _write_large(
        self, job: _Job, pieces: Iterator[Piece], old_fd: int, right: bytearray
    ) -> None:
        temporary = self._temporary_name()
        fd = os.open(temporary, _OPEN_TEMPORARY, 0o600, dir_fd=job.directory.fd)
        try:
            os.ftruncate(fd, job.entry.size_bytes)
            numbered = enumerate(_ranges(pieces))
            while part := list(islice(numbered, _WINDOW_PIECES)):
                self._write_window(job, fd, old_fd, right, part)
            self._complete(job, fd, temporary)
        except BaseException:
            os.unlink(temporary, dir_fd=job.directory.fd)
            raise
        finally:
            os.close(fd)

    def _write_window(
        self,
        job: _Job,
        fd: int,
        old_fd: int,
        right: bytearray,
        part: list[tuple[int, tuple[int, Piece]]],
    ) -> None:
        """Write some pieces of a file, in the order they lie in the packs."""
        if self._cancelled():
            raise CancelledError("the restore was interrupted")
        data = [(offset, piece) for _, (offset, piece) in part if piece.id]
        copied = {offset for number, (offset, _) in part if number < len(right) and right[number]}
        places = self._store.reader.places(
            [piece.id for offset, piece in data if offset not in copied]
        )

        def where(one: tuple[int, Piece]) -> tuple[bytes, int]:
            place = places.get(one[1].id)
            return (place.pack, place.offset_bytes) if place else (b"", one[0])

        def write(one: tuple[int, Piece]) -> None:
            offset, piece = one
            with target_faults(job.path):
                if offset in copied:
                    _copy_range(old_fd, fd, offset, piece.length_bytes)
                    return
                chunk = self._store.reader.chunk(piece.id, kind=DATA)
                if len(chunk) != piece.length_bytes:
                    raise CorruptionError("a chunk does not have the length of its piece")
                _write_all(fd, chunk, offset)

        self._run([lambda one=one: write(one) for one in sorted(data, key=where)])  # type: ignore[misc]
        self._report.cloned_bytes += sum(
            [piece.length_bytes for offset, piece in data if offset in copied]
        )
        if self._progress is not None:
            self._progress.update(self._report.written_files, part[-1][1][0], job.path)

    def _run(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Run tasks side by side; the first error of one is raised when all have ended."""
        futures = [self._pool.submit(task) for task in tasks]
        errors = [error for future in futures if (error := future.exception()) is not None]
        for error in errors:
            raise error

    def _is_barrier_due(self) -> bool:
        return (
            len(self._written) >= _BARRIER_FILES
            or self._written_bytes >= _BARRIER_BYTES
            or len(self._closed) >= self._handles_max
        )

    def _leave(self, level: _Level) -> None:
        """A directory has been walked; it is finished after the barrier that holds its files."""
        if level.handle is None:
            return
        for name in sorted(level.present):
            if is_leftover(name):
                if not self._dry_run:
                    os.unlink(name, dir_fd=level.handle.fd)
            elif self._delete and not self._is_protected(level, name):
                level.extra.append(name)
        level.present = set()
        self._closed.append(level)
        if self._is_barrier_due():
            self._flush_small()
            self._barrier()

    def _is_protected(self, level: _Level, name: bytes) -> bool:
        """What a snapshot never holds is not missing from it: sockets, what is left out."""
        status = _status(level.handle, name)
        if status is None or stat.S_ISSOCK(status.st_mode):
            return True
        if (status.st_dev, status.st_ino) == self._store_inode:
            return True
        if not self._protected.any:
            return False
        return self._protected.match_path(level.path, name)

    def _barrier(self) -> None:
        """Make written files durable and give them their names; then finish directories."""
        self._sync()
        written, self._written, self._written_bytes = self._written, [], 0
        for number, one in enumerate(written):
            try:
                with target_faults(one.job.path):
                    durable.publish_name(one.temporary, one.job.name, dir_fd=one.job.directory.fd)
            except OSError as error:
                os.unlink(one.temporary, dir_fd=one.job.directory.fd)
                self._fail(one.job.path, os.strerror(error.errno or 0))
            except CiuicError:
                self._written = written[number:]
                raise
        closed, self._closed = self._closed, []
        for level in closed:
            self._finish_directory(level)
        if self._progress is not None:
            self._progress.update(self._report.written_files, self._report.written_bytes, b"")

    def _finish_directory(self, level: _Level) -> None:
        handle = level.handle
        if handle is None:
            return
        try:
            with target_faults(level.path):
                for name in level.extra:
                    self._delete_extra(handle, name)
                if self._dry_run:
                    return
                status = os.fstat(handle.fd)
                self._note_refused(level.path, apply_metadata(handle.fd, level.entry, status))
        except OSError as error:
            self._fail(level.path, os.strerror(error.errno or 0))

    def _delete_extra(self, handle: DirectoryHandle, name: bytes) -> None:
        if self._dry_run:
            self._report.deleted_files += count_files(handle, name, self._store_inode)
        else:
            self._report.deleted_files += remove_tree(handle, name, self._store_inode)

    def _finish(self) -> None:
        self._flush_small()
        self._barrier()
        for link in self._links:
            try:
                with target_faults(link.job.path):
                    self._place_link(link)
            except OSError as error:
                self._fail(link.job.path, os.strerror(error.errno or 0))
        if not self._dry_run:
            self._sync()

    def _place_link(self, link: _Link) -> None:
        first, job = link
        if first.path in self._failed:
            self._fail(job.path, f"is a hard link to {os.fsdecode(first.path)}, which failed")
            return
        target = _status(first.directory, first.name)
        present = _status(job.directory, job.name)
        if target is not None and present is not None and os.path.samestat(target, present):
            self._report.kept_files += 1
            return
        self._report.written_files += 1
        if self._dry_run:
            return
        times = os.fstat(job.directory.fd)
        temporary = self._temporary_name()
        durable.link_name(first.name, first.directory.fd, temporary, job.directory.fd)
        durable.publish_name(temporary, job.name, dir_fd=job.directory.fd)
        os.utime(job.directory.fd, ns=(times.st_atime_ns, times.st_mtime_ns))

    def _sync(self) -> None:
        if not self._dry_run:
            for handle in self._file_systems.values():
                with target_faults(handle.path):
                    durable.sync_file_system(handle.fd)
            for one in self._written[:1]:
                durable.sync_file_system(one.job.directory.fd)

    def _discard_unpublished(self) -> None:
        for one in self._written:
            try:
                os.unlink(one.temporary, dir_fd=one.job.directory.fd)
            except OSError:
                continue

    def _keep_open(self, job: _Job, fd: int) -> None:
        """The content is right; put metadata right where it is not."""
        if not self._dry_run:
            status = os.fstat(fd)
            if not same_metadata(job.entry, status) or job.entry.xattrs != read_xattrs(fd):
                self._note_refused(job.path, apply_metadata(fd, job.entry, status))
        self._keep()

    def _keep(self) -> None:
        with self._lock:
            self._report.kept_files += 1

    def _count_written(self, entry: Entry) -> None:
        with self._lock:
            self._report.written_files += 1
            self._report.written_bytes += entry.size_bytes

    def _note_refused(self, path: bytes, refused: list[str]) -> None:
        for what in refused:
            self._report.failed.append(Trouble(path, what))

    def _fail(self, path: bytes, what: str, *, damaged: bool = False, lost: bool = False) -> None:
        with self._lock:
            self._failed.add(path)
            self._report.failed.append(Trouble(path, what))
            if damaged or lost:
                self._report.damaged_paths.add(path)
            self._report.damaged |= damaged

    def _temporary_name(self) -> bytes:
        return durable.temporary_name(self._prefix).encode()


def _status(directory: DirectoryHandle | None, name: bytes) -> os.stat_result | None:
    if directory is None:
        return None
    try:
        return directory.status(name)
    except FileNotFoundError:
        return None


def _is_directory(status: os.stat_result | None) -> bool:
    return status is not None and stat.S_ISDIR(status.st_mode)


def _is_regular(status: os.stat_result | None) -> bool:
    return status is not None and stat.S_ISREG(status.st_mode)


def _is_valid_name(name: bytes) -> bool:
    """A single name: a store that says otherwise is damaged or hostile."""
    return bool(name) and name not in {b".", b".."} and b"/" not in name and b"\0" not in name


def _is_untouched(job: _Job) -> bool:
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


def _is_same_special(
    directory: DirectoryHandle, name: bytes, entry: Entry, status: os.stat_result
) -> bool:
    if not same_metadata(entry, status):
        return False
    if entry.is_symlink:
        return os.readlink(name, dir_fd=directory.fd) == entry.content
    device = os.major(status.st_rdev) << 32 | os.minor(status.st_rdev)
    return stat.S_ISFIFO(entry.mode) or device == entry.rdev


def _open_old(job: _Job) -> int:
    if job.old is None:
        return -1
    try:
        return os.open(job.name, _OPEN_OLD, dir_fd=job.directory.fd)
    except OSError:
        return -1


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


def _copy_range(source_fd: int, fd: int, offset: int, length: int) -> None:
    """Copy within the kernel: on btrfs and XFS this shares the blocks instead."""
    while length:
        copied = os.copy_file_range(source_fd, fd, length, offset, offset)
        if copied == 0:
            raise CorruptionError("the old file became shorter while it was read")
        offset += copied
        length -= copied


def _raised_open_files_limit() -> int:
    """A directory stays open until the barrier that finishes it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES_WANTED
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
