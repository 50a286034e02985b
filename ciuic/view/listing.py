"""Listing paths of snapshots: a directory, everything below a path, or what a glob matches."""

import fnmatch
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from ciuic.errors import CorruptionError, SnapshotNotFoundError
from ciuic.ids import SnapshotId
from ciuic.model import Entry, Root, SnapshotSummary
from ciuic.store.store import Store
from ciuic.system.key_set import KeySet
from ciuic.view.located import Located, inner_path, root_entry
from ciuic.view.tree_walk import KEPT_MAX, Cursor, PathBudget, relax

__all__ = ["OnDamage", "children", "find", "readable_roots", "walk"]

OnDamage: TypeAlias = Callable[[bytes, CorruptionError], None]
"""Receives the path of a damaged directory, and the damage."""


def children(
    store: Store, located: Located, *, depth: int = 0, budget: PathBudget | None = None
) -> Iterator[Located]:
    """Yield the entries of a directory, sorted by name; nothing for anything else."""
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
    on_damage: OnDamage | None = None,
) -> Iterator[Located]:
    """Yield a path and everything below it, each directory before its entries.

    Args:
        store: An open store.
        located: The path.
        budget: Counts the paths of several walks together; None: the paths of this walk.
        skips: Asked for each path; True leaves it out with everything below it.
        on_damage: Receives each directory that is damaged or too deep, and the walk goes on; None:
            the first one is raised.

    Raises:
        CorruptionError: There are more paths than a store of this size can hold; without
            ``on_damage``, also if a directory is damaged or too deep.
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
        try:
            inner = cursor.next()
        except CorruptionError as error:
            if on_damage is None or budget.is_spent:
                raise
            on_damage(path, error)
            inner = None
        current = None if inner is None else Located(inner_path(path, inner.name), inner)
        if inner is None:
            way.pop()


def readable_roots(
    store: Store, roots: Iterable[Root], on_damage: OnDamage | None
) -> Iterator[Located]:
    """Yield roots of a snapshot; ``on_damage`` receives damaged ones; None: they are raised."""
    for root in roots:
        if not root.tree:
            continue
        try:
            entry = root_entry(store, root)
        except CorruptionError as error:
            if on_damage is None:
                raise
            on_damage(root.path, error)
        else:
            yield Located(root.path, entry)


def find(
    store: Store,
    snapshots: list[SnapshotSummary],
    pattern: bytes,
    on_damage: OnDamage | None = None,
) -> Iterator[tuple[SnapshotId, Located]]:
    """Yield the paths that match a glob, in the order of the snapshots.

    A pattern with ``/`` is matched against whole paths, any other pattern against names. A path
    that is the same in several snapshots is returned for the first of them. Directories that are
    the same are read once. ``on_damage`` receives those that are damaged; None: the first one is
    raised.
    """
    matches = re.compile(fnmatch.translate(os.fsdecode(pattern))).match
    by_path = b"/" in pattern
    # For a single snapshot nothing needs to be remembered.
    seen = KeySet() if len(snapshots) > 1 else None

    def was_walked(located: Located) -> bool:
        path, entry = located
        return entry.is_directory and not _is_new(seen, path, entry.content)

    for snapshot in snapshots:
        try:
            roots = store.manifest(snapshot.id).roots
        except SnapshotNotFoundError:
            if len(snapshots) == 1:
                raise
            continue  # a prune has removed it meanwhile
        fresh = (root for root in roots if root.tree and _is_new(seen, root.path, root.tree))
        for top in readable_roots(store, fresh, on_damage):
            for found in walk(store, top, skips=was_walked, on_damage=on_damage):
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
