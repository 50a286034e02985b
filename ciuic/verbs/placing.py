"""Entries of a snapshot -> names in a directory, each whole or not at all.

A ``Placer`` walks a tree of the snapshot beside the target and makes directories, symlinks and
device nodes; files are filled by ``verbs/filling.py``. A barrier then makes thousands of written
files durable at once and renames them; deletions, links and directories' own times come last.
"""

import contextlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Final, NamedTuple

from ciuic import durable
from ciuic.capture.frozen import AREA_NAME
from ciuic.errors import CancelledError, CorruptionError, UnknownFormatError
from ciuic.limits import raise_open_files_limit
from ciuic.model import FLUX, SKIPPED, UNREADABLE, Entry, RestoreReport
from ciuic.scan import DirectoryHandle, Exclusions
from ciuic.store import Store
from ciuic.store.nodes import iter_tree
from ciuic.verbs.filling import Filler, Job, Ledger, discard
from ciuic.verbs.hot import HotCopies
from ciuic.verbs.progress import Progress
from ciuic.verbs.target import (
    RUN_AGAIN,
    apply_metadata,
    apply_special_metadata,
    count_files,
    is_leftover,
    make_special,
    raise_if_ending,
    remove_tree,
    same_metadata,
    target_faults,
)

__all__ = ["Placer"]

_BARRIER_FILES: Final = 16_384
_BARRIER_BYTES: Final = 4 * 1024 * 1024 * 1024
_OCCUPIED: Final = "a directory that is not empty stands there; --delete replaces it"
_PASS_THROUGH: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_UNREADABLE: Final = "could not be read when the snapshot was taken"


class _First(NamedTuple):
    """The first name of a file with several: kept to the end, so its directory is not kept open.

    Attributes:
        top: The open directory that all this was placed into.
        directory: Path in the target.
        name: In that directory.
        entry: What was placed.
        path: Of the entry in the snapshot.
    """

    top: DirectoryHandle
    directory: bytes
    name: bytes
    entry: Entry
    path: bytes

    def open(self) -> DirectoryHandle:
        """The directory, once more. No symlink is followed, and no right to list it is needed."""
        handle = self.top
        below = self.directory[len(self.top.path) :].strip(b"/")
        for name in below.split(b"/") if below else []:
            fd = os.open(name, _PASS_THROUGH, dir_fd=handle.fd)
            handle = DirectoryHandle(fd, handle.join(name))
        return handle


class _Link(NamedTuple):
    """A further name of a file that is placed under another one."""

    first: _First
    job: Job


