"""Follows delta chains by the places that the chunk index has recorded."""

from collections.abc import Callable, Mapping, Sequence

from ciuic.ids import ChunkId
from ciuic.store.format.delta_graph import count_deltas
from ciuic.store.index.places import ChunkPlace
from ciuic.store.records.kinds import CHAIN_MAX

__all__ = ["reaching", "some_of_chain", "whole_chains"]

Places = Callable[[Sequence[ChunkId]], Mapping[ChunkId, ChunkPlace]]
"""Returns the places of chunks; chunks that are in no pack are left out."""
Judge = Callable[[ChunkPlace], bool]


def whole_chains(deltas: Mapping[ChunkId, tuple[ChunkId, ...]], places_of: Places) -> set[ChunkId]:
    """Return the deltas whose chains lead to chunks that are not deltas."""
    bases = dict(deltas)
    wanted = {base for below in deltas.values() for base in below} - bases.keys()
    for _ in range(CHAIN_MAX):
        if not wanted:
            break
        places = places_of(list(wanted))
        bases.update({chunk_id: place.delta_bases for chunk_id, place in places.items()})
        wanted = {base for place in places.values() for base in place.delta_bases}
        wanted -= bases.keys()
    return deltas.keys() & count_deltas(bases).keys()


def reaching(chunk_ids: set[ChunkId], places_of: Places, is_bad: Judge) -> set[ChunkId]:
    """Return the chunks at bad places, and those whose chains lead to one."""
    places = wanted = dict(places_of(list(chunk_ids)))
    for _ in range(CHAIN_MAX):
        bases = {base for place in wanted.values() for base in place.delta_bases}
        wanted = dict(places_of(list(bases - places.keys())))
        if not wanted:
            break
        places = places | wanted
    bad = {chunk_id for chunk_id, place in places.items() if is_bad(place)}
    while more := {
        chunk_id
        for chunk_id, place in places.items()
        if chunk_id not in bad and not bad.isdisjoint(place.delta_bases)
    }:
        bad |= more
    return bad


def some_of_chain(chunk_id: ChunkId, places_of: Places, is_bad: Judge) -> bool:
    """Return whether a chunk has a place with its whole chain, and some place of it is bad."""
    met: set[ChunkId] = set()
    wanted = {chunk_id}
    has_bad = False
    while wanted:
        places = places_of(list(wanted))
        if len(places) < len(wanted):
            return False
        has_bad |= any(map(is_bad, places.values()))
        met |= wanted
        wanted = {base for place in places.values() for base in place.delta_bases} - met
    return has_bad
