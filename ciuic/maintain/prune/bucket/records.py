"""Deletes records of a bucket that nothing needs any longer.

quarantine   a damaged manifest, when its snapshot has a sound one or is gone for good; damaged
             packs, when each chunk that a snapshot needs is in a sound pack
damage       the records of packs that are gone
notes        that a prune stopped waiting for a copy, when nothing can copy that snapshot any longer

Verdicts and tombstones stay for good: docs/decisions/0034-records-that-stay.md.
"""

from collections.abc import Callable

from ciuic.errors import StoreError
from ciuic.ids import SnapshotId
from ciuic.maintain.prune.report import PrunePlan
from ciuic.store.damage_records import forget_gone_packs
from ciuic.store.place.bucket import StoreInBucket
from ciuic.store.place.sessions.leases import dismissed_ids, drop_notes
from ciuic.store.records import layout
from ciuic.store.records.condemnation import TOMBSTONE_BYTES
from ciuic.store.store import Store

__all__ = ["clean_records"]


def clean_records(
    store: Store, bucket: StoreInBucket, plan: PrunePlan, check: Callable[[], None]
) -> None:
    """Delete records that nothing needs. An error ends it; the next prune does the rest.

    Args:
        store: Open for writing, with ``removes``.
        bucket: Its bucket.
        plan: What this prune has found. Its snapshots are purged by now.
        check: Called often; raises to end the work.

    Raises:
        StoreError: The bucket failed.
    """
    retired = store.trash.retired.ids()
    _clean_quarantine(store, bucket, retired, is_whole=_is_whole(plan))
    forget_gone_packs(store, check)
    _clean_notes(bucket, retired)


def _is_whole(plan: PrunePlan) -> bool:
    """Return whether each needed chunk is in a pack without known damage."""
    return not (plan.damaged or plan.usage.unreadable or plan.marks.lacks_some)


def _clean_quarantine(
    store: Store, bucket: StoreInBucket, retired: frozenset[SnapshotId], *, is_whole: bool
) -> None:
    going, packs = [], set()
    for found in bucket.place.list(layout.QUARANTINE):
        name = found.key.partition("/")[2]
        snapshot_id, pack_id = layout.parse_manifest_name(name), layout.parse_pack_name(name)
        if snapshot_id is not None:
            if snapshot_id in retired or _is_sound(store, snapshot_id):
                going.append(found.key)
        elif pack_id is not None and is_whole:
            packs.add(pack_id)
    if packs:
        # One that is condemned, and not deleted yet, waits for the next prune.
        packs -= store.pack_files().keys()
        going += [f"{layout.QUARANTINE}/{layout.pack_name(one)}" for one in sorted(packs)]
    bucket.place.delete(going)


def _is_sound(store: Store, snapshot_id: SnapshotId) -> bool:
    try:
        store.manifest(snapshot_id)
    except StoreError:
        return False
    return True


def _clean_notes(bucket: StoreInBucket, retired: frozenset[SnapshotId]) -> None:
    """Delete the notes about snapshots that are retired, and whose key has a tombstone.

    A copy that begins now is refused because of the retired ID, and an earlier one cannot create
    the manifest because of the tombstone, which this prune does not replace.
    """
    gone = dismissed_ids(bucket.place) & retired
    if not gone:
        return
    keys = {layout.manifest_key(one): one for one in gone}
    drop_notes(
        bucket.place,
        [
            keys[found.key]
            for found in bucket.place.list(layout.SNAPSHOTS)
            if found.key in keys and found.size_bytes == TOMBSTONE_BYTES
        ],
    )
