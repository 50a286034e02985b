"""Begins to add chunks to a store. Not part of ``Store``: most commands add none."""

from ciuic.ids import PackId
from ciuic.store.packs.pack_writer import PackFile
from ciuic.store.packs.writer import (
    CHAIN_COST_DEFAULT,
    QUEUE_BYTES_DEFAULT,
    DirectoryOutlet,
    StoreWriter,
)
from ciuic.store.parity.shape import PARITY_DEFAULT
from ciuic.store.place.packs import PackUploads
from ciuic.store.store import Store

__all__ = ["begin_adding"]


class _BucketOutlet:
    """Packs become objects. See ``PackOutlet``."""

    def __init__(self, packs: PackUploads) -> None:
        self._packs = packs

    def publish(self, pack: PackFile, pack_id: PackId) -> None:
        """Begin to upload the pack."""
        self._packs.publish(pack.path, pack_id)

    def sync(self) -> None:
        """Wait for all uploads."""
        self._packs.sync()


def begin_adding(
    store: Store,
    *,
    parity: float = PARITY_DEFAULT,
    chain_cost: float = CHAIN_COST_DEFAULT,
    queue_bytes: int = QUEUE_BYTES_DEFAULT,
) -> StoreWriter:
    """Begin to add chunks to a store that is open for writing.

    Args:
        store: The store.
        parity: The share of each pack that its parity takes, 0 to 1; 0: no parity.
        chain_cost: The limit on stored bytes that are read to decode a chunk, in multiples of what
            the chunk takes alone; up to 1: no deltas.
        queue_bytes: How many encoded bytes may wait to be written.
    """
    bucket = store.bucket
    return StoreWriter(
        store.path,
        store.index,
        DirectoryOutlet(store.path) if bucket is None else _BucketOutlet(bucket.packs),
        # An object store has redundancy of its own.
        parity=parity if bucket is None else 0.0,
        joins_small=bool(parity) or bucket is not None,
        reader=store.new_reader(passing=True),
        chain_cost=chain_cost,
        session_id=store.session_id,
        queue_bytes=queue_bytes,
    )
