"""Free space of a file system, and when there is too little of it."""

import os
from typing import Final, NamedTuple

__all__ = [
    "COPIES_RESERVE",
    "PRUNE_RESERVE",
    "SNAPSHOT_RESERVE",
    "FreeSpace",
    "Reserve",
    "free_space",
    "is_short_of_space",
]


class Reserve(NamedTuple):
    """How much of a file system should stay free.

    Attributes:
        share: The part of the file system.
        max_bytes: Never more than this; None: no limit.
    """

    share: float
    max_bytes: int | None = None


COPIES_RESERVE: Final = Reserve(0.05, 20 << 30)
"""With less free space than this, reflink copies are removed: they hold the blocks of deleted
files."""
PRUNE_RESERVE: Final = Reserve(0.05)
"""With less free space than this, the daemon prunes more than once a day."""
SNAPSHOT_RESERVE: Final = Reserve(0.05, 1 << 30)
"""With less free space than this, the next snapshots may fail."""


class FreeSpace(NamedTuple):
    """The space of a file system.

    Attributes:
        available_bytes: What an unprivileged process may still write.
        total_bytes: The size of the file system.
    """

    available_bytes: int
    total_bytes: int

    def is_below(self, reserve: Reserve) -> bool:
        """Return whether less than the reserve is free."""
        wanted_bytes = reserve.share * self.total_bytes
        if reserve.max_bytes is not None:
            wanted_bytes = min(wanted_bytes, reserve.max_bytes)
        return self.available_bytes < wanted_bytes


def free_space(path: str | bytes) -> FreeSpace:
    """Return the space of the file system that holds a path.

    Raises:
        OSError: The path does not exist or cannot be read.
    """
    found = os.statvfs(path)
    return FreeSpace(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


def is_short_of_space(path: str | bytes, reserve: Reserve) -> bool:
    """Return whether less than the reserve is free on the file system that holds a path.

    Raises:
        OSError: The path does not exist or cannot be read.
    """
    return free_space(path).is_below(reserve)
