"""The chunks that a node refers to."""

import stat
from typing import cast

from ciuic.errors import CorruptionError
from ciuic.ids import ChunkId
from ciuic.store.records.kinds import RECIPE, TREE
from ciuic.store.records.nodes import Node, child_ids
from ciuic.store.records.recipe_nodes import leaf_pieces
from ciuic.store.records.tree_nodes import decode_entries

__all__ = ["references"]

_FILE, _DIRECTORY, _SYMLINK = (mode >> 12 for mode in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK))


def references(kind: int, data: bytes, level: int) -> tuple[list[Node], list[ChunkId]]:
    """Return the nodes and the data chunks that a node refers to, in its order.

    Raises:
        CorruptionError: ``data`` is not a node of this kind and level, or an entry that must not
            have content has some.
    """
    if level > 0:
        return [Node(kind, level - 1, node_id) for node_id in child_ids(data, level)], []
    if kind == RECIPE:
        return [], [piece.id for piece in leaf_pieces(data) if piece.id]
    nodes: list[Node] = []
    chunks: list[bytes] = []
    # Entries are not checked further: a damaged entry still needs what it refers to.
    for entry in decode_entries(data):
        content, entry_type = entry.content, entry.mode >> 12
        if not content:
            continue
        if entry_type == _DIRECTORY:
            nodes.append(Node(TREE, entry.level, ChunkId(content)))
        elif entry_type == _FILE and entry.level:
            nodes.append(Node(RECIPE, entry.level - 1, ChunkId(content)))
        elif entry_type == _FILE:
            chunks.append(content)
        elif entry_type != _SYMLINK:
            raise CorruptionError("an entry of a type without content has content")
    return nodes, cast("list[ChunkId]", chunks)
