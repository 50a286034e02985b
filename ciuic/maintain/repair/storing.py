"""Stores chunks of damaged packs again, one after the other: many may not fit in memory."""

from collections.abc import Collection, Iterator, Mapping

from ciuic.ids import ChunkId
from ciuic.maintain.repair.sources import Origin, read_origin
from ciuic.store.adding import adding
from ciuic.store.records.kinds import DATA
from ciuic.store.store import Store

__all__ = ["store_again"]


def store_again(
    store: Store, readable: Mapping[ChunkId, int], origins: Collection[Origin], *, parity: float
) -> None:
    """Store chunks in new packs, though the chunk index has places for them.

    Args:
        store: A store that is open for writing.
        readable: Chunks that the store can still read, and the kind of each.
        origins: Where other chunks are outside the store. One that has changed is left out.
        parity: The share of each new pack that its parity takes, 0 to 1.

    Raises:
        CorruptionError: A chunk can no longer be read.
        StoreError: The store failed, or is full.
    """
    if not readable and not origins:
        return
    with adding(store, parity=parity) as writer:
        for chunk_id, kind, plain in _found(store, readable, origins):
            # Its recorded place is wrong: drop it, so that the chunk counts as new. A chunk that
            # is read later, as a delta against this one, finds its base in the packs' own lists.
            store.index.drop_chunks([chunk_id])
            writer.add(kind, [(chunk_id, plain)])


def _found(
    store: Store, readable: Mapping[ChunkId, int], origins: Collection[Origin]
) -> Iterator[tuple[ChunkId, int, bytes | memoryview]]:
    for chunk_id, kind in readable.items():
        yield chunk_id, kind, store.reader.chunk(chunk_id, kind=kind)
    for origin in origins:
        data = read_origin(store, origin)
        if data is not None:
            yield origin.chunk_id, DATA, data
