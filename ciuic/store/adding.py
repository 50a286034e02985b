"""Adds chunks to a store. Not part of ``Store``: most commands add none."""

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial

from ciuic.ids import PackId
from ciuic.store.packs.frame_cache import CACHE_BYTES_DEFAULT
from ciuic.store.packs.writer import (
    CHAIN_COST_DEFAULT,
    QUEUE_BYTES_DEFAULT,
    Filler,
    StoreWriter,
    WriteTotals,
    sync_packs,
)
from ciuic.store.parity.shape import PARITY_DEFAULT
from ciuic.store.records import layout
from ciuic.store.store import Store

__all__ = ["adding", "new_writer"]


@contextlib.contextmanager
def adding(store: Store, *, parity: float) -> Iterator[StoreWriter]:
    """Make what the block adds durable at its end, or give it up if the block fails.

    Args:
        store: A store that is open for writing.
        parity: See ``new_writer``.
    """
    writer = new_writer(store, parity=parity)
    try:
        yield writer
        writer.finish()
    except BaseException:
        writer.abort()
        raise


def new_writer(
    store: Store,
    *,
    parity: float = PARITY_DEFAULT,
    chain_cost: float = CHAIN_COST_DEFAULT,
    queue_bytes: int = QUEUE_BYTES_DEFAULT,
    cache_bytes: int = CACHE_BYTES_DEFAULT,
) -> StoreWriter:
    """Make a writer of chunks for a store that is open for writing.

    Args:
        store: The store.
        parity: The share of each pack that its parity takes, 0 to 1; 0: no parity.
        chain_cost: The limit on stored bytes that are read to decode a chunk, in multiples of what
            the chunk takes alone; up to 1: no deltas.
        queue_bytes: How many encoded bytes may wait to be written.
        cache_bytes: How many bytes of delta bases are kept; a long delta chain may need them again.
    """
    bucket = store.bucket

    def fill(record: Callable[[], None], totals: WriteTotals) -> Filler:
        # Imported here: a snapshot of nothing new fills no pack, and is short.
        from ciuic.store.packs.pack_filler import PackFiller
        from ciuic.store.packs.pack_writer import PackFile, publish_pack

        def upload(pack: PackFile, pack_id: PackId) -> None:
            if bucket is not None:
                bucket.packs.publish(pack.path, pack_id, is_direct=pack.is_direct)

        return PackFiller(
            os.path.join(store.path, layout.TEMPORARY),
            partial(publish_pack, store.path) if bucket is None else upload,
            record,
            totals,
            # An object store has redundancy of its own.
            parity=parity if bucket is None else 0.0,
            joins_small=bool(parity) or bucket is not None,
            session_id=store.session_id,
            queue_bytes=queue_bytes,
        )

    return StoreWriter(
        store.index,
        partial(sync_packs, store.path) if bucket is None else bucket.packs.sync,
        fill,
        reader=store.new_reader(passing=True, cache_bytes=cache_bytes),
        chain_cost=chain_cost,
    )
