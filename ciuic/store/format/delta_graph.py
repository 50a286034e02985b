"""Deltas and their delta bases as a graph: which chunks can be decoded, and at what depth.

A chunk may have two delta bases, so the deltas below it are a graph and not a chain. Decoding
counts each delta as often as it is reached: a few frames in a hostile store could otherwise ask for
2^64 of them.
"""

from collections.abc import Mapping, Sequence

from ciuic.ids import ChunkId
from ciuic.store.records.kinds import CHAIN_MAX

__all__ = ["count_deltas"]


def count_deltas(bases: Mapping[ChunkId, Sequence[ChunkId]]) -> dict[ChunkId, int]:
    """Map each chunk that can be decoded to the number of deltas that this takes.

    Left out are chunks with a delta base that is not in ``bases``, chunks in a ring, and chunks
    that take more than ``CHAIN_MAX`` deltas; and all deltas above these.

    Args:
        bases: The delta bases of each chunk; none for a chunk that is not a delta.
    """
    counts = {chunk_id: 0 for chunk_id, below in bases.items() if not below}
    missing: dict[ChunkId, int] = {}
    above: dict[ChunkId, list[ChunkId]] = {}
    for chunk_id, below in bases.items():
        distinct = set(below)
        if distinct:
            missing[chunk_id] = len(distinct)
        for base in distinct:
            above.setdefault(base, []).append(chunk_id)
    ready = list(counts)
    for chunk_id in ready:  # grows meanwhile
        for upper in above.get(chunk_id, ()):
            missing[upper] -= 1
            if missing[upper]:
                continue
            count = 1 + sum([counts[base] for base in bases[upper]])
            if count <= CHAIN_MAX:
                counts[upper] = count
                ready.append(upper)
    return counts
