"""Changing the tags, the pin and the note of a snapshot."""

from collections.abc import Callable, Collection
from typing import Final

from ciuic.catalog import check_tags, find_snapshot, labelled, list_snapshots, remember
from ciuic.errors import SnapshotNotFoundError, UsageError
from ciuic.ids import SnapshotId
from ciuic.model import SnapshotSummary
from ciuic.store.records.mark import Mark
from ciuic.store.store import Store

__all__ = ["NOTE_MAX", "change_tags", "move_tags", "set_note", "set_pinned"]

NOTE_MAX: Final = 4096
"""Characters of a note."""


def change_tags(
    store: Store, name: str, *, add: Collection[str] = (), remove: Collection[str] = ()
) -> SnapshotSummary:
    """Add and remove a snapshot's tags. Tags that need no change are fine.

    Raises:
        UsageError: A tag is invalid.
        SnapshotNotFoundError: The name matches no snapshot, or several.
        StoreError: The store failed; the tags are as they were.
    """
    check_tags(add)

    def changed(old: SnapshotSummary) -> Mark:
        kept = [tag for tag in dict.fromkeys((*old.tags, *add)) if tag not in remove]
        return Mark(tuple(kept), old.pinned, note=old.note)

    return _change(store, name, changed)


def move_tags(
    store: Store, name: str, tags: Collection[str]
) -> tuple[SnapshotSummary, list[SnapshotId]]:
    """Give tags to a snapshot, and take them from all others.

    The snapshot gets them first: after a crash in between, a tag is on two snapshots, never on
    none.

    Returns:
        The snapshot, and the others that had one of the tags, newest first.

    Raises:
        UsageError: A tag is invalid.
        SnapshotNotFoundError: The name matches no snapshot, or several.
        StoreError: The store failed; run it again.
    """
    moved = change_tags(store, name, add=tags)
    others = [
        other.id
        for other in list_snapshots(store)
        if other.id != moved.id and not set(tags).isdisjoint(other.tags)
    ]
    for snapshot_id in others:
        change_tags(store, snapshot_id, remove=tags)
    return moved, others


def set_pinned(store: Store, name: str, *, pinned: bool) -> SnapshotSummary:
    """Pin a snapshot, so that it is never forgotten, or remove its pin.

    Raises:
        SnapshotNotFoundError: The name matches no snapshot, or several.
        StoreError: The store failed; the pin is as it was.
    """
    return _change(store, name, lambda old: Mark(old.tags, pinned, note=old.note))


def set_note(store: Store, name: str, note: str) -> SnapshotSummary:
    """Write a note on a snapshot, in place of the one that it has; empty: remove that.

    Raises:
        UsageError: The note is too long, or has characters that no terminal shows.
        SnapshotNotFoundError: The name matches no snapshot, or several.
        StoreError: The store failed; the note is as it was.
    """
    if len(note) > NOTE_MAX or not note.isprintable():
        raise UsageError(
            "that cannot be a note", hint=f"A note has at most {NOTE_MAX:,} printable characters."
        )
    return _change(store, name, lambda old: Mark(old.tags, old.pinned, note=note))


def _change(store: Store, name: str, changed: Callable[[SnapshotSummary], Mark]) -> SnapshotSummary:
    """Add a mark to a snapshot, unless that would change nothing.

    If another process adds a mark first, the change is made again on top of that one.
    """
    while True:
        old = find_snapshot(store, name)
        if old.mark_problem:
            old = labelled(store, store.manifest(old.id).summary, to_change=True)
        mark = changed(old)
        if mark == Mark(old.tags, old.pinned, note=old.note) and not old.mark_problem:
            return old
        has_copy = old.id in store.manifests.copies.ids()
        new = store.marks.add(old, mark, copy=has_copy)
        if new is None:
            continue
        if not store.manifests.is_there(old.id):
            # A prune had removed the marks already, so that this number was free again.
            raise SnapshotNotFoundError(
                f"{old.id} was forgotten and removed for good meanwhile",
                hint="'ciuic list' shows the snapshots that are left.",
            )
        remember(store, new)
        return new
