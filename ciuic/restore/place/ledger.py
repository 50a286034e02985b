"""The record of what a pass of a restore has done so far: counts, failures and notes."""

import threading
from collections.abc import Iterable
from typing import Final

from ciuic.model import Entry, PathWarning
from ciuic.progress import Progress
from ciuic.restore.place.first_names import FirstNames
from ciuic.restore.place.target import OWNER_REFUSED
from ciuic.restore.report import RestoreReport

__all__ = ["Ledger"]

_NAMED_MAX: Final = 100_000
"""Files that a dry run would delete and names: the list is in memory."""
_IN_FLUX: Final = "was in flux when the snapshot was taken: it may hold a mixture of two states"


class Ledger:
    """Records what one pass of a restore does. Several threads may write to it.

    Args:
        report: Counts, notes and ``damaged`` are updated in place.
        progress: The display to update; None for no display.

    Attributes:
        failures: What could not be restored, and why; the owner of the ledger reports it.
        lost_paths: Paths whose content the snapshot does not have.
        failed_paths: Paths that are not as the snapshot has them.
    """

    def __init__(self, report: RestoreReport, progress: Progress | None) -> None:
        self._report = report
        self._progress = progress
        self._lock = threading.Lock()
        self._filled_files = report.written_files
        self._filled_bytes = report.written_bytes
        self._kept_bytes = 0
        self.failures: list[PathWarning] = []
        self.lost_paths: set[bytes] = set()
        self.failed_paths: set[bytes] = set()
        self._unwritten: FirstNames[bytes] = FirstNames(bytes)

    def close(self) -> None:
        """End the pass. What is needed for the report stays."""
        self._unwritten.close()

    def kept(self, size_bytes: int = 0) -> None:
        """Count a file that was right already."""
        with self._lock:
            self._report.kept_files += 1
            self._kept_bytes += size_bytes

    def corrected(self) -> None:
        """Count a kept file or directory that has its metadata now, or would have it (dry run)."""
        with self._lock:
            self._report.corrected += 1

    def written(self, size_bytes: int, *, cloned_bytes: int = 0) -> None:
        """Count a file that has its name and its content now, or would have them (dry run)."""
        with self._lock:
            self._report.written_files += 1
            self._report.written_bytes += size_bytes
            self._report.cloned_bytes += cloned_bytes

    def would_write(self, path: bytes, entry: Entry, *, cloned_bytes: int = 0) -> None:
        """Count a file that a dry run would write."""
        self.written(entry.size_bytes, cloned_bytes=cloned_bytes)
        if entry.link_dev:
            self._unwritten.put((entry.link_dev, entry.ino), path)

    def is_unwritten(self, path: bytes, entry: Entry) -> bool:
        """Return whether a dry run would write this file, which has several names."""
        return self._unwritten.get((entry.link_dev, entry.ino)) == path

    def filled(self, size_bytes: int) -> None:
        """Count a file that is complete under a temporary name: progress, and no result yet."""
        with self._lock:
            self._filled_files += 1
            self._filled_bytes += size_bytes

    def deleted(self, files: int) -> None:
        """Count files that were removed."""
        with self._lock:
            self._report.deleted_files += files

    def would_delete(self, place: bytes) -> None:
        """Count a file that a dry run would remove, and name it unless there are very many."""
        with self._lock:
            self._report.deleted_files += 1
            if len(self._report.would_delete) < _NAMED_MAX:
                self._report.would_delete.append(place)

    def note(self, path: bytes, what: str) -> None:
        """Add a message about a restored path."""
        with self._lock:
            self._report.notes.append(PathWarning(path, what))

    def in_flux(self, path: bytes) -> None:
        """Note a restored file that was being written when the snapshot was taken."""
        self.note(path, _IN_FLUX)
        with self._lock:
            self._report.flux.append(path)

    def refused(self, path: bytes, refused: Iterable[str]) -> None:
        """Note metadata of a restored path that this user may not set.

        As with tar and restic, files that a user restores belong to that user. The report counts
        the owners that were refused. In containers and on some network file systems, that
        happens to root as well.
        """
        with self._lock:
            for what in refused:
                if what.endswith(OWNER_REFUSED):
                    self._report.owner_refused += 1
                else:
                    self.failures.append(PathWarning(path, what))

    def failed(self, path: bytes, what: str) -> None:
        """Note a path that could not be restored because of the target."""
        with self._lock:
            self.failed_paths.add(path)
            self.failures.append(PathWarning(path, what))

    def lost(self, path: bytes, what: str, *, damaged: bool = True) -> None:
        """Note a path whose content this snapshot does not have; an older snapshot may.

        Args:
            path: Path in the snapshot.
            what: The reason, for the user.
            damaged: The store is damaged. False: the source was unreadable at the time.
        """
        self.failed(path, what)
        with self._lock:
            self.lost_paths.add(path)
            self._report.damaged |= damaged

    def lost_warnings(self) -> dict[bytes, PathWarning]:
        """Return the last warning of each lost path."""
        return {
            warning.path: warning for warning in self.failures if warning.path in self.lost_paths
        }

    def show_progress(self, path: bytes, begun_bytes: int = 0) -> None:
        """Update the display: what is done, the next path, and how much of that is written."""
        if self._progress is not None:
            done_bytes = self._filled_bytes + self._kept_bytes + begun_bytes
            self._progress.update(self._filled_files + self._report.kept_files, done_bytes, path)
