"""List directories again that may lack a name, and keep what has been captured.

A captured name stays as it is while it leads to the same inode, and also if it is gone, or if what
it leads to now cannot be captured: it may be found in no other place. New names are captured. What
cannot be looked at again stays as it is, with a warning.
"""

import os
import stat
from collections.abc import Iterator
from functools import partial
from typing import Final

from ciuic.errors import CorruptionError, SourceError
from ciuic.ids import ChunkId
from ciuic.model import SKIPPED, UNREADABLE, Entry
from ciuic.snapshot.read.sinks import Sinks
from ciuic.snapshot.walk.directories import Again, Directories
from ciuic.snapshot.walk.listings import Listings
from ciuic.snapshot.walk.pending import PendingEntry
from ciuic.snapshot.walk.tally import Tally
from ciuic.snapshot.walk.visitor import Visitor
from ciuic.snapshot.walk.walked_directory import WalkedDirectory
from ciuic.source.directory import entry_of
from ciuic.source.faults import source_faults
from ciuic.store.records.nodes import GetNode
from ciuic.store.records.tree_nodes import iter_tree

__all__ = ["SecondLook"]

_NOT_LISTED_AGAIN: Final = "what was moved into it meanwhile may be missing"
_NOT_LOOKED_AT: Final = "the snapshot has what was captured before"


class SecondLook:
    """Visits the names of directories that are listed again, and of those above them.

    Args:
        listings: The listings so far.
        directories: Opens directories.
        visitor: Visits new names.
        tally: Counts entries.
        nodes: Reads the nodes that this snapshot has stored.
        sinks: Receive warnings.
    """

    def __init__(
        self,
        listings: Listings,
        directories: Directories,
        visitor: Visitor,
        tally: Tally,
        nodes: GetNode,
        *,
        sinks: Sinks,
    ) -> None:
        self._listings = listings
        self._directories = directories
        self._visitor = visitor
        self._tally = tally
        self._nodes = nodes
        self._sinks = sinks
        self._failed: set[int] = set()
        self._wanted: dict[int, bool] = {}
        self._numbers: dict[bytes, int] = {}

    def find(self, *, is_first: bool) -> bool:
        """Find the directories to list again; returns whether there are any.

        Args:
            is_first: See ``Listings.doubtful``.
        """
        has_vanished, self._tally.has_vanished = self._tally.has_vanished, False
        found = self._doubtful(has_vanished=has_vanished, is_first=is_first)
        above = {number for at in found for number in self._listings.line(at)}
        self._wanted = dict.fromkeys(above, False) | dict.fromkeys(found, True)
        self._numbers = {self._listings.path(number): number for number in above}
        return bool(found)

    def unfinished(self) -> list[bytes]:
        """Return the directories that still may lack a name, and have no warning."""
        found = self._doubtful(has_vanished=False, is_first=False)
        return [self._listings.path(number) for number in found]

    def note_unlisted(self, listing: int, error: SourceError) -> None:
        """Note that a directory cannot be listed again: a warning, and no further attempt.

        Args:
            listing: Its number in ``Listings``.
            error: Why.
        """
        # If it is gone, what was in it shows in the directory that it went to.
        if not _is_gone(error):
            self._failed.add(listing)
            what = f"could not be listed again: {_why(error)}; {_NOT_LISTED_AGAIN}"
            self._sinks.warn(self._listings.path(listing), what, False)

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
            try:
                with source_faults():
                    status = parent.handle.status(name)
            except SourceError as error:
                self._note_unseen(parent, name, number, error)
            else:
                if not _leads_to(known, status):
                    if parent.is_listed:
                        return self._replace(parent, known, depth)
                elif number is not None:
                    return self._descend(parent, known, status, number)
        self._tally.append(parent, known)
        return None

    def _note_unseen(
        self, parent: WalkedDirectory, name: bytes, number: int | None, error: SourceError
    ) -> None:
        if number is not None:
            self.note_unlisted(number, error)
        elif not _is_gone(error):
            what = f"could not be looked at again: {_why(error)}; {_NOT_LOOKED_AT}"
            self._sinks.warn(parent.handle.join(name), what, False)

    def _replace(self, parent: WalkedDirectory, known: Entry, depth: int) -> WalkedDirectory | None:
        """Visit what a captured name leads to now; if it cannot be captured, ``known`` stays."""
        self._tally.forget(known)
        had_vanished, self._tally.has_vanished = self._tally.has_vanished, False
        before = len(parent.queue)
        directory = self._visitor.visit(parent, known.name, depth)
        found = parent.queue[-1][0] if len(parent.queue) > before else None
        if isinstance(found, PendingEntry):
            parent.instead[found] = known
        elif found is not None and found.state == UNREADABLE:
            self._tally.take_back(parent)
            self._tally.keep(parent, known)
        elif self._tally.has_vanished:
            self._tally.keep(parent, known)
        self._tally.has_vanished |= had_vanished
        return directory

    def _descend(
        self, parent: WalkedDirectory, known: Entry, status: os.stat_result, number: int
    ) -> WalkedDirectory | None:
        again = self.of(number, known)
        if again is not None:
            name = known.name
            try:
                opened = self._directories.open(parent, name, status)
                old = parent.old.find(name)
                entry = entry_of(name, opened.status)
                directory = self._directories.child(parent, entry, opened, old, again)
            except SourceError as error:
                self.note_unlisted(number, error)
            else:
                self._tally.append(parent, directory.pending)
                return directory
        self._tally.append(parent, known)
        return None

    def _doubtful(self, *, has_vanished: bool, is_first: bool) -> list[int]:
        found = self._listings.doubtful(has_vanished=has_vanished, is_first=is_first)
        return [at for at in found if self._failed.isdisjoint(self._listings.line(at))]

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


def _is_gone(error: SourceError) -> bool:
    return isinstance(error.__cause__, FileNotFoundError)


def _why(error: SourceError) -> str:
    cause = error.__cause__
    return os.strerror(cause.errno or 0) if isinstance(cause, OSError) else error.message


def _leads_to(known: Entry, status: os.stat_result) -> bool:
    """Return whether a name still leads to the inode that was captured, as far as is known."""
    if known.state in {SKIPPED, UNREADABLE}:
        return True
    return known.ino == status.st_ino and known.file_type == stat.S_IFMT(status.st_mode)
