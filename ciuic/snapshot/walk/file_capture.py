"""Capture the regular files of a walk: compare, freeze, queue for the readers."""

import contextlib
import os
import stat
from functools import partial
from typing import Protocol

from ciuic.errors import SourceError
from ciuic.model import Entry
from ciuic.snapshot.read.sinks import Sinks
from ciuic.snapshot.read.source_file import SourceFile
from ciuic.snapshot.walk.read_queue import ReadQueue
from ciuic.snapshot.walk.reader_start import LateReaders
from ciuic.snapshot.walk.unchanged import is_unchanged
from ciuic.snapshot.walk.walked_directory import FoundEntry, WalkedDirectory
from ciuic.source.directory import DirectoryHandle
from ciuic.source.freeze.views import RootView, SubvolumeView

__all__ = ["FileCapture", "FileVisitor", "live_device", "live_link_dev"]


class FileVisitor(Protocol):
    """Handles the regular files of a walk."""

    def enter(self, handle: DirectoryHandle, old: Entry | None) -> None:
        """Note that the walk has opened a directory; ``old`` is the parent's entry at its path."""
        ...

    def visit(
        self, parent: WalkedDirectory, name: bytes, status: os.stat_result, old: Entry | None
    ) -> FoundEntry:
        """Return the entry of a file; ``old`` is the parent's entry at its path."""
        ...

    def visit_other_name(
        self,
        parent: WalkedDirectory,
        name: bytes,
        status: os.stat_result,
        old: Entry | None,
        first: FoundEntry,
    ) -> FoundEntry:
        """Return the entry of another name of a file that the walk has seen before."""
        ...

    def take_unchanged_bytes(self) -> int:
        """Return how many bytes were found to be unchanged since the last call."""
        ...

    def release(self) -> None:
        """Start to read the waiting files."""
        ...


class FileCapture:
    """Captures the files of a snapshot.

    Args:
        content: Stores file contents.
        queue: The files that wait for ``content``.
        skip_unchanged: Files that look unchanged since the parent are not read again.
        keep_copies: Unchanged files must have reflink copies, too.
        sinks: Receive warnings and files being written.
    """

    def __init__(
        self,
        content: LateReaders,
        queue: ReadQueue,
        *,
        skip_unchanged: bool,
        keep_copies: bool,
        sinks: Sinks,
    ) -> None:
        self._content = content
        self._queue = queue
        self._skip_unchanged = skip_unchanged
        self._keep_copies = keep_copies
        self._sinks = sinks
        self._unchanged_bytes = 0

    def enter(self, handle: DirectoryHandle, old: Entry | None) -> None:
        """See ``FileVisitor``."""

    def visit(
        self, parent: WalkedDirectory, name: bytes, status: os.stat_result, old: Entry | None
    ) -> FoundEntry:
        """See ``FileVisitor``."""
        if (
            self._skip_unchanged
            and old is not None
            and is_unchanged(old, status, parent.old_taken_ns)
        ):
            view = parent.view
            old.link_dev = live_link_dev(view, status) if status.st_nlink > 1 else 0
            self._unchanged_bytes += status.st_size
            if self._keep_copies and view.can_copy(status):
                self._keep_copy(parent, old)
            return self._queue.reuse(parent.handle, old, status, is_frozen=view.is_frozen)
        frozen = self._frozen(_source_file(parent, name, status), old, parent.view)
        return self._queue.read(self._with_delta_base(parent, frozen))

    def visit_other_name(
        self,
        parent: WalkedDirectory,
        name: bytes,
        status: os.stat_result,
        old: Entry | None,  # noqa: ARG002 - the content comes from the first name
        first: FoundEntry,
    ) -> FoundEntry:
        """See ``FileVisitor``."""
        file = _source_file(parent, name, status)
        return self._queue.copy(first, file, partial(self._reopened, parent.view))

    def take_unchanged_bytes(self) -> int:
        """See ``FileVisitor``."""
        taken, self._unchanged_bytes = self._unchanged_bytes, 0
        return taken

    def release(self) -> None:
        """See ``FileVisitor``."""
        self._queue.release()

    def _frozen(self, file: SourceFile, old: Entry | None, view: RootView) -> SourceFile:
        """Freeze a changed file if needed, and check whether a program writes to it."""
        if view.previous is not None and old is not None and old.is_file:
            file = file._replace(old=old, previous=view.previous)
        if isinstance(view, SubvolumeView):
            return self._watched(file, view)
        if not view.can_copy(file.status):
            return file
        try:
            copy = view.copy(file.directory.fd, file.name)
        except SourceError:
            return file  # the reader gets the same error and reports it
        except OSError as error:
            what = f"captured in place: {os.strerror(error.errno or 0)}"
            self._sinks.warn(file.path, what, True)
            return file
        if copy.is_being_written:
            inode = (copy.status.st_dev, copy.status.st_ino)
            self._sinks.being_written(file.path, inode, "")
        return file._replace(reflink_copy=copy, is_being_written=copy.is_being_written)

    def _reopened(self, view: RootView, file: SourceFile) -> SourceFile:
        return self._watched(file, view) if isinstance(view, SubvolumeView) else file

    def _watched(self, file: SourceFile, view: SubvolumeView) -> SourceFile:
        """Return a frozen file, or the live one if the frozen one may lack bytes."""
        if view.is_doubtful(file.path, file.status):
            with contextlib.suppress(OSError):
                live = view.open_live(file.directory.path)
                status = live.status(file.name)
                if stat.S_ISREG(status.st_mode):
                    return file._replace(
                        directory=live,
                        status=status,
                        is_frozen=False,
                        frozen_directory=file.directory,
                    )
            what: str | None = "written shortly before the freeze, and gone shortly after it"
        else:
            what = view.why_written(file.path, file.status)
        if what is not None:
            inode = (view.live_device, file.status.st_ino)
            self._sinks.being_written(file.path, inode, what)
            return file._replace(is_being_written=True)
        return file

    def _with_delta_base(self, parent: WalkedDirectory, file: SourceFile) -> SourceFile:
        """Let the reader of a large file find its last version later: the freeze must be short."""
        if parent.delta_bases is None or self._content.is_small(file.read_status):
            return file
        return file._replace(delta_bases=parent.delta_bases)

    @staticmethod
    def _keep_copy(parent: WalkedDirectory, old: Entry) -> None:
        """Make sure that an unchanged file has a reflink copy, for rollbacks."""
        if not parent.view.keep_copy(old):
            with contextlib.suppress(OSError, SourceError):
                parent.view.copy(parent.handle.fd, old.name)


def live_device(view: RootView, status: os.stat_result) -> int:
    """Return ``st_dev`` of the live file; files in a frozen subvolume have another."""
    return view.live_device if isinstance(view, SubvolumeView) else status.st_dev


def live_link_dev(view: RootView, status: os.stat_result) -> int:
    """Return ``link_dev`` for the entry of a file."""
    return live_device(view, status) if status.st_nlink > 1 else 0


def _source_file(parent: WalkedDirectory, name: bytes, status: os.stat_result) -> SourceFile:
    link_dev = live_link_dev(parent.view, status)
    return SourceFile(parent.handle, name, status, link_dev, parent.view.is_frozen)
