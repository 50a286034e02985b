"""Listing paths of snapshots: a directory, everything below a path, or what a glob matches."""

import fnmatch
import os
import re
from collections.abc import Callable, Iterator

from ciuic.ids import SnapshotId
from ciuic.model import Entry, SnapshotSummary
from ciuic.store.store import Store
from ciuic.system.key_set import KeySet
from ciuic.view.located import Located, inner_path, root_entry
from ciuic.view.tree_walk import KEPT_MAX, Cursor, PathBudget, relax

__all__ = ["children", "find", "walk"]


def children(
    store: Store, located: Located, *, depth: int = 0, budget: PathBudget | None = None
) -> Iterator[Located]:
    """The entries of a directory, sorted by name; nothing for anything else."""
    path, entry = located
    if entry.is_directory and entry.content:
        get = store.reader.node
        for inner in Cursor(get, entry, depth=depth, budget=budget):
            yield Located(inner_path(path, inner.name), inner)


def walk(
    store: Store,
    located: Located,
    budget: PathBudget | None = None,
    *,
    skips: Callable[[Located], bool] = lambda _: False,
) -> Iterator[Located]:
    """A path and everything below it, each directory before its entries.

    Args:
        store: An open store.
        located: The path.
        budget: Counts the paths of several walks together; None: the paths of this walk.
        skips: Asked for each path; True leaves it out with everything below it.

    Raises:
        CorruptionError: A directory is damaged or too deep, or there are more paths than a store of
            this size can hold.
    """
    budget = budget or PathBudget(store.pack_lengths)
    way: list[tuple[bytes, Cursor]] = []
    current: Located | None = located
    while True:
        if current is not None and not skips(current):
            yield current
            path, entry = current
            if entry.is_directory and entry.content:
                get = store.reader.node
                cursor = Cursor(get, entry, depth=len(way), budget=budget)
                way.append((path, cursor))
                relax([cursor for _, cursor in way[-KEPT_MAX:]])
        if not way:
            return
        path, cursor = way[-1]
        inner = cursor.next()
        current = None if inner is None else Located(inner_path(path, inner.name), inner)
        if inner is None:
            way.pop()


def find(
    store: Store, snapshots: list[SnapshotSummary], pattern: bytes
) -> Iterator[tuple[SnapshotId, Located]]:
    """The paths that match a glob, in the order of the snapshots.

    A pattern with ``/`` is matched against whole paths, any other pattern against names. A path
    that is the same in several snapshots is returned for the first of them. Directories that are
    the same are read once.
    """
    matches = re.compile(fnmatch.translate(os.fsdecode(pattern))).match
    by_path = b"/" in pattern
    # For a single snapshot nothing needs to be remembered.
    seen = KeySet() if len(snapshots) > 1 else None

    def was_walked(located: Located) -> bool:
        path, entry = located
        return entry.is_directory and not _is_new(seen, path, entry.content)

    for snapshot in snapshots:
        for root in store.manifest(snapshot.id).roots:
            if not root.tree or not _is_new(seen, root.path, root.tree):
                continue
            for found in walk(store, Located(root.path, root_entry(store, root)), skips=was_walked):
                subject = found.path if by_path else os.path.basename(found.path)
                if matches(os.fsdecode(subject)) and (
                    # Only matching files are remembered: a store may have many millions of others.
                    found.entry.is_directory or _is_new(seen, found.path, _version(found.entry))
                ):
                    yield snapshot.id, found


def _is_new(seen: KeySet | None, path: bytes, version: bytes) -> bool:
    """Remember a version of a path; return whether it is met for the first time."""
    return seen is None or seen.add(b"%b\0%b" % (path, version))


def _version(entry: Entry) -> bytes:
    """Equal for two entries of a path with the same content and time."""
    return entry.content + entry.mtime_ns.to_bytes(9, "little", signed=True)
