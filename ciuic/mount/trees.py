"""Tree nodes, decoded once and kept while they are used, in bounded memory."""

import contextlib
import itertools
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from ciuic.errors import StoreError
from ciuic.ids import ChunkId
from ciuic.model import Entry
from ciuic.store.packs.reader import StoreReader
from ciuic.store.records.kinds import TREE
from ciuic.store.records.nodes import Child, child_with, index_children
from ciuic.store.records.tree_nodes import iter_tree, leaf_entries

__all__ = ["Trees"]

_ENTRIES_MAX: Final = 40_000
"""Of all leaves that are kept decoded: about 30 MB."""
_CHILDREN_MAX: Final = 100_000
_LISTED_MAX: Final = 1024
"""The most entries of a list."""

Item = TypeVar("Item")


class _Kept(Generic[Item]):
    """The values that were used last, as long as their sizes add up to at most ``size_max``."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._size = 0
        self._values: OrderedDict[ChunkId, tuple[int, Item]] = OrderedDict()

    def get(self, key: ChunkId) -> Item | None:
        found = self._values.get(key)
        if found is None:
            return None
        self._values.move_to_end(key)
        return found[1]

    def put(self, key: ChunkId, size: int, value: Item) -> None:
        self._values[key] = size, value
        self._size += size
        while self._size > self._size_max and len(self._values) > 1:
            _, (old, _) = self._values.popitem(last=False)
            self._size -= old


class Trees:
    """The trees of a store. For one thread.

    Directories that are the same in several snapshots have the same nodes, and are decoded once.
    """

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self._get = reader.node
        self._leaves: _Kept[dict[bytes, Entry]] = _Kept(_ENTRIES_MAX)
        self._indexes: _Kept[list[Child]] = _Kept(_CHILDREN_MAX)

    def find(self, directory: Entry, name: bytes) -> Entry | None:
        """Return an entry of a directory by its name; None if there is none.

        Raises:
            CorruptionError: A node on the way is damaged.
        """
        if not directory.content:
            return None
        node_id = ChunkId(directory.content)
        for level in range(directory.level, 0, -1):
            child = child_with(self._children(node_id, level), name)
            if child is None:
                return None
            node_id = child
        return self._leaf(node_id).get(name)

    def entries(self, directory: Entry) -> Iterator[list[Entry]]:
        """Iterate over the entries of a directory in the order of their names, in lists.

        Raises:
            CorruptionError: The directory is damaged.
        """
        if not directory.content:
            return
        node_id = ChunkId(directory.content)
        if directory.level == 0:
            # The program that asked for the names looks up its entries next.
            found = iter(self._leaf(node_id).values())
        else:
            found = iter_tree(self._get, node_id, directory.level)
        while entries := list(itertools.islice(found, _LISTED_MAX)):
            self._look_up_directories(entries)
            yield entries

    def _look_up_directories(self, entries: list[Entry]) -> None:
        """Look up the trees of directories together: ``find`` reads them next."""
        below = [ChunkId(entry.content) for entry in entries if entry.is_directory]
        if len(below) > 1:
            with contextlib.suppress(StoreError):  # the names are there without it
                self._reader.prepare_reads(self._reader.places([one for one in below if one]))

    def _leaf(self, node_id: ChunkId) -> dict[bytes, Entry]:
        found = self._leaves.get(node_id)
        if found is None:
            found = {entry.name: entry for entry in leaf_entries(self._get(TREE, node_id))}
            self._leaves.put(node_id, len(found) + 1, found)
        return found

    def _children(self, node_id: ChunkId, level: int) -> list[Child]:
        found = self._indexes.get(node_id)
        if found is None:
            found = index_children(self._get(TREE, node_id), level)
            self._indexes.put(node_id, len(found) + 1, found)
        return found
