"""The mark of an unfinished prune: a file that the next prune removes when it ends.

While it is there, the store may hold garbage that can no longer be found from the trash.
"""

import contextlib

from ciuic.errors import StoreFullError
from ciuic.store.directory.folder import Folder
from ciuic.store.records import layout

__all__ = ["PruneMark"]


class PruneMark:
    """The mark of one store."""

    def __init__(self, store_path: str) -> None:
        self._store = Folder(store_path)

    @property
    def is_set(self) -> bool:
        """A prune, in any process, has started and has not finished."""
        return self._store.has(layout.PRUNING)

    def set(self) -> None:
        """Durably set the mark. A full disk is ignored: freeing space comes first.

        Raises:
            StoreError: The mark cannot be written.
        """
        if self.is_set:
            return
        with contextlib.suppress(StoreFullError):
            self._store.mark(layout.PRUNING)

    def clear(self) -> None:
        """Remove the mark. If a power cut brings it back, that costs one prune and no data.

        Raises:
            StoreError: The mark cannot be removed.
        """
        self._store.remove(layout.PRUNING)
