"""The sessions of a save that commits several snapshots, one after the other."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Final, Self

from ciuic.store.store import Store

__all__ = ["Sessions"]

_LOCK_WAIT_S: Final = 600.0


class Sessions:
    """The store that a save writes to; a context manager.

    Args:
        open_store: Opens the store for writing; receives how long to wait for other writers.

    Attributes:
        store: The store, open for writing, for the next commit.

    Raises:
        StoreError: The store cannot be opened.
    """

    def __init__(self, open_store: Callable[[float], AbstractContextManager[Store]]) -> None:
        self._open = open_store
        self._opened = ExitStack()
        self.store = self._opened.enter_context(open_store(_LOCK_WAIT_S))

    def begin_next(self, wait_s: float = _LOCK_WAIT_S) -> Store:
        """Return the store for another commit.

        In a directory it is the same one, and its lock is kept. In a bucket, a lease names the one
        snapshot that its session commits. So the session ends and the next one begins: it looks
        again at what a prune has condemned meanwhile, and its packs have other names.

        Args:
            wait_s: How long to wait for another writer of this machine, which may begin in between.

        Raises:
            BusyError: It is still at work. ``store`` is closed.
            StoreError: The store cannot be opened.
        """
        if self.store.bucket is not None:
            self._opened.close()
            self.store = self._opened.enter_context(self._open(wait_s))
        return self.store

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._opened.__exit__(kind, error, traceback)
