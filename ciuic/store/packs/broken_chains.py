"""Finds the chunks whose delta chain is broken."""

import contextlib
from collections.abc import Callable, Mapping, Sequence

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.ids import ChunkId
from ciuic.store.format.delta_graph import count_deltas
from ciuic.store.index.places import ChunkPlace
from ciuic.store.packs.reader import StoreReader
from ciuic.store.records.kinds import CHAIN_MAX, DATA

__all__ = ["chunks_without_base"]


def chunks_without_base(
    reader: StoreReader,
    places: Mapping[ChunkId, ChunkPlace],
    is_sound: Callable[[ChunkId, ChunkPlace], bool],
) -> dict[ChunkId, ChunkId]:
    """Map each chunk whose delta chain is broken to the missing base.

    Args:
        reader: The reader of the store.
        places: The places of the chunks.
        is_sound: Returns whether another chunk can be read from its recorded place.
    """
    deltas = {chunk_id: place for chunk_id, place in places.items() if place.delta_bases}
    graph = _sound_bases(reader.places, places, is_sound) if deltas else {}
    counts = count_deltas(graph)
    lost: dict[ChunkId, ChunkId] = {}
    for chunk_id, place in deltas.items():
        below = place.delta_bases
        if all(base in counts for base in below) and (
            1 + sum([counts[base] for base in below]) <= CHAIN_MAX
        ):
            continue
        base = below[0]
        for _ in range(CHAIN_MAX):
            base = next((one for one in below if one not in counts), below[0])
            below = graph.get(base, ())
            if not below:
                break
        lost[chunk_id] = base
    # A chunk that was stored again has a second place, which the index does not record.
    again = reader.stored_again() if lost else set()
    if again:
        lost = {
            chunk_id: base
            for chunk_id, base in lost.items()
            if not _is_stored_again(reader, chunk_id, again)
        }
    return lost


def _sound_bases(
    places_of: Callable[[Sequence[ChunkId]], dict[ChunkId, ChunkPlace]],
    places: Mapping[ChunkId, ChunkPlace],
    is_sound: Callable[[ChunkId, ChunkPlace], bool],
) -> dict[ChunkId, tuple[ChunkId, ...]]:
    """Map each sound delta base of these chunks, and each base below, to its own bases."""
    found: dict[ChunkId, tuple[ChunkId, ...]] = {}
    met: set[ChunkId] = set()
    wanted = {base for place in places.values() for base in place.delta_bases}
    for _ in range(CHAIN_MAX):
        if not wanted:
            break
        met |= wanted
        unknown = [base for base in wanted if base not in places]
        known = {base: places[base] for base in wanted if base in places}
        known |= places_of(unknown) if unknown else {}
        sound = {base: place for base, place in known.items() if is_sound(base, place)}
        found.update({base: place.delta_bases for base, place in sound.items()})
        wanted = {base for place in sound.values() for base in place.delta_bases} - met
    return found


def _is_stored_again(reader: StoreReader, chunk_id: ChunkId, again: set[ChunkId]) -> bool:
    """Return whether a chunk can be read because a part of its chain was stored again."""
    chain = {chunk_id}
    wanted = [chunk_id]
    for _ in range(CHAIN_MAX):
        below = [base for place in reader.places(wanted).values() for base in place.delta_bases]
        wanted = [base for base in dict.fromkeys(below) if base not in chain]
        if not wanted:
            break
        chain.update(wanted)
    # Only damage is suppressed: an I/O error says nothing about the chunk.
    with contextlib.suppress(CorruptionError, UnknownFormatError):
        if again.isdisjoint(chain):
            return False
        return bool(reader.chunk(chunk_id, kind=DATA, repair=False))
    return False
