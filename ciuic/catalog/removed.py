"""Snapshots that were removed for good while a command read them: that is not damage."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ciuic.errors import CorruptionError, SnapshotNotFoundError, StoreError
from ciuic.ids import SnapshotId
from ciuic.store.store import Store

__all__ = ["naming_removal", "refuse_removed", "was_removed"]


def was_removed(store: Store, snapshot_id: SnapshotId) -> bool:
    """Return whether a snapshot that was there has been forgotten and removed for good."""
    return not store.manifests.is_there(snapshot_id) and snapshot_id in store.trash.used_ids()


def refuse_removed(store: Store, *snapshot_ids: SnapshotId) -> None:
    """Refuse snapshots that were removed while they were read.

    If the store cannot say so, because its server is offline, they count as there: the damage that
    made the caller ask is reported.

    Raises:
        SnapshotNotFoundError: One of them was. What it alone needed is gone.
    """
    for snapshot_id in snapshot_ids:
        is_removed = False
        with suppress(StoreError):
            is_removed = was_removed(store, snapshot_id)
        if is_removed:
            raise SnapshotNotFoundError(
                f"{snapshot_id} was forgotten, and a prune removed it while it was read"
            )


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
