"""A cache of decoded frames: small chunks of one frame are often read one after another."""

import threading
from collections import OrderedDict
from typing import Final, NamedTuple

from ciuic.ids import PackId
from ciuic.store.index.places import ChunkPlace

__all__ = ["CACHE_BYTES_DEFAULT", "CachedFrame", "FrameCache"]

CACHE_BYTES_DEFAULT: Final = 24 * 1024 * 1024
_CACHED_FRAME_MAX: Final = 2 * 1024 * 1024

_Key = tuple[PackId, int]


class CachedFrame(NamedTuple):
    """A decoded frame.

    Attributes:
        plain: Its decoded payload.
        links: Deltas from this frame down to the end of its chain, itself included.
    """

    plain: bytes | memoryview
    links: int


class FrameCache:
    """A bounded number of bytes of decoded frames. May be used from any thread.

    Args:
        bytes_max: The bound.

    Attributes:
        restored: The frames that parity has restored: pack and offset.
    """

    def __init__(self, bytes_max: int = CACHE_BYTES_DEFAULT) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._frames: OrderedDict[_Key, CachedFrame] = OrderedDict()
        self.restored: set[_Key] = set()
        self._cached_bytes = 0

    def clear(self) -> None:
        """Drop all frames."""
        with self._lock:
            self._frames.clear()
            self._cached_bytes = 0

    def get(self, place: ChunkPlace, *, repair: bool) -> CachedFrame | None:
        """Return the frame at ``place``; None if it is not cached.

        Args:
            place: Where the frame is.
            repair: Also return a frame that parity has restored. The pack itself does not hold
                these bytes.
        """
        key = (place.pack_id, place.offset_bytes)
        with self._lock:
            if not repair and key in self.restored:
                return None
            found = self._frames.get(key)
            if found is not None:
                self._frames.move_to_end(key)
            return found

    def put(self, place: ChunkPlace, plain: bytes | memoryview, links: int) -> None:
        """Cache a frame, unless it is large."""
        if len(plain) > _CACHED_FRAME_MAX:
            return
        key = (place.pack_id, place.offset_bytes)
        with self._lock:
            if key not in self._frames:
                self._frames[key] = CachedFrame(plain, links)
                self._cached_bytes += len(plain)
            while self._cached_bytes > self._bytes_max:
                _, old = self._frames.popitem(last=False)
                self._cached_bytes -= len(old.plain)

    def note_restored(self, place: ChunkPlace) -> None:
        """Note that the frame at ``place`` was restored with parity."""
        self.restored.add((place.pack_id, place.offset_bytes))
