"""Reads chunks: locates, reads, decodes and checks them.

A chunk is returned only if it hashes to the requested ID; the chunks of a whole frame (``frame``)
are checked by its caller. If the chunk index does not know a chunk or names a wrong place, the
packs are searched (``locator``). A damaged frame is read with parity; its file stays as it is.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from ciuic.errors import (
    ChunkMissingError,
    CorruptionError,
    StoreError,
    UnknownFormatError,
)
from ciuic.ids import ChunkId, PackId
from ciuic.store.directory.faults import store_faults
from ciuic.store.format.delta_graph import count_deltas
from ciuic.store.format.frame import (
    FRAME_BYTES_MAX,
    Frame,
    check_delta_bases,
    decode_frame,
    header_bytes_needed,
    parse_header,
)
from ciuic.store.format.pack import PackedFrame
from ciuic.store.index.database import IndexDamagedError
from ciuic.store.index.places import ChunkPlace
from ciuic.store.packs.failures import (
    ChainTooLongError,
    Descent,
    Elsewhere,
    LostBaseError,
    RememberFailures,
    RetryFailures,
)
from ciuic.store.packs.frame_cache import FrameCache
from ciuic.store.packs.listed_frames import ListedFrames
from ciuic.store.packs.locator import Locator, Places
from ciuic.store.packs.open_packs import OpenPacks
from ciuic.store.packs.sound_bases import find_sound_bases
from ciuic.store.place.packs import Packs
from ciuic.store.records.kinds import CHAIN_MAX, DATA, check_chunk
from ciuic.system.hashing import data_id

__all__ = ["StoreReader"]

_TOO_LONG_MAX: Final = 100_000
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

    Attributes:
        damaged: Frames that could not be read as they are in the pack, although another copy of the
            header or of the chunk could: by pack and offset, with the reason.
        failures: What to do when a chunk that could not be read is read again.
        expected: The places that ``expect`` was told of last, with those of the chains below.
        elsewhere: Is asked for a chunk that can't be read here, unless the read is to repair
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
    ) -> None:
        self.failures: RetryFailures | RememberFailures = RetryFailures()
        self.elsewhere: Elsewhere | None = None
        self._store_path = store_path
        self._packs = OpenPacks(packs, passing=passing)
        self._listed = ListedFrames(list_pack)
        self._locator = Locator(self._packs, index, index_from_packs, self._listed)
        self.damaged: dict[tuple[PackId, int], str] = {}
        self._cache = FrameCache()
        self.expected: Mapping[ChunkId, ChunkPlace] = {}
        self._too_long: set[ChunkId] = set()

    @property
    def repaired_frames(self) -> int:
        """How many damaged frames were read with parity or elsewhere; a prune removes packs."""
        keys = self.damaged.keys() | self._cache.restored
        return sum([self.pack_size(pack_id) is not None for pack_id, _ in keys])

    def close(self) -> None:
        """Close the packs and clear the cache."""
        self._packs.close()
        self._cache.clear()
        self.expected = {}

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
            return self._chunk(chunk_id, kind, repair=repair, descent=Descent())
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

    def read_into(self, chunk_id: ChunkId, out: memoryview, places: _Places = None) -> bool:
        """Read and check a chunk that ``expect`` was told of: see ``read_straight``.

        Args:
            chunk_id: The chunk, of file content.
            out: Memory for exactly the chunk. Its content is arbitrary if this returns False.
            places: ``expected`` as it was then; None: as it is now.

        Returns:
            Whether ``out`` has the chunk. If not, ``chunk`` repairs it or says what is wrong.
        """
        # Imported here: most commands read no large chunk.
        from ciuic.store.packs.straight import read_straight

        return read_straight(self._packs, places or self.expected, chunk_id, out)

    def chain(self, chunk_id: ChunkId) -> list[ChunkPlace] | None:
        """Return the places of a chunk and of its delta chain, in order.

        None if the chain is broken or endless, or if one of its deltas has two delta bases.
        """
        found: list[ChunkPlace] = []
        while len(found) <= CHAIN_MAX:
            place = None
            with contextlib.suppress(IndexDamagedError):
                place = self._locator.index.places([chunk_id]).get(chunk_id)
            if place is None or len(place.delta_bases) > 1:
                return None
            found.append(place)
            if not place.delta_bases:
                return found
            (chunk_id,) = place.delta_bases
        return None

    def chunks_without_base(
        self,
        places: Mapping[ChunkId, ChunkPlace],
        is_sound: Callable[[ChunkId, ChunkPlace], bool],
    ) -> dict[ChunkId, ChunkId]:
        """Map each chunk whose delta chain is broken to the missing base.

        Args:
            places: The places of the chunks.
            is_sound: Returns whether another chunk can be read from its recorded place.
        """
        deltas = {chunk_id: place for chunk_id, place in places.items() if place.delta_bases}
        graph = find_sound_bases(self.places, places, is_sound) if deltas else {}
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
        again = self._locator.stored_again() if lost else set()
        if again:
            lost = {
                chunk_id: base
                for chunk_id, base in lost.items()
                if not self._is_stored_again(chunk_id, again)
            }
        return lost

    def _is_stored_again(self, chunk_id: ChunkId, again: set[ChunkId]) -> bool:
        """Return whether a chunk can be read because a part of its chain was stored again."""
        chain = {chunk_id}
        wanted = [chunk_id]
        for _ in range(CHAIN_MAX):
            below = [base for place in self.places(wanted).values() for base in place.delta_bases]
            wanted = [base for base in dict.fromkeys(below) if base not in chain]
            if not wanted:
                break
            chain.update(wanted)
        # Only damage is suppressed: an I/O error says nothing about the chunk.
        with contextlib.suppress(CorruptionError, UnknownFormatError):
            if again.isdisjoint(chain):
                return False
            return bool(self.chunk(chunk_id, kind=DATA, repair=False))
        return False

    def _chunk(
        self, chunk_id: ChunkId, kind: int, *, repair: bool, descent: Descent
    ) -> bytes | memoryview:
        failure = self.failures.get(chunk_id)
        if failure is not None:
            raise CorruptionError(failure)
        place = self.expected.get(chunk_id)
        # A prune may have moved it since. It can still be read from a pack that is open.
        if place is None or not self._packs.is_open(place.pack_id):
            place = self.places([chunk_id]).get(chunk_id)
        if place is None:
            found = self._taken(chunk_id, kind, descent) if repair else None
            if found is None:
                raise ChunkMissingError(f"chunk {chunk_id.hex()[:12]} is in no pack")
            return found
        tried: dict[ChunkPlace, str] = {}
        while True:
            try:
                found = self._checked(chunk_id, kind, place, repair=repair, descent=descent)
            except ChainTooLongError:
                raise
            except (CorruptionError, UnknownFormatError) as error:
                tried[place] = "" if descent.is_below else error.message
                again = self.another_place(chunk_id, *tried)
                if again is None:
                    found = self._taken(chunk_id, kind, descent) if repair else None
                    if found is None:
                        raise
                    return found
                place = again
            else:
                for failed, why in tried.items():
                    self._note_damaged(failed, why)
                return found

    def _taken(self, chunk_id: ChunkId, kind: int, descent: Descent) -> bytes | memoryview | None:
        """Return a chunk that can't be read here from elsewhere; None if it is not there."""
        found = None if self.elsewhere is None else self.elsewhere.chunk(chunk_id, kind)
        if found is not None:
            check_chunk(kind, chunk_id, found)
            # Nothing of it was decoded here: a delta against it begins a new chain.
            descent.links, descent.is_below = 0, False
        return found

    def places(self, chunk_ids: Sequence[ChunkId]) -> dict[ChunkId, ChunkPlace]:
        """Return the places of chunks: see ``Locator.places``."""
        return self._locator.places(chunk_ids)

    def places_in_packs(self, chunk_ids: Sequence[ChunkId]) -> dict[ChunkId, ChunkPlace]:
        """Return the places of chunks from the packs: see ``Locator.places_in_packs``."""
        return self._locator.places_in_packs(chunk_ids)

    def another_place(self, chunk_id: ChunkId, *tried: ChunkPlace) -> ChunkPlace | None:
        """Return another place of a chunk: see ``Locator.another_place``."""
        return self._locator.another_place(chunk_id, *tried)

    def pack_size(self, pack_id: PackId) -> int | None:
        """Return the length of a pack's file; None if the file is missing or unreachable."""
        return self._packs.size(pack_id)

    def header(self, place: ChunkPlace) -> Frame:
        """Read a frame's header and table: see ``OpenPacks.header``; else the pack's list of it."""
        try:
            return self._packs.header(place)
        except CorruptionError:
            packed = self._listed.frame(place)
            if packed is None:
                raise
            return packed.frame

    def read_ahead(self, places: Iterable[ChunkPlace]) -> None:
        """Read frames ahead: see ``OpenPacks.expect``."""
        self._packs.expect(places)

    def expect(self, places: Mapping[ChunkId, ChunkPlace]) -> None:
        """Prepare for reading these chunks: read ahead, and look up their delta chains at once.

        A look-up for each chunk of each chain costs more than decoding a small chunk.
        """
        self._packs.expect(places.values())
        known = dict(places)
        for _ in range(CHAIN_MAX):
            below = {base for place in known.values() for base in place.delta_bases} - known.keys()
            found = self.places(list(below)) if below else {}
            if not found:
                break
            known |= found
        self.expected = known

    def frame(
        self, place: ChunkPlace, *, repair: bool = True, keep: bool = False, header_id: bytes = b""
    ) -> tuple[Frame, bytes | memoryview]:
        """Read and decode a whole frame; its chunks are not checked.

        Args:
            place: Where the frame is.
            repair: If the frame is damaged, use the footer's copy of its header, or parity.
            keep: Cache the frame: a delta against it is read next.
            header_id: The expected hash of its header and table; empty: unknown.

        Raises:
            CorruptionError: The frame or its delta base is missing or damaged.
        """
        descent = Descent()
        frame, plain = self._frame(
            place, repair=repair, in_place=not repair, descent=descent, header_id=header_id
        )
        if keep:
            self._cache.put(place, plain, descent.links)
        return frame, plain

    def _frame(
        self,
        place: ChunkPlace,
        *,
        repair: bool,
        descent: Descent,
        in_place: bool = False,
        header_id: bytes = b"",
    ) -> tuple[Frame, bytes | memoryview]:
        """Read and decode a frame; ``in_place``: only by the header in front of its payload."""
        where = f"pack {place.pack_id.hex()[:12]} at byte {place.offset_bytes}"
        descent.is_below = False
        try:
            if place.frame_bytes > FRAME_BYTES_MAX:
                raise CorruptionError("it is longer than a frame can be")
            try:
                raw = self._packs.read(place)
                if header_id:
                    _check_header(raw, header_id)
                return self._decoded(place, raw, repair=repair, descent=descent)
            except CorruptionError as error:
                found = None
                if not descent.is_below and not in_place:
                    found = self._by_list(place, error.message, repair=repair, descent=descent)
                if found is None and repair and not descent.is_below:
                    found = self._repaired(place, descent=descent)
                if found is None:
                    raise
                return found
        except (ChunkMissingError, ChainTooLongError):
            raise
        except LostBaseError as error:
            if descent.depth:
                raise  # the call for the first frame of the chain adds its own place to the message
            raise CorruptionError(f"{where}: {error.message}") from error
        except CorruptionError as error:
            raise CorruptionError(f"{where}: {error.message}") from error

    def _by_list(
        self, place: ChunkPlace, why: str, *, repair: bool, descent: Descent
    ) -> tuple[Frame, bytes | memoryview] | None:
        """Read a frame by the pack's list; None if the list does not help.

        The list has a second copy of the header. It helps if the copy in front of the payload is
        damaged and the payload is not.
        """
        packed = self._listed.frame(place)
        if packed is None:
            return None
        offset = place.offset_bytes + len(packed.header)
        payload = place._replace(offset_bytes=offset, frame_bytes=packed.frame.stored_bytes)
        try:
            data = packed.header + self._packs.read(payload)
            found = self._decoded(place, data, repair=repair, descent=descent)
        except CorruptionError:
            if descent.is_below:
                raise
            return None
        self._note_damaged(place, why)
        return found

    def _note_damaged(self, place: ChunkPlace, why: str) -> None:
        if why:
            self.damaged.setdefault((place.pack_id, place.offset_bytes), why)

    def _decoded(
        self, place: ChunkPlace, raw: bytes, *, repair: bool, descent: Descent
    ) -> tuple[Frame, bytes | memoryview]:
        """Decode the stored bytes of a frame, reading its delta base if it is a delta."""
        if len(raw) != place.frame_bytes:
            raise CorruptionError("the pack is cut short")
        data = memoryview(raw)
        frame = parse_header(data)
        if frame.total_bytes != place.frame_bytes:
            raise CorruptionError("the frame does not have the length in the chunk index")
        bases = self._delta_bases(frame, repair=repair, descent=descent)
        return frame, decode_frame(frame, data[frame.header_bytes :], *bases)

    def _delta_bases(
        self, frame: Frame, *, repair: bool, descent: Descent
    ) -> list[bytes | memoryview]:
        """Read the delta bases of a frame. Each delta below counts as often as it is reached."""
        descent.links = 0
        if not frame.is_delta:
            return []
        check_delta_bases(frame)
        found, links, depth = [], 1, descent.depth
        try:
            for base in frame.delta_bases:
                descent.depth = depth + links - 1
                found.append(self._delta_base(base, repair=repair, descent=descent))
                links += descent.links
        finally:
            descent.depth = depth
        descent.links = links
        return found

    def _checked(
        self, chunk_id: ChunkId, kind: int, place: ChunkPlace, *, repair: bool, descent: Descent
    ) -> bytes | memoryview:
        cached = self._cache.get(place, repair=repair)
        if cached is not None:
            plain, descent.links = cached
        else:
            _, plain = self._frame(place, repair=repair, descent=descent)
            self._cache.put(place, plain, descent.links)
        if descent.depth + descent.links > CHAIN_MAX:
            raise ChainTooLongError
        part = memoryview(plain)[place.start_bytes : place.start_bytes + place.length_bytes]
        check_chunk(kind, chunk_id, part)
        return part

    def _delta_base(
        self, chunk_id: ChunkId, *, repair: bool, descent: Descent
    ) -> bytes | memoryview:
        descent.depth += 1
        try:
            if descent.depth > CHAIN_MAX or chunk_id in self._too_long:
                raise ChainTooLongError
            if chunk_id in descent.lost:
                raise ChunkMissingError(f"chunk {chunk_id.hex()[:12]} is lost")
            return self._chunk(chunk_id, DATA, repair=repair, descent=descent)
        except (ChainTooLongError, UnknownFormatError):
            descent.is_below = True
            raise
        except CorruptionError as error:
            descent.lost.add(chunk_id)
            descent.is_below = True
            if isinstance(error, LostBaseError):
                raise
            raise LostBaseError(f"its delta base can't be read: {error.message}") from error
        finally:
            descent.depth -= 1

    def _repaired(
        self, place: ChunkPlace, *, descent: Descent
    ) -> tuple[Frame, bytes | memoryview] | None:
        """Restore a damaged frame with the pack's parity; None if parity cannot restore it."""
        # Imported late: every command imports this module, and parity is for damage alone.
        from ciuic.store.parity.rebuild import open_parity_reader

        pack = self._packs.get(place.pack_id)
        if pack.fd < 0:
            return None
        # If parity can't be read either, the caller reports the damage of the frame.
        with contextlib.suppress(StoreError):
            with (
                store_faults("read", pack.name),
                open_parity_reader(self._store_path, place.pack_id, pack.fd) as reader,
            ):
                raw = reader.read(place.frame_bytes, place.offset_bytes)
                found = self._decoded(place, raw, repair=True, descent=descent)
            self._cache.note_restored(place)
            return found
        return None


def _check_header(raw: bytes, header_id: bytes) -> None:
    if data_id(memoryview(raw)[: header_bytes_needed(raw)]) != header_id:
        raise CorruptionError("the frame's header differs from its pack's footer")
