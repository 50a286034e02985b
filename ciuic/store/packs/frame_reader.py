"""Reads frames: from the pack, by the pack's list of its frames, or with the pack's parity."""

import contextlib
from typing import Final

from ciuic.errors import ChunkMissingError, CorruptionError, StoreError
from ciuic.ids import PackId
from ciuic.store.directory.faults import store_faults
from ciuic.store.format.frame import (
    FRAME_BYTES_MAX,
    Frame,
    check_delta_bases,
    decode_frame,
    header_bytes_needed,
    parse_header,
)
from ciuic.store.index.places import ChunkPlace
from ciuic.store.packs.failures import ChainTooLongError, Descent, LostBaseError
from ciuic.store.packs.frame_cache import CACHE_BYTES_DEFAULT, FrameCache
from ciuic.store.packs.listed_frames import ListedFrames
from ciuic.store.packs.open_packs import OpenPacks
from ciuic.system.hashing import data_id

__all__ = ["FrameReader"]


class FrameReader:
    """Reads and decodes frames of one store. May be used from any thread.

    Args:
        store_path: The store's directory, which has the parity.
        packs: The store's packs.
        listed: What packs list of themselves.
        cache_bytes: Length of the decoded frames that are kept.

    Attributes:
        damaged: Frames that could not be read as they are in the pack, although another copy of the
            header or of the chunk could: by pack and offset, with the reason.
    """

    def __init__(
        self,
        store_path: str,
        packs: OpenPacks,
        listed: ListedFrames,
        cache_bytes: int = CACHE_BYTES_DEFAULT,
    ) -> None:
        self.damaged: dict[tuple[PackId, int], str] = {}
        self._store_path: Final = store_path
        self._packs: Final = packs
        self._listed: Final = listed
        self._cache: Final = FrameCache(cache_bytes)

    @property
    def repaired(self) -> set[tuple[PackId, int]]:
        """The damaged frames that were read, by pack and offset: these, and those by parity."""
        return self.damaged.keys() | self._cache.restored

    def clear(self) -> None:
        """Forget the frames that are cached."""
        self._cache.clear()

    def note_damaged(self, place: ChunkPlace, why: str) -> None:
        """Note why a frame could not be read as it is in the pack; empty: it was not at fault."""
        if why:
            self.damaged.setdefault((place.pack_id, place.offset_bytes), why)

    def header(self, place: ChunkPlace) -> Frame:
        """Read a frame's header and table: see ``OpenPacks.header``; else the pack's list of it."""
        try:
            return self._packs.header(place)
        except CorruptionError:
            packed = self._listed.frame(place)
            if packed is None:
                raise
            return packed.frame

    def plain(self, place: ChunkPlace, descent: Descent) -> bytes | memoryview:
        """Return the decoded payload of a frame, from the cache or the pack."""
        cached = self._cache.get(place, repair=descent.repair)
        if cached is not None:
            plain, descent.links = cached
        else:
            _, plain = self.read(place, descent, keep=True)
        return plain

    def read(
        self,
        place: ChunkPlace,
        descent: Descent,
        *,
        in_place: bool = False,
        keep: bool = False,
        header_id: bytes = b"",
    ) -> tuple[Frame, bytes | memoryview]:
        """Read and decode a frame; its chunks are not checked.

        Args:
            place: Where the frame is.
            descent: The read that needs it.
            in_place: Read it only by the header in front of its payload.
            keep: Cache it.
            header_id: The expected hash of its header and table; empty: unknown.

        Raises:
            CorruptionError: The frame or its delta base is missing or damaged.
        """
        where = f"pack {place.pack_id.hex()[:12]} at byte {place.offset_bytes}"
        descent.is_below = False
        try:
            frame, plain = self._sound(place, descent, in_place=in_place, header_id=header_id)
        except (ChunkMissingError, ChainTooLongError):
            raise
        except LostBaseError as error:
            if descent.depth:
                raise  # the call for the first frame of the chain adds its own place to the message
            raise CorruptionError(f"{where}: {error.message}") from error
        except CorruptionError as error:
            raise CorruptionError(f"{where}: {error.message}") from error
        if keep:
            self._cache.put(place, plain, descent.links)
        return frame, plain

    def _sound(
        self, place: ChunkPlace, descent: Descent, *, in_place: bool, header_id: bytes
    ) -> tuple[Frame, bytes | memoryview]:
        """Read a frame in one of the ways that there are."""
        if place.frame_bytes > FRAME_BYTES_MAX:
            raise CorruptionError("it is longer than a frame can be")
        try:
            return self._as_stored(place, descent, header_id)
        except CorruptionError as error:
            found = None
            if not descent.is_below and not in_place:
                found = self._by_list(place, error.message, descent)
            if found is None and descent.repair and not descent.is_below:
                found = self._repaired(place, descent)
            if found is None:
                raise
            return found

    def _as_stored(
        self, place: ChunkPlace, descent: Descent, header_id: bytes
    ) -> tuple[Frame, bytes | memoryview]:
        """Read a frame by the header in front of its payload.

        What was fetched from a bucket is kept on this machine. If a frame is not sound, its bytes
        are fetched again: damage of a local file must not count as damage of the store.
        """
        try:
            return self._read_once(place, descent, header_id)
        except CorruptionError:
            if descent.is_below or not self._packs.doubt(place):
                raise
        return self._read_once(place, descent, header_id)

    def _read_once(
        self, place: ChunkPlace, descent: Descent, header_id: bytes
    ) -> tuple[Frame, bytes | memoryview]:
        raw = self._packs.read(place)
        if header_id:
            _check_header(raw, header_id)
        return _decoded(place, raw, descent)

    def _by_list(
        self, place: ChunkPlace, why: str, descent: Descent
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
            found = _decoded(place, packed.header + self._packs.read(payload), descent)
        except CorruptionError:
            if descent.is_below:
                raise
            return None
        self.note_damaged(place, why)
        return found

    def _repaired(
        self, place: ChunkPlace, descent: Descent
    ) -> tuple[Frame, bytes | memoryview] | None:
        """Restore a damaged frame with the pack's parity; None if parity cannot restore it."""
        # Imported late: every command imports this module, and parity is for damage alone.
        from ciuic.store.parity.rebuild import open_parity_reader

        pack = self._packs.get(place.pack_id)
        if pack.fd < 0:
            return None
        # If parity cannot be read either, the caller reports the damage of the frame.
        with contextlib.suppress(StoreError):
            with (
                store_faults("read", pack.name),
                open_parity_reader(self._store_path, place.pack_id, pack.fd) as reader,
            ):
                raw = reader.read(place.frame_bytes, place.offset_bytes)
                found = _decoded(place, raw, descent)
            self._cache.note_restored(place)
            return found
        return None


def _decoded(place: ChunkPlace, raw: bytes, descent: Descent) -> tuple[Frame, bytes | memoryview]:
    """Decode the stored bytes of a frame, reading its delta bases if it is a delta."""
    if len(raw) != place.frame_bytes:
        raise CorruptionError("the pack is cut short")
    data = memoryview(raw)
    frame = parse_header(data)
    if frame.total_bytes != place.frame_bytes:
        raise CorruptionError("the frame does not have the length in the chunk index")
    descent.links = 0
    bases: list[bytes | memoryview] = []
    if frame.is_delta:
        check_delta_bases(frame)
        bases = descent.read_bases(frame.delta_bases)
    return frame, decode_frame(frame, data[frame.header_bytes :], *bases)


def _check_header(raw: bytes, header_id: bytes) -> None:
    if data_id(memoryview(raw)[: header_bytes_needed(raw)]) != header_id:
        raise CorruptionError("the frame's header differs from its pack's footer")
