"""Finds out what a place can do, as some object stores ignore the conditions of a write.

Without conditional writes, only one writer at a time is safe. A store that ignores
``If-None-Match`` answers as if it had created the object, so the content is read back.
"""

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from ciuic.errors import (
    AccessDeniedError,
    LostRaceError,
    MissingError,
    StoreError,
    UnsupportedError,
)
from ciuic.store.place.place import Place

__all__ = ["Abilities", "probe"]

_FOLDER: Final = "probe"
_RACERS: Final = 4


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a place can do.

    Attributes:
        creates: Of several writers that create an object, exactly one succeeds.
        replaces: An object is replaced only if it is the version that was read.
        lists_at_once: A new object is in the next listing.
    """

    creates: bool
    replaces: bool
    lists_at_once: bool

    @property
    def allows_many_writers(self) -> bool:
        """Several writers at once are safe."""
        return self.creates and self.lists_at_once


def probe(place: Place) -> Abilities:
    """Write, read and delete small objects in the folder ``probe`` of a place.

    Raises:
        AccessDeniedError: This process may not write there.
        OfflineError: The place does not answer.
        StoreError: The place cannot be used.
    """
    base = f"{_FOLDER}/{os.urandom(8).hex()}"
    keys = [f"{base}-{name}" for name in ("put", "create", "race", "replace")]
    try:
        place.put(keys[0], b"put")
        lists_at_once = keys[0] in {listed.key for listed in place.list(_FOLDER)}
        return Abilities(
            creates=_creates(place, keys[1]) and _races(place, keys[2]),
            replaces=_replaces(place, keys[3]),
            lists_at_once=lists_at_once,
        )
    finally:
        _clean_up(place, keys)


def _clean_up(place: Place, keys: list[str]) -> None:
    # Objects that stay after an error are small; the error itself matters more.
    with contextlib.suppress(StoreError):
        try:
            place.delete(keys)
        except AccessDeniedError:
            # Most commands probe nothing, and importing logging takes longer than they do.
            import logging

            logging.getLogger(__name__).warning(
                "%s: these credentials have no right to delete: they can take snapshots, and only"
                " credentials with that right can prune",
                place.name,
            )


def _creates(place: Place, key: str) -> bool:
    first = b"first"
    try:
        place.create(key, first)
        place.create(key, b"second")
    except LostRaceError:
        return place.get(key, 64) == first
    except UnsupportedError:
        return False
    return False


def _races(place: Place, key: str) -> bool:
    def create(number: int) -> bytes | None:
        data = f"writer {number}".encode()
        try:
            place.create(key, data)
        except LostRaceError:
            return None
        return data

    with ThreadPoolExecutor(_RACERS) as pool:
        winners = [data for data in pool.map(create, range(_RACERS)) if data is not None]
    return winners == [place.get(key, 64)]


def _replaces(place: Place, key: str) -> bool:
    place.put(key, b"old")
    old = place.get_versioned(key, 64).version
    try:
        place.replace(key, b"new", old)
        place.replace(key, b"other", old)
    except (LostRaceError, MissingError):
        return place.get(key, 64) == b"new"
    except UnsupportedError:
        return False
    return False
