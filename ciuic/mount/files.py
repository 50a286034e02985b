"""Answers what the kernel asks about a path of the mounted file system."""

import errno
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final

from ciuic.errors import SnapshotNotFoundError, StoreError
from ciuic.ids import ChunkId, SnapshotId
from ciuic.model import UNREADABLE, Entry
from ciuic.mount.chunks import Chunks
from ciuic.mount.nodes import (
    Attributes,
    Directory,
    Listed,
    Node,
    Owned,
    attributes_of,
    inode_number,
)
from ciuic.mount.open_file import OpenFile, hole_bytes
from ciuic.store.packs.reader import StoreReader

__all__ = ["Files"]

_DIRECTORIES_MAX: Final = 4096
_HOLES_MAX: Final = 10_000
NOT_READ: Final = "it could not be read when the snapshot was taken"

Told = Callable[[Owned, str], None]
"""Called with a path that cannot be read, and why."""


class Files:
    """The mounted file system as a tree of nodes, and its open files. For one thread.

    Args:
        top: The first directory.
        reader: Reads chunks and nodes.
        generation: Returns a number; after it has changed, earlier nodes may be wrong.
        told: Called with each path that cannot be read.
    """

    def __init__(
        self, top: Node, reader: StoreReader, generation: Callable[[], int], told: Told
    ) -> None:
        self._top = top
        self._reader = reader
        self._generation = generation
        self._known_generation = generation()
        self._told = told
        self._chunks = Chunks(reader)
        self._directories: OrderedDict[bytes, Directory] = OrderedDict()
        self._holes: dict[ChunkId, int] = {}
        self._open: dict[int, tuple[OpenFile, Owned]] = {}
        self._last_handle = 0

    def close(self) -> None:
        """Stop reading ahead."""
        self._chunks.close()

    def attributes(self, path: bytes) -> Attributes:
        """Return the metadata of a path.

        Raises:
            OSError: ENOENT: there is no such path; EIO: it cannot be read.
        """
        return self._attributes(self._node(path))

    def _attributes(self, node: Node) -> Attributes:
        entry, owned = node.entry, node.owned
        return attributes_of(
            entry,
            inode_number(owned.snapshot, owned.path, entry),
            nlink=1 if node.links is None else node.links.count(entry),
            hole_bytes=self._hole_bytes(entry) if entry.is_file else 0,
        )

    def names(self, path: bytes) -> Iterator[Listed]:
        """Yield the names in a directory.

        Raises:
            OSError: EIO: the directory is damaged. ENOTDIR: it is not a directory.
        """
        node = self._node(path)
        if node.directory is None:
            raise _error(errno.ENOTDIR)
        try:
            yield from node.directory.names()
        except StoreError as error:
            raise self._unreadable(node.owned, error.message) from error

    def target(self, path: bytes) -> bytes:
        """Return the target of a symbolic link."""
        entry = self._node(path).entry
        if not entry.is_symlink:
            raise _error(errno.EINVAL)
        return entry.content

    def xattrs(self, path: bytes) -> tuple[tuple[bytes, bytes], ...]:
        """Return the extended attributes of a path."""
        return self._node(path).entry.xattrs

    def open(self, path: bytes) -> int:
        """Open a regular file; returns a handle.

        Raises:
            OSError: EIO: its content was not stored, or is damaged.
        """
        node = self._node(path)
        if not node.entry.is_file:
            raise _error(errno.EISDIR if node.directory else errno.EINVAL)
        if node.entry.state == UNREADABLE:
            raise self._unreadable(node.owned, NOT_READ)
        self._last_handle += 1
        self._open[self._last_handle] = (
            OpenFile(self._reader, self._chunks, node.entry),
            node.owned,
        )
        return self._last_handle

    def read_into(self, handle: int, offset: int, out: memoryview) -> int:
        """Write the bytes of an open file at an offset to memory; return how many."""
        file, owned = self._open[handle]
        try:
            return file.read_into(offset, out)
        except StoreError as error:
            raise self._unreadable(owned, error.message) from error

    def seek(self, handle: int, offset: int, whence: int) -> int:
        """Return the place of the next data or hole of an open file."""
        file, owned = self._open[handle]
        try:
            return file.seek(offset, whence)
        except StoreError as error:
            raise self._unreadable(owned, error.message) from error

    def release(self, handle: int) -> None:
        """Close an open file."""
        self._open.pop(handle, None)

    def _node(self, path: bytes) -> Node:
        """Return what is at a path.

        Raises:
            OSError: ENOENT, ENOTDIR or EIO.
        """
        if self._generation() != self._known_generation:
            self._known_generation = self._generation()
            self._directories.clear()
        if path == b"/":
            return self._top
        parent, _, name = path.rpartition(b"/")
        found = self._find(self._directory(parent), name, path)
        if found is None:
            raise _error(errno.ENOENT)
        return found

    def _directory(self, path: bytes) -> Directory:
        """Return the directory at a path, or one that was found before."""
        known = self._directories.get(path)
        if known is not None:
            self._directories.move_to_end(path)
            return known
        names = path.split(b"/")[1:] if path else []
        directory, at = self._top.directory, 0
        # Not by recursion: a path may have more than a thousand names.
        for number in range(len(names), 0, -1):
            above = self._directories.get(b"/" + b"/".join(names[:number]))
            if above is not None:
                directory, at = above, number
                break
        for number, name in enumerate(names[at:], start=at + 1):
            inner = b"/" + b"/".join(names[:number])
            node = None if directory is None else self._find(directory, name, inner)
            if node is None:
                raise _error(errno.ENOENT if directory else errno.ENOTDIR)
            directory = node.directory
            if directory is not None:
                self._directories[inner] = directory
        if directory is None:
            raise _error(errno.ENOTDIR)
        while len(self._directories) > _DIRECTORIES_MAX:
            self._directories.popitem(last=False)
        return directory

    def _find(self, directory: Directory, name: bytes, path: bytes) -> Node | None:
        try:
            return directory.find(name)
        except SnapshotNotFoundError:
            return None  # forgotten since the snapshots were listed
        except StoreError as error:
            raise self._unreadable(Owned(SnapshotId(""), path), error.message) from error

    def _hole_bytes(self, entry: Entry) -> int:
        if not entry.level:
            return 0
        key = ChunkId(entry.content)
        found = self._holes.get(key)
        if found is None:
            found = hole_bytes(self._reader, entry)
            if len(self._holes) >= _HOLES_MAX:
                self._holes.clear()
            self._holes[key] = found
        return found

    def _unreadable(self, owned: Owned, what: str) -> OSError:
        self._told(owned, what)
        return _error(errno.EIO)


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
