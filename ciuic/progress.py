"""What a long run reports to a display, and what may slow it down."""

import threading
from collections.abc import Callable
from typing import Final, Protocol

__all__ = ["BYTE_STAGES", "Meter", "Pace", "Progress"]

BYTE_STAGES: Final = frozenset({"read packs"})
"""Stages of a prune or a repair that count bytes; the other stages count items."""


class Progress(Protocol):
    """Receives the progress of a long run."""

    def update(self, files: int, size_bytes: int, path: bytes) -> None:
        """Report the number of files and bytes done, and the latest path; must return quickly."""
        ...


class Pace(Protocol):
    """Makes the readers of a snapshot wait for other programs; several threads call it."""

    @property
    def waited_s(self) -> float:
        """How long a reader waited so far. Time in which several wait counts once."""
        ...

    def pace(self, size_bytes: int, check_stopped: Callable[[], None]) -> None:
        """Wait until reading may go on.

        Args:
            size_bytes: What the caller has just read.
            check_stopped: Called often; may raise an exception, which ends the wait.
        """
        ...


class Meter:
    """Adds up the progress of a snapshot's walk and of its readers, which run in several threads.

    Bytes count when they have been read or are known to be unchanged: the walk is far ahead of the
    readers.
    """

    def __init__(self, sink: Progress | None) -> None:
        self._sink = sink
        self._lock = threading.Lock()
        self._files = 0
        self._done_bytes = 0
        self._path = b""

    def walked(self, files: int, _listed_bytes: int, path: bytes) -> None:
        """Report the number of files that the walk has seen; ``path`` is the latest."""
        self._files, self._path = files, path
        self.handled(0)

    def handled(self, size_bytes: int) -> None:
        """Add bytes that are done."""
        if self._sink is None:
            return
        with self._lock:
            self._done_bytes += size_bytes
            done_bytes = self._done_bytes
        self._sink.update(self._files, done_bytes, self._path)
