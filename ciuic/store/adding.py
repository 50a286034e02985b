"""Begins to add chunks to a store. Not part of ``Store``: most commands add none."""

from ciuic.store.packs.writer import CHAIN_COST_DEFAULT, StoreWriter
from ciuic.store.parity.shape import PARITY_DEFAULT
from ciuic.store.store import Store

__all__ = ["begin_adding"]


def begin_adding(
    store: Store, *, parity: float = PARITY_DEFAULT, chain_cost: float = CHAIN_COST_DEFAULT
) -> StoreWriter:
    """Begin to add chunks to a store that is open for writing.

    Args:
        store: The store.
        parity: The share of each pack that its parity takes, 0 to 1; 0: no parity.
        chain_cost: The limit on stored bytes that are read to decode a chunk, in multiples of what
            the chunk takes alone; up to 1: no deltas.
    """
    return StoreWriter(
        store.path,
        store.index,
        parity=parity,
        reader=store.new_reader(passing=True),
        chain_cost=chain_cost,
        session_id=store.session_id,
    )
