"""Events of files that are being written: closed, renamed, deleted. They say when to look.

Nothing relies on events. They are lost when a queue overflows, a network file system has none from
other machines, and the kernel limits the number of watches. ``ciuicd.followup`` looks at the files
itself, without an event only later.

Directories are watched, not files: a checkpoint that is renamed into place is an event of its
directory alone. Their number is limited, since watchdog starts a thread for each. So is the number
of events: where thousands of files change in a second, reading all of that takes a part of a
processor, and looking now and then takes nothing.
"""

import errno
import logging
import os
from collections.abc import Callable, Iterable
from typing import Final

from watchdog.events import (
    FileClosedEvent,
    FileDeletedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver

__all__ = ["ClosingWatch"]

_DIRECTORIES_MAX: Final = 32
_EVENTS_MAX: Final = 2_000
"""How many events are read: that takes about 0.2 s of a processor."""
_JOIN_S: Final = 5.0
_GONE: Final = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES}

# Problems of watchdog do no harm here: a look finds what an event did not report.
logging.getLogger("watchdog").setLevel(logging.CRITICAL)


class ClosingWatch:
    """Calls ``wake`` when one of the files may have been closed, renamed or deleted.

    ``wake`` is called on a thread of the watch, and once until ``take_note``. A file that is opened
    and closed a thousand times a second causes one call.

    Args:
        paths: Absolute.
        wake: Must return at once.

    Attributes:
        problem: Why the system refused a watch, if it did.
    """

    def __init__(self, paths: Iterable[bytes], wake: Callable[[], None]) -> None:
        self._handler = _Handler(frozenset(paths), wake)
        self._observer: BaseObserver | None = None
        self.problem: str | None = None
        directories = sorted({os.path.dirname(path) for path in self._handler.paths})
        self._is_complete = len(directories) <= _DIRECTORIES_MAX
        try:
            observer = Observer()
            self._handler.end = observer.stop
            observer.start()
            self._observer = observer
            for directory in directories[:_DIRECTORIES_MAX]:
                self._watch(observer, directory)
        except (OSError, RuntimeError) as error:  # RuntimeError: no more threads
            self._is_complete = False
            self.problem = str(error)

    def _watch(self, observer: BaseObserver, directory: bytes) -> None:
        try:
            observer.schedule(
                self._handler,
                os.fsdecode(directory),
                event_filter=[FileClosedEvent, FileMovedEvent, FileDeletedEvent],
            )
        except OSError as error:
            if error.errno not in _GONE:
                raise

    @property
    def is_complete(self) -> bool:
        """Whether every file is in a directory that is watched, and there are not too many events.

        Otherwise the files must be looked at more often.
        """
        return self._is_complete and self._handler.left > 0

    def take_note(self) -> bool:
        """Return whether something happened since the last call."""
        happened, self._handler.happened = self._handler.happened, False
        return happened

    def close(self) -> None:
        """End the watch and its threads."""
        if self._observer is not None:
            self._observer.stop()
            self._observer.join(_JOIN_S)
            self._observer = None


class _Handler(FileSystemEventHandler):
    """Records that something happened; the main thread acts on it.

    Attributes:
        paths: The files.
        happened: Something happened to one of them.
        left: How many events it still reads.
        end: Ends the watch.
    """

    def __init__(self, paths: frozenset[bytes], wake: Callable[[], None]) -> None:
        self.paths = paths
        self.happened = False
        self.left = _EVENTS_MAX
        self.end: Callable[[], None] = lambda: None
        self._wake = wake

    def on_any_event(self, event: FileSystemEvent) -> None:
        """See ``FileSystemEventHandler``."""
        self.left -= 1
        if self.left == 0:
            self.end()
        names = (os.fsencode(event.src_path), os.fsencode(event.dest_path))
        if not self.happened and (self.left == 0 or self.paths.intersection(names)):
            self.happened = True
            self._wake()
