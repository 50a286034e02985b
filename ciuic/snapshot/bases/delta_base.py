"""Find the last version of a file that is being stored; its chunks may become delta bases.

Files are matched by role, not by path: ``step_600.pt`` follows ``step_500.pt``, and
``global_step600/rank_0.pt`` follows ``global_step500/rank_0.pt``. If no name matches, a file
follows a file of nearly the same length, or else the file that shares the most tensors with it, by
name and length. The ``.metadata`` file of a distributed checkpoint gives the names of the tensors
in the checkpoint's files, for both versions.

This only finds candidates. Whether a chunk is stored as a delta is decided by its bytes: a wrong
guess costs reading one chunk.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.formats.headers import Part, Span
from ciuic.formats.names import called_by_parts
from ciuic.formats.torch_pickle import parts
from ciuic.model import Entry
from ciuic.snapshot.bases.last_version import LastVersion, Names
from ciuic.snapshot.bases.new_version import NewVersion
from ciuic.snapshot.bases.old_directory import OldDirectory, PartsOfBoth
from ciuic.store.packs.reader import StoreReader

__all__ = ["DISTCP", "DeltaBases"]

DISTCP: Final = b".distcp"


class _Tensors(NamedTuple):
    """The tensors of a file that is being stored.

    Attributes:
        reader: Reader of the store.
        new: The file.
        named: Its tensors, with the names from METADATA if both versions have them.
        old_parts: The parts in the files of the last version, by file name, if ``named`` has names
            from METADATA.
    """

    reader: StoreReader
    new: NewVersion
    named: Sequence[Span] | None
    old_parts: Mapping[str, list[Part]]

    def last_version(self, old: Entry) -> LastVersion:
        """Return the chunks of a file that may be the last version."""
        held = self.old_parts.get(os.fsdecode(old.name), [])
        spans = self.named if held else self.new.spans
        return LastVersion(self.reader, old, Names(self.new, spans, held) if spans else None)


class DeltaBases:
    """Finds the last versions of the files of one directory. Several threads may use it.

    Args:
        directory: The directory, as the parent snapshot has it.
    """

    def __init__(self, directory: OldDirectory) -> None:
        self._directory = directory
        self._reader = directory.reader

    def file(self, new: NewVersion) -> LastVersion | None:
        """Return the chunks of the last version of a regular file; None if none is found."""
        names = self._directory.names()
        same = names.of_role(new.name, is_directory=False)
        entry = same or names.renamed(new.name, new.size_bytes)
        tensors = self._tensors(new, names.metadata)
        found = tensors.last_version(entry) if entry is not None else None
        if same is not None or not new.spans or (found is not None and found.shared_bytes):
            return found
        others = [tensors.last_version(other) for other in names.others(new.name)]
        best = max(others, key=lambda version: version.shared_bytes, default=None)
        return best if best is not None and best.shared_bytes else found

    def _tensors(self, new: NewVersion, metadata: Entry | None) -> _Tensors:
        """Return how the tensors of a file are named in both versions."""
        if new.spans and new.name.endswith(DISTCP) and metadata is not None:
            new_parts, old_parts = self._parts_of_both(new, metadata)
            own = new_parts.get(os.fsdecode(new.name), [])
            # Names from METADATA help only if both versions have them.
            if own:
                return _Tensors(self._reader, new, called_by_parts(new.spans, own), old_parts)
        return _Tensors(self._reader, new, new.spans, {})

    def _parts_of_both(self, new: NewVersion, old: Entry) -> PartsOfBoth:
        directory = self._directory
        with directory.lock:
            if directory.parts is None:
                directory.parts = parts(new.metadata()), self._old_parts(old)
            return directory.parts

    def _old_parts(self, metadata: Entry) -> dict[str, list[Part]]:
        try:
            stored = LastVersion(self._reader, metadata)
            return parts(stored.read(0, metadata.size_bytes))
        except (CorruptionError, UnknownFormatError):
            return {}
