"""A part of a directory, without reading all of it."""

import bisect
import itertools
import operator
from collections.abc import Iterator

from ciuic.ids import ChunkId
from ciuic.model import Entry
from ciuic.store.records.kinds import TREE
from ciuic.store.records.nodes import GetNode, index_children
from ciuic.store.records.tree_nodes import leaf_entries
from ciuic.store.store import Store

__all__ = ["entries_after"]


def entries_after(store: Store, directory: Entry, after: bytes, count: int) -> list[Entry]:
    """Return the first entries of a directory whose names come after a name.

    Raises:
        CorruptionError: A node on the way is damaged.
    """
    if not directory.is_directory or not directory.content:
        return []
    found = _from(store.reader.node, ChunkId(directory.content), directory.level, after)
    later = itertools.dropwhile(lambda entry: entry.name <= after, found)
    return list(itertools.islice(later, count))


def _from(get: GetNode, node_id: ChunkId, level: int, name: bytes) -> Iterator[Entry]:
    """Yield the entries from the leaf on that has a name, or would have it."""
    if level == 0:
        yield from leaf_entries(get(TREE, node_id))
        return
    children = index_children(get(TREE, node_id), level)
    first = bisect.bisect_right(children, name, key=operator.attrgetter("first")) - 1
    for child in children[max(first, 0) :]:
        yield from _from(get, child.id, level - 1, name)
