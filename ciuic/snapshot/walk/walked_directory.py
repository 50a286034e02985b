"""A directory that is being walked, and the part of its tree that is not stored yet."""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ciuic.errors import CorruptionError
from ciuic.ids import ChunkId, SnapshotId
from ciuic.model import UNREADABLE, Entry
from ciuic.snapshot.bases.old_directory import OldDirectory
from ciuic.snapshot.walk.pending import PendingEntry
from ciuic.source.directory import DirectoryHandle, storable_ns
from ciuic.source.freeze.views import RootView
from ciuic.store.records.tree_nodes import TreeBuilder

__all__ = ["FoundEntry", "Growth", "OldTree", "OrderedEntries", "WalkedDirectory"]

FoundEntry = Entry | PendingEntry


class OldTree(NamedTuple):
    """The tree of a root in an older snapshot.

    Attributes:
        tree: ID of the root's tree node.
        taken_ns: When the older snapshot began; it may lack later changes.
        snapshot_id: ID of the older snapshot.
    """

    tree: ChunkId
    taken_ns: int
    snapshot_id: SnapshotId


class Growth(NamedTuple):
    """The entries that moved into a tree, and the difference to the counts of the listing.

    Attributes:
        moved: Number of entries that moved.
        has_vanished: A name among them vanished after it was listed, or leads to another file, or
            could not be read, perhaps because of that.
        vanished: Number of files that vanished; a name of several counts only in the above.
        grown_bytes: Bytes captured minus bytes listed.
    """

    moved: int
    has_vanished: bool
    vanished: int
    grown_bytes: int


class OrderedEntries:
    """Finds entries that come in the order of their names, by names in the same order."""

    def __init__(self, entries: Iterator[Entry]) -> None:
        self._entries = entries
        self._next: Entry | None = None

    def find(self, name: bytes) -> Entry | None:
        """Return the entry of a name; call it with names in order."""
        try:
            while self._next is None or self._next.name < name:
                self._next = next(self._entries)
        except StopIteration:
            self._entries = iter(())
            return None
        except CorruptionError:
            # If the parent's tree is damaged, the files are read again, and ``parent_nodes`` has
            # the tree stored again.
            self._entries = iter(())
            return None
        return self._next if self._next.name == name else None


class WalkedDirectory:
    """A directory on its way into tree nodes.

    Args:
        handle: The open directory.
        listing: Its number in ``Listings``.
        entry: Its entry, still without content.
        names: The names to visit, in order.
        builder: Receives the entries.
        old: The parent snapshot's entries of the directory, in order.
        captured: What was captured of it before, if it is walked again.
        is_listed: ``names`` come from a listing of this walk, not only from ``captured``.
        old_taken_ns: When the parent snapshot began.
        view: How its files are read.
        delta_bases: Finds the last versions of its files; None: no deltas.

    Attributes:
        old: Finds the parent snapshot's entries.
        captured: Finds what was captured before; None: it is walked for the first time.
        pending: Resolved with ``entry`` once all content of the directory is stored.
        queue: The entries that wait for their content, each with the size that was counted for it,
            if any.
        instead: What to add if a file that waits in ``queue`` vanishes or cannot be read.
    """

    def __init__(
        self,
        handle: DirectoryHandle,
        entry: Entry,
        *,
        listing: int,
        names: Iterable[bytes],
        builder: TreeBuilder,
        old: Iterator[Entry],
        old_taken_ns: int,
        view: RootView,
        delta_bases: OldDirectory | None,
        captured: OrderedEntries | None = None,
        is_listed: bool = True,
    ) -> None:
        self.handle = handle
        self.entry = entry
        self.listing = listing
        self.is_listed = is_listed
        self.view = view
        self.old_taken_ns = old_taken_ns
        self.delta_bases = delta_bases
        self.names: Iterator[bytes] = iter(names)
        self.pending = PendingEntry()
        self._builder = builder
        self.old = OrderedEntries(old)
        self.captured = captured
        self.queue: deque[tuple[FoundEntry, int | None]] = deque()
        self.instead: dict[PendingEntry, Entry] = {}
        self._is_walked = False

    def has_changed(self) -> bool:
        """Return whether a live directory has changed since it was listed.

        Then a name may lead to another file by now, and the listed one may be in a directory that
        was listed before.
        """
        if self.view.is_frozen or not self.is_listed:
            return False
        return storable_ns(os.fstat(self.handle.fd).st_ctime_ns) != self.entry.ctime_ns

    def leave(self) -> bytes:
        """Close the directory after its last name has been visited; returns its path."""
        path = self.handle.path
        del self.handle
        self.delta_bases = None
        self._is_walked = True
        return path

    def advance(self, *, wait: bool) -> Growth:
        """Move the known entries into the tree; with ``wait``, wait for all entries."""
        moved = vanished = grown_bytes = 0
        has_vanished = False
        while self.queue:
            found, listed_bytes = self.queue[0]
            if isinstance(found, PendingEntry):
                if not found.is_known and not found.ready(wait=wait):
                    break
                entry = found.entry
                listed = found.listed_inode
                has_vanished |= entry is not None and listed not in {0, entry.ino}
            else:
                entry = found
            if isinstance(found, PendingEntry) and (entry is None or entry.state == UNREADABLE):
                known = self.instead.get(found)
                has_vanished |= entry is None or (known is None and found.listed_inode != 0)
                if known is not None:
                    entry = None
                    self._builder.add(known)
                    if listed_bytes is not None:
                        vanished -= known.is_file
                        grown_bytes += 0 if known.link_dev else known.size_bytes
            if entry is not None:
                self._builder.add(entry)
            if listed_bytes is not None:
                vanished += entry is None
                grown_bytes += (0 if entry is None else entry.size_bytes) - listed_bytes
            self.queue.popleft()
            moved += 1
        if self._is_walked and not self.queue and not self.pending.is_known:
            self.entry.content, self.entry.level = self._builder.finish()
            self.pending.resolve(self.entry)
        return Growth(moved, has_vanished, vanished, grown_bytes)
