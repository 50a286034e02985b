"""Finds the delta bases of chunks, and which of them can be read."""

from collections.abc import Callable, Mapping, Sequence

from ciuic.ids import ChunkId
from ciuic.store.index.places import ChunkPlace
from ciuic.store.records.kinds import CHAIN_MAX

__all__ = ["find_sound_bases"]


def find_sound_bases(
    places_of: Callable[[Sequence[ChunkId]], dict[ChunkId, ChunkPlace]],
    places: Mapping[ChunkId, ChunkPlace],
    is_sound: Callable[[ChunkId, ChunkPlace], bool],
) -> dict[ChunkId, tuple[ChunkId, ...]]:
    """Map each sound delta base of these chunks, and each base below, to its own bases.

    Args:
        places_of: Returns the places of chunks.
        places: The places of the chunks.
        is_sound: Returns whether another chunk can be read from its recorded place.
    """
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
