"""Read the nodes of earlier snapshots, and have the damaged ones stored again."""

from ciuic.errors import CorruptionError
from ciuic.ids import ChunkId
from ciuic.store.records.nodes import GetNode
from ciuic.store.store import Store

__all__ = ["parent_nodes"]


def parent_nodes(store: Store) -> GetNode:
    """Return a function that reads nodes of a store.

    If the store is open for writing, the place of a damaged node is dropped from the chunk index.
    Otherwise a directory or file that has not changed makes the same node, which the store seems to
    have: the new snapshot would be damaged as well.
    """

    def get(kind: int, node_id: ChunkId) -> bytes:
        try:
            return store.reader.node(kind, node_id)
        except CorruptionError:
            if store.writable:
                store.index.drop_chunks([node_id])
                store.index.commit()  # other processes that add wait for an open change
            raise

    return get
