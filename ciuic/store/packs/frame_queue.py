"""A queue of encoded frames, bounded in bytes and not in number."""

import queue
import threading
from collections.abc import Callable

from ciuic.store.format.frame import Frame

__all__ = ["FrameQueue"]


class FrameQueue:
    """Frames on their way to the thread that fills packs.

    Args:
        bytes_max: Payload bytes that may be queued; a larger frame is queued alone.
    """

    def __init__(self, bytes_max: int) -> None:
        self._queue: queue.SimpleQueue[tuple[Frame, bytes | memoryview] | None] = (
            queue.SimpleQueue()
        )
        self._changed = threading.Condition()
        self._free_bytes = bytes_max
        self._bytes_max = bytes_max

    def put(self, frame: Frame, payload: bytes | memoryview, failed: Callable[[], bool]) -> None:
        """Append a frame; waits for free space, or until ``failed`` returns true."""
        wanted = min(frame.stored_bytes, self._bytes_max)
        with self._changed:
            self._changed.wait_for(lambda: self._free_bytes >= wanted or failed())
            self._free_bytes -= wanted
        self._queue.put((frame, payload))

    def end(self) -> None:
        """Mark the end: no further frame follows."""
        self._queue.put(None)

    def get(self) -> tuple[Frame, bytes | memoryview] | None:
        """Wait for the next frame and return it; None at the end."""
        return self._queue.get()

    def written(self, frame: Frame) -> None:
        """Free the space of a frame that ``get`` returned."""
        with self._changed:
            self._free_bytes += min(frame.stored_bytes, self._bytes_max)
            self._changed.notify_all()

    def wake(self) -> None:
        """Make waiting threads call ``failed`` again."""
        with self._changed:
            self._changed.notify_all()
