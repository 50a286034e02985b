"""Puts back manifests that a bucket has lost or damaged, from what this machine has of them.

A damaged manifest stays where it is until then: it stops the prunes of every machine.
"""

import contextlib
from collections.abc import Callable
from dataclasses import replace

from ciuic.errors import StoreError
from ciuic.ids import SnapshotId
from ciuic.maintain.objects import bucket_of
from ciuic.maintain.repair.known_damage import forget_manifests
from ciuic.maintain.repair.lost_chunks import LostChunkSearch
from ciuic.maintain.repair.report import RepairPlan
from ciuic.maintain.repair.storing import store_again
from ciuic.store.directory.folder import Folder
from ciuic.store.records import layout
from ciuic.store.records.manifest import MANIFEST_BYTES_MAX, decode_manifest
from ciuic.store.store import Store

__all__ = ["put_back_manifests", "sound_manifest"]


def sound_manifest(store: Store, snapshot_id: SnapshotId) -> bytes | None:
    """Return a sound manifest that the bucket does not have where it should be; None: none known.

    It is in the cache directory of this machine, or in ``parity/`` of the bucket, if a directory
    was uploaded there.
    """
    bucket, name = bucket_of(store), layout.manifest_name(snapshot_id)
    cache = Folder(bucket.path, layout.SNAPSHOTS)
    with contextlib.suppress(StoreError):
        data = cache.read(name, MANIFEST_BYTES_MAX)
        decode_manifest(data, snapshot_id)
        return data
    kept = store.manifests.copies.read(snapshot_id)
    if kept is not None:
        return kept
    with contextlib.suppress(StoreError):
        data = bucket.place.get(f"{layout.PARITY}/{name}", MANIFEST_BYTES_MAX)
        decode_manifest(data, snapshot_id)
        return data
    return None


def put_back_manifests(
    store: Store, plan: RepairPlan, *, cancelled: Callable[[], bool] = lambda: False
) -> RepairPlan:
    """Put back the manifests of a plan that have a copy, and store again what live files have.

    Args:
        store: Open for writing, and not with ``removes``: what its session announces is waited for.
        plan: The plan.
        cancelled: Asked often.

    Returns:
        The plan, with what was stored again, and what cannot be restored of these snapshots.

    Raises:
        StoreError: The bucket failed. What was put back stays.
        CancelledError: ``cancelled`` turned true; the same.
    """
    bucket = bucket_of(store)
    ids = [bad.id for bad in plan.manifests if bad.has_copy]
    if not ids:
        return plan
    # A prune waits for the leases, and a snapshot that was purged meanwhile must not come back.
    retired = store.announce(ids)
    back = set()
    for snapshot_id in ids:
        data = sound_manifest(store, snapshot_id)
        if data is not None and snapshot_id not in retired:
            bucket.put_back(snapshot_id, data)
            back.add(snapshot_id)
    index = store.index
    packs = {pack.pack_id: pack for pack in (*plan.packs, *plan.condemned)}
    unreadable = {chunk_id for pack in packs.values() for chunk_id in pack.lost}
    # The repair has stored some again, and so may snapshots since. If a pack stays where it is, the
    # index may still name it.
    places = index.places(list(index.usable(list(unreadable))))
    unreadable -= {chunk_id for chunk_id, place in places.items() if place.pack_id not in packs}
    search = LostChunkSearch(store, unreadable, cancelled)
    remaining = search.run(None)
    store_again(store, {}, search.origins.values(), parity=0.0)
    index.drop_chunks(sorted(search.lost))
    forget_manifests(store, back | (retired & set(ids)))
    known = {one.id for one in plan.remaining}
    more = tuple([one for one in remaining if one.id in back - known])
    return replace(
        plan,
        origins=plan.origins | search.origins,
        lost=plan.lost | search.lost,
        remaining=(*plan.remaining, *more),
    )
