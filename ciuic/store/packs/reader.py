"""Reads chunks: locates, reads and checks them.

A chunk is returned only if it hashes to the requested ID; the chunks of a whole frame (``frame``)
are checked by its caller. If the chunk index does not know a chunk or names a wrong place, the
packs themselves are searched (``locator``). A damaged frame is read with the second copy of its
header or with its pack's parity (``frame_reader``); the file on the disk stays as it is.
"""

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Final

from ciuic.errors import ChunkMissingError, CorruptionError, UnknownFormatError
from ciuic.ids import ChunkId, PackId
from ciuic.store.format.frame import Frame
from ciuic.store.format.pack import PackedFrame
from ciuic.store.index.places import ChunkPlace
from ciuic.store.packs.failures import (
    ChainTooLongError,
    ChunksWritten,
    Descent,
    Elsewhere,
    RememberFailures,
    RetryFailures,
)
from ciuic.store.packs.frame_cache import CACHE_BYTES_DEFAULT
from ciuic.store.packs.frame_reader import FrameReader
from ciuic.store.packs.listed_frames import ListedFrames
from ciuic.store.packs.locator import Locator, Places
from ciuic.store.packs.open_packs import OpenPacks
from ciuic.store.place.packs import Packs
from ciuic.store.records.kinds import CHAIN_MAX, DATA, check_chunk

__all__ = ["StoreReader"]

_TOO_LONG_MAX: Final = 100_000
_SUSPECTS_MAX: Final = 256
_Places = Mapping[ChunkId, ChunkPlace] | None


