"""Keeps packs open, and reads parts of them."""

import contextlib
import itertools
import operator
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from ciuic.errors import ChunkMissingError, CorruptionError, StoreError, UnreachableError
from ciuic.ids import PackId
from ciuic.store.directory.faults import store_faults
from ciuic.store.directory.files import open_regular, read_at, status_of
from ciuic.store.format.frame import Frame, header_bytes_needed, parse_header
from ciuic.store.index.places import ChunkPlace
from ciuic.store.records import layout
from ciuic.system import nofollow

__all__ = ["OpenPacks", "Pack"]

_OPEN_PACKS_MAX: Final = 64
_EXPECTED_SHARE: Final = 2
"""Frames that fill less than half of their range are not read ahead as a range."""
_EXPECTED_BYTES_MAX: Final = 64 * 1024 * 1024
_HEADER_BYTES: Final = 512
"""Enough for the header of a frame with one chunk, or with a few."""


class Pack:
    """An open pack; closed when its last user drops it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = open_regular(path)

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)


class OpenPacks:
    """The packs of one store, opened when they are needed. May be used from any thread.

    Args:
        store_path: The store's directory.
        passing: Drop what was read from the page cache.
    """

    def __init__(self, store_path: str, *, passing: bool = False) -> None:
        self._directory = os.path.join(store_path, layout.PACKS)
        self._passing = passing
        self._lock = threading.Lock()
        self._packs: OrderedDict[PackId, Pack] = OrderedDict()

    def close(self) -> None:
        """Close all packs; a pack that a thread still reads is closed when it is done."""
        with self._lock:
            self._packs.clear()

    def get(self, pack_id: PackId) -> Pack:
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
            path = os.path.join(self._directory, layout.pack_name(pack_id))
            try:
                with store_faults("open", path):
                    pack = self._packs[pack_id] = Pack(path)
            except Exception as error:
                if isinstance(error.__cause__, FileNotFoundError):
                    raise ChunkMissingError(f"pack {pack_id.hex()[:12]} is gone") from error
                raise
            while len(self._packs) > _OPEN_PACKS_MAX:
                self._packs.popitem(last=False)
            return pack

    def read(self, place: ChunkPlace) -> bytes:
        """Read the stored bytes of a frame; fewer at the end of a truncated pack.

        Raises:
            CorruptionError: The pack is gone, or the file system cannot read it.
            StoreError: The store failed.
        """
        pack = self.get(place.pack_id)
        with store_faults("read", pack.path):
            data = read_at(pack.fd, place.frame_bytes, place.offset_bytes)
            if self._passing:
                os.posix_fadvise(
                    pack.fd, place.offset_bytes, place.frame_bytes, os.POSIX_FADV_DONTNEED
                )
            return data

    def header(self, place: ChunkPlace) -> Frame:
        """Read a frame's header and table, without its payload.

        Raises:
            CorruptionError: The pack is gone, or the header is damaged.
        """
        pack = self.get(place.pack_id)
        with store_faults("read", pack.path):
            raw = read_at(pack.fd, min(place.frame_bytes, _HEADER_BYTES), place.offset_bytes)
            needed = header_bytes_needed(raw)
            if needed > len(raw):
                raw = read_at(pack.fd, needed, place.offset_bytes)
        frame = parse_header(raw)
        if frame.total_bytes != place.frame_bytes:
            raise CorruptionError("the frame does not have the length in the chunk index")
        return frame

    def expect(self, places: Iterable[ChunkPlace]) -> None:
        """Ask the kernel to read frames ahead, while the caller prepares other things.

        Loading the decoder of the first frame takes longer than reading a hundred frames. Errors
        are ignored: the later read reports them.
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
            length = min(end - begin, left)
            left -= length
            with contextlib.suppress(StoreError, CorruptionError, OSError):
                os.posix_fadvise(self.get(pack_id).fd, begin, length, os.POSIX_FADV_WILLNEED)

    def size(self, pack_id: PackId) -> int | None:
        """Return the length of a pack's file; None if the file is missing or unreachable."""
        path = os.path.join(self._directory, layout.pack_name(pack_id))
        try:
            with store_faults("look at", path):
                return status_of(path).st_size
        except UnreachableError:
            return None
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    def names(self) -> set[str]:
        """Return the file names in ``packs/``; empty if the directory is missing."""
        with store_faults("list", self._directory):
            try:
                return set(nofollow.list_names(self._directory))
            except FileNotFoundError:
                return set()
