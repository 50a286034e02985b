"""Find the last version of a file in the newest snapshots of its root.

A snapshot may lack the file: a training program saves its weights more often than its optimizer.
"""

import dataclasses
from collections.abc import Sequence
from typing import Final

from ciuic.errors import CorruptionError
from ciuic.formats.headers import Span
from ciuic.ids import ChunkId
from ciuic.model import Entry, SnapshotSummary
from ciuic.snapshot.bases.delta_base import DeltaBases
from ciuic.snapshot.bases.last_version import LastVersion
from ciuic.snapshot.bases.old_directory import OldDirectory
from ciuic.store.records.tree_nodes import Lookup, read_root
from ciuic.store.store import Store

__all__ = ["EarlierFiles"]

_SEARCHED_MAX: Final = 10
"""Snapshots that are searched for a file."""


@dataclasses.dataclass(frozen=True, slots=True)
class _InMemory:
    """A file that is given in memory: it has no pickle and no ``METADATA``. See ``NewVersion``."""

    name: bytes
    size_bytes: int
    spans: tuple[Span, ...] | None

    def spans_by_pickle(self) -> None:
        """See ``NewVersion``."""

    def metadata(self) -> bytes:
        """See ``NewVersion``."""
        return b""


class EarlierFiles:
    """The last versions of files, in the newest snapshots of the same root.

    Args:
        store: The store.
        root: The root.
        snapshots: The snapshots of the store, newest first.
    """

    def __init__(self, store: Store, root: bytes, snapshots: Sequence[SnapshotSummary]) -> None:
        self._store, self._root = store, root
        of_root = [summary for summary in snapshots if root in summary.roots]
        self._snapshots = of_root[:_SEARCHED_MAX]
        self._directories: dict[tuple[str, bytes], Entry | None] = {}

    def find(
        self, above: bytes, name: bytes, size_bytes: int, spans: tuple[Span, ...] | None
    ) -> LastVersion | None:
        """Return the newest version of a file; None if there is none."""
        for snapshot in self._snapshots:
            directory = self._directory(snapshot, above)
            if directory is None or not self._has(directory, name):
                continue
            bases = DeltaBases(OldDirectory(self._store.reader, directory))
            return bases.file(_InMemory(name, size_bytes, spans))
        return None

    def _directory(self, snapshot: SnapshotSummary, path: bytes) -> Entry | None:
        key = snapshot.id, path
        if key not in self._directories:
            try:
                self._directories[key] = self._read_directory(snapshot, path)
            except CorruptionError:  # a damaged snapshot costs delta bases, and no more
                self._directories[key] = None
        return self._directories[key]

    def _read_directory(self, snapshot: SnapshotSummary, path: bytes) -> Entry | None:
        trees = {root.path: root.tree for root in self._store.manifest(snapshot.id).roots}
        found: Entry | None = read_root(self._store.reader.node, trees[self._root])
        for name in path.split(b"/")[:-1]:
            if found is None or not found.is_directory:
                return None
            found = self._find(found, name)
        return found

    def _has(self, directory: Entry, name: bytes) -> bool:
        try:
            return self._find(directory, name) is not None
        except CorruptionError:
            return False

    def _find(self, directory: Entry, name: bytes) -> Entry | None:
        if not directory.is_directory or not directory.content:
            return None
        get = self._store.reader.node
        return Lookup(get, ChunkId(directory.content), directory.level).find(name)
