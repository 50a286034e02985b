"""The barrier: it makes written files durable together, then gives them their names.

One syncfs serves thousands of files. Hard links come after the files, deletions and the metadata
of directories last.
"""

import os
from typing import Final, NamedTuple

from ciuic.restore.place.filling import Filler
from ciuic.restore.place.hard_links import HardLinks
from ciuic.restore.place.job import Pass
from ciuic.restore.place.levels import Level
from ciuic.restore.place.removal import Removal
from ciuic.restore.place.target import apply_metadata, ending, raise_if_ending, target_faults
from ciuic.restore.place.temporary_files import TOGETHER, discard
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


class Barrier:
    """Publishes what was written; used by one thread."""

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

    def close(self) -> None:
        """Close all descriptors: the target's file system may be unmounted next."""
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
        """Pass if enough files, bytes, links or open directories wait."""
        files = self._filler.files
        if (
            len(files.written) >= _BARRIER_FILES
            or files.written_bytes >= _BARRIER_BYTES
            or self._links.waiting >= _BARRIER_FILES
            or len(self._closed) >= self._handles_max
        ):
            self.pass_through()

    def pass_through(self) -> None:
        """Make written files durable and give them their names; then finish directories."""
        # A directory's own times come after its last file: no file may still be gathered.
        self._filler.flush()
        self._sync()
        self._publish()
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
        self._sync()

    def _publish(self) -> None:
        files, ledger = self._filler.files, self._run.ledger
        written = files.take()
        number = 0
        while number < len(written):
            batch = written[number : number + TOGETHER]
            done, error = durable.publish_names(
                [(file.job.directory.fd, file.temporary, file.job.name) for file in batch]
            )
            for file in batch[:done]:
                ledger.written(file.job.entry.size_bytes, cloned_bytes=file.cloned_bytes)
                ledger.refused(file.job.path, file.refused)
            number += done
            if error:
                files.written = written[number:]  # removed if this error ends the restore
                raise_if_ending(OSError(error, os.strerror(error)), written[number].job.place)
                files.written = []
                discard(written[number])
                ledger.failed(written[number].job.path, os.strerror(error))
                number += 1

    def _finish_directory(self, level: Level) -> None:
        handle, ledger = level.handle, self._run.ledger
        if handle is None:
            return
        try:
            with target_faults(handle.path):
                self._removal.delete_extra(level, handle)
                if not self._run.dry_run and not level.is_found:
                    status = os.fstat(handle.fd)
                    ledger.refused(level.path, apply_metadata(handle.fd, level.entry, status))
                if level.is_corrected:
                    ledger.corrected()
        except OSError as error:
            ledger.failed(level.path, os.strerror(error.errno or 0))

    def _sync(self) -> None:
        if self._run.dry_run:
            return
        for handle in self._file_systems.values():
            try:
                durable.sync_file_system(handle.fd)
            except OSError as error:
                # Whatever the reason: the kernel reports a failed write once, so a later sync
                # would succeed, and files that are not on the disk would get their names.
                raise ending(error, handle.path) from error
