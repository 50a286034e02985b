"""Open the directories of a walk: live or frozen, without the names that a mark excludes."""

import heapq
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from ciuic.errors import SourceError
from ciuic.ids import ChunkId
from ciuic.model import Entry
from ciuic.snapshot.bases.old_directory import OldDirectory
from ciuic.snapshot.read.parent_nodes import parent_nodes
from ciuic.snapshot.read.sinks import Sinks
from ciuic.snapshot.walk.file_capture import FileVisitor
from ciuic.snapshot.walk.listings import NOT_LISTED, Listings
from ciuic.snapshot.walk.tally import Tally
from ciuic.snapshot.walk.unchanged import has_same_inode
from ciuic.snapshot.walk.walked_directory import OrderedEntries, WalkedDirectory
from ciuic.source.directory import DirectoryHandle, entry_of, read_xattrs
from ciuic.source.exclusions import BY_MARK, Exclusions
from ciuic.source.faults import source_faults
from ciuic.source.freeze.views import RootView, SubvolumeView
from ciuic.source.mounts import PseudoMounts
from ciuic.store.records.nodes import PutNode
from ciuic.store.records.tree_nodes import TreeBuilder, iter_tree
from ciuic.store.store import Store

__all__ = ["Again", "Directories", "Opened", "WalkRules", "xattrs_of"]

Xattrs = tuple[tuple[bytes, bytes], ...]


class WalkRules(NamedTuple):
    """The rules of a walk.

    Attributes:
        exclusions: Which names are excluded.
        skip_unchanged: Inodes that look unchanged since the parent are not read again.
        find_delta_bases: Changed files may be stored as deltas.
    """

    exclusions: Exclusions
    skip_unchanged: bool
    find_delta_bases: bool


class Opened(NamedTuple):
    """An open subdirectory.

    Attributes:
        handle: The directory.
        view: How its files are read; another view than the parent's if it was not frozen with it.
        status: Status of the directory that was opened.
    """

    handle: DirectoryHandle
    view: RootView
    status: os.stat_result


class Again(NamedTuple):
    """What a snapshot has captured of a directory that it walks again.

    Attributes:
        entries: Returns the captured entries.
        listing: Its number in ``Listings``.
        is_doubtful: It is to be listed again; else a directory below it is.
    """

    entries: Callable[[], Iterator[Entry]]
    listing: int
    is_doubtful: bool


