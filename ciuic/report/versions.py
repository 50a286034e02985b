"""Finds the snapshots that hold a path, whether it is intact there, and where it changed."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from ciuic.catalog import known_lost
from ciuic.catalog.removed import removed_among
from ciuic.errors import CorruptionError, SnapshotNotFoundError, UnknownFormatError
from ciuic.ids import ChunkId, SnapshotId
from ciuic.model import BEING_WRITTEN, CONSISTENT, SKIPPED, UNREADABLE, Entry, SnapshotSummary
from ciuic.store.records.tree_nodes import iter_tree
from ciuic.store.store import Store
from ciuic.system.machine import Machine
from ciuic.view.damage import DamageSurvey
from ciuic.view.diff import has_same_content
from ciuic.view.locator import Locator

__all__ = ["DAMAGED", "LEFT_OUT", "Version", "versions"]

DAMAGED: Final = "damaged"
LEFT_OUT: Final = "left out"
_STATES: Final = {
    CONSISTENT: "whole",
    BEING_WRITTEN: "in flux",
    UNREADABLE: "unreadable",
    SKIPPED: LEFT_OUT,
}


class Version(NamedTuple):
    """A path as one snapshot has it.

    Attributes:
        snapshot: The snapshot.
        entry: The path's entry; None if a directory above it is damaged, or a rule leaves it out.
        state: ``whole``, ``in flux``, ``unreadable``, ``left out`` or ``damaged``; for a directory
            the worst state in it. Only content that a record of damage names is read: ``whole``
            means no known damage.
        what: A description of the damage.
        same_as: The previous snapshot that has the path, if the content is the same there: of the
            same machine, unless that has none.
    """

    snapshot: SnapshotSummary
    entry: Entry | None
    state: str
    what: str = ""
    same_as: SnapshotId | None = None


def versions(store: Store, snapshots: Sequence[SnapshotSummary], path: bytes) -> list[Version]:
    """Return the versions of a path, one for each snapshot that holds it, newest first.

    Args:
        store: An open store.
        snapshots: Newest first, without gaps: ``same_as`` compares neighbors.
        path: An absolute path.
    """
    judge = _Judge(store)
    places = _Places(store, path)
    found: list[Version] = []
    for snapshot in reversed(snapshots):
        try:
            version = _version(places, judge, snapshot)
        except SnapshotNotFoundError:
            continue  # a prune has removed it meanwhile
        if version is not None:
            found.append(version)
    removed = removed_among(store, [one.snapshot.id for one in found if one.state == DAMAGED])
    return _compared(store, [one for one in found if one.snapshot.id not in removed])[::-1]


def _compared(store: Store, oldest_first: Sequence[Version]) -> list[Version]:
    """Set ``same_as``: two machines may use one path."""
    compared = []
    last: dict[Machine, Version] = {}
    for version in oldest_first:
        machine = version.snapshot.owner.machine
        own = (one for known, one in reversed(last.items()) if known.is_same(machine))
        before = next(own, next(reversed(last.values()), None))
        is_same = before is not None and _is_same(store, before.entry, version.entry)
        same_as = before.snapshot.id if before is not None and is_same else None
        compared.append(version._replace(same_as=same_as))
        if version.entry is not None:
            # The last version comes last.
            last.pop(machine, None)
            last[machine] = version
    return compared


def _version(places: "_Places", judge: "_Judge", snapshot: SnapshotSummary) -> Version | None:
    try:
        entry = places.entry(snapshot)
        if entry is None:
            rule = places.rule()
            return Version(snapshot, None, LEFT_OUT, f"left out by {rule}") if rule else None
    except (CorruptionError, UnknownFormatError) as error:
        return Version(snapshot, None, DAMAGED, error.message)
    if not judge.is_sound(entry):
        return Version(snapshot, entry, DAMAGED, "some of it is lost")
    return Version(snapshot, entry, _STATES[judge.mark(entry, snapshot)])


def _is_same(store: Store, old: Entry | None, new: Entry | None) -> bool:
    if old is None or new is None or UNREADABLE in {old.state, new.state}:
        return False
    if old.is_directory or new.is_directory:
        return old.is_directory == new.is_directory and old.content == new.content
    return has_same_content(store, old, new)


class _Places:
    """Finds one path in many snapshots; of directories that two in a row share, it reads one."""

    def __init__(self, store: Store, path: bytes) -> None:
        self._store = store
        self._path = path
        self._locator: Locator | None = None

    def entry(self, snapshot: SnapshotSummary) -> Entry | None:
        """Return the entry of the path in a snapshot; None if it does not have the path."""
        manifest = self._store.manifest(snapshot.id)
        self._locator = Locator(self._store, manifest, like=self._locator)
        found = self._locator.find(self._path)
        return None if found is None else found.entry

    def rule(self) -> str:
        """Return the rule that leaves the path out of the last snapshot; empty: there is none."""
        return "" if self._locator is None else self._locator.left_out.rule(self._path)


class _Judge:
    """Finds the state of entries; a directory that many snapshots share is walked once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._survey = DamageSurvey(store, known_lost(store))
        self._unmarked: set[bytes] = set()
        self._last: tuple[Entry, bool] | None = None

    def is_sound(self, entry: Entry) -> bool:
        """Return whether no lost chunk is known in an entry and below it."""
        # Most versions of a path have the content of the one before.
        if self._last is None or self._last[0] != entry:
            self._last = entry, self._survey.entry_is_sound(entry)
        return self._last[1]

    def mark(self, entry: Entry, snapshot: SnapshotSummary) -> int:
        """Return the worst state of a sound entry and of everything below it."""
        if entry.state != CONSISTENT or not entry.is_directory or not snapshot.trouble_count:
            return entry.state
        worst = CONSISTENT
        seen: set[bytes] = set()
        waiting = [entry]
        while waiting:
            directory = waiting.pop()
            if directory.content in seen or directory.content in self._unmarked:
                continue
            seen.add(directory.content)
            for inner in iter_tree(
                self._store.reader.node, ChunkId(directory.content), directory.level
            ):
                if inner.state in {BEING_WRITTEN, UNREADABLE}:
                    worst = max(worst, inner.state)
                if inner.is_directory and inner.content:
                    waiting.append(inner)
        if worst == CONSISTENT:
            self._unmarked |= seen
        return worst