class _Place(NamedTuple):
    """Where one entry goes.

    Attributes:
        directory: The open directory; None in a dry run where there is none.
        name: In that directory.
        path: Of the entry in the snapshot, for messages.
        is_there: Something may stand there; a name that a listing did not have is not asked for.
    """

    directory: DirectoryHandle | None
    name: bytes
    path: bytes
    is_there: bool

    def where(self) -> bytes:
        """The place in the target; in a dry run without one, the path itself."""
        return self.path if self.directory is None else self.directory.join(self.name)

    def status(self) -> os.stat_result | None:
        """What stands there."""
        return _status(self.directory, self.name) if self.is_there else None


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
    """Places entries; used in a ``with`` block, whose end is the last barrier.

    Args:
        taken_ns: When the snapshot began that the entries are from.

    Attributes:
        set_aside: Files in flux that were not placed, when ``sets_flux_aside`` was asked for.
    """

    def __init__(
        self,
        store: Store,
        report: RestoreReport,
        *,
        taken_ns: int,
        hot: HotCopies | None,
        delete: bool,
        dry_run: bool,
        sets_flux_aside: bool,
        protected: Exclusions,
        cancelled: Callable[[], bool],
        progress: Progress | None,
    ) -> None:
        self._store = store
        self._delete = delete
        self._dry_run = dry_run
        self._protected = protected
        self._cancelled = cancelled
        self._progress = progress
        self._ledger = Ledger(report)
        self._filler = Filler(
            store,
            self._ledger,
            taken_ns=taken_ns,
            hot=hot,
            dry_run=dry_run,
            cancelled=cancelled,
            progress=progress,
        )
        self._sets_flux_aside = sets_flux_aside
        self.set_aside: list[bytes] = []
        self._times: dict[bytes, tuple[DirectoryHandle, int]] = {}
        own = os.stat(store.path)
        self._store_inode = (own.st_dev, own.st_ino)
        self._handles_max = raise_open_files_limit() // 4
        self._entered = 0
        self._entered_paths: set[bytes] = set()
        self._closed: list[_Level] = []
        self._links: list[_Link] = []
        self._new_inodes: dict[tuple[int, int], bytes] = {}
        self._first_names: dict[tuple[int, int], _First] = {}
        self._file_systems: dict[int, DirectoryHandle] = {}
        self._above: DirectoryHandle | None = None
        self._top: DirectoryHandle | None = None

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
            self._filler.close()
            # Descriptors of the target are given up now: its file system may be unmounted next.
            self._closed, self._links, self._above, self._top = [], [], None, None
            self._first_names, self._file_systems, self._times = {}, {}, {}

    def place(
        self,
        directory: DirectoryHandle | None,
        name: bytes,
        entry: Entry,
        path: bytes,
        *,
        above: DirectoryHandle | None = None,
        keeps_time: bool = False,
    ) -> None:
        """Place one entry, and all below it.

        Args:
            directory: Takes it. In a dry run that may not be there.
            name: Under which it is placed.
            entry: As the snapshot has it.
            path: Likewise, for messages.
            above: A directory that is open for longer than this one, which lies below it, or in a
                dry run would be made there.
            keeps_time: The directory was restored before, and its time is right.
        """
        levels: list[_Level] = []
        self._above, self._top = directory or above, above or directory
        self._entered += 1
        if self._entered > self._handles_max:
            self._barrier()
        if directory is not None:
            if keeps_time and not self._dry_run:
                mtime_ns = os.fstat(directory.fd).st_mtime_ns
                self._times.setdefault(directory.path, (directory, mtime_ns))
            self._file_systems.setdefault(os.fstat(directory.fd).st_dev, directory)
            if directory.path not in self._entered_paths:
                self._entered_paths.add(directory.path)
                self._remove_leftovers(directory, directory.names())
        self._place_one(_Place(directory, name, path, is_there=True), entry, levels)
        while levels:
            if self._cancelled():
                raise CancelledError("the restore was interrupted", hint=RUN_AGAIN)
            level = levels[-1]
            inner = self._next_entry(level)
            if inner is None:
                self._leave(levels.pop())
                continue
            inside = (
                level.path + inner.name if level.path == b"/" else (level.path + b"/" + inner.name)
            )
            if not _is_valid_name(inner.name):
                self._ledger.lost(inside, "the store gives it a name that no file can have")
                continue
            is_there = inner.name in level.present
            level.present.discard(inner.name)
            place = _Place(level.handle, inner.name, inside, is_there=is_there)
            self._place_one(place, inner, levels)

    def _next_entry(self, level: _Level) -> Entry | None:
        try:
            return next(level.entries, None)
        except (CorruptionError, UnknownFormatError) as error:
            self._ledger.lost(level.path, f"the directory can't be read: {error.message}")
            level.present.clear()  # what else the snapshot has is unknown: delete nothing
            return None

    def _place_one(self, place: _Place, entry: Entry, levels: list[_Level]) -> None:
        try:
            if entry.is_file:
                self._place_file(place, entry)
            elif entry.is_directory:
                self._place_directory(place, entry, levels)
            else:
                self._place_special(place, entry)
        except OSError as error:
            raise_if_ending(error, place.where())
            self._ledger.failed(place.path, os.strerror(error.errno or 0))

    def _place_directory(self, place: _Place, entry: Entry, levels: list[_Level]) -> None:
        if entry.state == UNREADABLE:
            self._ledger.lost(place.path, _UNREADABLE, damaged=False)
        handle = self._open_directory(place)
        if entry.state in {UNREADABLE, SKIPPED}:
            return
        present = set() if handle is None else set(handle.names())
        entries: Iterator[Entry] = iter(())
        if entry.content:
            entries = iter_tree(self._store.reader.node, entry.content, entry.level)
        levels.append(_Level(handle, entry, place.path, entries, present))

    def _open_directory(self, place: _Place) -> DirectoryHandle | None:
        """The target's directory of this name, made if need be. A symlink is not followed."""
        status = place.status()
        if place.directory is None or (self._dry_run and not _is_directory(status)):
            return None
        if not _is_directory(status):
            if status is not None:
                os.unlink(place.name, dir_fd=place.directory.fd)
            os.mkdir(place.name, 0o700, dir_fd=place.directory.fd)
        handle = place.directory.child(place.name)
        self._file_systems.setdefault(os.fstat(handle.fd).st_dev, handle)
        return handle

    def _place_file(self, place: _Place, entry: Entry) -> None:
        if entry.state == UNREADABLE:
            self._ledger.lost(place.path, _UNREADABLE, damaged=False)
            return
        if entry.state == FLUX and self._sets_flux_aside:
            self.set_aside.append(place.path)
            return
        if entry.state == FLUX:
            self._ledger.in_flux(place.path)
        if place.directory is None:
            self._would_write_new(entry, place.path)
            return
        status = place.status()
        if _is_directory(status) and not self._clear(place):
            return
        old = status if status is not None and stat.S_ISREG(status.st_mode) else None
        job = Job(place.directory, place.name, entry, place.path, old)
        if entry.link_dev and self._is_further_name(job):
            return
        self._filler.add(job)
        if self._is_barrier_due():
            self._barrier()

    def _clear(self, place: _Place) -> bool:
        """Make a place free of a directory, for something else; False if it may not be."""
        directory, name, path = place.directory, place.name, place.path
        if directory is None:
            return True
        if not self._delete and directory.child(name).names():
            self._ledger.failed(path, _OCCUPIED)
            return False
        if self._dry_run:
            self._ledger.deleted(count_files(directory, name, path, self._is_protected))
            return True
        self._ledger.deleted(remove_tree(directory, name, path, self._is_protected))
        if place.status() is not None:
            self._ledger.failed(path, "a directory stands there that holds what is never deleted")
            return False
        return True

    def _would_write_new(self, entry: Entry, path: bytes) -> None:
        """A dry run comes to a file in a directory that is not there."""
        key = (entry.link_dev, entry.ino)
        is_further = entry.link_dev and self._new_inodes.setdefault(key, path) != path
        if is_further:
            self._ledger.written(0)
            return
        above = self._above
        cloned_bytes = 0 if above is None else self._filler.would_clone(path, entry, above)
        self._ledger.written(entry.size_bytes, cloned_bytes=cloned_bytes)

    def _is_further_name(self, job: Job) -> bool:
        """Remember a hard link; True if another name of the file is placed already."""
        key = (job.entry.link_dev, job.entry.ino)
        first = self._first_names.get(key)
        if first is None:
            top = self._top or job.directory
            self._first_names[key] = _First(top, job.directory.path, job.name, job.entry, job.path)
            return False
        if not _is_same_file(first.entry, job.entry):
            return False
        self._links.append(_Link(first, job))
        return True

    def _place_special(self, place: _Place, entry: Entry) -> None:
        """Place a symlink, FIFO or device node: made aside, then renamed over what is there."""
        directory = place.directory
        if directory is None:
            self._ledger.written(0)
            return
        status = place.status()
        if _is_directory(status) and not self._clear(place):
            return
        if status is not None and _is_same_special(directory, place.name, entry, status):
            self._ledger.kept()
            return
        self._ledger.written(0)
        if self._dry_run:
            return
        temporary = self._filler.temporary_name()
        make_special(directory, temporary, entry)
        try:
            self._ledger.refused(place.path, apply_special_metadata(directory, temporary, entry))
            durable.publish_name(temporary, place.name, dir_fd=directory.fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=directory.fd)
            raise

    def _is_barrier_due(self) -> bool:
        return (
            len(self._filler.written) >= _BARRIER_FILES
            or self._filler.written_bytes >= _BARRIER_BYTES
            or len(self._closed) >= self._handles_max
        )

    def _leave(self, level: _Level) -> None:
        """A directory has been walked; it is finished after the barrier that holds its files."""
        if level.handle is None:
            return
        self._remove_leftovers(level.handle, level.present)
        if self._delete:
            level.extra = sorted(name for name in level.present if not is_leftover(name))
        level.present = set()
        self._closed.append(level)
        if self._is_barrier_due():
            self._barrier()

    def _remove_leftovers(self, handle: DirectoryHandle, names: Iterable[bytes]) -> None:
        """Remove unfinished files of restores that were killed."""
        if self._dry_run:
            return
        for name in names:
            if is_leftover(name):
                # What is another user's, or no file at all, is in nobody's way.
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=handle.fd)

    def _is_protected(self, path: bytes, status: os.stat_result) -> bool:
        """What a snapshot never holds is not missing from it: sockets, what is left out."""
        if stat.S_ISSOCK(status.st_mode) or os.path.basename(path) == AREA_NAME:
            return True
        if (status.st_dev, status.st_ino) == self._store_inode:
            return True
        return self._protected.any and self._protected.match_path(*os.path.split(path))

    def _barrier(self) -> None:
        """Make written files durable and give them their names; then finish directories."""
        # A directory's own times come after its last file: nothing may still be gathering.
        self._filler.flush()
        self._sync()
        written, self._filler.written, self._filler.written_bytes = self._filler.written, [], 0
        for number, one in enumerate(written):
            job = one.job
            try:
                durable.publish_name(one.temporary, job.name, dir_fd=job.directory.fd)
            except OSError as error:
                self._filler.written = written[number:]  # what is thrown away if this ends it
                raise_if_ending(error, job.place)
                self._filler.written = []
                discard(one)
                self._ledger.failed(job.path, os.strerror(error.errno or 0))
        # Links before directories: a directory's own mode may forbid them.
        links, self._links = self._links, []
        for link in links:
            try:
                with target_faults(link.job.place):
                    self._place_link(link)
            except OSError as error:
                self._ledger.failed(link.job.path, os.strerror(error.errno or 0))
        closed, self._closed = self._closed, []
        for level in closed:
            self._finish_directory(level)
        times, self._times, self._entered = self._times, {}, 0
        for handle, mtime_ns in times.values():
            os.utime(handle.fd, ns=(mtime_ns, mtime_ns))
        self._ledger.progress(self._progress, b"")

    def _finish_directory(self, level: _Level) -> None:
        handle = level.handle
        if handle is None:
            return
        try:
            with target_faults(handle.path):
                for name in level.extra:
                    self._delete_extra(handle, name, os.path.join(level.path, name))
                if self._dry_run:
                    return
                status = os.fstat(handle.fd)
                self._ledger.refused(level.path, apply_metadata(handle.fd, level.entry, status))
        except OSError as error:
            self._ledger.failed(level.path, os.strerror(error.errno or 0))

    def _delete_extra(self, handle: DirectoryHandle, name: bytes, path: bytes) -> None:
        delete = count_files if self._dry_run else remove_tree
        self._ledger.deleted(delete(handle, name, path, self._is_protected))

    def _finish(self) -> None:
        self._barrier()
        self._sync()

    def _place_link(self, link: _Link) -> None:
        first, job = link
        if first.path in self._ledger.failed_paths:
            what = f"is a hard link to {os.fsdecode(first.path)}, which failed"
            self._ledger.failed(job.path, what)
            return
        if first.path in self._filler.unwritten_links:
            self._ledger.written(0)
            return
        directory = first.open()
        target = _status(directory, first.name)
        present = _status(job.directory, job.name)
        if target is not None and present is not None and os.path.samestat(target, present):
            self._ledger.kept()
            return
        self._ledger.written(0)
        if self._dry_run:
            return
        temporary = self._filler.temporary_name()
        durable.link_name(first.name, directory.fd, temporary, job.directory.fd)
        durable.publish_name(temporary, job.name, dir_fd=job.directory.fd)

    def _sync(self) -> None:
        if self._dry_run:
            return
        for handle in self._file_systems.values():
            with target_faults(handle.path):
                durable.sync_file_system(handle.fd)


