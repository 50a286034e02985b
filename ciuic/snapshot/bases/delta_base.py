"""Find the last version of a file that is being stored; its chunks may become delta bases.

Files are matched by role, not by path: ``step_600.pt`` follows ``step_500.pt``, and
``global_step600/rank_0.pt`` follows ``global_step500/rank_0.pt``. If no name matches, a file
follows a file of nearly the same length, or else the file that shares the most tensors with it, by
name and length. The ``.metadata`` file of a distributed checkpoint gives the names of the tensors
in the checkpoint's files, for both versions.

This only finds candidates. Whether a chunk is stored as a delta is decided by its bytes: a wrong
guess costs reading one chunk.
"""

import contextlib
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.formats.headers import Span
from ciuic.formats.names import NAMES_BYTES_MAX, called_by_parts
from ciuic.formats.torch_pickle import Part, parts
from ciuic.ids import ChunkId
from ciuic.model import CONSISTENT, Entry
from ciuic.snapshot.bases.last_version import LastVersion, Names
from ciuic.snapshot.bases.new_version import NewVersion
from ciuic.snapshot.bases.role_names import RoleNames
from ciuic.store.packs.reader import StoreReader
from ciuic.store.records.tree_nodes import iter_tree

__all__ = ["DISTCP", "METADATA", "DeltaBases"]

METADATA: Final = b".metadata"
DISTCP: Final = b".distcp"

_FILE_BYTES_MIN: Final = 64 * 1024
_NAMES_MAX: Final = 10_000
"""Maximum number of names from one directory; a directory with more large files does not name them
by steps."""

_PartsOfBoth = tuple[dict[str, list[Part]], dict[str, list[Part]]]
"""The parts in the files of a distributed checkpoint, by file name: in the new version, and in the
last one."""


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
    """The last versions of the files of one directory.

    The old directory is read when the first file is looked up: most directories have no large
    changed file. Several threads may call the methods.

    Args:
        reader: Reader of the store.
        old: The parent snapshot's entry at the same path, if it is a directory.
        above: Else, the parent directory's ``DeltaBases`` and the name of this directory there, to
            find an old directory with the same role.
    """

    def __init__(
        self,
        reader: StoreReader,
        old: Entry | None,
        above: "tuple[DeltaBases, bytes] | None" = None,
    ) -> None:
        self._reader = reader
        self._old = old
        self._above = above
        self._lock = threading.Lock()
        self._names: RoleNames | None = None
        self._parts: _PartsOfBoth | None = None

    def file(self, new: NewVersion) -> LastVersion | None:
        """Return the chunks of the last version of a regular file; None if none is found."""
        names = self._all()
        same = names.of_role(new.name, is_directory=False)
        entry = same or names.renamed(new.name, new.size_bytes)
        tensors = self._tensors(new, names.metadata)
        found = tensors.last_version(entry) if entry is not None else None
        if same is not None or not new.spans or (found is not None and found.shared_bytes):
            return found
        others = [tensors.last_version(other) for other in names.others(new.name)]
        best = max(others, key=lambda version: version.shared_bytes, default=None)
        return best if best is not None and best.shared_bytes else found

    def _tensors(self, new: NewVersion, metadata: Entry | None) -> "_Tensors":
        """Return how the tensors of a file are named in both versions."""
        if new.spans and new.name.endswith(DISTCP) and metadata is not None:
            new_parts, old_parts = self._parts_of_both(new, metadata)
            own = new_parts.get(os.fsdecode(new.name), [])
            # Names from METADATA help only if both versions have them.
            if own:
                return _Tensors(self._reader, new, called_by_parts(new.spans, own), old_parts)
        return _Tensors(self._reader, new, new.spans, {})

    def _parts_of_both(self, new: NewVersion, old: Entry) -> "_PartsOfBoth":
        with self._lock:
            if self._parts is None:
                self._parts = parts(new.metadata()), self._old_parts(old)
            return self._parts

    def _old_parts(self, metadata: Entry) -> dict[str, list[Part]]:
        try:
            stored = LastVersion(self._reader, metadata)
            return parts(stored.read(0, metadata.size_bytes))
        except (CorruptionError, UnknownFormatError):
            return {}

    def directory(self, name: bytes, old: Entry | None) -> "DeltaBases":
        """Return the ``DeltaBases`` of a subdirectory.

        Args:
            name: The subdirectory's name.
            old: The parent snapshot's entry at its path, if there is one.
        """
        if old is not None and old.is_directory:
            return DeltaBases(self._reader, old)
        return DeltaBases(self._reader, None, (self, name))

    def _all(self) -> "RoleNames":
        """Read the old directory, and those above it if needed; a loop, as trees may be deep."""
        unread = [self]
        while unread[-1]._names is None and unread[-1]._above is not None:
            unread.append(unread[-1]._above[0])
        names = RoleNames()
        for bases in reversed(unread):
            with bases._lock:
                if bases._names is None:
                    bases._names = bases._read(names)
            names = bases._names
        return names

    def _read(self, above: "RoleNames") -> "RoleNames":
        names = RoleNames()
        top = self._old
        if self._above is not None:
            top = above.of_role(self._above[1], is_directory=True)
        if top is None or not top.content:
            return names
        # If the old directory is damaged, the entries that can be read still help.
        with contextlib.suppress(CorruptionError):
            for entry in iter_tree(self._reader.node, ChunkId(top.content), top.level):
                is_file = entry.is_file and entry.size_bytes >= _FILE_BYTES_MIN
                if entry.content and entry.state == CONSISTENT and (is_file or entry.is_directory):
                    names.add(entry)
                if entry.name == METADATA and _is_readable_metadata(entry):
                    names.metadata = entry
                if names.count >= _NAMES_MAX:
                    break
        return names


def _is_readable_metadata(metadata: Entry) -> bool:
    if not metadata.is_file or not metadata.content or metadata.state != CONSISTENT:
        return False
    return metadata.size_bytes <= NAMES_BYTES_MAX
