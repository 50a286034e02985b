"""The queue between the walk and the reader threads: which files are read together, and when.

Live files are read as soon as a batch is full. Frozen files wait until the end of the walk, so that
the freeze does not wait for readers.
"""

import os
from collections.abc import Callable
from typing import Final

from ciuic.model import Entry
from ciuic.snapshot.read.parent_nodes import can_reuse
from ciuic.snapshot.read.source_file import SourceFile
from ciuic.snapshot.walk.entry_tasks import CopyTask, LargeTask, LookupTask, SmallTask
from ciuic.snapshot.walk.pending import EntryTask, PendingEntry
from ciuic.snapshot.walk.reader_start import LateReaders
from ciuic.snapshot.walk.walked_directory import FoundEntry
from ciuic.source.directory import DirectoryHandle
from ciuic.store.store import Store
from ciuic.system.hashing import ID_BYTES

__all__ = ["ReadQueue"]

_BATCH_DIRECTORIES: Final = 64
"""A batch keeps the directories of its files open."""
_HELD_DIRECTORIES: Final = 1000
"""Maximum number of directories that stay open for waiting files and for hard links."""


class ReadQueue:
    """Files that wait to be read.

    Args:
        store: The store, which is asked for known chunks.
        content: Reads and stores the files.
        open_files: Number of files that this process can still open; a quarter is for batches,
            another quarter for the directories of waiting files.
    """

    def __init__(self, store: Store, content: LateReaders, open_files: int) -> None:
        self._store = store
        self._content = content
        share = open_files // 4
        self._batch_directories = min(_BATCH_DIRECTORIES, share // content.batches_max)
        self._held_max = min(_HELD_DIRECTORIES, share)
        self._small = self._new_small()
        self._lookup = self._new_lookup()
        self._held_copies: SmallTask | None = None
        self._held: list[EntryTask] = []
        self._copies: list[EntryTask] = []
        self._held_directories: set[int] = set()

    def release(self) -> None:
        """Start to read the waiting files, oldest first; then resolve the other names of files."""
        held, self._held = self._held, []
        copies, self._copies = self._copies, []
        self._held_directories = set()
        for task in (*held, *copies):
            task.start()

    def read(self, file: SourceFile) -> PendingEntry:
        """Read a file that is new or changed."""
        status = file.read_status
        if not self._content.is_small(status):
            return self._large(file)
        if file.reflink_copy is not None:
            return self._small_copy(file, status.st_size)
        if self._small.is_started:
            self._small = self._new_small()
        pending = self._small.add(file, status.st_size)
        if self._small.is_full:
            self._small.start()
        return pending

    def reuse(
        self, directory: DirectoryHandle, old: Entry, status: os.stat_result, *, is_frozen: bool
    ) -> FoundEntry:
        """Reuse the parent's entry after a check that the store still has its content.

        Args:
            directory: The directory of the unchanged file.
            old: Its entry in the parent, with the ``link_dev`` of now.
            status: Its status.
            is_frozen: See ``SourceFile``.
        """
        content = old.content
        if not content:
            return old
        if old.level == 0 and len(content) == ID_BYTES:
            if self._lookup.is_started:
                self._lookup = self._new_lookup()
            return self._lookup.add(directory, old, status, is_frozen=is_frozen)
        if can_reuse(self._store, old):
            return old
        return self._large(SourceFile(directory, old.name, status, old.link_dev, is_frozen))

    def copy(
        self,
        first: FoundEntry,
        file: SourceFile,
        reopened: Callable[[SourceFile], SourceFile],
    ) -> PendingEntry:
        """Give another name of a file the content of its first name; see ``CopyTask``."""
        task = CopyTask(self._content, first, file, reopened)
        self._copies.append(task)
        self._hold(file)
        return task.pending

    def _new_small(self) -> SmallTask:
        return SmallTask(self._content, self._batch_directories)

    def _new_lookup(self) -> LookupTask:
        return LookupTask(self._content, self._store.index, self._batch_directories)

    def _small_copy(self, file: SourceFile, size_bytes: int) -> PendingEntry:
        batch = self._held_copies
        if batch is None or batch.is_started or batch.is_full:
            batch = self._held_copies = self._new_small()
            self._held.append(batch)
        pending = batch.add(file, size_bytes)
        self._hold(file)
        return pending

    def _large(self, file: SourceFile) -> PendingEntry:
        task = LargeTask(self._content, file)
        if file.is_still:
            self._held.append(task)
            self._hold(file)
        else:
            task.start()
        return task.pending

    def _hold(self, file: SourceFile) -> None:
        """Keep the directory of a waiting file open; if too many are open, stop waiting."""
        self._held_directories.add(file.directory.fd)
        if len(self._held_directories) > self._held_max:
            self.release()
