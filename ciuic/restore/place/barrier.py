"""The barrier: it makes written files durable together, then gives them their names.

One syncfs serves thousands of files. A thread of its own calls it and renames them, while the next
files are written. Hard links come after the files, deletions and the metadata of directories last.
"""

import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from ciuic.restore.place.filling import Filler
from ciuic.restore.place.hard_links import HardLinks
from ciuic.restore.place.job import Pass
from ciuic.restore.place.levels import Level
from ciuic.restore.place.removal import Removal
from ciuic.restore.place.target import apply_metadata, raise_if_ending, target_faults
from ciuic.restore.place.temporary_files import TOGETHER, Written, discard
from ciuic.source.directory import DirectoryHandle
from ciuic.system import durable
from ciuic.system.limits import raise_open_files_limit

__all__ = ["Barrier"]

_BARRIER_FILES: Final = 2048
"""An interrupted restore removes as many temporary files, which takes milliseconds each on a busy
file system. A sync for each of these barriers costs a few percent."""
_BARRIER_BYTES: Final = 4 * 1024 * 1024 * 1024


class _Time(NamedTuple):
    """A directory that was restored before, and its modification time."""

    directory: DirectoryHandle
    mtime_ns: int


class _Work:
    """Work that a thread of its own has begun."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="publish")
        self._thread.start()

    def end(self) -> BaseException | None:
        """Wait for its end; returns the error that ended it, if any."""
        self._thread.join()
        return self._error

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - carried to the caller's thread
            self._error = error


class Barrier:
    """Publishes what was written; one thread calls it."""

    def __init__(self, run: Pass, filler: Filler, links: HardLinks, removal: Removal) -> None:
        self._run = run
        self._filler = filler
        self._links = links
        self._removal = removal
        self._handles_max = raise_open_files_limit() // 4
        self._entered = 0
        self._closed: list[Level] = []
        self._times: dict[bytes, _Time] = {}
        self._file_systems: dict[int, DirectoryHandle] = {}
        self._behind: _Work | None = None

    def close(self) -> None:
        """Close all descriptors: the target's file system may be unmounted next.

        If the restore was interrupted, files that are being published get their names first.
        """
        if self._behind is not None:
            self._behind.end()
        self._closed, self._times, self._file_systems = [], {}, {}

    def enter(self, directory: DirectoryHandle | None, *, keeps_time: bool) -> None:
        """Set the directory of the next files; ``keeps_time``: its modification time is right."""
        self._entered += 1
        if self._entered > self._handles_max:
            self.pass_through()
        if directory is None:
            return
        if keeps_time and not self._run.dry_run:
            mtime_ns = os.fstat(directory.fd).st_mtime_ns
            self._times.setdefault(directory.path, _Time(directory, mtime_ns))
        self.add_file_system(directory)

    def add_file_system(self, directory: DirectoryHandle) -> None:
        """Sync the file system of this directory from now on."""
        self._file_systems.setdefault(os.fstat(directory.fd).st_dev, directory)

    def add_directory(self, level: Level) -> None:
        """Finish a directory that has been walked, after the barrier that publishes its files."""
        self._closed.append(level)

    def pass_if_due(self) -> None:
        """Pass if enough links or open directories wait; publish if enough files or bytes do."""
        files = self._filler.files
        if self._links.waiting >= _BARRIER_FILES or len(self._closed) >= self._handles_max:
            self.pass_through()
        elif len(files.written) >= _BARRIER_FILES or files.written_bytes >= _BARRIER_BYTES:
            self._wait()
            work = partial(self._publish, files.take(), list(self._file_systems.values()))
            self._behind = _Work(work)
            self._run.ledger.show_progress(b"")

    def pass_through(self) -> None:
        """Make written files durable and give them their names; then finish directories."""
        # A directory's own times come after its last file: no file may still be gathered.
        self._filler.flush()
        self._wait()
        self._publish(self._filler.files.take(), list(self._file_systems.values()))
        # Links before directories: a directory's own mode may forbid them.
        self._links.place_waiting()
        closed, self._closed = self._closed, []
        for level in closed:
            self._finish_directory(level)
        times, self._times, self._entered = self._times, {}, 0
        for directory, mtime_ns in times.values():
            os.utime(directory.fd, ns=(mtime_ns, mtime_ns))
        self._run.ledger.show_progress(b"")

    def finish(self) -> None:
        """The last barrier; then make the names durable."""
        self.pass_through()
        self._sync(list(self._file_systems.values()))

    def _wait(self) -> None:
        """Wait for the files that are being published; raise the error that ended that, if any."""
        behind, self._behind = self._behind, None
        error = behind.end() if behind is not None else None
        if error is not None:
            raise error

    def _publish(self, written: list[Written], file_systems: Sequence[DirectoryHandle]) -> None:
        """Make files durable and give them their names; after an error, remove the others."""
        left = written
        try:
            self._sync(file_systems)
            while left:
                left = self._publish_some(left)
        except BaseException:
            for file in left:
                discard(file)
            raise

    def _publish_some(self, written: list[Written]) -> list[Written]:
        """Give the first files their names; returns the others."""
        ledger = self._run.ledger
        done, error = durable.publish_names(
            [(file.job.directory.fd, file.temporary, file.job.name) for file in written[:TOGETHER]]
        )
        for file in written[:done]:
            ledger.written(file.job.entry.size_bytes, cloned_bytes=file.cloned_bytes)
            ledger.refused(file.job.path, file.refused)
        left = written[done:]
        if error:
            raise_if_ending(OSError(error, os.strerror(error)), left[0].job.place)
            discard(left[0])
            ledger.failed(left[0].job.path, os.strerror(error))
            left = left[1:]
        return left

    def _finish_directory(self, level: Level) -> None:
        handle, ledger = level.handle, self._run.ledger
        if handle is None:
            return
        try:
            with target_faults(handle.path):
                self._removal.delete_extra(level, handle)
                if self._run.dry_run or level.is_found:
                    return
                status = os.fstat(handle.fd)
                ledger.refused(level.path, apply_metadata(handle.fd, level.entry, status))
        except OSError as error:
            ledger.failed(level.path, os.strerror(error.errno or 0))

    def _sync(self, file_systems: Sequence[DirectoryHandle]) -> None:
        if self._run.dry_run:
            return
        for handle in file_systems:
            with target_faults(handle.path):
                durable.sync_file_system(handle.fd)
