"""Adds up a store's bytes by directory, by file name suffix or by age.

A chunk counts for the first group that has it: newer snapshots come before older ones, then paths
in their order. So the groups add up to the bytes of the snapshots. A second number counts the
chunks that no other group needs: removing the group frees them. A group that needs a delta also
needs its delta base.

Memory: that of ``chunk_owners``, and a few numbers for each directory that is a group, regardless
of the number of files.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from ciuic.documents import Document
from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.ids import ChunkId, SnapshotId
from ciuic.model import Entry, SnapshotSummary, path_text
from ciuic.report.chunk_owners import ChunkOwners, Share
from ciuic.store.records.recipe_nodes import iter_pieces
from ciuic.store.store import Store
from ciuic.view.listing import children, walk
from ciuic.view.located import Located, root_entry
from ciuic.view.tree_walk import PathBudget

__all__ = ["AGES", "By", "Shares", "find_shares"]

By: TypeAlias = Literal["path", "kind", "age"]

_DAY_NS: Final = 86_400 * 10**9
AGES: Final = (
    ("last day", _DAY_NS),
    ("last week", 7 * _DAY_NS),
    ("last month", 30 * _DAY_NS),
    ("last year", 365 * _DAY_NS),
)
"""The groups by time of last modification."""
_OLDER: Final = "older"
_NO_KIND: Final = "(none)"
_UNIT_DEPTH: Final = 2
"""By kind and age: a directory at this depth is walked once for all snapshots that share it."""


@dataclass(slots=True)
class Shares:
    """All groups by name, and the number of directories and files that could not be read."""

    groups: dict[str, Share]
    unread_count: int

    def as_json(self, by: By) -> Document:
        """Return the fields of the document of ``ciuic stats --by``; the largest group first."""
        ordered = sorted(self.groups.items(), key=lambda item: (-item[1].stored_bytes, item[0]))
        return {
            "by": by,
            "groups": [{by: name, **share.as_json()} for name, share in ordered],
            "trouble_count": self.unread_count,
        }


def find_shares(
    store: Store,
    snapshots: list[SnapshotSummary],
    *,
    by: By,
    depth: int,
    now_ns: int,
    progress: Callable[[int, int, bytes], None] = lambda *_: None,
) -> Shares:
    """Group the files of some snapshots and add up their bytes, the newest snapshot first.

    Args:
        store: An open store.
        snapshots: The snapshots to examine.
        by: How files are grouped.
        depth: By path: how far below its root a group's directory is; 0 for the roots themselves.
        now_ns: The time that ages are measured from.
        progress: Receives the files and bytes that are done, and the next path.

    Raises:
        StoreError: The chunk index cannot be read.
    """
    owners = ChunkOwners(store)
    counter = _Counter(store, owners, by=by, depth=depth, now_ns=now_ns, progress=progress)
    for snapshot in snapshots:
        counter.add(snapshot.id)
    owners.flush()
    owners.follow_delta_bases(store)
    owners.add_to(list(counter.groups.values()))
    return Shares(counter.groups, counter.unread_count)


class _Counter:
    """Walks snapshots; of a directory that was walked before, only the sums are added again."""

    def __init__(
        self,
        store: Store,
        owners: ChunkOwners,
        *,
        by: By,
        depth: int,
        now_ns: int,
        progress: Callable[[int, int, bytes], None],
    ) -> None:
        self.groups: dict[str, Share] = {}
        self.unread_count = 0
        self._store = store
        self._owners = owners
        self._by = by
        self._unit_depth = depth if by == "path" else _UNIT_DEPTH
        self._now_ns = now_ns
        self._progress = progress
        self._numbers: dict[str, int] = {}
        self._known: dict[tuple[bytes, bytes], dict[str, tuple[int, int]]] = {}
        self._files = self._size_bytes = 0
        self._budget = PathBudget(store.pack_lengths)

    def add(self, snapshot_id: SnapshotId) -> None:
        """Add a snapshot's files."""
        self._budget = PathBudget(self._store.pack_lengths)
        for root in self._store.manifest(snapshot_id).roots:
            if not root.tree:
                continue
            try:
                top = Located(root.path, root_entry(self._store, root))
                self._add_above(top, 0)
            except (CorruptionError, UnknownFormatError):
                self.unread_count += 1

    def _add_above(self, top: Located, depth: int) -> None:
        """Add the files and directories of a directory that is not deep enough to be a group."""
        if depth >= self._unit_depth:
            self._add_unit(top)
            return
        for child in children(self._store, top, depth=depth, budget=self._budget):
            if child.entry.is_directory:
                self._add_above(child, depth + 1)
            elif child.entry.is_file:
                group = self._group(top.path, child)
                self._note(group, 1, child.entry.size_bytes)
                self._add_content(child.entry, group)

    def _add_unit(self, top: Located) -> None:
        key = (top.path, top.entry.content)
        known = self._known.get(key)
        if known is None:
            known = {}
            for file in self._files_below(top):
                group = self._group(top.path, file)
                files, size_bytes = known.get(group, (0, 0))
                known[group] = (files + 1, size_bytes + file.entry.size_bytes)
                self._note(group, 0, 0)
                self._add_content(file.entry, group)
            self._known[key] = known
        for group, (files, size_bytes) in known.items():
            self._note(group, files, size_bytes)

    def _files_below(self, top: Located) -> Iterator[Located]:
        try:
            yield from (file for file in walk(self._store, top, self._budget) if file.entry.is_file)
        except (CorruptionError, UnknownFormatError):
            self.unread_count += 1

    def _group(self, directory: bytes, file: Located) -> str:
        if self._by == "path":
            return path_text(directory)
        if self._by == "kind":
            name = os.path.basename(file.path)
            return path_text(os.path.splitext(name)[1]).lower() or _NO_KIND
        age_ns = self._now_ns - file.entry.mtime_ns
        return next((name for name, within_ns in AGES if age_ns <= within_ns), _OLDER)

    def _note(self, group: str, files: int, size_bytes: int) -> None:
        share = self.groups.get(group)
        if share is None:
            self._numbers[group] = len(self.groups)
            share = self.groups[group] = Share()
        share.files += files
        share.logical_bytes += size_bytes

    def _add_content(self, entry: Entry, group: str) -> None:
        self._files += 1
        self._size_bytes += entry.size_bytes
        self._progress(self._files, self._size_bytes, b"")
        number = self._numbers[group]
        try:
            for piece in iter_pieces(self._store.reader.node, entry):
                if piece.id:
                    used_bytes = piece.start_bytes + piece.length_bytes
                    self._owners.add(ChunkId(piece.id), used_bytes, number)
        except (CorruptionError, UnknownFormatError):
            self.unread_count += 1
