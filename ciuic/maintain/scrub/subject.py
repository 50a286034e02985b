"""What is scrubbed: a store in a directory. ``bucket`` has the other kind."""

import functools
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from ciuic.errors import StoreError
from ciuic.ids import ChunkId, PackId, SnapshotId
from ciuic.maintain.scrub.checks import check_with_parity, damaged_manifests, recorded_packs
from ciuic.model import PathWarning
from ciuic.store.directory.find import read_header, refuse_other_store
from ciuic.store.directory.ownership import is_foreign
from ciuic.store.health.inspect import PackCheck, inspect_pack
from ciuic.store.place.keys import is_url
from ciuic.store.place.location import PlaceOptions
from ciuic.store.store import Store, open_store

__all__ = ["Directory", "Subject", "subject_at"]


class Subject(Protocol):
    """A store that is scrubbed. All methods raise StoreError if the store fails.

    Attributes:
        store_id: Its ID.
    """

    store_id: str

    def opened(
        self,
        *,
        write: bool = False,
        wait_s: float = 0.0,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> AbstractContextManager[Store]:
        """Open the store, for one step; see ``open_store``."""
        ...

    def refuse_other(self) -> None:
        """Refuse a different store that is at its place now."""
        ...

    def inspect(self, pack_id: PackId, cancelled: Callable[[], bool]) -> PackCheck:
        """Read a whole pack, and its parity: see ``inspect_pack``."""
        ...

    def chunks_in(self, store: Store, pack_id: PackId) -> dict[ChunkId, int]:
        """Return the chunks that a damaged pack had, and their kinds, as far as that is known."""
        ...

    def was_removed(self, pack_id: PackId) -> bool:
        """Return whether a pack is gone because a prune has removed it."""
        ...

    def damaged_manifests(
        self, store: Store, among: Collection[SnapshotId] | None = None
    ) -> list[PathWarning]:
        """Return the manifests and marks that are damaged or lost.

        Args:
            store: The open store.
            among: Only look at those of these snapshots; None: at all.
        """
        ...


class Directory:
    """A store in a directory. See ``Subject``.

    No lock keeps the store at its path: if its disk is unmounted, or a different store appears at
    its path, a pack that is missing there is not damage.

    Args:
        path: The directory.
        owner: The other user who may own it: see ``open_store``.

    Raises:
        StoreError: There is no store.
    """

    def __init__(self, path: str, owner: int | None = None) -> None:
        self._path = path
        self._owner = owner
        self.store_id = read_header(path).store_id

    def opened(
        self,
        *,
        write: bool = False,
        wait_s: float = 0.0,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> AbstractContextManager[Store]:
        """See ``Subject``.

        Raises:
            StoreError: Also if it were opened for writing and is another user's.
        """
        if write and self._owner is not None and is_foreign(self._path):
            # Its writers fill a private index each time, and what is put there is gone at the end.
            raise StoreError("the chunk index of another user's store is not opened")
        return open_store(
            self._path, write=write, wait_s=wait_s, cancelled=cancelled, owner=self._owner
        )

    def refuse_other(self) -> None:
        """See ``Subject``."""
        refuse_other_store(self._path, self.store_id)

    def inspect(self, pack_id: PackId, cancelled: Callable[[], bool]) -> PackCheck:
        """See ``Subject``."""
        check = inspect_pack(self._path, pack_id, cancelled=cancelled)
        return check if check.unknown and not check.what else check_with_parity(self._path, check)

    def chunks_in(self, store: Store, pack_id: PackId) -> dict[ChunkId, int]:
        """See ``Subject``."""
        return store.index_keeper.recorded_in(pack_id)

    def was_removed(self, pack_id: PackId) -> bool:
        """See ``Subject``: a prune removes a pack from the chunk index first."""
        self.refuse_other()
        with self.opened() as store:
            return pack_id not in recorded_packs(store)

    def damaged_manifests(
        self, store: Store, among: Collection[SnapshotId] | None = None
    ) -> list[PathWarning]:
        """See ``Subject``."""
        return damaged_manifests(store, among)


def subject_at(
    address: str,
    environment: Mapping[str, str],
    options: PlaceOptions | None = None,
    *,
    owner: int | None = None,
) -> Subject:
    """Return the store at an address: see ``open_at_address``.

    Raises:
        StoreError: There is no store, or the bucket cannot be read.
    """
    if not is_url(address):
        return Directory(address, owner)
    # Imported here because most stores are directories.
    from ciuic.maintain.scrub.bucket import Bucket
    from ciuic.store.addressed import open_at_address

    return Bucket(functools.partial(open_at_address, address, environment, options))
