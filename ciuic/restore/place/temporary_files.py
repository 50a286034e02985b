"""Files under temporary names: complete with metadata, they wait for their own names.

A file is never published from here: the barrier in ``restore/place/barrier.py`` first makes the
data of thousands of files durable, then renames them.
"""

import contextlib
import functools
import itertools
import os
import stat
import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from ciuic.restore.place.job import Job
from ciuic.restore.place.ledger import Ledger
from ciuic.restore.place.output import write_all
from ciuic.restore.place.target import apply_metadata, raise_if_ending, temporary_prefix
from ciuic.source.directory import DirectoryHandle, read_xattrs
from ciuic.system.core import core

__all__ = ["TOGETHER", "TemporaryFiles", "Written", "discard"]

TOGETHER: Final = 32
"""Files that are written, or get their names, in one call of the compiled core. A restore that is
interrupted finishes as many in each thread."""

_OPEN_TEMPORARY: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_numbers: Final = itertools.count()


class Written(NamedTuple):
    """A file that is complete under a temporary name.

    Attributes:
        cloned_bytes: Bytes that share blocks with a reflink copy, or came from the old file.
        refused: Metadata that this user may not set, in words.
    """

    job: Job
    temporary: bytes
    cloned_bytes: int = 0
    refused: tuple[str, ...] = ()


class TemporaryFiles:
    """Writes files under temporary names. ``write`` may be called from several threads.

    Attributes:
        written: Files that wait to be published.
        written_bytes: New data in them, which a barrier must write to the disk.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._prefix = temporary_prefix()
        self._lock = threading.Lock()
        self._default_acls: WeakKeyDictionary[DirectoryHandle, bool] = WeakKeyDictionary()
        self._latest_acl: tuple[DirectoryHandle | None, bool] = (None, False)
        self.written: list[Written] = []
        self.written_bytes = 0

    def close(self) -> None:
        """Remove the files that were not published."""
        self._latest_acl = (None, False)
        for file in self.written:
            discard(file)

    def new_name(self) -> bytes:
        """Return a new temporary name."""
        return b"%s%016x" % (self._prefix, next(_numbers))

    def take(self) -> list[Written]:
        """Hand over all files that wait to be published."""
        with self._lock:
            written, self.written, self.written_bytes = self.written, [], 0
        return written

    def write(self, job: Job, fill: Callable[[int], int]) -> None:
        """Write a file under a temporary name.

        ``fill`` writes to a descriptor and returns the number of bytes that it cloned. An OSError
        that concerns this file only goes to the ledger.

        Raises:
            TargetError: The target's file system failed.
        """
        temporary = self.new_name()
        try:
            fd = os.open(temporary, _OPEN_TEMPORARY, 0o600, dir_fd=job.directory.fd)
            try:
                cloned_bytes = fill(fd)
                status = os.fstat(fd)
                refused = apply_metadata(fd, job.entry, status, bare=self._is_bare(job))
            except BaseException:
                discard(Written(job, temporary))
                raise
            finally:
                os.close(fd)
        except OSError as error:
            raise_if_ending(error, job.place)
            self._ledger.failed(job.path, os.strerror(error.errno or 0))
            return
        self._complete(Written(job, temporary, cloned_bytes, tuple(refused)))

    def write_side_by_side(
        self, jobs: Sequence[Job], fill: Callable[[Sequence[int]], None]
    ) -> bool:
        """Write several files with one call of ``fill``, which gets their descriptors.

        Returns:
            False if one of them cannot be written. None is left then, and the caller writes each
            with ``write``, which knows what the error means.
        """
        opened: list[tuple[Written, int]] = []
        done: list[Written] = []
        left: list[int] = []
        is_complete = False
        try:
            for job in jobs:
                temporary = self.new_name()
                fd = os.open(temporary, _OPEN_TEMPORARY, 0o600, dir_fd=job.directory.fd)
                opened.append((Written(job, temporary), fd))
                left.append(fd)
            fill([fd for _, fd in opened])
            for file, fd in opened:
                bare = self._is_bare(file.job)
                refused = apply_metadata(fd, file.job.entry, os.fstat(fd), bare=bare)
                done.append(file._replace(refused=tuple(refused)))
            while left:
                os.close(left.pop())  # some file systems say only now that a write has failed
            is_complete = True
        except OSError:
            return False
        finally:
            for fd in left:
                with contextlib.suppress(OSError):
                    os.close(fd)
            if not is_complete:
                for file, _ in opened:
                    discard(file)
        for file in done:
            self._complete(file)
        return True

    def write_together(self, files: Sequence[tuple[Job, bytes | memoryview]]) -> None:
        """Write whole files, each as ``write`` does: at most ``TOGETHER``.

        The compiled core writes them without the interpreter's lock. A file that it cannot write is
        left to ``write``, which knows what the error means.

        Raises:
            TargetError: The target's file system failed.
        """
        compiled = core()
        left = files
        if compiled is not None:
            bare = [file for file in files if self._is_bare(file[0])]
            left = [file for file in files if not self._is_bare(file[0])]
            names = [self.new_name() for _ in bare]
            errors = compiled.functions.files_create(
                [_as_new(name, *one) for name, one in zip(names, bare, strict=True)]
            )
            for name, one, error in zip(names, bare, errors, strict=True):
                if error:
                    left.append(one)
                else:
                    self._complete(Written(one[0], name))
        for job, data in left:
            self.write(job, functools.partial(_write_content, data))

    def _complete(self, file: Written) -> None:
        size_bytes = file.job.entry.size_bytes
        with self._lock:
            self.written.append(file)
            self.written_bytes += size_bytes - file.cloned_bytes
        self._ledger.filled(size_bytes)

    def _is_bare(self, job: Job) -> bool:
        """Return whether neither the new file nor the entry has extended attributes."""
        return not job.entry.xattrs and not self._has_default_acl(job.directory)

    def _has_default_acl(self, directory: DirectoryHandle) -> bool:
        """New files in this directory inherit an ACL."""
        # Most files follow another of the same directory; a pair is read and written in one step.
        latest, answer = self._latest_acl
        if latest is directory:
            return answer
        known = self._default_acls.get(directory)
        if known is None:
            names = [name for name, _ in read_xattrs(directory.fd)]
            known = self._default_acls[directory] = b"system.posix_acl_default" in names
        self._latest_acl = (directory, known)
        return known


def _as_new(
    name: bytes, job: Job, data: bytes | memoryview
) -> tuple[int, bytes, bytes | memoryview, int, int, int, int]:
    """Return a file as the compiled core takes it."""
    entry = job.entry
    mode = stat.S_IMODE(entry.mode)
    return job.directory.fd, name, data, mode, entry.uid, entry.gid, entry.mtime_ns


def _write_content(data: bytes | memoryview, fd: int) -> int:
    write_all(fd, data, 0)
    return 0


def discard(file: Written) -> None:
    """Remove a temporary file. If that fails, the next restore into its directory removes it."""
    with contextlib.suppress(OSError):
        os.unlink(file.temporary, dir_fd=file.job.directory.fd)
