"""The sessions of a save that commits several snapshots, one after the other."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Self

from ciuic.store.store import Store

__all__ = ["Sessions"]


class Sessions:
    """The store that a save writes to; a context manager.

    Args:
        open_store: Opens the store for writing.

    Attributes:
        store: The store, open for writing, for the next commit.

    Raises:
        StoreError: The store can't be opened.
    """

    def __init__(self, open_store: Callable[[], AbstractContextManager[Store]]) -> None:
        self._open = open_store
        self._opened = ExitStack()
        self.store = self._opened.enter_context(open_store())

    def begin_next(self) -> Store:
        """Return the store for another commit.

        In a directory it is the same one, and its lock is kept. In a bucket, a lease names the one
        snapshot that its session commits. So the session ends and the next one begins: it looks
        again at what a prune has condemned meanwhile, and its packs have other names.

        Raises:
            StoreError: The store can't be opened.
        """
        if self.store.bucket is not None:
            self._opened.close()
            self.store = self._opened.enter_context(self._open())
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