class StoreReader:
    """Reads chunks of one store. All methods may be called from any thread.

    Args:
        store_path: The store's directory, which has the parity.
        packs: The store's packs.
        index: Opens the chunk index; called when it is first needed.
        index_from_packs: Builds an index from the packs alone, without the given packs.
        list_pack: Returns the frames that a pack lists, after one of them could not be read.
        passing: Drop what was read from the page cache.
        cache_bytes: See ``FrameReader``.

    Attributes:
        failures: What to do when a chunk that could not be read is read again.
        prepared: The places that ``prepare_reads`` was given last, with those of the chains below.
        suspects: Frames from which a chunk could not be read, the first of them: see
            ``damage_records``.
        elsewhere: Is asked for a chunk that cannot be read here, unless the read is to repair
            nothing; None: nothing is.
    """

    def __init__(
        self,
        store_path: str,
        packs: Packs,
        index: Callable[[], Places],
        index_from_packs: Callable[[Collection[PackId]], Places],
        *,
        list_pack: Callable[[PackId], list[PackedFrame]] = lambda _: [],
        passing: bool = False,
        cache_bytes: int = CACHE_BYTES_DEFAULT,
    ) -> None:
        self.failures: RetryFailures | RememberFailures = RetryFailures()
        self.suspects: set[ChunkPlace] = set()
        self.elsewhere: Elsewhere | None = None
        listed = ListedFrames(list_pack)
        self._packs = OpenPacks(packs, passing=passing)
        self._locator = Locator(self._packs, index, index_from_packs, listed)
        self._frames = FrameReader(store_path, self._packs, listed, cache_bytes)
        self.prepared: Mapping[ChunkId, ChunkPlace] = {}
        self._too_long: set[ChunkId] = set()

    def suspect(self, place: ChunkPlace) -> None:
        """Note a frame that was not sound when it was read; it may be sound the next time."""
        if len(self.suspects) < _SUSPECTS_MAX:
            self.suspects.add(place)

    def list_packs_rarely(self, names_s: float) -> None:
        """List the packs at most this often for chunks that are in none of them."""
        self._locator.names_s = names_s

    @property
    def packs(self) -> OpenPacks:
        """The packs, for ``DirectReads``."""
        return self._packs

    @property
    def damaged(self) -> Mapping[tuple[PackId, int], str]:
        """Frames that were read in spite of damage, with the reason: see ``FrameReader``."""
        return self._frames.damaged

    @property
    def repaired_frames(self) -> int:
        """How many damaged frames were read with parity or elsewhere; a prune removes packs."""
        return sum([self.pack_size(pack_id) is not None for pack_id, _ in self._frames.repaired])

    def close(self) -> None:
        """Close the packs and clear the cache."""
        self._packs.close()
        self._frames.clear()
        self.prepared = {}

    def node(self, kind: int, node_id: ChunkId) -> bytes:
        """Read and check a tree or recipe node.

        Raises:
            CorruptionError: The node is missing or damaged.
        """
        return bytes(self.chunk(node_id, kind=kind))

    def chunk(self, chunk_id: ChunkId, *, kind: int, repair: bool = True) -> bytes | memoryview:
        """Read and check the plain bytes of a chunk.

        Args:
            chunk_id: The chunk.
            kind: ``DATA``, ``RECIPE`` or ``TREE``.
            repair: If every copy is damaged, use parity, and then what ``elsewhere`` has.

        Raises:
            CorruptionError: The chunk, or a chunk of its delta chain, is missing or damaged.
        """
        try:
            return self._chunk(chunk_id, kind, Descent(self._delta_base, repair=repair))
        except ChainTooLongError:
            # A delta against this chunk can then fail without reading the chain.
            if len(self._too_long) < _TOO_LONG_MAX:
                self._too_long.add(chunk_id)
            raise
        except CorruptionError as error:
            # Only this chunk is noted: a chunk of its chain may be readable from higher up.
            if repair:
                self.failures.note(chunk_id, error.message)
            raise

    def read_into(
        self,
        chunk_id: ChunkId,
        out: memoryview,
        places: _Places = None,
        *,
        raw: memoryview | None = None,
        written: ChunksWritten | None = None,
    ) -> bool:
        """Read and check a chunk that ``prepare_reads`` was given: see ``read_straight``.

        Args:
            chunk_id: The chunk, of file content.
            out: Memory for exactly the chunk. Its content is arbitrary if this returns False.
            places: ``prepared`` as it was then; None: as it is now.
            raw: The chunk's frame, if the caller has read it; None: it is read here.
            written: Chunks that the caller has written. This one is among them afterwards, so what
                was fetched of it need not be kept. None: it keeps none.

        Returns:
            Whether ``out`` has the chunk. If not, ``chunk`` repairs it or says what is wrong.
        """
        # Imported here: most commands read no large chunk.
        from ciuic.store.packs.straight import read_straight

        places = places or self.prepared
        is_read = read_straight(self._packs, places, chunk_id, out, raw=raw, written=written)
        if is_read and written is not None:
            self._packs.done(places[chunk_id])
        return is_read

    def frame(
        self,
        place: ChunkPlace,
        *,
        repair: bool = True,
        keep: bool = False,
        header_id: bytes = b"",
        once: bool = False,
    ) -> tuple[Frame, bytes | memoryview]:
        """Read and decode a whole frame; its chunks are not checked.

        Args:
            place: Where the frame is.
            repair: If the frame is damaged, use the footer's copy of its header, or parity.
            keep: Cache the frame: a delta against it is read next.
            header_id: The expected hash of its header and table; empty: unknown.
            once: It is not read again: what was fetched of it need not be kept.

        Raises:
            CorruptionError: The frame or its delta base is missing or damaged.
        """
        descent = Descent(self._delta_base, repair=repair)
        found = self._frames.read(
            place, descent, in_place=not repair, keep=keep, header_id=header_id
        )
        if once:
            self._packs.done(place)
        return found

    def done(self, place: ChunkPlace) -> None:
        """Say that a frame is not read again: see ``OpenPacks.done``."""
        self._packs.done(place)

    def header(self, place: ChunkPlace) -> Frame:
        """Read a frame's header and table: see ``FrameReader.header``."""
        return self._frames.header(place)

    def read_ahead(self, places: Iterable[ChunkPlace]) -> None:
        """Read frames ahead: see ``OpenPacks.read_ahead``."""
        self._packs.read_ahead(places)

    def prepare_reads(
        self,
        places: Mapping[ChunkId, ChunkPlace],
        *,
        reads_ahead: bool = True,
        written: Container[ChunkId] = (),
    ) -> None:
        """Prepare for reading these chunks: read ahead, and look up their delta chains at once.

        A look-up for each chunk of each chain costs more than decoding a small chunk.

        Args:
            places: Where the chunks are.
            reads_ahead: False: the caller calls ``read_ahead`` while it reads.
            written: Chunks that need not be read from the packs.
        """
        if reads_ahead:
            self.read_ahead([place for one, place in places.items() if one not in written])
        known = dict(places)
        for _ in range(CHAIN_MAX):
            below = {base for place in known.values() for base in place.delta_bases} - known.keys()
            found = self.places(list(below)) if below else {}
            if not found:
                break
            known |= found
            # Each request for a small part of an object costs as much time as a large one.
            ahead = [place for one, place in found.items() if one not in written]
            self._packs.read_ahead(ahead, only_objects=True)
        self.prepared = known

    def places(self, chunk_ids: Sequence[ChunkId]) -> dict[ChunkId, ChunkPlace]:
        """Return the places of chunks: see ``Locator.places``."""
        return self._locator.places(chunk_ids)

    def places_in_packs(self, chunk_ids: Sequence[ChunkId]) -> dict[ChunkId, ChunkPlace]:
        """Return the places of chunks from the packs: see ``Locator.places_in_packs``."""
        return self._locator.places_in_packs(chunk_ids)

    def another_place(self, chunk_id: ChunkId, *tried: ChunkPlace) -> ChunkPlace | None:
        """Return another place of a chunk: see ``Locator.another_place``."""
        return self._locator.another_place(chunk_id, *tried)

    def stored_again(self) -> set[ChunkId]:
        """Return the chunks that are deltas in more than one pack."""
        return self._locator.stored_again()

    def chain(self, chunk_id: ChunkId) -> list[ChunkPlace] | None:
        """Return the places of a chunk and of its delta chain: see ``Locator.chain``."""
        return self._locator.chain(chunk_id)

    def pack_size(self, pack_id: PackId) -> int | None:
        """Return the length of a pack's file; None if the file is missing or unreachable."""
        return self._packs.size(pack_id)

    def _chunk(self, chunk_id: ChunkId, kind: int, descent: Descent) -> bytes | memoryview:
        """Read a chunk from one of its places, or from elsewhere."""
        failure = self.failures.get(chunk_id)
        if failure is not None:
            raise CorruptionError(failure)
        place = self.prepared.get(chunk_id)
        # A prune may have moved it since. It can still be read from a pack that is open.
        if place is None or not self._packs.is_open(place.pack_id):
            place = self.places([chunk_id]).get(chunk_id)
        if place is None:
            found = self._taken(chunk_id, kind, descent)
            if found is None:
                raise ChunkMissingError(f"chunk {chunk_id.hex()[:12]} is in no pack")
            return found
        tried: dict[ChunkPlace, str] = {}
        while True:
            try:
                found = self._checked(chunk_id, kind, place, descent)
            except ChainTooLongError:
                raise
            except (CorruptionError, UnknownFormatError) as error:
                tried[place] = "" if descent.is_below else error.message
                if not descent.is_below:
                    self.suspect(place)
                again = self.another_place(chunk_id, *tried)
                if again is None:
                    found = self._taken(chunk_id, kind, descent)
                    if found is None:
                        raise
                    return found
                place = again
            else:
                for failed, why in tried.items():
                    self._frames.note_damaged(failed, why)
                return found

    def _checked(
        self, chunk_id: ChunkId, kind: int, place: ChunkPlace, descent: Descent
    ) -> bytes | memoryview:
        """Read a chunk from one place."""
        plain = self._frames.plain(place, descent)
        if descent.depth + descent.links > CHAIN_MAX:
            raise ChainTooLongError
        part = memoryview(plain)[place.start_bytes : place.start_bytes + place.length_bytes]
        check_chunk(kind, chunk_id, part)
        return part

    def _taken(self, chunk_id: ChunkId, kind: int, descent: Descent) -> bytes | memoryview | None:
        """Return a chunk that cannot be read here, from another store; None if none has it."""
        if self.elsewhere is None or not descent.repair:
            return None
        found = self.elsewhere.chunk(chunk_id, kind)
        if found is not None:
            check_chunk(kind, chunk_id, found)
            # Nothing of it was decoded here: a delta against it begins a new chain.
            descent.links, descent.is_below = 0, False
        return found

    def _delta_base(self, chunk_id: ChunkId, descent: Descent) -> bytes | memoryview:
        """Read a delta base, for ``Descent``."""
        if chunk_id in self._too_long:
            raise ChainTooLongError
        return self._chunk(chunk_id, DATA, descent)
