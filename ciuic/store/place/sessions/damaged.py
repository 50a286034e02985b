"""Damaged manifests of a bucket: set aside, or replaced by sound ones."""

import contextlib
from collections.abc import Iterable

from ciuic.errors import LostRaceError, MissingError
from ciuic.ids import SnapshotId
from ciuic.store.place.place import Place
from ciuic.store.records import layout
from ciuic.store.records.condemnation import is_tombstone
from ciuic.store.records.manifest import MANIFEST_BYTES_MAX

__all__ = ["keep_aside", "replace_damaged"]


def keep_aside(place: Place, snapshot_ids: Iterable[SnapshotId]) -> list[SnapshotId]:
    """Copy manifests to ``quarantine/``; returns those that are there, without tombstones."""
    there = []
    for snapshot_id in snapshot_ids:
        with contextlib.suppress(MissingError):
            data = place.get(layout.manifest_key(snapshot_id), MANIFEST_BYTES_MAX)
            if not is_tombstone(data):
                place.put(_aside(snapshot_id), data)
                there.append(snapshot_id)
    return there


def replace_damaged(place: Place, snapshot_id: SnapshotId, data: bytes) -> bool:
    """Replace a damaged manifest, which is copied to ``quarantine/`` first.

    Returns:
        False if another session has changed it meanwhile, or a tombstone is there.

    Raises:
        MissingError: It is gone.
        StoreError: The bucket failed.
    """
    found = place.get_versioned(layout.manifest_key(snapshot_id), MANIFEST_BYTES_MAX)
    if is_tombstone(found.data):
        return False
    place.put(_aside(snapshot_id), found.data)
    try:
        place.replace(layout.manifest_key(snapshot_id), data, found.version)
    except (LostRaceError, MissingError):
        return False
    return True


def _aside(snapshot_id: SnapshotId) -> str:
    return f"{layout.QUARANTINE}/{layout.manifest_name(snapshot_id)}"
