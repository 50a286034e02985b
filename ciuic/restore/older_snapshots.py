"""``--fallback``: paths that are damaged or were being written come from older snapshots.

A directory that cannot be listed, or only in part, gets the names that it may have had from the
newest older snapshot that can list them. What is below a name that the newer one lists stays.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from ciuic.catalog import damaged_before, list_snapshots
from ciuic.errors import CorruptionError, SnapshotNotFoundError, UnknownFormatError
from ciuic.ids import ChunkId, SnapshotId
from ciuic.model import (
    BEING_WRITTEN,
    SKIPPED,
    UNREADABLE,
    Entry,
    PathWarning,
    SnapshotSummary,
)
from ciuic.restore.passes import Run, target_errors
from ciuic.restore.place.ledger import Ledger
from ciuic.restore.place.placing import Placer
from ciuic.restore.targets import Target
from ciuic.source.directory import DirectoryHandle
from ciuic.source.exclusions import Exclusions
from ciuic.store.records.manifest import Manifest
from ciuic.store.records.tree_nodes import Lookup
from ciuic.store.store import Store
from ciuic.system.clock import local_time_text
from ciuic.view.located import Located
from ciuic.view.locator import Locator, Nodes

__all__ = ["Fallback", "locate_in_older"]

_UNLISTED: Final = frozenset({UNREADABLE, SKIPPED})
_Wanted = Mapping[bytes, PathWarning | None]
"""Paths to look for in other snapshots, and why; None: the file was being written."""


class Fallback:
    """Restores what the main pass could not restore, from the newest snapshots that have it."""

    def __init__(self, run: Run, targets: list[Target]) -> None:
        self._run = run
        self._targets = {target.path: target for target in targets}
        self._wanted: _Wanted = {}
        self._newest: dict[bytes, Entry] = {}
        """What each path is in the newest snapshot that lists it, if that could not restore it."""
        self._listed: dict[bytes, list[Lookup]] = {}
        """Of each directory: the lists of it that newer snapshots have, and that are damaged."""
        self._damaged_in: dict[bytes, SnapshotId] = {}
        """The newest snapshot in which a path is damaged, if that is not the one of the user."""
        self._sources: dict[bytes, list[SnapshotSummary]] = {}
        """Of each path: the snapshots that gave something to it; of a directory, names."""
        self._node = Nodes(run.store).get

    def restore(self, being_written: list[bytes]) -> None:
        """Restore the damaged paths of the report, and the files that were not placed.

        Consistent versions come first, newest first. If there is none, restore a version that was
        being written: that of the snapshot itself, unless it is damaged.
        """
        report = self._run.report
        lost = {path.path: path for path in report.failed if path.path in report.damaged_paths}
        report.failed = [path for path in report.failed if path.path not in lost]
        self._wanted = {**dict.fromkeys(being_written), **lost}
        self._find_own()
        try:
            self._search()
        finally:
            left = [warning for warning in self._wanted.values() if warning is not None]
            report.failed.extend(left)
            for path in self._wanted:
                if given := self._sources.get(path):
                    what = f"a part of it was taken from {_listed(given)}"
                    report.notes.append(PathWarning(path, what))
            report.damaged_paths = set(self._wanted)

    def _find_own(self) -> None:
        locator = Locator(self._run.store, self._run.manifest)
        for path in sorted(self._wanted, key=_names):
            entry = _find(locator, path)
            if entry is not None:
                self._note_entry(path, entry)

    def _search(self) -> None:
        if self._wanted:
            self._name_unreadable()
        for summary in self._older():
            self._wanted = self._restore_from(summary, self._wanted, whole_only=True)
        set_aside = {path: None for path, warning in self._wanted.items() if warning is None}
        damaged = {path: warning for path, warning in self._wanted.items() if warning is not None}
        own = self._run.manifest.summary
        self._wanted = {**damaged, **self._restore_from(own, set_aside, whole_only=False)}
        for summary in self._older():
            self._wanted = self._restore_from(summary, self._wanted, whole_only=False)

    def _name_unreadable(self) -> None:
        """Note the older snapshots whose manifests are damaged: they cannot be searched."""
        report = self._run.report
        for name, what in damaged_before(self._run.store, self._run.manifest.summary).items():
            report.damaged = True
            note = f"cannot be read, so it was not searched for older versions: {what}"
            report.notes.append(PathWarning(os.fsencode(name), note))

    def _older(self) -> Iterator[SnapshotSummary]:
        return _older_than(self._run.store, self._run.manifest.summary)

    def _restore_from(
        self, summary: SnapshotSummary, wanted: _Wanted, *, whole_only: bool
    ) -> _Wanted:
        """Try to restore paths from one snapshot; return those that are still wanted."""
        if not wanted:
            return {}
        manifest = _manifest(self._run.store, summary)
        if manifest is None:
            return wanted
        ledger = self._run.ledger()
        try:
            tried = self._place(manifest, ledger, wanted, whole_only=whole_only)
        finally:
            lost = ledger.lost_warnings()
            others = [warning for warning in ledger.failures if warning.path not in lost]
            self._run.report.failed += others
        failed = {warning.path for warning in ledger.failures}
        for path, entry in tried.items():
            if path not in failed:
                self._note_sources(path, entry, wanted[path], summary)
            elif path in lost:
                self._note_entry(path, entry)
        # A directory was restored, but a path inside it was not.
        inner = {path: lost[path] for path in lost.keys() - tried.keys()}
        locator = Locator(self._run.store, manifest)
        for path in sorted(inner, key=_names):
            self._damaged_in.setdefault(path, summary.id)
            found = _find(locator, path)
            if found is not None:
                self._note_entry(path, found)
        left = {path: wanted[path] for path in wanted if path not in tried or path in lost}
        return {**inner, **left}

    def _note_entry(self, path: bytes, entry: Entry) -> None:
        """Note what a newer snapshot says of a path, and lists of a directory.

        Older ones give only other names, and nothing to a path of another type.
        """
        self._newest.setdefault(path, entry)
        if entry.is_directory and entry.content:
            lookup = Lookup(self._node, ChunkId(entry.content), entry.level)
            self._listed.setdefault(path, []).append(lookup)

    def _takes(self, path: bytes, summary: SnapshotSummary) -> Callable[[bytes], bool]:
        """Return whether a directory gets a name from a snapshot: newer ones may list it."""
        listed = self._listed.get(path, [])
        sources = self._sources.setdefault(path, [])

        def takes(name: bytes) -> bool:
            is_taken = not any(_knows(lookup, name) for lookup in listed)
            if is_taken and summary not in sources[-1:]:
                sources.append(summary)
            return is_taken

        return takes

    def _note_sources(
        self, path: bytes, entry: Entry, warning: PathWarning | None, summary: SnapshotSummary
    ) -> None:
        """Note where a path that is restored now comes from; ``summary`` was read last."""
        own = self._run.manifest.summary
        if summary.id == own.id:
            return
        why = "in flux" if warning is None else "damaged"
        what = f"{why} in {self._damaged_in.get(path, own.id)}: "
        if not entry.is_directory:
            what += f"taken from {_named(summary)}"
        else:
            part = "a part of it is " if path in self._newest and self._newest[path].level else ""
            what = part + what
            sources = self._sources.get(path)
            if sources:
                what += f"taken from {_listed(sources)}"
            else:
                what += f"{_named(summary)} has nothing else"
            what += f", without what is only in {own.id}"
        self._run.report.notes.append(PathWarning(path, what))

    def _place(
        self, manifest: Manifest, ledger: Ledger, wanted: _Wanted, *, whole_only: bool
    ) -> dict[bytes, Entry]:
        """Place the wanted paths that a snapshot has; return those that were tried, in order."""
        run = self._run
        tried: dict[bytes, Entry] = {}
        parent: DirectoryHandle | None = None
        locator = Locator(run.store, manifest)
        with run.placer(
            manifest,
            ledger,
            delete=False,
            sets_aside_being_written=False,
            protected=Exclusions(()),
        ) as placer:
            for path in sorted(wanted, key=_names):
                entry = _find(locator, path)
                if entry is None or (entry.state == BEING_WRITTEN and whole_only):
                    continue
                newest = self._newest.get(path)
                if newest is not None and newest.file_type != entry.file_type:
                    continue  # a directory is not a version of a file
                if newest is not None and _has_tree_of(entry, newest):
                    continue  # this snapshot cannot list more of it
                tried[path] = entry
                for outer in _holders(path, self._targets):
                    if parent is None or parent.path != outer.parent:
                        parent = run.open_parent(outer)
                    self._place_inside(
                        placer, parent, outer, Located(path, entry), manifest.summary
                    )
        return tried

    def _place_inside(
        self,
        placer: Placer,
        parent: DirectoryHandle | None,
        outer: Target,
        located: Located,
        summary: SnapshotSummary,
    ) -> None:
        """Place a path below a target that has just been restored, following no symlink.

        Args:
            placer: Of the snapshot that has the path.
            parent: The directory that got the target; None in a dry run if it does not exist.
            outer: The target.
            located: The path, and its entry in the placer's snapshot.
            summary: That snapshot.
        """
        path, entry = located
        newest = self._newest.get(path)
        if newest is not None and newest.is_directory and newest.state not in _UNLISTED:
            entry = newest.with_content(entry.content, entry.level)
        inside = path[len(outer.path) :].lstrip(b"/")
        place = os.path.join(outer.place, inside) if inside else outer.place
        target = Target(path, entry, *os.path.split(place))
        with target_errors(target):
            handle = parent
            below = target.parent[len(outer.parent) :].strip(b"/")
            for name in below.split(b"/") if below else []:
                handle = self._child(handle, name)
            placer.place(
                handle,
                target.name,
                entry,
                path,
                above=parent,
                keeps_time=bool(below),
                takes=self._takes(path, summary) if entry.is_directory else None,
            )

    def _child(self, directory: DirectoryHandle | None, name: bytes) -> DirectoryHandle | None:
        """Return a directory below the target; None in a dry run if it does not exist."""
        try:
            return None if directory is None else directory.child(name)
        except (FileNotFoundError, NotADirectoryError):
            if self._run.request.dry_run:
                return None
            raise


def locate_in_older(
    store: Store, manifest: Manifest, lost: dict[bytes, str]
) -> Callable[[bytes], Located]:
    """Return a function that finds a path in a snapshot, or else in the newest older one.

    Args:
        store: The store.
        manifest: The snapshot.
        lost: Receives the paths that the snapshot cannot list, and why.
    """
    own = Locator(store, manifest)

    def locate(path: bytes) -> Located:
        try:
            return own.locate(path)
        except (CorruptionError, UnknownFormatError) as error:
            for summary in _older_than(store, manifest.summary):
                older = _manifest(store, summary)
                entry = None if older is None else _find(Locator(store, older), path)
                if entry is not None:
                    lost[path] = f"the way to it cannot be read: {error.message}"
                    return Located(path, entry)
            raise

    return locate


def _older_than(store: Store, own: SnapshotSummary) -> Iterator[SnapshotSummary]:
    for summary in list_snapshots(store):
        # A path of another machine has the same name and other content.
        is_same = summary.owner.is_same(own.owner)
        if is_same and (summary.taken_ns, summary.id) < (own.taken_ns, own.id):
            yield summary


def _manifest(store: Store, summary: SnapshotSummary) -> Manifest | None:
    """Return the manifest of an older snapshot; None if it is damaged or gone."""
    try:
        return store.manifest(summary.id)
    except (CorruptionError, SnapshotNotFoundError, UnknownFormatError):
        return None  # a StoreError passes through, and ends the restore


def _named(summary: SnapshotSummary) -> str:
    return f"{summary.id} of {local_time_text(summary.taken_ns)}"


def _listed(summaries: list[SnapshotSummary]) -> str:
    return " and ".join(map(_named, summaries))


def _has_tree_of(entry: Entry, other: Entry) -> bool:
    """Return whether a directory has the tree of another one, which was not empty."""
    tree = other.content, other.level
    return other.is_directory and bool(other.content) and (entry.content, entry.level) == tree


def _knows(lookup: Lookup, name: bytes) -> bool:
    """Return whether a list tells if the directory has a name: that part of it can be read."""
    try:
        lookup.find(name)
    except (CorruptionError, UnknownFormatError):
        return False
    return True


def _find(locator: Locator, path: bytes) -> Entry | None:
    """Return a snapshot's entry for a path; None without one, or below a damaged directory."""
    try:
        located = locator.find(path)
    except (CorruptionError, UnknownFormatError):
        return None
    # In a hostile store, a name may lead to another path.
    return located.entry if located is not None and located.path == path else None


def _names(path: bytes) -> list[bytes]:
    """Sort key: the paths in a directory come before the name that follows the directory."""
    return path.split(b"/")


def _holders(path: bytes, targets: Mapping[bytes, Target]) -> Iterator[Target]:
    """Yield the targets that a path was restored with: the path itself, and targets above it."""
    above = path
    while above != b"/":
        if above in targets:
            yield targets[above]
        above = os.path.dirname(above)
    if above in targets:
        yield targets[above]
