"""The history of a path, one change for each version of it, and that of all snapshots."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from ciuic.ids import SnapshotId
from ciuic.model import Follow, SnapshotSummary
from ciuic.report.versions import DAMAGED, Version, versions
from ciuic.store.store import Store

__all__ = ["ADDED", "CHANGED", "GONE", "Change", "Descent", "descent", "history"]

ADDED: Final = "added"
CHANGED: Final = "changed"
GONE: Final = "gone"


class Change(NamedTuple):
    """A version of a path, and the snapshots in a row that have it.

    Attributes:
        what: ``ADDED``, ``CHANGED``, ``GONE``, or the state of a version that cannot be compared:
            ``damaged`` or ``left out``.
        first: The oldest of these snapshots.
        last: The newest of them.
        snapshots: The number of these snapshots.
        version: The path in the first; None if it is gone.
        before: The first snapshot of the version that this one comes from: the one before it, or
            the one that had been restored. None: it is the oldest.
        follows: What had been restored before the first snapshot; None: nothing.
    """

    what: str
    first: SnapshotSummary
    last: SnapshotSummary
    snapshots: int
    version: Version | None
    before: SnapshotId | None = None
    follows: Follow | None = None


class Descent(NamedTuple):
    """A snapshot, and the one that it comes from.

    Attributes:
        snapshot: The snapshot.
        before: The one that had been restored last, or else its parent, or else the one before it
            of the same machine, schedule and roots; None: there is none.
    """

    snapshot: SnapshotSummary
    before: SnapshotId | None


def descent(snapshots: Sequence[SnapshotSummary]) -> list[Descent]:
    """Return where each snapshot comes from.

    Args:
        snapshots: Newest first. Others do not count as what a snapshot comes from.
    """
    listed = {snapshot.id for snapshot in snapshots}
    newest: dict[tuple[object, ...], SnapshotId] = {}
    found = []
    for snapshot in reversed(snapshots):
        series = snapshot.owner, snapshot.schedule, snapshot.roots
        named = [*[follow.snapshot for follow in snapshot.follows], snapshot.parent]
        before = next((each for each in named if each in listed), newest.get(series))
        found.append(Descent(snapshot, before))
        newest[series] = snapshot.id
    return found[::-1]


def history(store: Store, snapshots: Sequence[SnapshotSummary], path: bytes) -> list[Change]:
    """Return the changes of a path, newest first; empty if no snapshot has had it.

    Only snapshots with a root that holds the path count: the others say nothing about it. Content
    is compared by its chunks; a change of the metadata alone is not a change.

    Args:
        store: An open store.
        snapshots: All snapshots, newest first.
        path: An absolute path.
    """
    covering = [one for one in snapshots if any(_holds(root, path) for root in one.roots)]
    known = {version.snapshot.id: version for version in versions(store, covering, path)}
    found: list[Change] = []
    places: dict[SnapshotId, int] = {}
    for snapshot in reversed(covering):
        version = known.get(snapshot.id)
        before = found[-1] if found else None
        what = _change(before, version)
        if what is not None:
            follows = _follow(snapshot, path)
            place = len(found) - 1 if follows is None else places.get(follows.snapshot, -1)
            origin = found[place].first.id if place >= 0 else None
            found.append(Change(what, snapshot, snapshot, 1, version, origin, follows))
        elif before is not None:
            found[-1] = before._replace(last=snapshot, snapshots=before.snapshots + 1)
        places[snapshot.id] = len(found) - 1
    return found[::-1]


def _change(before: Change | None, version: Version | None) -> str | None:
    """Return what a snapshot has changed; None if it goes on with the version before it."""
    if version is None:
        return None if before is None or before.what == GONE else GONE
    if version.entry is None:
        is_same = before is not None and before.what == version.state
        return None if is_same else version.state
    if before is None or before.what == GONE:
        return ADDED
    if version.state == DAMAGED:
        return None if before.what == DAMAGED and version.same_as else DAMAGED
    if version.same_as is None or before.version is None or before.version.entry is None:
        return CHANGED
    return CHANGED if before.what == DAMAGED else None


def _follow(snapshot: SnapshotSummary, path: bytes) -> Follow | None:
    """Return what had put this path in place before a snapshot; None: no restore had."""
    above = [followed for followed in snapshot.follows if _holds(followed.path, path)]
    return max(above, key=lambda one: len(one.path), default=None)


def _holds(root: bytes, path: bytes) -> bool:
    return path == root or path.startswith(root.rstrip(b"/") + b"/")
