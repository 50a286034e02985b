"""Snapshots that were removed for good while a command read them: that is not damage."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from ciuic.errors import CorruptionError, SnapshotNotFoundError, StoreError
from ciuic.ids import SnapshotId
from ciuic.store.store import Store

__all__ = ["REMOVED", "naming_removal", "refuse_removed", "removed_among", "was_removed"]

REMOVED: Final = "was forgotten, and a prune removed it while it was read"


def removed_among(store: Store, snapshot_ids: Collection[SnapshotId]) -> set[SnapshotId]:
    """Return those of some snapshots that were forgotten and removed for good since they were read.

    If the store cannot say so, because its server is offline, they count as there.
    """
    if snapshot_ids:
        with suppress(StoreError):
            gone = set(snapshot_ids) - store.manifests.all_there()
            return gone & store.trash.used_ids() if gone else gone
    return set()


def was_removed(store: Store, snapshot_id: SnapshotId) -> bool:
    """Return whether ``removed_among`` returns this snapshot, at the cost of one request."""
    with suppress(StoreError):
        is_there = store.manifests.is_there(snapshot_id)
        return not is_there and snapshot_id in store.trash.used_ids()
    return False


def refuse_removed(store: Store, *snapshot_ids: SnapshotId) -> None:
    """Refuse snapshots that were removed while they were read.

    If the store cannot say so, because its server is offline, they count as there: the damage that
    made the caller ask is reported.

    Raises:
        SnapshotNotFoundError: One of them was. What it alone needed is gone.
    """
    for snapshot_id in snapshot_ids:
        if was_removed(store, snapshot_id):
            raise SnapshotNotFoundError(f"{snapshot_id} {REMOVED}")


@contextmanager
def naming_removal(store: Store, *snapshot_ids: SnapshotId) -> Iterator[None]:
    """Say that a snapshot was removed, if that is why something of it is missing in the block.

    Raises:
        SnapshotNotFoundError: One of the snapshots was removed while the block read it.
    """
    try:
        yield
    except CorruptionError:
        refuse_removed(store, *snapshot_ids)
        raise
