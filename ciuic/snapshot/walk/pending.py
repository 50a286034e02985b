"""Entries that are not known yet, and the tasks that resolve them.

The walk runs ahead of the readers, so it may append a ``PendingEntry`` to a directory. Only the
thread of the walk resolves it, with the result of the reader threads.
"""

from abc import ABC, abstractmethod

from ciuic.model import Entry

__all__ = ["EntryTask", "PendingEntry"]


class PendingEntry:
    """The entry of one name, once it is known.

    Args:
        task: Resolves the entry; None: another part of the walk calls ``resolve``.

    Attributes:
        is_known: ``entry`` is final.
        entry: None if the file vanished between listing and reading.
        listed_inode: The inode of the file when it was listed; 0: it is no file.
    """

    __slots__ = ("_task", "entry", "is_known", "listed_inode")

    def __init__(self, task: "EntryTask | None" = None) -> None:
        self._task = task
        self.listed_inode = 0
        self.is_known = False
        self.entry: Entry | None = None

    def resolve(self, entry: Entry | None) -> None:
        """Make the entry known."""
        self._task = None
        self.entry = entry
        self.is_known = True

    def ready(self, *, wait: bool) -> bool:
        """Return whether the entry is known; with ``wait``, finish its task first.

        Raises:
            CiuicError: The task failed.
        """
        if not self.is_known and self._task is not None:
            self._task.advance(wait=wait)
        return self.is_known


class EntryTask(ABC):
    """Work that resolves one or more pending entries.

    Attributes:
        is_started: The readers have the work, so nothing can be added to it.
    """

    __slots__ = ("is_started",)

    def __init__(self) -> None:
        self.is_started = False

    def start(self) -> None:
        """Submit the work to the readers, unless that was done before."""
        if not self.is_started:
            self.is_started = True
            self._submit()

    def advance(self, *, wait: bool) -> None:
        """Resolve the entries if the work is done; with ``wait``, start it and wait for its end.

        Raises:
            CiuicError: The work failed.
        """
        if wait:
            self.start()
        if self.is_started and (wait or self._is_done()):
            self._resolve()

    @abstractmethod
    def _submit(self) -> None:
        """Submit the work to the reader threads."""

    @abstractmethod
    def _is_done(self) -> bool:
        """Return whether ``_resolve`` would not wait."""

    @abstractmethod
    def _resolve(self) -> None:
        """Wait for the work and resolve the entries."""
