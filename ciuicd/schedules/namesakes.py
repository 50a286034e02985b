"""Snapshots of a machine that has the name and the machine ID of this one, such as its copy."""

from collections.abc import Iterable

from ciuic.model import DAEMON, Owner, SnapshotSummary
from ciuic.store.store import Store
from ciuic.system.machine import this_machine

__all__ = ["snapshots_of_namesakes"]


def snapshots_of_namesakes(
    store: Store, snapshots: Iterable[SnapshotSummary]
) -> list[SnapshotSummary]:
    """Return the snapshots whose manifests name this machine, and that it has not taken.

    This is for the daemon, and about the snapshots of daemons in a bucket: another user of this
    machine, who takes other snapshots, has a record of their own.

    Raises:
        StoreError: The record of this machine cannot be read.
    """
    if store.bucket is None:
        return []
    here = Owner(this_machine(), is_library=False)
    found = [one for one in snapshots if one.origin == DAEMON and one.owner.is_same(here)]
    own = store.bucket.committed_here({one.id: one.taken_ns for one in found})
    return [one for one in found if one.id not in own]
