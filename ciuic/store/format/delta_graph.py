"""Deltas and their delta bases as a graph: which chunks can be decoded, and at what depth.

A chunk may have two delta bases, so the deltas below it are a graph and not a chain. Decoding
counts each delta as often as it is reached: a few frames in a hostile store could otherwise ask for
2^64 of them.
"""

from collections.abc import Collection, Mapping, Sequence

from ciuic.ids import ChunkId
from ciuic.store.records.kinds import CHAIN_MAX

__all__ = ["chain_length", "count_deltas", "shortest_chains"]


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


def chain_length(bases: Sequence[ChunkId], counts: Mapping[ChunkId, int]) -> int:
    """Return how many deltas a chunk takes that is a delta against these bases.

    Above ``CHAIN_MAX`` if it cannot be decoded.

    Args:
        bases: Its delta bases; none if it is no delta.
        counts: How many each base takes; a base that cannot be decoded is missing.
    """
    if not bases:
        return 0
    return 1 + sum([counts.get(base, CHAIN_MAX) for base in bases])


def shortest_chains(
    options: Mapping[ChunkId, Collection[Sequence[ChunkId]]],
) -> dict[ChunkId, int]:
    """Map each chunk that can be decoded to the fewest deltas that this takes.

    A chunk may be in several packs, each time as a delta against others. If each is decoded by the
    copy that gives this number, no chain is a ring: the number falls from a delta to each of its
    bases. Left out are the same chunks as in ``count_deltas``.

    Args:
        options: For each chunk the delta bases of each of its copies; none for a copy that is no
            delta.
    """
    above: dict[ChunkId, set[ChunkId]] = {}
    counts: dict[ChunkId, int] = {}
    for chunk_id, copies in options.items():
        for below in copies:
            for base in below:
                above.setdefault(base, set()).add(chunk_id)
        if any(not below for below in copies):
            counts[chunk_id] = 0
    ready = list(counts)
    for chunk_id in ready:  # grows meanwhile
        for upper in above.get(chunk_id, ()):
            least = min([chain_length(below, counts) for below in options[upper]])
            if least < counts.get(upper, CHAIN_MAX + 1):
                counts[upper] = least
                ready.append(upper)
    return counts
