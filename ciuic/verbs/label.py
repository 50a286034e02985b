"""Tags and pins: what people write on snapshots after they were taken."""

from collections.abc import Collection, Iterable
from typing import Final

from ciuic.catalog import find_snapshot, remember
from ciuic.errors import UsageError
from ciuic.model import SnapshotSummary
from ciuic.store import Store

__all__ = ["change_tags", "check_tags", "set_pinned"]

_TAG_MAX: Final = 64


def check_tags(tags: Iterable[str]) -> None:
    """See that tags are such as a list can show and a script can split.

    Raises:
        UsageError: One is not.
    """
    for tag in tags:
        if not 1 <= len(tag) <= _TAG_MAX or "|" in tag or "," in tag or not tag.isprintable():
            raise UsageError(
                f"a tag has 1 to {_TAG_MAX} printable characters, without '|' and ',':"
                f" {tag[:_TAG_MAX]!r}"
            )


def change_tags(
    store: Store, name: str, *, add: Collection[str] = (), remove: Collection[str] = ()
) -> SnapshotSummary:
    """Add and remove a snapshot's tags; what is there or gone already is no fault.

    Raises:
        UsageError: A tag can't be one.
        SnapshotNotFoundError: There is no such snapshot.
        StoreError: The store failed; the tags are as they were.
    """
    check_tags(add)
    summary = find_snapshot(store, name)
    kept = [tag for tag in dict.fromkeys((*summary.tags, *add)) if tag not in remove]
    return _changed(store, summary, tags=tuple(kept), pinned=summary.pinned)


def set_pinned(store: Store, name: str, *, pinned: bool) -> SnapshotSummary:
    """Keep a snapshot from being forgotten, or let it go again.

    Raises:
        SnapshotNotFoundError: There is no such snapshot.
        StoreError: The store failed; the pin is as it was.
    """
    summary = find_snapshot(store, name)
    return _changed(store, summary, tags=summary.tags, pinned=pinned)


def _changed(
    store: Store, old: SnapshotSummary, *, tags: tuple[str, ...], pinned: bool
) -> SnapshotSummary:
    new = old.labelled(tags=tags, pinned=pinned)
    if old != new:
        store.replace_summary(new)
        remember(store, new)
    return new
