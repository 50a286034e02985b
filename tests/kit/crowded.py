"""A store with many snapshots, made from one: taking as many would take half an hour."""

import os
import secrets
from collections.abc import Callable

import msgspec

from ciuic.catalog import list_snapshots, remember
from ciuic.ids import SnapshotId
from ciuic.model import SnapshotSummary
from ciuic.store.records.manifest import encode_manifest
from ciuic.store.store import open_store
from tests.kit.box import Box

__all__ = ["multiply"]


def multiply(box: Box, count: int, more: Callable[[int], dict[str, object]]) -> None:
    """Give the only snapshot of a box other IDs, a second apart, until there are ``count``.

    Args:
        box: The box.
        count: How many snapshots there are then.
        more: Returns the fields in which the snapshot of a number differs.
    """
    (taken,) = box.snapshots()
    with open_store(str(box.store), write=True) as store:
        manifest = store.manifest(taken.id)
        (name,) = os.listdir(box.store / "snapshots")
        for number in range(1, count):
            snapshot_id = SnapshotId(f"cs-{secrets.token_hex(8)}")
            summary: SnapshotSummary = msgspec.structs.replace(
                manifest.summary,
                id=snapshot_id,
                taken_ns=manifest.summary.taken_ns + number * 10**9,
                **more(number),
            )
            place = box.store / "snapshots" / name.replace(taken.id, snapshot_id)
            place.write_bytes(encode_manifest(manifest.with_summary(summary)))
        assert remember(store, *list_snapshots(store)) is None
