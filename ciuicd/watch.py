"""Events of files that somebody was writing: closed, renamed, deleted. They say when to look.

Nothing relies on them. Events get lost when a queue overflows, a network file system has none of
other machines, and the kernel hands out only so many watches: what counts is what is found when
somebody looks (``ciuicd.followup``), which happens without any event too, only later.

Directories are watched, not files, since a checkpoint that is renamed into its place appears as an
event of its directory alone; and only so many of them, since watchdog gives each a thread.
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
_JOIN_S: Final = 5.0
_GONE: Final = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES}

# What watchdog has to complain of costs nothing here: a look finds what an event did not tell.
logging.getLogger("watchdog").setLevel(logging.CRITICAL)


class ClosingWatch:
    """Calls ``wake`` when one of some files may have been closed, renamed or deleted.

    ``wake`` is called on a thread of the watch, and only once until ``take_note``: a file that is
    opened and closed a thousand times a second wakes nobody a thousand times.

    Args:
        paths: Absolute.
        wake: Must return at once.

    Attributes:
        is_complete: Every file lies in a directory that is watched.
        problem: Why the system gave no watches, if it gave none.
    """

    def __init__(self, paths: Iterable[bytes], wake: Callable[[], None]) -> None:
        self._handler = _Handler(frozenset(paths), wake)
        self._observer: BaseObserver | None = None
        self.problem: str | None = None
        directories = sorted({os.path.dirname(path) for path in self._handler.paths})
        self.is_complete = len(directories) <= _DIRECTORIES_MAX
        try:
            observer = Observer()
            observer.start()
            self._observer = observer
            for directory in directories[:_DIRECTORIES_MAX]:
                self._watch(observer, directory)
        except (OSError, RuntimeError) as error:  # RuntimeError: no more threads
            self.is_complete = False
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

    def take_note(self) -> bool:
        """Whether something happened since this was asked last."""
        happened, self._handler.happened = self._handler.happened, False
        return happened

    def close(self) -> None:
        """End the watch and its threads."""
        if self._observer is not None:
            self._observer.stop()
            self._observer.join(_JOIN_S)
            self._observer = None


class _Handler(FileSystemEventHandler):
    """Only takes a note: acting belongs to the main thread."""

    def __init__(self, paths: frozenset[bytes], wake: Callable[[], None]) -> None:
        self.paths = paths
        self.happened = False
        self._wake = wake

    def on_any_event(self, event: FileSystemEvent) -> None:
        """See ``FileSystemEventHandler``."""
        if self.happened or not self.paths.intersection(
            (os.fsencode(event.src_path), os.fsencode(event.dest_path))
        ):
            return
        self.happened = True
        self._wake()
