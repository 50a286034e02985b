"""Find the areas of roots, list the reflink copies in them, and remove copies."""

import contextlib
import os
from collections.abc import Iterable

from ciuic.ids import SnapshotId
from ciuic.source.freeze.area import Area
from ciuic.source.mounts import mount_of, mounts

__all__ = ["areas_of", "candidate_places", "frozen_snapshots", "remove_copies"]


def candidate_places(root: bytes) -> list[bytes]:
    """Return the directories that may hold the area of a root, best first: outside it if possible.

    The first is the mount point, which serves all roots below it. If the user may not write there,
    the parent directory of the root follows, then the root itself.
    """
    real = os.path.realpath(root)
    mount = mount_of(real, mounts())
    if mount is None:
        return [real]
    above = os.path.dirname(real)
    places = [mount.point, above, real]
    return list(dict.fromkeys(place for place in places if place.startswith(mount.point)))


def areas_of(store_id: str, roots: Iterable[bytes]) -> list[Area]:
    """Return the existing areas of a store for these roots, without duplicates."""
    found: dict[bytes, Area] = {}
    for root in roots:
        for place in candidate_places(root):
            area = Area.find(place, store_id)
            if area is not None:
                found.setdefault(area.path, area)
    return list(found.values())


def frozen_snapshots(store_id: str, roots: Iterable[bytes]) -> list[tuple[str, list[SnapshotId]]]:
    """Return the path of each area of a store's roots, and its snapshots, newest first."""
    return [
        (os.fsdecode(area.path), [snapshot_id for _, snapshot_id in area.snapshots()])
        for area in areas_of(store_id, roots)
    ]


def remove_copies(store_id: str, roots: Iterable[bytes], *, keep: int) -> list[SnapshotId]:
    """Remove the reflink copies of all but the newest ``keep`` snapshots.

    Those that a run uses stay.

    Returns:
        The snapshots that have lost their copies.
    """
    removed: set[SnapshotId] = set()
    for area in areas_of(store_id, roots):
        with contextlib.suppress(OSError):
            area.lock()
            try:
                unwanted = [snapshot_id for _, snapshot_id in area.snapshots()[keep:]]
                removed.update(area.clean(unwanted))
            finally:
                area.close()
    return sorted(removed)
