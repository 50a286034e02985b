"""Decide whether a snapshot can do without a scan, because its parent has all that it needs.

The file system proves that the roots have not changed (``Freezer.keep_if_unchanged``). Here is what
else must hold: the parent covers the same, has no warnings, and is complete in the store.
"""

import os
from collections.abc import Callable
from typing import Final

import ciuic
from ciuic.errors import CorruptionError, StoreError
from ciuic.ids import ChunkId
from ciuic.model import UNCHANGED, Root
from ciuic.snapshot.plan import SnapshotPlan, TakeRequest
from ciuic.source.freeze.freezer import Freezer
from ciuic.source.freeze.methods import SUBVOLUME
from ciuic.store.records.manifest import Manifest
from ciuic.store.store import Store

__all__ = ["unchanged_parent", "unchanged_root"]

_PROVABLE: Final = {SUBVOLUME, UNCHANGED}


def unchanged_parent(
    store: Store,
    plan: SnapshotPlan,
    request: TakeRequest,
    freezer: Freezer,
    check: Callable[[], None],
) -> Manifest | None:
    """Return the parent if the roots are as it has them; None: they must be scanned.

    A full snapshot always scans. So does one into a bucket, where another machine may have
    condemned packs that the parent needs.

    Args:
        store: Open for writing.
        plan: The plan of the snapshot.
        request: Its request.
        freezer: Prepared.
        check: Called from time to time; raises to end the walk through the parent's tree.
    """
    ids = {tree.snapshot_id for tree in plan.old.values()}
    if plan.is_full or store.bucket is not None or len(ids) != 1:
        return None
    try:
        parent = store.manifest(ids.pop())
        if not _has_the_same(parent, plan, request):
            return None
        if not freezer.keep_if_unchanged(os.fsencode(store.path)):
            return None
        return parent if _is_stored(store, parent, check) else None
    except StoreError:
        return None


def unchanged_root(root: Root) -> Root:
    """Return the record of a root that was not scanned."""
    return Root(root.path, root.tree, "", UNCHANGED)


def _has_the_same(parent: Manifest, plan: SnapshotPlan, request: TakeRequest) -> bool:
    summary = parent.summary
    return (
        plan.parent is not None
        and summary.id == plan.parent.id
        and summary.taken_ns < plan.taken_ns
        and summary.roots == plan.roots
        and parent.exclude == request.exclude
        # Also harmless ones: they name what is mounted inside, which the proof does not cover.
        and not parent.trouble
        and not summary.trouble_count
        and not summary.flux_count
        # Another version may record more of each file.
        and parent.writer == f"ciuic {ciuic.__version__}"
        and all(root.tree and root.capture in _PROVABLE for root in parent.roots)
    )


class _Presence:
    """Receives what a tree needs, and looks it up in the chunk index."""

    def __init__(self, store: Store) -> None:
        self.is_complete = True
        self._index = store.index
        self._nodes: set[ChunkId] = set()

    def add_data(self, chunk_ids: list[ChunkId]) -> None:
        """See ``Marking``."""
        if self.is_complete:
            self.is_complete = self._index.usable(chunk_ids) >= set(chunk_ids)

    def add_node(self, node_id: ChunkId) -> bool:
        """See ``Marking``."""
        is_new = node_id not in self._nodes
        self._nodes.add(node_id)
        return is_new and self.is_complete


def _is_stored(store: Store, parent: Manifest, check: Callable[[], None]) -> bool:
    """Return whether the store has all that a snapshot needs, as far as the chunk index knows.

    A scan would store again what is missing.
    """
    # Most snapshots do not get here.
    from ciuic.store.gc.mark import mark_tree

    presence = _Presence(store)
    try:
        for root in parent.roots:
            mark_tree(store.reader, presence, ChunkId(root.tree), check=check)
    except CorruptionError:
        return False
    return presence.is_complete
