"""Keeps this machine's copies of manifests that the bucket has lost, for a repair.

They are in the cache directory, at the place where a store in a directory has copies of its
manifests.
"""

from collections.abc import Callable, Collection
from typing import Final

from ciuic.errors import StoreError
from ciuic.ids import SnapshotId
from ciuic.store.directory.folder import Folder
from ciuic.store.records import layout

__all__ = ["forget_kept", "keep_lost"]

_BYTES_MAX: Final = 64 * 1024 * 1024


def keep_lost(
    path: str,
    gone: Collection[SnapshotId],
    listed: Collection[SnapshotId],
    retired: Callable[[], Collection[SnapshotId]],
) -> None:
    """Keep the manifests of lost snapshots, and drop the kept manifests of others. Raises no error.

    Args:
        path: The cache directory.
        gone: Snapshots whose manifest is in the cache directory and no longer in the bucket.
        listed: Snapshots whose manifest is in the bucket.
        retired: Returns the snapshots that were removed on purpose; raises StoreError if that is
        not known.
    """
    manifests, copies = Folder(path, layout.SNAPSHOTS), Folder(path, layout.PARITY)
    kept = copies.names(layout.parse_manifest_name)
    if not gone and not kept:
        return
    try:
        by_right = set(retired())
    except StoreError:
        by_right = set()  # too many do no harm: the next call drops them
    try:
        for snapshot_id in sorted(set(gone) - by_right):
            name = layout.manifest_name(snapshot_id)
            copies.make_and_replace(name, manifests.read(name, _BYTES_MAX))
        forget_kept(path, kept & (by_right | set(listed)))
    except StoreError:
        return  # nothing but a repair needs them


def forget_kept(path: str, snapshot_ids: Collection[SnapshotId]) -> None:
    """Drop the kept manifests of these snapshots."""
    if snapshot_ids:
        Folder(path, layout.PARITY).remove_durably(map(layout.manifest_name, snapshot_ids))
