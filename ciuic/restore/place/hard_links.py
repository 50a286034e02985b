"""Files with several names: the first name is placed as a file, the others are linked to it."""

import os
from typing import Final, NamedTuple

from ciuic.model import Entry
from ciuic.restore.place.first_names import FirstNames
from ciuic.restore.place.job import Job, Pass
from ciuic.restore.place.levels import status_of
from ciuic.restore.place.target import target_faults
from ciuic.restore.place.temporary_files import TemporaryFiles
from ciuic.source.directory import DirectoryHandle
from ciuic.system import durable

__all__ = ["HardLinks"]

_PASS_THROUGH: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _First(NamedTuple):
    """The first name of a file with several. Its directory is not kept open.

    Attributes:
        top: The open directory that the restored tree was placed into.
        directory: Path of the name's directory in the target.
        name: Name in that directory.
        entry: The file in the snapshot.
        path: Its path in the snapshot.
    """

    top: DirectoryHandle
    directory: bytes
    name: bytes
    entry: Entry
    path: bytes

    def open(self) -> DirectoryHandle:
        """Open the directory again. Follows no symlink, and needs no right to list it."""
        handle = self.top
        below = self.directory[len(self.top.path) :].strip(b"/")
        for name in below.split(b"/") if below else []:
            fd = os.open(name, _PASS_THROUGH, dir_fd=handle.fd)
            handle = DirectoryHandle(fd, handle.join(name))
        return handle


_FirstRecord = tuple[int, bytes, bytes, Entry, bytes]
"""The fields of ``_First``, with a number in the place of ``top``."""


class _Link(NamedTuple):
    """Another name of a file that was placed under its first name."""

    first: _First
    job: Job


class HardLinks:
    """Remembers first names, and links the others after the barrier has published the first."""

    def __init__(self, run: Pass, files: TemporaryFiles) -> None:
        self._run = run
        self._files = files
        self._top: DirectoryHandle | None = None
        self._waiting: list[_Link] = []
        self._first_names: FirstNames[_FirstRecord] = FirstNames(_FirstRecord)
        self._first_new: FirstNames[bytes] = FirstNames(bytes)
        self._tops: list[DirectoryHandle] = []

    @property
    def waiting(self) -> int:
        """How many names wait to be linked."""
        return len(self._waiting)

    def enter(self, top: DirectoryHandle | None) -> None:
        """The next files are placed below this directory, which stays open."""
        self._top = top

    def close(self) -> None:
        """Close all descriptors."""
        self._top, self._waiting, self._tops = None, [], []
        self._first_names.close()
        self._first_new.close()

    def place_waiting(self) -> None:
        """Link the names that wait. Their first names are published."""
        waiting, self._waiting = self._waiting, []
        for link in waiting:
            self._run.check_cancelled()
            try:
                with target_faults(link.job.place):
                    self._place(link)
            except OSError as error:
                self._run.ledger.failed(link.job.path, os.strerror(error.errno or 0))

    def is_further_name(self, job: Job) -> bool:
        """Remember a name of a file with several; True if another name is placed already."""
        key = (job.entry.link_dev, job.entry.ino)
        record = self._first_names.get(key)
        if record is None:
            top = self._number_of(self._top or job.directory)
            self._first_names.put(key, (top, job.directory.path, job.name, job.entry, job.path))
            return False
        first = _First(self._tops[record[0]], *record[1:])
        if not _is_same_file(first.entry, job.entry):
            return False
        self._waiting.append(_Link(first, job))
        return True

    def is_further_new_name(self, entry: Entry, path: bytes) -> bool:
        """Like ``is_further_name``, for a file in a directory that does not exist (dry run)."""
        key = (entry.link_dev, entry.ino)
        first_path = self._first_new.get(key)
        if first_path is None:
            self._first_new.put(key, path)
            return False
        return first_path != path

    def _number_of(self, top: DirectoryHandle) -> int:
        if not self._tops or self._tops[-1] is not top:
            self._tops.append(top)
        return len(self._tops) - 1

    def _place(self, link: _Link) -> None:
        first, job = link
        if first.path in self._run.ledger.failed_paths:
            what = f"is a hard link to {os.fsdecode(first.path)}, which failed"
            self._run.ledger.failed(job.path, what)
            return
        if self._run.ledger.is_unwritten(first.path, first.entry):
            self._run.ledger.written(0)
            return
        directory = first.open()
        target = status_of(directory, first.name)
        present = status_of(job.directory, job.name)
        if target is not None and present is not None and os.path.samestat(target, present):
            self._run.ledger.kept()
            return
        if not self._run.dry_run:
            temporary = self._files.new_name()
            durable.link_name(first.name, directory.fd, temporary, job.directory.fd)
            durable.publish_name(temporary, job.name, dir_fd=job.directory.fd)
        self._run.ledger.written(0)


def _is_same_file(first: Entry, other: Entry) -> bool:
    """Return whether two entries can be names of one inode. In a hostile store they may differ."""
    return (
        (first.content, first.level, first.size_bytes)
        == (other.content, other.level, other.size_bytes)
        and (first.mode, first.uid, first.gid) == (other.mode, other.uid, other.gid)
        and (first.mtime_ns, first.xattrs) == (other.mtime_ns, other.xattrs)
    )
