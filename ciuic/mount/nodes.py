"""What the names of the mounted file system stand for."""

import os
import stat
from array import array
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from ciuic.ids import SnapshotId
from ciuic.model import Entry
from ciuic.system.hashing import checksum

__all__ = [
    "Attributes",
    "Directory",
    "Links",
    "Listed",
    "Node",
    "Owned",
    "attributes_of",
    "inode_number",
    "inode_numbers",
    "is_cheap",
    "unnumbered",
]

_BLOCK_BYTES: Final = 4096
_RESERVED_MAX: Final = 15
"""FUSE and many programs give small inode numbers a meaning of their own."""


class Links(Protocol):
    """Counts the names of hard-linked files in one snapshot."""

    def count(self, entry: Entry) -> int:
        """Return the number of names of an entry's inode; at least 1."""


class Owned(NamedTuple):
    """Where a node comes from.

    Attributes:
        snapshot: Its snapshot; empty for the directories that the mount adds.
        path: Its path in the snapshot, or in the mount.
    """

    snapshot: SnapshotId
    path: bytes


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


class Listed(NamedTuple):
    """Consecutive names of a directory.

    Attributes:
        entries: Their entries, at least one.
        inos: The inode number of each; 0: it is unknown, and only the type of the entry counts.
    """

    entries: list[Entry]
    inos: "array[int]"


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
    directory: "Directory | None" = None
    links: Links | None = None


class Directory(Protocol):
    """The names in a directory."""

    def find(self, name: bytes) -> Node | None:
        """Return what a name stands for; None if there is none.

        Raises:
            CorruptionError: The directory is damaged.
        """

    def names(self) -> Iterator[Listed]:
        """Yield every name once.

        Raises:
            CorruptionError: The directory is damaged.
        """


def is_cheap(entry: Entry) -> bool:
    """Return whether its attributes are known without reading a tree or a recipe."""
    return not (entry.level or entry.link_dev) or stat.S_ISDIR(entry.mode)


def attributes_of(entry: Entry, ino: int, *, nlink: int = 1, hole_bytes: int = 0) -> Attributes:
    """Return the metadata of an entry.

    Args:
        entry: The entry.
        ino: See ``inode_number``.
        nlink: How many names its inode has.
        hole_bytes: How many bytes of the file are holes.
    """
    mode, size_bytes, rdev, stored_bytes = entry.mode, entry.size_bytes, entry.rdev, 0
    if stat.S_ISREG(mode):
        stored_bytes = size_bytes - hole_bytes
        stored_bytes += -stored_bytes % _BLOCK_BYTES
    elif stat.S_ISLNK(mode):
        size_bytes = len(entry.content)
    return Attributes(
        mode,
        ino,
        nlink,
        entry.uid,
        entry.gid,
        os.makedev(rdev >> 32, rdev & 0xFFFF_FFFF) if rdev else 0,
        size_bytes,
        stored_bytes,
        entry.mtime_ns,
        entry.ctime_ns,
    )


def inode_number(snapshot: SnapshotId, path: bytes, entry: Entry) -> int:
    """Return a number that no other inode of the mount has, and that a new mount repeats.

    The number in the snapshot will not do: two snapshots of a file would share it, and programs
    that compare files by device and number would take both for one file.
    """
    name = path
    if entry.link_dev and not stat.S_ISDIR(entry.mode):
        name = b"%d:%d" % (entry.link_dev, entry.ino)
    number = checksum(snapshot.encode() + b"\0" + name)
    return number if number > _RESERVED_MAX else _RESERVED_MAX + 1


def inode_numbers(snapshot: SnapshotId, prefix: bytes, entries: Sequence[Entry]) -> "array[int]":
    """Return ``inode_number`` of each entry of a directory, whose path ends with a slash."""
    inside = snapshot.encode() + b"\0" + prefix
    found = array("Q", [checksum(inside + entry.name) for entry in entries])
    for number, entry in enumerate(entries):
        if entry.link_dev or found[number] <= _RESERVED_MAX:
            found[number] = inode_number(snapshot, prefix + entry.name, entry)
    return found


def unnumbered(entries: list[Entry]) -> Listed:
    """Return names without inode numbers: their nodes are not at hand."""
    return Listed(entries, array("Q", bytes(8 * len(entries))))
