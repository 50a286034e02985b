"""The tasks that resolve the entries of regular files, by passing the files to the readers."""

import os
from collections.abc import Callable
from typing import Final

from ciuic.ids import ChunkId
from ciuic.model import UNREADABLE, Entry
from ciuic.snapshot.read.source_file import SourceFile
from ciuic.snapshot.walk.pending import EntryTask, PendingEntry
from ciuic.snapshot.walk.reader_start import Readers, Reading
from ciuic.snapshot.walk.walked_directory import FoundEntry
from ciuic.source.directory import DirectoryHandle
from ciuic.store.index.chunk_index import ChunkIndex

__all__ = ["CopyTask", "LargeTask", "LookupTask", "SmallTask", "copied_entry"]

BATCH_BYTES: Final = 512 * 1024
BATCH_FILES: Final = 256
_LOOKUP_FILES: Final = 500


_Origin = tuple[DirectoryHandle, os.stat_result, bool]
"""How to read an unchanged file: its directory, its status, and whether it is frozen."""


class SmallTask(EntryTask):
    """Small files that are read and stored together.

    Args:
        readers: Read and store them.
        directories_max: Number of directories that the batch may keep open.
    """

    def __init__(self, readers: Readers, directories_max: int) -> None:
        super().__init__()
        self._readers = readers
        self._directories_max = directories_max
        self._files: list[SourceFile] = []
        self._pending: list[PendingEntry] = []
        self._directories: set[int] = set()
        self._size_bytes = 0
        self._future: Reading[list[Entry | None]] | None = None

    @property
    def is_full(self) -> bool:
        """No further file should be added."""
        return (
            self._size_bytes >= BATCH_BYTES
            or len(self._files) >= BATCH_FILES
            or len(self._directories) >= self._directories_max
        )

    def add(self, file: SourceFile, size_bytes: int) -> PendingEntry:
        """Add a file to the batch."""
        pending = PendingEntry(self)
        self._files.append(file)
        self._pending.append(pending)
        self._directories.add(file.directory.fd)
        self._size_bytes += size_bytes
        return pending

    def _submit(self) -> None:
        # Drop the files now: they keep their directories open.
        files, self._files = self._files, []
        self._future = self._readers.submit_small(files)

    def _is_done(self) -> bool:
        return self._future is not None and self._future.done()

    def _resolve(self) -> None:
        if self._future is None:
            return
        entries, self._future = self._future.result(), None
        pending, self._pending = self._pending, []
        for waiting, entry in zip(pending, entries, strict=True):
            waiting.resolve(entry)


class LargeTask(EntryTask):
    """One file that is read block by block."""

    def __init__(self, readers: Readers, file: SourceFile) -> None:
        super().__init__()
        self._readers = readers
        self._file: SourceFile | None = file
        self._future: Reading[Entry | None] | None = None
        self.pending = PendingEntry(self)

    def _submit(self) -> None:
        if self._file is not None:
            self._future = self._readers.submit_large(self._file)
        self._file = None

    def _is_done(self) -> bool:
        return self._future is not None and self._future.done()

    def _resolve(self) -> None:
        if self._future is not None:
            self.pending.resolve(self._future.result())
        self._future = None


class LookupTask(EntryTask):
    """Unchanged files of one chunk each: the parent's entry holds if the store has that chunk.

    Args:
        readers: Read and store the files whose chunk is missing.
        index: Of the store.
        directories_max: Number of directories that the batch may keep open.
    """

    def __init__(self, readers: Readers, index: ChunkIndex, directories_max: int) -> None:
        super().__init__()
        self._readers = readers
        self._index = index
        self._directories_max = directories_max
        self._lookups: list[tuple[Entry, PendingEntry, _Origin]] = []
        self._directories: set[int] = set()
        self._missing: list[tuple[Reading[Entry | None], PendingEntry]] = []

    def add(
        self, directory: DirectoryHandle, old: Entry, status: os.stat_result, *, is_frozen: bool
    ) -> PendingEntry:
        """Add a file to the batch, and start the batch if it is full.

        Args:
            directory: The file's directory.
            old: Its entry in the parent.
            status: Its status.
            is_frozen: See ``SourceFile``.
        """
        pending = PendingEntry(self)
        # Almost no file is read in the end, so its SourceFile is not made here.
        self._lookups.append((old, pending, (directory, status, is_frozen)))
        self._directories.add(directory.fd)
        if len(self._lookups) >= _LOOKUP_FILES or len(self._directories) >= self._directories_max:
            self.start()
        return pending

    def _submit(self) -> None:
        lookups, self._lookups = self._lookups, []
        known = self._index.usable([ChunkId(old.content) for old, _, _ in lookups])
        for old, pending, origin in lookups:
            if old.content in known:
                pending.resolve(old)
            else:
                # One file at a time, like large files: this happens only after damage.
                directory, status, is_frozen = origin
                file = SourceFile(directory, old.name, status, old.link_dev, is_frozen)
                self._missing.append((self._readers.submit_large(file), pending))

    def _is_done(self) -> bool:
        return all(future.done() for future, _ in self._missing)

    def _resolve(self) -> None:
        missing, self._missing = self._missing, []
        for future, pending in missing:
            pending.resolve(future.result())


class CopyTask(EntryTask):
    """Another name of a file: its entry has the content of the first name's entry.

    Args:
        readers: Read and store the file if it could not be read by its first name.
        first: The entry of the first name.
        file: The file by its other name.
        reopened: Returns how to read ``file`` in that case.
    """

    def __init__(
        self,
        readers: Readers,
        first: FoundEntry,
        file: SourceFile,
        reopened: Callable[[SourceFile], SourceFile],
    ) -> None:
        super().__init__()
        self._readers = readers
        self._reopened = reopened
        self._first: FoundEntry | None = first
        self._file: SourceFile | None = file
        self._future: Reading[Entry | None] | None = None
        self.pending = PendingEntry(self)

    def _submit(self) -> None:
        first, file = self._first, self._file
        self._first = self._file = None
        if isinstance(first, PendingEntry):
            first.ready(wait=True)
            first = first.entry
        if file is None:
            return
        if first is None or first.state == UNREADABLE or first.ino != file.status.st_ino:
            # The file could not be read by its first name, or the name is another file's by now.
            self._future = self._readers.submit_large(self._reopened(file))
        else:
            self.pending.resolve(copied_entry(first, file))

    def _is_done(self) -> bool:
        return self._future is None or self._future.done()

    def _resolve(self) -> None:
        if self._future is not None:
            self.pending.resolve(self._future.result())
        self._future = None


def copied_entry(first: Entry, file: SourceFile) -> Entry:
    """Return the entry of another name of a file, with the content of its first name's entry."""
    status = file.status
    return Entry(
        file.name,
        first.mode,
        status.st_uid,
        status.st_gid,
        first.mtime_ns,
        first.ctime_ns,
        status.st_ino,
        first.size_bytes,
        state=first.state,
        content=first.content,
        level=first.level,
        link_dev=file.link_dev,
        xattrs=first.xattrs,
    )
