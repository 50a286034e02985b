"""What the names of the mounted file system stand for."""

import stat
from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from ciuic.ids import SnapshotId
from ciuic.model import Entry
from ciuic.system.hashing import checksum

__all__ = ["Attributes", "Directory", "Links", "Node", "Owned", "inode_number"]

_RESERVED_MAX: Final = 15
"""FUSE and many programs give small inode numbers a meaning of their own."""


class Links(Protocol):
    """Counts the names of hard-linked files in one snapshot."""

    def count(self, entry: Entry) -> int:
        """Return the number of names of an entry's inode; at least 1."""


class Directory(Protocol):
    """The names in a directory."""

    def find(self, name: bytes) -> "Node | None":
        """Return what a name stands for; None if there is none.

        Raises:
            CorruptionError: The directory is damaged.
        """

    def entries(self) -> "Iterator[tuple[bytes, Node | int]]":
        """Yield every name once, with its node; of a node that was not read, with its type.

        Raises:
            CorruptionError: The directory is damaged.
        """


class Owned(NamedTuple):
    """Where a node comes from.

    Attributes:
        snapshot: Its snapshot; empty for the directories that the mount adds.
        path: Its path in the snapshot, or in the mount.
    """

    snapshot: SnapshotId
    path: bytes


class Node(NamedTuple):
    """A file, directory or link of the mounted file system.

    Attributes:
        entry: Its metadata and content.
        owned: Where it comes from.
        directory: Its names; None if it is not a directory.
        links: Counts the names of its inode; None if it can have only one.
    """

    entry: Entry
    owned: Owned
    directory: Directory | None = None
    links: Links | None = None


class Attributes(NamedTuple):
    """The fields of ``stat``; sizes in bytes, times in nanoseconds since 1970."""

    mode: int
    ino: int
    nlink: int
    uid: int
    gid: int
    rdev: int
    size_bytes: int
    stored_bytes: int
    mtime_ns: int
    ctime_ns: int


def inode_number(node: Node) -> int:
    """Return a number that no other inode of the mount has, and that a new mount repeats.

    The number in the snapshot will not do: two snapshots of a file would share it, and programs
    that compare files by device and number would take both for one file.
    """
    entry, owned = node.entry, node.owned
    if entry.link_dev and not stat.S_ISDIR(entry.mode):
        name = b"%d:%d" % (entry.link_dev, entry.ino)
    else:
        name = owned.path
    return max(checksum(b"%s\0%s" % (owned.snapshot.encode(), name)), _RESERVED_MAX + 1)