class Directories:
    """Opens the directories of a walk.

    Args:
        store: Read for the parent's trees.
        put_node: Stores a node of a tree.
        files: Receives every directory.
        tally: Counts excluded names.
        rules: The rules of the walk.
        sinks: Receive warnings and excluded names.
        listings: Gets every directory that is not frozen.

    Attributes:
        pseudo: The file systems that snapshots leave out.
    """

    def __init__(
        self,
        store: Store,
        put_node: PutNode,
        files: FileVisitor,
        tally: Tally,
        *,
        rules: WalkRules,
        sinks: Sinks,
        listings: Listings,
    ) -> None:
        self._reader = store.reader
        self._old_nodes = parent_nodes(store)
        self._put_node = put_node
        self._files = files
        self._tally = tally
        self._rules = rules
        self._sinks = sinks
        self._listings = listings
        self.pseudo = PseudoMounts()

    def root(
        self, view: RootView, old: Entry | None, old_taken_ns: int, again: Again | None = None
    ) -> WalkedDirectory:
        """Open a root.

        Args:
            view: How the root is read.
            old: The root's entry in the parent snapshot.
            old_taken_ns: When the parent snapshot began.
            again: What this snapshot has captured of it, if it is walked again.

        Raises:
            SourceError: The root cannot be read, or is on a pseudo file system.
        """
        handle = view.open_top()
        with source_faults():
            status = os.fstat(handle.fd)
            if why := self.pseudo.why_left_out(status):
                raise SourceError(why)
            entry = entry_of(b".", status)
            entry.xattrs = read_xattrs(handle.fd)
            names = self._names(handle, again, is_root=True)
            listing = self._listing(
                NOT_LISTED, handle.path, Opened(handle, view, status), old, again
            )
        bases = OldDirectory(self._reader, old) if self._rules.find_delta_bases else None
        return self._walked(
            handle,
            entry,
            listing=listing,
            names=names,
            old=old,
            old_taken_ns=old_taken_ns,
            view=view,
            bases=bases,
            again=again,
        )

    def open(self, parent: WalkedDirectory, name: bytes, status: os.stat_result) -> Opened:
        """Open a subdirectory; if it was not frozen with its root, open the live directory.

        Raises:
            SourceError: It cannot be opened.
        """
        path = parent.handle.join(name)
        with source_faults():
            if not parent.view.is_elsewhere(path, status):
                return Opened(parent.handle.child(name), parent.view, status)
            what = "is a file system or subvolume of its own: captured in place"
            self._sinks.warn(path, what, True)
            if isinstance(parent.view, SubvolumeView):
                handle = parent.view.open_live(path)
            else:
                handle = parent.handle.child(name)
            return Opened(handle, RootView(path), os.fstat(handle.fd))

    def child(
        self,
        parent: WalkedDirectory,
        entry: Entry,
        opened: Opened,
        old: Entry | None,
        again: Again | None = None,
    ) -> WalkedDirectory:
        """Return an open subdirectory, ready to be walked.

        Args:
            parent: The directory above it.
            entry: Its entry, which gets its extended attributes.
            opened: The open subdirectory.
            old: The parent snapshot's entry at its path.
            again: What this snapshot has captured of it, if it is walked again.

        Raises:
            SourceError: It cannot be read.
        """
        handle, view, status = opened
        with source_faults():
            entry.xattrs = xattrs_of(self._rules, old, status, handle.fd)
            names = self._names(handle, again)
            above, name = parent.listing, entry.name
            if above == NOT_LISTED:
                name = handle.path
            listing = self._listing(above, name, opened, old, again)
        bases = None
        if parent.delta_bases is not None:
            bases = parent.delta_bases.directory(entry.name, old)
        return self._walked(
            handle,
            entry,
            listing=listing,
            names=names,
            old=old,
            old_taken_ns=parent.old_taken_ns,
            view=view,
            bases=bases,
            again=again,
        )

    def _listing(
        self,
        parent: int,
        name: bytes,
        opened: Opened,
        old: Entry | None,
        again: Again | None,
    ) -> int:
        """Note that a directory has been listed; returns the number of the listing."""
        handle, view, before = opened
        if view.is_frozen:
            return NOT_LISTED
        if again is not None and not again.is_doubtful:
            return again.listing
        changed_ns = os.fstat(handle.fd).st_ctime_ns
        if old is not None and old.ctime_ns == changed_ns and old.ino == before.st_ino:
            changed_ns = 0
        if again is not None:
            self._listings.renew(again.listing, before, changed_ns)
            return again.listing
        return self._listings.add(parent, name, before, changed_ns)

    def _names(
        self, handle: DirectoryHandle, again: Again | None, *, is_root: bool = False
    ) -> Iterable[bytes]:
        """Return the names to visit, in order; what was captured stays, even if it is gone."""
        if again is None:
            return self._wanted_names(handle, is_root=is_root)
        captured = (entry.name for entry in again.entries())
        if not again.is_doubtful:
            return captured
        names = heapq.merge(captured, self._wanted_names(handle, is_root=is_root))
        return (name for name, _ in itertools.groupby(names))

    def _wanted_names(self, handle: DirectoryHandle, *, is_root: bool = False) -> list[bytes]:
        """Return the names in a directory; if a mark excludes its content, only the mark."""
        names = handle.names()
        exclusions = self._rules.exclusions
        mark = exclusions.mark(handle.fd) if exclusions.has_marks else None
        if mark is None:
            return names
        if is_root:
            what = f"the root holds {os.fsdecode(mark)}, so all its other content was excluded"
            self._sinks.warn(handle.path, what, True)
        for name in names:
            if name != mark:
                self._tally.excluded += 1
                self._sinks.excluded(handle, name, f"{BY_MARK} {os.fsdecode(mark)}")
        return [mark]

    def _walked(
        self,
        handle: DirectoryHandle,
        entry: Entry,
        *,
        listing: int,
        names: Iterable[bytes],
        old: Entry | None,
        old_taken_ns: int,
        view: RootView,
        bases: OldDirectory | None,
        again: Again | None,
    ) -> WalkedDirectory:
        old_entries: Iterator[Entry] = iter(())
        if old is not None and old.is_directory and old.content:
            old_entries = iter_tree(self._old_nodes, ChunkId(old.content), old.level)
        self._files.enter(handle, old)
        return WalkedDirectory(
            handle,
            entry,
            listing=listing,
            names=names,
            builder=TreeBuilder(self._put_node),
            old=old_entries,
            old_taken_ns=old_taken_ns,
            view=view,
            delta_bases=bases,
            captured=None if again is None else OrderedEntries(again.entries()),
            is_listed=again is None or again.is_doubtful,
        )


def xattrs_of(
    rules: WalkRules, old: Entry | None, status: os.stat_result, target: int | bytes
) -> Xattrs:
    """Return extended attributes: those of the parent's entry if the inode is unchanged."""
    if rules.skip_unchanged and old is not None and has_same_inode(old, status):
        return old.xattrs
    return read_xattrs(target)
