"""Read the nodes of earlier snapshots, and have the damaged ones stored again."""

import contextlib
from collections.abc import Iterator

from ciuic.errors import CorruptionError
from ciuic.ids import ChunkId
from ciuic.model import Entry
from ciuic.store.packs.writer import StoreWriter
from ciuic.store.records.kinds import DATA, RECIPE
from ciuic.store.records.nodes import GetNode
from ciuic.store.records.recipe_nodes import iter_pieces
from ciuic.store.store import Store

__all__ = ["can_reuse", "keep_content", "parent_nodes"]


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
                store.index.drop_damaged([node_id])
            raise

    return get


def can_reuse(store: Store, entry: Entry) -> bool:
    """Return whether a new snapshot may rely on all that a file's entry refers to.

    That is its data and its recipe nodes: a prune of a bucket may have condemned either.
    """
    nodes: dict[ChunkId, bytes] = {}
    try:
        wanted = _content_of(store, entry, nodes) | nodes.keys()
    except CorruptionError:
        return False
    return store.index.usable(list(wanted)) == wanted


def keep_content(store: Store, writer: StoreWriter, entry: Entry) -> None:
    """Store again what a new snapshot may not rely on of an earlier snapshot's file.

    That is what is in packs that a prune of a bucket has condemned, and what a record calls
    damaged; without either, nothing is read. What cannot be read, and is in no condemned pack,
    stays as it is: the earlier snapshot is as damaged.

    Raises:
        CorruptionError: It is damaged.
        StoreError: The store failed.
    """
    if not store.index.has_unusable:
        return
    nodes: dict[ChunkId, bytes] = {}
    try:
        data = _content_of(store, entry, nodes)
    except CorruptionError:
        if store.index.shut_packs:
            raise
        return
    for plain in nodes.values():
        writer.put_node(RECIPE, plain)
    for chunk_id in writer.lacking(sorted(data)):
        with _unless_condemned(store, chunk_id):
            writer.add_data([(chunk_id, store.reader.chunk(chunk_id, kind=DATA))])


@contextlib.contextmanager
def _unless_condemned(store: Store, chunk_id: ChunkId) -> Iterator[None]:
    """Ignore that a chunk is damaged, unless a prune may remove it."""
    try:
        yield
    except CorruptionError:
        shut_packs = store.index.shut_packs
        place = store.index.places([chunk_id]).get(chunk_id)
        if shut_packs and (place is None or place.pack_id in shut_packs):
            raise


def _content_of(store: Store, entry: Entry, nodes: dict[ChunkId, bytes]) -> set[ChunkId]:
    """Return the data chunks of a file, and add its recipe nodes to ``nodes``."""
    read = parent_nodes(store)

    def get(kind: int, node_id: ChunkId) -> bytes:
        nodes[node_id] = plain = read(kind, node_id)
        return plain

    return {ChunkId(piece.id) for piece in iter_pieces(get, entry) if piece.id}
