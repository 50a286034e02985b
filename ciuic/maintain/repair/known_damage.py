"""What is forgotten of the damage that scrubs have recorded, when a repair has ended it."""

from ciuic.maintain.repair.report import RepairPlan
from ciuic.store.records import layout
from ciuic.store.store import Store

__all__ = ["forget_repaired"]


def forget_repaired(store: Store, plan: RepairPlan) -> None:
    """Forget which documents were damaged, and which packs and chunks snapshots missed.

    Args:
        store: Open for writing.
        plan: What was carried out. What stays damaged stays known.

    Raises:
        StoreError: The chunk index cannot be written.
    """
    index = store.index
    left = [bad.id for bad in plan.manifests if not bad.has_copy]
    index.keep_damaged_documents(
        {f"{layout.SNAPSHOTS}/{layout.manifest_name(one)}" for one in left}
    )
    if not plan.remaining:
        index.forget_gone()
        index.forget_lost()
    index.commit()
