"""Checks the objects of a store in a bucket against their checksums."""

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from ciuic.catalog import lost_manifest, lost_snapshots
from ciuic.errors import CorruptionError, MissingError, UnknownFormatError
from ciuic.ids import PackId, SnapshotId
from ciuic.model import PathWarning
from ciuic.store.health.inspect import PackCheck, inspect_bytes
from ciuic.store.place.bucket import StoreInBucket
from ciuic.store.records import layout
from ciuic.store.records.manifest import decode_manifest
from ciuic.store.store import Store

__all__ = ["bucket_of", "damaged_manifests", "inspect_object", "pack_object"]

_PACK_BYTES_MAX: Final = 1 << 30
_REQUESTS_AT_ONCE: Final = 8


def bucket_of(store: Store) -> StoreInBucket:
    """Return the bucket of a store that is in one."""
    if not isinstance(store.bucket, StoreInBucket):
        raise ValueError(f"{store.name} is not in a bucket")
    return store.bucket


def inspect_object(
    bucket: StoreInBucket, pack_id: PackId, cancelled: Callable[[], bool] = lambda: False
) -> PackCheck:
    """Read a pack of a bucket whole and compare it with its checksums.

    A pack that seems to be damaged is read a second time: what a network or a proxy does to an
    answer is not damage.

    Raises:
        CancelledError: ``cancelled`` returned true.
        StoreError: The bucket cannot be read. Damage is not raised.
    """

    def read() -> PackCheck:
        try:
            data = pack_object(bucket, pack_id)
        except MissingError:
            return PackCheck(pack_id, 0, footer_ok=False, bad=(), what="it is gone")
        return inspect_bytes(data, pack_id, cancelled=cancelled)

    check = read()
    return read() if check.what else check


def pack_object(bucket: StoreInBucket, pack_id: PackId) -> bytes:
    """Read a whole pack.

    Raises:
        MissingError: It is gone.
        StoreError: The bucket cannot be read.
    """
    return bucket.place.get(f"{layout.PACKS}/{layout.pack_name(pack_id)}", _PACK_BYTES_MAX)


def damaged_manifests(
    store: Store, among: Collection[SnapshotId] | None = None
) -> Iterator[PathWarning]:
    """Yield the manifests that are damaged or lost, as the bucket has them.

    Args:
        store: The store.
        among: Only look at these snapshots; None: at all.
    """
    bucket = bucket_of(store)
    there = store.manifests.files()
    wanted = sorted(there if among is None else there.keys() & set(among))

    def problem(snapshot_id: SnapshotId) -> PathWarning | None:
        try:
            decode_manifest(bucket.manifest(snapshot_id), snapshot_id)
        except MissingError:
            return None  # removed since the listing
        except (CorruptionError, UnknownFormatError) as error:
            path = f"{layout.SNAPSHOTS}/{layout.manifest_name(snapshot_id)}"
            return PathWarning(path.encode(), error.message)
        return None

    with ThreadPoolExecutor(_REQUESTS_AT_ONCE, "manifests") as pool:
        found = list(pool.map(problem, wanted))
    yield from (one for one in found if one is not None)
    for snapshot_id in lost_snapshots(store):
        if among is not None and snapshot_id not in among:
            continue
        path = f"{layout.SNAPSHOTS}/{layout.manifest_name(snapshot_id)}"
        yield PathWarning(path.encode(), lost_manifest(store, snapshot_id).message)
