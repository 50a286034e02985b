"""Records of a running snapshot: warnings, files being written, length of the freeze."""

import threading
from collections.abc import Sequence

from ciuic.model import PathWarning
from ciuic.source.freeze.methods import SUBVOLUME
from ciuic.source.freeze.views import RootView
from ciuic.store.records.manifest import TROUBLE_MAX
from ciuic.system.clock import Clock

__all__ = ["CaptureTime", "Warnings", "WrittenFiles"]


class Warnings:
    """Collects warnings from several threads: keeps the first ones, and counts all."""

    def __init__(self, known: Sequence[PathWarning]) -> None:
        self._lock = threading.Lock()
        self.first: list[PathWarning] = list(known)
        self.count = len(known)

    def add(self, path: bytes, what: str, harmless: bool = False) -> None:
        """Add a warning about a path."""
        with self._lock:
            self.count += not harmless
            if len(self.first) < TROUBLE_MAX:
                self.first.append(PathWarning(path, what, harmless))


class WrittenFiles:
    """Collects files that are being written from several threads, and names the writers."""

    def __init__(self, warnings: Warnings) -> None:
        self._warnings = warnings
        self._lock = threading.Lock()
        self._unnamed: list[tuple[bytes, tuple[int, int], str]] = []
        self._paths: list[bytes] = []
        self.count = 0

    def add(self, path: bytes, inode: tuple[int, int], what: str) -> None:
        """Add a file; see ``sinks.BeingWrittenSink``."""
        with self._lock:
            self._unnamed.append((path, inode, what))
            self.count += 1

    def name_holders(self) -> None:
        """Turn the files added so far into warnings with the names of the writing programs.

        Call it soon: the programs may end.
        """
        with self._lock:
            found, self._unnamed = self._unnamed, []
        if not found:
            return
        # Imported late: psutil takes 50 ms.
        from ciuic.source.writers import find_holders

        # Searching all processes takes as long for one file as for many.
        holders = find_holders([inode for _, inode, what in found if not what])
        for path, inode, what in found:
            holder = f" by {holders[inode]}" if inode in holders else ""
            self._warnings.add(path, f"in flux: {what or f'open for writing{holder}'}")
        self._paths.extend([path for path, _, _ in found][: TROUBLE_MAX - len(self._paths)])

    def paths(self) -> tuple[bytes, ...]:
        """Return the paths of the first files."""
        return tuple(self._paths)


class CaptureTime:
    """Measures the capture of the source: from the first freeze to the last byte captured."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_s = self._ended_s = 0.0
        self._all_frozen = False

    def begin(self) -> None:
        """Record the beginning of the freeze."""
        self._began_s = self._ended_s = self._clock.monotonic_s()

    def frozen(self, views: Sequence[RootView]) -> None:
        """Record that the subvolumes are frozen."""
        self._ended_s = self._clock.monotonic_s()
        self._all_frozen = all(view.how == SUBVOLUME for view in views)

    def walked(self) -> None:
        """Record that the walk has seen every file and made all reflink copies."""
        if not self._all_frozen:
            self._ended_s = self._clock.monotonic_s()

    def duration_s(self, last_read_s: float) -> float:
        """Return the whole duration.

        Args:
            last_read_s: Monotonic time at which the last live file had been read; 0: none was.
        """
        return max(self._ended_s, last_read_s) - self._began_s
