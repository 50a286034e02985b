"""Chooses the place of a chunk that several packs have as deltas: the one with the shortest chain.

Two writers may store the same chunks at the same time: one stores B as a delta against A, the other
A as a delta against B. Both snapshots are right, because each writer also stored, or found, what
its own first delta is against. But an index that chose both deltas would have a ring, and neither
chunk could be decoded by it. With the shortest chain that the packs allow, each base takes fewer
deltas than what is above it, so there is no ring, and no chain is longer than its writer made it.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from ciuic.ids import ChunkId
from ciuic.store.format.delta_graph import chain_length, shortest_chains
from ciuic.store.index.database import IndexDamagedError
from ciuic.store.records.kinds import CHAIN_MAX
from ciuic.system.hashing import ID_BYTES

__all__ = ["better_places", "deltas_to_leave"]

_BATCH: Final = 500

Bases = tuple[ChunkId, ...]
Execute = Callable[[str, list[bytearray]], Iterable[tuple[ChunkId, int, object]]]
"""Queries the chunk index for chunks, packs and delta bases; SQLite may return a base of any type.
"""


class _Copy(NamedTuple):
    """A copy of a chunk: the number of its pack in the index, and its delta bases."""

    pack: int
    bases: Bases


Copies = dict[ChunkId, list[_Copy]]


def deltas_to_leave(
    execute: Execute, deltas: Mapping[ChunkId, Bases], outdone: Collection[int]
) -> set[ChunkId]:
    """Return the deltas of a new pack that must not become the places of their chunks.

    These chunks have a recorded place whose chain is at most as long.

    Args:
        execute: Queries the chunk index. It has the new pack's chunks that are no deltas.
        deltas: The deltas of the new pack, and their bases.
        outdone: The numbers of packs whose deltas are replaced in any case.
    """
    recorded = _recorded(execute, deltas)
    disputed = {
        chunk_id
        for chunk_id, copy in recorded.items()
        if copy.pack not in outdone and set(copy.bases) != set(deltas[chunk_id])
    }
    if not disputed:
        return set()
    options = {chunk_id: [bases] for chunk_id, bases in deltas.items()}
    for chunk_id in disputed:
        options[chunk_id].append(recorded[chunk_id].bases)
    _follow(execute, options)
    counts = shortest_chains(options)
    return {
        chunk_id
        for chunk_id in disputed
        if chain_length(recorded[chunk_id].bases, counts)
        <= min(CHAIN_MAX, chain_length(deltas[chunk_id], counts))
    }


def better_places(
    execute: Execute, again: Collection[ChunkId], shut_packs: Collection[int]
) -> dict[ChunkId, int]:
    """Map chunks to the number of the pack that should be their place, where another one is.

    Args:
        execute: Queries the chunk index.
        again: The chunks that are deltas in more than one pack.
        shut_packs: The numbers of packs that a prune has condemned: a chain that leads there counts
            only if there is no other.
    """
    recorded = _recorded(execute, again)
    copies: Copies = {chunk_id: [copy] for chunk_id, copy in recorded.items()}
    for chunk_id, copy in _delta_copies(execute, copies):
        if copies[chunk_id][0].bases and copy.pack != copies[chunk_id][0].pack:
            copies[chunk_id].append(copy)
    options = {chunk_id: [copy.bases for copy in found] for chunk_id, found in copies.items()}
    places = _follow(execute, options)
    copies |= {chunk_id: [copy] for chunk_id, copy in places.items()}
    chosen: dict[ChunkId, _Copy] = {}
    if shut_packs:
        # First among open packs alone; then what these cannot decode, with all packs.
        chosen = _shortest(
            {
                chunk_id: [copy for copy in found if copy.pack not in shut_packs]
                for chunk_id, found in copies.items()
            }
        )
    chosen = _shortest(
        {
            chunk_id: [chosen[chunk_id]] if chunk_id in chosen else found
            for chunk_id, found in copies.items()
        }
    )
    return {
        chunk_id: chosen[chunk_id].pack
        for chunk_id, copy in recorded.items()
        if chunk_id in chosen and chosen[chunk_id].pack != copy.pack
    }


def _shortest(copies: Copies) -> dict[ChunkId, _Copy]:
    """Return the copy of each chunk with the shortest chain; of equal ones, the first."""
    options = {chunk_id: [copy.bases for copy in found] for chunk_id, found in copies.items()}
    counts = shortest_chains(options)
    return {
        chunk_id: min(copies[chunk_id], key=lambda copy: chain_length(copy.bases, counts))
        for chunk_id in counts
    }


def _follow(execute: Execute, options: dict[ChunkId, list[Bases]]) -> dict[ChunkId, _Copy]:
    """Add the delta bases, and theirs, by their recorded places; returns these places."""
    added: dict[ChunkId, _Copy] = {}
    wanted = {base for found in options.values() for bases in found for base in bases}
    for _ in range(CHAIN_MAX):
        wanted -= options.keys()
        if not wanted:
            break
        found = _recorded(execute, wanted)
        added |= found
        options |= {chunk_id: [copy.bases] for chunk_id, copy in found.items()}
        wanted = {base for copy in found.values() for base in copy.bases}
    return added


def _recorded(execute: Execute, chunk_ids: Iterable[ChunkId]) -> dict[ChunkId, _Copy]:
    """Return the recorded copy of chunks."""
    query = (
        "SELECT chunk.id, chunk.pack, base FROM chunk LEFT JOIN reference"
        " ON reference.id = chunk.id AND reference.pack = chunk.pack WHERE chunk.id IN ({})"
    )
    return dict(_rows(execute, query, chunk_ids))


def _delta_copies(
    execute: Execute, chunk_ids: Iterable[ChunkId]
) -> Iterator[tuple[ChunkId, _Copy]]:
    """Yield every copy of these chunks that is a delta, but those that a check found damaged."""
    query = (
        "SELECT reference.id, reference.pack, base FROM reference"
        " JOIN pack ON pack.number = reference.pack WHERE reference.id IN ({})"
        " AND NOT (reference.id IN (SELECT id FROM lost_chunk)"
        " AND name IN (SELECT name FROM pack_check WHERE what != ''))"
    )
    return _rows(execute, query, chunk_ids)


def _rows(
    execute: Execute, query: str, chunk_ids: Iterable[ChunkId]
) -> Iterator[tuple[ChunkId, _Copy]]:
    wanted = sorted(chunk_ids)
    for start in range(0, len(wanted), _BATCH):
        part = [bytearray(chunk_id) for chunk_id in wanted[start : start + _BATCH]]
        for chunk_id, pack, base in execute(query.format(",".join("?" * len(part))), part):
            data = base or b""
            if not isinstance(data, bytes) or len(data) % ID_BYTES:
                raise IndexDamagedError("the chunk index has an impossible delta base")
            starts = range(0, len(data), ID_BYTES)
            yield chunk_id, _Copy(pack, tuple([ChunkId(data[at : at + ID_BYTES]) for at in starts]))
