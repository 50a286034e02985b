"""Files that need nothing from the store: they are right already, or have a reflink copy."""

import os

from ciuic.model import CONSISTENT, Entry
from ciuic.restore.place.job import Job, Pass, open_present
from ciuic.restore.place.target import apply_metadata, same_metadata
from ciuic.restore.place.temporary_files import TemporaryFiles
from ciuic.source.directory import DirectoryHandle, read_xattrs
from ciuic.source.stability import is_settled
from ciuic.system.hashing import data_id

__all__ = ["PresentFiles"]


class _NotClonedError(Exception):
    """A reflink copy could not be used after all. The file comes from the store."""


class PresentFiles:
    """Compares the target with the snapshot. All methods may be called from several threads."""

    def __init__(self, run: Pass, files: TemporaryFiles) -> None:
        self._run = run
        self._files = files

    def settle(self, job: Job) -> bool:
        """Keep a file that is right, or write it from its reflink copy; False if neither works.

        A large file is compared with the store elsewhere, chunk by chunk.
        """
        if _is_untouched(job, self._run.taken_ns):
            self._run.ledger.kept(job.entry.size_bytes)
            return True
        if self._settle_from_copy(job):
            return True
        return not job.entry.level and job.present is not None and self._has_content(job)

    def keep(self, job: Job, fd: int) -> bool:
        """Correct the metadata of a file whose content is right. False: it must be written again.

        An inode with several names is not changed, unless it is the inode of the snapshot: its
        other names may be outside the restored paths.
        """
        run = self._run
        status = os.fstat(fd)
        if not same_metadata(job.entry, status) or job.entry.xattrs != read_xattrs(fd):
            is_own = job.entry.link_dev and status.st_ino == job.entry.ino
            if status.st_nlink > 1 and not is_own:
                return False
            if not run.dry_run:
                run.ledger.refused(job.path, apply_metadata(fd, job.entry, status))
            run.ledger.corrected()
        run.ledger.kept(job.entry.size_bytes)
        return True

    def clonable_bytes(self, path: bytes, entry: Entry, directory: DirectoryHandle) -> int:
        """Return how many bytes of a new file in this directory a reflink copy would give."""
        copies = self._run.copies
        copy_fd = copies.open(path, entry) if copies is not None else None
        if copies is None or copy_fd is None:
            return 0
        try:
            return entry.size_bytes if copies.shares_blocks(copy_fd, directory) else 0
        finally:
            os.close(copy_fd)

    def _settle_from_copy(self, job: Job) -> bool:
        """Keep a file that equals its reflink copy, or share the copy's blocks; False for neither.

        A failure here is not an error: the store has the file as well.
        """
        run = self._run
        copy_fd = run.copies.open(job.path, job.entry) if run.copies is not None else None
        if run.copies is None or copy_fd is None:
            return False
        try:
            if not run.copies.shares_blocks(copy_fd, job.directory):
                return False
            if self._equals_copy(job, copy_fd):
                return True
            if run.dry_run:
                run.ledger.would_write(job.path, job.entry, cloned_bytes=job.entry.size_bytes)
                return True
            return self._clone(job, copy_fd)
        finally:
            os.close(copy_fd)

    def _equals_copy(self, job: Job, copy_fd: int) -> bool:
        """Return whether the present file has the copy's bytes, and its metadata is right now."""
        from ciuic.view.reflinks import has_same_bytes  # the run has it: there is a copy

        fd = open_present(job)
        if fd < 0:
            return False
        try:
            return has_same_bytes(copy_fd, fd) and self.keep(job, fd)
        except OSError:
            return False
        finally:
            os.close(fd)

    def _clone(self, job: Job, copy_fd: int) -> bool:
        from ciuic.view.reflinks import share_blocks

        def fill(fd: int) -> int:
            if not share_blocks(copy_fd, fd):
                raise _NotClonedError
            return job.entry.size_bytes

        try:
            self._files.write(job, fill)
        except _NotClonedError:
            return False
        return True

    def _has_content(self, job: Job) -> bool:
        """Return whether the present file has the entry's content, which is one chunk."""
        if job.present is None or job.present.st_size != job.entry.size_bytes:
            return False
        fd = open_present(job)
        if fd < 0:
            return False
        try:
            data = os.pread(fd, job.entry.size_bytes + 1, 0)
            if len(data) != job.entry.size_bytes or (data and data_id(data) != job.entry.content):
                return False
            return self.keep(job, fd)
        except OSError:
            # Reading the file or setting its metadata failed: write it again.
            return False
        finally:
            os.close(fd)


def _is_untouched(job: Job, taken_ns: int) -> bool:
    """Return whether the file is the inode of the snapshot, and has not changed since."""
    present, entry = job.present, job.entry
    return (
        present is not None
        and entry.state == CONSISTENT
        and present.st_ino == entry.ino
        and present.st_ctime_ns == entry.ctime_ns
        and present.st_mtime_ns == entry.mtime_ns
        and present.st_size == entry.size_bytes
        and present.st_mode == entry.mode
        and is_settled(entry.mtime_ns, entry.ctime_ns, taken_ns)
    )
