"""The counts of a walk."""

from ciuic.model import Entry
from ciuic.snapshot.walk.walked_directory import FoundEntry, WalkedDirectory

__all__ = ["Tally"]


class Tally:
    """The counts of a walk.

    Attributes:
        files: Number of regular files, without those that vanished.
        logical_bytes: Their length; hard links count once.
        excluded: Number of names that a rule excludes; a directory counts once.
        waiting: Number of entries that have not moved into a tree yet.
        has_vanished: A name was gone between its listing and its capture, or may have led to
            another file.
    """

    def __init__(self) -> None:
        self.files = 0
        self.logical_bytes = 0
        self.excluded = 0
        self.waiting = 0
        self.has_vanished = False

    def append(
        self, parent: WalkedDirectory, found: FoundEntry, listed_bytes: int | None = None
    ) -> None:
        """Add an entry to its directory; ``listed_bytes`` is the size counted for it, if any."""
        parent.queue.append((found, listed_bytes))
        self.waiting += 1

    def take_back(self, parent: WalkedDirectory) -> None:
        """Take the last entry out of its directory and the counts."""
        found, _ = parent.queue.pop()
        self.waiting -= 1
        if isinstance(found, Entry):
            self.forget(found)

    def advance(self, directory: WalkedDirectory, *, wait: bool) -> None:
        """Move the known entries of a directory into its tree; with ``wait``, all entries."""
        growth = directory.advance(wait=wait)
        self.waiting -= growth.moved
        self.files -= growth.vanished
        self.has_vanished |= growth.has_vanished
        self.logical_bytes += growth.grown_bytes

    def forget(self, entry: Entry) -> None:
        """Take an entry out of the counts: another file has its name now."""
        if entry.is_file:
            self.files -= 1
            self.logical_bytes -= 0 if entry.link_dev else entry.size_bytes

    def keep(self, parent: WalkedDirectory, entry: Entry) -> None:
        """Add an entry to its directory that was taken out: what has its name now vanished."""
        self.append(parent, entry)
        if entry.is_file:
            self.files += 1
            self.logical_bytes += 0 if entry.link_dev else entry.size_bytes
