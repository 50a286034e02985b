"""Changing the tags and the pin of a snapshot."""

from collections.abc import Callable, Collection

from ciuic.catalog import check_tags, find_snapshot, remember
from ciuic.model import SnapshotSummary
from ciuic.store.records.mark import Mark
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

    def changed(old: SnapshotSummary) -> Mark:
        kept = [tag for tag in dict.fromkeys((*old.tags, *add)) if tag not in remove]
        return Mark(tuple(kept), old.pinned)

    return _change(store, name, changed)


def set_pinned(store: Store, name: str, *, pinned: bool) -> SnapshotSummary:
    """Pin a snapshot, so that it is never forgotten, or remove its pin.

    Raises:
        SnapshotNotFoundError: The name matches no snapshot, or several.
        StoreError: The store failed; the pin is as it was.
    """
    return _change(store, name, lambda old: Mark(old.tags, pinned))


def _change(store: Store, name: str, changed: Callable[[SnapshotSummary], Mark]) -> SnapshotSummary:
    """Add a mark to a snapshot, unless that would change nothing.

    If another process adds a mark first, the change is made again on top of that one.
    """
    while True:
        old = find_snapshot(store, name)
        mark = changed(old)
        if mark == Mark(old.tags, old.pinned) and not old.mark_problem:
            return old
        has_copy = old.id in store.manifests.copies.ids()
        new = store.marks.add(old, mark, copy=has_copy)
        if new is not None:
            remember(store, new)
            return new
