"""The state that all readers of one snapshot share: store, limits, counts and sinks."""

import os
import threading
from collections.abc import Callable
from typing import Final

from ciuic.errors import CancelledError
from ciuic.progress import Pace
from ciuic.snapshot.read.sinks import Sinks
from ciuic.snapshot.read.source_file import SourceFile
from ciuic.source.stability import ATTEMPTS
from ciuic.store.packs.writer import StoreWriter
from ciuic.store.store import Store
from ciuic.system.clock import Clock

__all__ = ["ReaderContext"]

_SMALL_BYTES: Final = 256 * 1024
_FILE_BYTES: Final = 16 * 1024
"""Finding and opening a file takes about as long as reading this much of it."""


class ReaderContext:
    """The state that all readers of one snapshot share.

    Args:
        store: The store, with the parent's recipes.
        writer: Stores chunks.
        skip_unchanged: Ranges that are unchanged since the parent's reflink copy are not read.
        sinks: Receive warnings and files being written.
        cancelled: Returns whether to stop; called between blocks.
        clock: Measures when the last live file was read.
        handled: Called, from several threads, with numbers of bytes that were read or need not be.
        pacer: Makes the readers wait for other programs; None: they never do.

    Attributes:
        uid: The user of this process.
        chunk_bytes: Maximum size of a chunk.
        small_bytes: Maximum length of a file that is read whole.
        read_bytes: Bytes read from the source so far.
        captured_s: Monotonic time at which the last live file had been read.
    """

    def __init__(
        self,
        store: Store,
        writer: StoreWriter,
        *,
        skip_unchanged: bool,
        sinks: Sinks,
        cancelled: Callable[[], bool],
        clock: Clock,
        handled: Callable[[int], None],
        pacer: Pace | None = None,
    ) -> None:
        self.store = store
        self.writer = writer
        self.skip_unchanged = skip_unchanged
        self.sinks = sinks
        self.handled = handled
        self.uid = os.geteuid()
        self.chunk_bytes = store.header.chunking.size_bytes
        self.small_bytes = min(_SMALL_BYTES, self.chunk_bytes)
        self.read_bytes = 0
        self.captured_s = 0.0
        self._cancelled = cancelled
        self._clock = clock
        self._pacer = pacer
        self._count_lock = threading.Lock()
        self._stopped = False

    def stop(self) -> None:
        """Make every reader end at its next block."""
        self._stopped = True

    def check_stopped(self) -> None:
        """End this reader if the snapshot was interrupted.

        Raises:
            CancelledError: The snapshot was interrupted.
        """
        if self._stopped or self._cancelled():
            raise CancelledError("the snapshot was interrupted")

    def pace(self, read_bytes: int, files: int = 0) -> None:
        """Wait while other programs need the disk or the processors; ``files`` were opened for it.

        Raises:
            CancelledError: The snapshot was interrupted.
        """
        if self._pacer is not None:
            self._pacer.pace(read_bytes + files * _FILE_BYTES, self.check_stopped)

    def count(self, read_bytes: int) -> None:
        """Count bytes that were read."""
        with self._count_lock:
            self.read_bytes += read_bytes
        self.handled(read_bytes)

    def note_capture(self) -> None:
        """Note that a live file has just been read."""
        self.captured_s = self._clock.monotonic_s()

    def report_written(self, file: SourceFile, status: os.stat_result, *, is_torn: bool) -> None:
        """Report a file that a program was writing while it was read."""
        what = f"changed during each of {ATTEMPTS} attempts to read it" if is_torn else ""
        self.sinks.being_written(file.path, (status.st_dev, status.st_ino), what)
