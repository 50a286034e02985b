"""List directories again that may lack a name, and keep what has been captured.

A captured name stays as it is while it leads to the same inode, and also if it is gone, or if what
it leads to vanishes before it is captured: it may be found in no other place. New names are
captured.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from functools import partial

from ciuic.errors import CorruptionError, SourceError
from ciuic.ids import ChunkId
from ciuic.model import SKIPPED, UNREADABLE, Entry
from ciuic.snapshot.walk.directories import Again, Directories
from ciuic.snapshot.walk.listings import Listings
from ciuic.snapshot.walk.pending import PendingEntry
from ciuic.snapshot.walk.tally import Tally
from ciuic.snapshot.walk.visitor import Visitor
from ciuic.snapshot.walk.walked_directory import WalkedDirectory
from ciuic.source.directory import entry_of
from ciuic.store.records.nodes import GetNode
from ciuic.store.records.tree_nodes import iter_tree

__all__ = ["SecondLook"]


class SecondLook:
    """Visits the names of directories that are listed again, and of those above them.

    Args:
        listings: The listings so far.
        directories: Opens directories.
        visitor: Visits new names.
        tally: Counts entries.
        nodes: Reads the nodes that this snapshot has stored.
    """

    def __init__(
        self,
        listings: Listings,
        directories: Directories,
        visitor: Visitor,
        tally: Tally,
        nodes: GetNode,
    ) -> None:
        self._listings = listings
        self._directories = directories
        self._visitor = visitor
        self._tally = tally
        self._nodes = nodes
        self._wanted: dict[int, bool] = {}
        self._numbers: dict[bytes, int] = {}

    def find(self, *, is_first: bool) -> bool:
        """Find the directories to list again; returns whether there are any.

        Args:
            is_first: See ``Listings.doubtful``.
        """
        has_vanished, self._tally.has_vanished = self._tally.has_vanished, False
        found = list(self._listings.doubtful(has_vanished=has_vanished, is_first=is_first))
        above = {number for at in found for number in self._listings.line(at)}
        self._wanted = dict.fromkeys(above, False) | dict.fromkeys(found, True)
        self._numbers = {self._listings.path(number): number for number in above}
        return bool(found)

    def unfinished(self) -> list[bytes]:
        """Return the directories that still may lack a name."""
        found = self._listings.doubtful(has_vanished=False, is_first=False)
        return [self._listings.path(number) for number in found]

    def of(self, listing: int, captured: Entry) -> Again | None:
        """Return how to walk a directory again; None: it stays as it was captured.

        Args:
            listing: Its number in ``Listings``.
            captured: Its entry.
        """
        is_doubtful = self._wanted.get(listing)
        if is_doubtful is None or not self._is_readable(captured):
            return None
        return Again(partial(self._entries, captured), listing, is_doubtful)

    def visit(self, parent: WalkedDirectory, name: bytes, depth: int) -> WalkedDirectory | None:
        """Add the entry of a name to its directory: see ``Visitor.visit``."""
        known = parent.captured.find(name) if parent.captured is not None else None
        if known is None:
            return self._visitor.visit(parent, name, depth)
        number = self._numbers.get(parent.handle.join(name)) if known.is_directory else None
        if parent.is_listed or number is not None:
            status = _status(parent, name)
            if status is not None and not _leads_to(known, status):
                if parent.is_listed:
                    return self._replace(parent, known, depth)
            elif status is not None and number is not None:
                return self._descend(parent, known, status, number)
        self._tally.append(parent, known)
        return None

    def _replace(self, parent: WalkedDirectory, known: Entry, depth: int) -> WalkedDirectory | None:
        """Visit what a captured name leads to now; if that vanishes, the captured entry stays."""
        self._tally.forget(known)
        had_vanished, self._tally.has_vanished = self._tally.has_vanished, False
        before = len(parent.queue)
        directory = self._visitor.visit(parent, known.name, depth)
        if self._tally.has_vanished:
            self._tally.keep(parent, known)
        elif len(parent.queue) > before and isinstance(found := parent.queue[-1][0], PendingEntry):
            parent.instead[found] = known
        self._tally.has_vanished |= had_vanished
        return directory

    def _descend(
        self, parent: WalkedDirectory, known: Entry, status: os.stat_result, number: int
    ) -> WalkedDirectory | None:
        again = self.of(number, known)
        if again is not None:
            name = known.name
            with contextlib.suppress(SourceError):
                opened = self._directories.open(parent, name, status)
                old = parent.old.find(name)
                entry = entry_of(name, opened.status)
                directory = self._directories.child(parent, entry, opened, old, again)
                self._tally.append(parent, directory.pending)
                return directory
        self._tally.append(parent, known)
        return None

    def _entries(self, directory: Entry) -> Iterator[Entry]:
        return iter_tree(self._nodes, ChunkId(directory.content), directory.level)

    def _is_readable(self, directory: Entry) -> bool:
        """Return whether the nodes of a directory can be read: all, before the first is used."""
        try:
            for _ in self._entries(directory):
                pass
        except CorruptionError:
            return False
        return True


def _status(parent: WalkedDirectory, name: bytes) -> os.stat_result | None:
    try:
        return parent.handle.status(name)
    except OSError:
        return None


def _leads_to(known: Entry, status: os.stat_result) -> bool:
    """Return whether a name still leads to the inode that was captured, as far as is known."""
    if known.state in {SKIPPED, UNREADABLE}:
        return True
    return known.ino == status.st_ino and known.file_type == stat.S_IFMT(status.st_mode)
