"""What is forgotten of the damage that scrubs have recorded, when a repair has ended it."""

from collections.abc import Collection

from ciuic.catalog import lacks_manifests
from ciuic.ids import SnapshotId
from ciuic.maintain.repair.report import RepairPlan
from ciuic.store.records import layout
from ciuic.store.store import Store

__all__ = ["forget_manifests", "forget_repaired"]


def forget_repaired(store: Store, plan: RepairPlan, left: Collection[str] = ()) -> None:
    """Forget which documents were damaged, and which packs and chunks snapshots missed.

    Args:
        store: Open for writing.
        plan: What was carried out. What stays damaged stays known.
        left: Further documents that are still damaged, by path in the store.

    Raises:
        StoreError: The chunk index cannot be written.
    """
    index = store.index
    lost = _paths([bad.id for bad in plan.manifests if not bad.has_copy])
    index.keep_damaged_documents({*lost, *left, *plan.unread, *plan.unreachable})
    # Lost chunks that no listed snapshot needs may be those of one in the trash.
    if not (plan.remaining or plan.lost or lacks_manifests(store)):
        index.forget_gone()
        index.forget_lost()
    index.commit()


def forget_manifests(store: Store, snapshot_ids: Collection[SnapshotId]) -> None:
    """Forget that these manifests were damaged or gone.

    Raises:
        StoreError: The chunk index cannot be written.
    """
    index = store.index
    index.keep_damaged_documents(index.damaged_documents().keys() - _paths(snapshot_ids))
    index.commit()


def _paths(snapshot_ids: Collection[SnapshotId]) -> set[str]:
    return {layout.manifest_key(one) for one in snapshot_ids}
