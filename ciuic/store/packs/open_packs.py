"""Keeps packs open, and reads parts of them."""

import contextlib
import itertools
import operator
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from ciuic.errors import CorruptionError, StoreError
from ciuic.ids import PackId
from ciuic.store.format.frame import Frame, header_bytes_needed, parse_header
from ciuic.store.index.places import ChunkPlace
from ciuic.store.place.packs import OpenPack, Packs

__all__ = ["OpenPacks"]

_OPEN_PACKS_MAX: Final = 64
_EXPECTED_SHARE: Final = 2
"""Frames that fill less than half of their range are not read ahead as a range."""
_EXPECTED_BYTES_MAX: Final = 64 * 1024 * 1024
_HEADER_BYTES: Final = 512
"""Enough for the header of a frame with one chunk, or with a few."""


class OpenPacks:
    """The packs of one store, opened when they are needed. May be used from any thread.

    Args:
        packs: The store's packs.
        passing: Drop what was read from the page cache.
    """

    def __init__(self, packs: Packs, *, passing: bool = False) -> None:
        self._store_packs = packs
        self._passing = passing
        self._lock = threading.Lock()
        self._packs: OrderedDict[PackId, OpenPack] = OrderedDict()

    def close(self) -> None:
        """Close all packs; a pack that a thread still reads is closed when it is done."""
        with self._lock:
            self._packs.clear()

    def get(self, pack_id: PackId) -> OpenPack:
        """Return the open pack.

        Raises:
            ChunkMissingError: The pack is gone.
            StoreError: The pack cannot be opened.
        """
        with self._lock:
            pack = self._packs.get(pack_id)
            if pack is not None:
                self._packs.move_to_end(pack_id)
                return pack
            pack = self._packs[pack_id] = self._store_packs.open(pack_id)
            while len(self._packs) > _OPEN_PACKS_MAX:
                self._packs.popitem(last=False)
            return pack

    def is_open(self, pack_id: PackId) -> bool:
        """Return whether a pack is open: it can then be read even if it was removed since."""
        return pack_id in self._packs

    def read(self, place: ChunkPlace) -> bytes:
        """Read the stored bytes of a frame; fewer at the end of a truncated pack.

        Raises:
            CorruptionError: The pack is gone, or the file system cannot read it.
            StoreError: The store failed.
        """
        pack = self.get(place.pack_id)
        data = pack.read(place.frame_bytes, place.offset_bytes)
        if self._passing:
            pack.pass_by(place.offset_bytes, place.frame_bytes)
        return data

    def view(self, place: ChunkPlace) -> bytes | memoryview:
        """Like ``read``, for a moment: see ``OpenPack.view``."""
        pack = self.get(place.pack_id)
        data = pack.view(place.frame_bytes, place.offset_bytes)
        if self._passing:
            pack.pass_by(place.offset_bytes, place.frame_bytes)
        return data

    def done(self, place: ChunkPlace) -> None:
        """Say that a frame is not read again: what was fetched of it need not be kept."""
        pack = self._packs.get(place.pack_id)
        if pack is not None:
            pack.done(place.offset_bytes, place.frame_bytes)

    def doubt(self, place: ChunkPlace) -> bool:
        """Say that a frame is not sound; returns whether reading it again may differ."""
        pack = self._packs.get(place.pack_id)
        return pack is not None and pack.doubt(place.offset_bytes, place.frame_bytes)

    def header(self, place: ChunkPlace) -> Frame:
        """Read a frame's header and table, without its payload.

        Raises:
            CorruptionError: The pack is gone, or the header is damaged.
        """
        try:
            return self._header_once(place)
        except CorruptionError:
            if not self.doubt(place):
                raise
        return self._header_once(place)

    def _header_once(self, place: ChunkPlace) -> Frame:
        pack = self.get(place.pack_id)
        raw = pack.read(min(place.frame_bytes, _HEADER_BYTES), place.offset_bytes)
        needed = header_bytes_needed(raw)
        if needed > len(raw):
            raw = pack.read(needed, place.offset_bytes)
        frame = parse_header(raw)
        if frame.total_bytes != place.frame_bytes:
            raise CorruptionError("the frame does not have the length in the chunk index")
        return frame

    def read_ahead(self, places: Iterable[ChunkPlace], *, only_objects: bool = False) -> None:
        """Ask for frames to be read ahead, while the caller prepares other things.

        Loading the decoder of the first frame takes longer than reading a hundred frames. Errors
        are ignored: the later read reports them.

        Args:
            places: Where the frames are.
            only_objects: Leave out packs that are files.
        """
        left = _EXPECTED_BYTES_MAX
        ranges = sorted(
            {(place.pack_id, place.offset_bytes, place.frame_bytes) for place in places}
        )
        for pack_id, group in itertools.groupby(ranges, key=operator.itemgetter(0)):
            frames = list(group)
            begin = frames[0][1]
            end = frames[-1][1] + frames[-1][2]
            wanted = sum([length for _, _, length in frames])
            if wanted * _EXPECTED_SHARE < end - begin or left <= 0:
                continue
            with contextlib.suppress(StoreError):
                pack = self.get(pack_id)
                # Objects are only told: they fetch a few parts ahead of each read.
                if pack.fd < 0:
                    pack.read_ahead(begin, end - begin, is_in_turn=not only_objects)
                    continue
                if only_objects:
                    continue
                length = min(end - begin, left)
                left -= length
                pack.read_ahead(begin, length)

    def size(self, pack_id: PackId) -> int | None:
        """Return the length of a pack; None if it is missing or unreachable."""
        return self._store_packs.size_bytes(pack_id)

    def names(self) -> set[str]:
        """Return the names of all packs; empty if there are none."""
        return self._store_packs.names()
