"""Changing the tags and the pin of a snapshot."""

from collections.abc import Collection

from ciuic.catalog import check_tags, find_snapshot, remember
from ciuic.model import SnapshotSummary
from ciuic.store.store import Store

__all__ = ["change_tags", "set_pinned"]


def change_tags(
    store: Store, name: str, *, add: Collection[str] = (), remove: Collection[str] = ()
) -> SnapshotSummary:
    """Add and remove a snapshot's tags. A tag that it has already, or does not have, is no error.

    Raises:
        UsageError: A tag is invalid.
        SnapshotNotFoundError: The name matches no snapshot, or several.
        StoreError: The store failed; the tags are as they were.
    """
    check_tags(add)
    summary = find_snapshot(store, name)
    kept = [tag for tag in dict.fromkeys((*summary.tags, *add)) if tag not in remove]
    return _changed(store, summary, tags=tuple(kept), pinned=summary.pinned)


def set_pinned(store: Store, name: str, *, pinned: bool) -> SnapshotSummary:
    """Pin a snapshot, so that it is never forgotten, or remove its pin.

    Raises:
        SnapshotNotFoundError: The name matches no snapshot, or several.
        StoreError: The store failed; the pin is as it was.
    """
    summary = find_snapshot(store, name)
    return _changed(store, summary, tags=summary.tags, pinned=pinned)


def _changed(
    store: Store, old: SnapshotSummary, *, tags: tuple[str, ...], pinned: bool
) -> SnapshotSummary:
    new = old.labelled(tags=tags, pinned=pinned)
    if old != new:
        store.manifests.replace_summary(new)
        remember(store, new)
    return new
