"""The counts of a walk."""

from ciuic.snapshot.walk.walked_directory import FoundEntry, WalkedDirectory

__all__ = ["Tally"]


class Tally:
    """The counts of a walk.

    Attributes:
        files: Number of regular files, without those that vanished.
        logical_bytes: Their length; hard links count once.
        excluded: Number of names that a rule excludes; a directory counts once.
        waiting: Number of entries that have not moved into a tree yet.
    """

    def __init__(self) -> None:
        self.files = 0
        self.logical_bytes = 0
        self.excluded = 0
        self.waiting = 0

    def append(
        self, parent: WalkedDirectory, found: FoundEntry, listed_bytes: int | None = None
    ) -> None:
        """Add an entry to its directory; ``listed_bytes`` is the size counted for it, if any."""
        parent.queue.append((found, listed_bytes))
        self.waiting += 1

    def advance(self, directory: WalkedDirectory, *, wait: bool) -> None:
        """Move the known entries of a directory into its tree; with ``wait``, all entries."""
        growth = directory.advance(wait=wait)
        self.waiting -= growth.moved
        self.files -= growth.vanished
        self.logical_bytes += growth.grown_bytes
