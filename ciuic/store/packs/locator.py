"""Finds chunks with the chunk index; if it fails, with the packs' own footers.

The index is a cache, and no restore may fail because of a fault in it. If it does not know a chunk
or names a wrong place, an index is built from the packs. A reader of a store without a chunk index
has a private index that no writer updates, so it is rebuilt before a chunk counts as missing: a
prune may have moved the chunk, or a snapshot may have added it.
"""

import contextlib
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

from ciuic.ids import ChunkId, PackId
from ciuic.store.index.database import IndexDamagedError
from ciuic.store.index.places import ChunkPlace
from ciuic.store.packs.listed_frames import ListedFrames
from ciuic.store.packs.open_packs import OpenPacks
from ciuic.store.records.kinds import CHAIN_MAX
from ciuic.system.clock import Clock, SystemClock

__all__ = ["Locator", "Places"]

_ALL: Final[frozenset[PackId]] = frozenset()
"""No pack is left out."""


class Places(Protocol):
    """The part of ``ChunkIndex`` that is used here."""

    def places(self, chunk_ids: Sequence[ChunkId]) -> dict[ChunkId, ChunkPlace]:
        """Return the places of chunks; unknown chunks are left out."""

    def stored_again(self) -> set[ChunkId]:
        """Return the chunks that are deltas in more than one pack."""


class _FromPacks:
    """An index that was built from the packs, and the names of the pack files at that time.

    Attributes:
        compared_s: When the names were compared last with those of the packs, on a monotonic clock.
    """

    def __init__(self, index: Places, names: set[str], compared_s: float) -> None:
        self.index = index
        self.names = names
        self.compared_s = compared_s


class Locator:
    """Finds the places of chunks. May be used from any thread.

    Args:
        packs: The store's packs.
        open_index: Opens the chunk index; called when it is needed.
        index_from_packs: Builds an index from the packs alone, without the given packs.
        listed: What packs list of themselves.
        clock: Tells when the packs are listed again.

    Attributes:
        names_s: Packs are listed at most this often to find a chunk that is in no pack; 0: for each
            such chunk. A copy may lack many chunks, and a bucket takes long to list.
    """

    def __init__(
        self,
        packs: OpenPacks,
        open_index: Callable[[], Places],
        index_from_packs: Callable[[Collection[PackId]], Places],
        listed: ListedFrames,
        clock: Clock | None = None,
    ) -> None:
        self.names_s = 0.0
        self._clock = clock or SystemClock()
        self._packs = packs
        self._open_index = open_index
        self._index_from_packs = index_from_packs
        self._lock = threading.RLock()
        self._listed = listed
        self._by_left_out: dict[frozenset[PackId], _FromPacks] = {}
        """Indexes that were built from the packs, by the packs that each leaves out."""

    @property
    def index(self) -> Places:
        """The chunk index; after its first failure, the index built from all packs."""
        made = self._by_left_out.get(_ALL)
        return made.index if made is not None else self._open_index()

    def places(self, chunk_ids: Sequence[ChunkId]) -> dict[ChunkId, ChunkPlace]:
        """Return the places of chunks; chunks that are in no pack are left out.

        A place in a missing pack is returned only if no other place is known.
        """
        try:
            found = self.index.places(chunk_ids)
        except IndexDamagedError:
            found = self._from_packs(_ALL).places(chunk_ids)
        doubtful = self._doubtful(chunk_ids, found)
        if doubtful:
            # A prune in another process may have moved them; it updates the index first.
            with contextlib.suppress(IndexDamagedError):
                found.update(self._open_index().places(doubtful))
                doubtful = self._doubtful(doubtful, found)
            found.update(self.places_in_packs(doubtful))
        return found

    def places_in_packs(
        self, chunk_ids: Sequence[ChunkId], without: frozenset[PackId] = _ALL
    ) -> dict[ChunkId, ChunkPlace]:
        """Return the places of chunks from the packs' footers.

        Args:
            chunk_ids: The chunks.
            without: Packs to leave out.
        """
        if not chunk_ids:
            return {}
        with self._lock:
            found = self._from_packs(without).places(chunk_ids)
            doubtful = self._doubtful(chunk_ids, found)
            is_gone = any(chunk_id in found for chunk_id in doubtful)
            if is_gone or (doubtful and self._has_changed(self._by_left_out[without])):
                del self._by_left_out[without]
                found = self._from_packs(without).places(chunk_ids)
            return found

    def another_place(self, chunk_id: ChunkId, *tried: ChunkPlace) -> ChunkPlace | None:
        """Return a place of a chunk that is not among ``tried``; None if there is none.

        An index has one place for each chunk. A crash or a snapshot after a loss leaves a second
        copy, and another program may store two in one pack. To find them, the lists of the packs
        that failed are read, and then the other packs are searched.
        """
        # A prune may have moved the chunk, as in ``places``.
        with contextlib.suppress(IndexDamagedError):
            found = self._open_index().places([chunk_id]).get(chunk_id)
            if found is not None and found not in tried:
                return found
        first = self.places_in_packs([chunk_id]).get(chunk_id)
        if first is not None and first not in tried:
            return first
        packs = frozenset(place.pack_id for place in tried)
        for pack_id in packs:
            for found in self._listed.copies(chunk_id, pack_id):
                if found not in tried:
                    return found
        if first is None:
            return None  # no pack lists it, so no index without some of the packs has it
        return self.places_in_packs([chunk_id], packs).get(chunk_id)

    def chain(self, chunk_id: ChunkId) -> list[ChunkPlace] | None:
        """Return the places of a chunk and of its delta chain, in order, from the index.

        None if the chain is broken or endless, or if one of its deltas has two delta bases.
        """
        found: list[ChunkPlace] = []
        while len(found) <= CHAIN_MAX:
            place = None
            with contextlib.suppress(IndexDamagedError):
                place = self.index.places([chunk_id]).get(chunk_id)
            if place is None or len(place.delta_bases) > 1:
                return None
            found.append(place)
            if not place.delta_bases:
                return found
            (chunk_id,) = place.delta_bases
        return None

    def stored_again(self) -> set[ChunkId]:
        """Return the chunks that are deltas in more than one pack."""
        try:
            return self.index.stored_again()
        except IndexDamagedError:
            return self._from_packs(_ALL).stored_again()

    def _doubtful(
        self, chunk_ids: Sequence[ChunkId], found: Mapping[ChunkId, ChunkPlace]
    ) -> list[ChunkId]:
        """Return the chunks that were not found, or were found in a missing pack."""
        pack_ids = {place.pack_id for place in found.values()}
        gone = {pack_id for pack_id in pack_ids if self._packs.size(pack_id) is None}
        return [
            chunk_id
            for chunk_id in chunk_ids
            if chunk_id not in found or found[chunk_id].pack_id in gone
        ]

    def _has_changed(self, made: _FromPacks) -> bool:
        now_s = self._clock.monotonic_s()
        if now_s - made.compared_s < self.names_s:
            return False
        made.compared_s = now_s
        names = self._packs.names()
        if made.names is not names and made.names != names:
            return True
        made.names = names  # a place may return this set again: that is quick to compare
        return False

    def _from_packs(self, without: frozenset[PackId]) -> Places:
        with self._lock:
            if without not in self._by_left_out:
                # Listed first: if a pack comes or goes meanwhile, the names differ, and the next
                # call rebuilds the index.
                names = self._packs.names()
                made = _FromPacks(self._index_from_packs(without), names, self._clock.monotonic_s())
                self._by_left_out[without] = made
            return self._by_left_out[without].index
