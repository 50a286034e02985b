"""Store small files, read whole and in batches."""

from ciuic.errors import SourceError
from ciuic.ids import ChunkId
from ciuic.model import Entry
from ciuic.snapshot.read.large_files import LargeFiles
from ciuic.snapshot.read.reader_context import ReaderContext
from ciuic.snapshot.read.source_file import NO_CONTENT, Recipe, SourceFile
from ciuic.source.small_file import Still, Wanted, read_small, read_together
from ciuic.system.hashing import data_id

__all__ = ["SmallFiles"]


class SmallFiles:
    """Stores batches of small files.

    Args:
        context: The state that the readers share.
        large: Stores files that have grown meanwhile.
    """

    def __init__(self, context: ReaderContext, large: LargeFiles) -> None:
        self._context = context
        self._large = large

    def store(self, files: list[SourceFile]) -> list[Entry | None]:
        """Store files; returns their entries in the same order, None for a file that vanished.

        Raises:
            StoreError: The store failed.
            CancelledError: The snapshot was interrupted.
        """
        self._context.check_stopped()
        entries: list[Entry | None] = []
        chunks: list[tuple[ChunkId, bytes]] = []
        read_bytes = 0
        still = read_together([self._wanted(file) for file in files])
        for file, one in zip(files, still, strict=True):
            try:
                found = self._read(file) if one is None else self._taken(file, one)
            except SourceError as error:
                entries.append(self._large.unreadable(file, error))
                continue
            if found is None:
                entries.append(self._large.store(file))
                continue
            entry, data = found
            entries.append(entry)
            read_bytes += len(data)
            if data:
                chunks.append((ChunkId(entry.content), data))
        if not all(file.is_still for file in files):
            self._context.note_capture()
        self._context.writer.add_data(chunks)
        self._context.count(read_bytes)
        self._context.pace(read_bytes, len(files))
        return entries

    def _wanted(self, file: SourceFile) -> Wanted:
        """Return how to read a file together with others: its reflink copy, if there is one."""
        copy = file.reflink_copy
        if copy is not None:
            return Wanted(copy.directory_fd, copy.name, copy.status.st_size, True, True)
        owned = file.is_owned_by(self._context.uid)
        return Wanted(file.directory.fd, file.name, file.status.st_size, owned, file.is_frozen)

    def _taken(self, file: SourceFile, read: Still) -> tuple[Entry, bytes]:
        """Return the entry and the content of a file that was read together with others."""
        copy, recipe = file.reflink_copy, _recipe(read.data)
        if copy is not None:
            return file.entry(recipe, copy.status, copy.xattrs), read.data
        return file.entry(recipe, read.status, read.xattrs), read.data

    def _read(self, file: SourceFile) -> tuple[Entry, bytes] | None:
        """Return the entry and the content of a file; None if it is no longer small."""
        size_max, copy = self._context.small_bytes, file.reflink_copy
        if copy is not None:
            small = read_small(
                copy.directory_fd, copy.name, bytes_max=size_max, owned=True, frozen=True
            )
            if small is None:
                return None
            return file.entry(_recipe(small.data), copy.status, copy.xattrs), small.data
        owned = file.is_owned_by(self._context.uid)
        small = read_small(
            file.directory.fd, file.name, bytes_max=size_max, owned=owned, frozen=file.is_frozen
        )
        if small is None:
            return None
        is_written = small.is_torn or small.has_writer is True
        if is_written:
            self._context.report_written(file, small.status, is_torn=small.is_torn)
        recipe = _recipe(small.data)
        entry = file.entry(recipe, small.status, small.xattrs, is_being_written=is_written)
        return entry, small.data


def _recipe(data: bytes) -> Recipe:
    return Recipe(data_id(data) if data else NO_CONTENT, 0, len(data))
