"""Leases of ended sessions that this machine could not delete: the next session deletes them.

A session that has failed may find the bucket closed to it, or away, just when it ends. Its lease
would then keep packs until a prune revokes it, an hour later. A session with a request that was not
answered is not among them: what it has sent may still arrive, and its lease announces that.
"""

import contextlib
from collections.abc import Iterable

from ciuic.errors import AccessDeniedError, StoreError
from ciuic.store.directory.folder import Folder
from ciuic.store.place.place import Place
from ciuic.store.records import layout

__all__ = ["EndedLeases"]

_NAME = "ended"


class EndedLeases:
    """An empty file for each such lease, in the cache directory.

    No name of a lease is used twice, so any process of this machine may delete it, at any time.

    Args:
        place: The place of the store.
        path: The cache directory.
    """

    def __init__(self, place: Place, path: str) -> None:
        self._place = place
        self._folder = Folder(path, _NAME, is_unlocked=True)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete leases, or have a later session delete them."""
        found = sorted(keys)
        try:
            self._place.delete(found)
        except StoreError:
            with contextlib.suppress(StoreError):  # the lease only delays a prune
                self._folder.make()
                for key in found:
                    self._folder.mark(key.removeprefix(f"{layout.LEASES}/"))

    def delete_earlier(self) -> None:
        """Delete the leases that could not be deleted before; without any, ask nothing."""
        with contextlib.suppress(StoreError):
            self._delete_earlier()

    def count_refused(self) -> int:
        """Delete such leases now; return how many these credentials have no right to delete."""
        with contextlib.suppress(StoreError):
            try:
                self._delete_earlier()
            except AccessDeniedError:
                return len(self._folder.names(lambda name: name))
        return 0

    def _delete_earlier(self) -> None:
        names = sorted(self._folder.names(lambda name: name))
        if names:
            self._place.delete([f"{layout.LEASES}/{name}" for name in names])
            self._folder.remove_all(names)