def _is_same_file(one: Entry, other: Entry) -> bool:
    """Two names of one inode say the same of it; a hostile store may say otherwise."""
    return (
        (one.content, one.level, one.size_bytes) == (other.content, other.level, other.size_bytes)
        and (one.mode, one.uid, one.gid) == (other.mode, other.uid, other.gid)
        and (one.mtime_ns, one.xattrs) == (other.mtime_ns, other.xattrs)
    )


def _status(directory: DirectoryHandle | None, name: bytes) -> os.stat_result | None:
    if directory is None:
        return None
    try:
        return directory.status(name)
    except FileNotFoundError:
        return None


def _is_directory(status: os.stat_result | None) -> bool:
    return status is not None and stat.S_ISDIR(status.st_mode)


def _is_valid_name(name: bytes) -> bool:
    """A single name: a store that says otherwise is damaged or hostile."""
    return bool(name) and name not in {b".", b".."} and b"/" not in name and b"\0" not in name


def _is_same_special(
    directory: DirectoryHandle, name: bytes, entry: Entry, status: os.stat_result
) -> bool:
    if not same_metadata(entry, status):
        return False
    if entry.is_symlink:
        return os.readlink(name, dir_fd=directory.fd) == entry.content
    device = os.major(status.st_rdev) << 32 | os.minor(status.st_rdev)
    return stat.S_ISFIFO(entry.mode) or device == entry.rdev
