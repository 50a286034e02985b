"""Reflink copies that serve a restore.

A snapshot leaves copy-on-write copies of its files (``source/freeze/records.py``). A restore shares
their blocks instead of decoding chunks. It ignores a copy that is gone, was touched, or is on
another file system, and takes the file from the store. Decision 0009.
"""

import errno
import os
import threading
from typing import Final

from ciuic.model import CONSISTENT, Entry
from ciuic.source.byte_range import ByteRange
from ciuic.source.directory import DirectoryHandle
from ciuic.source.freeze.extents import changed_ranges, data_ranges
from ciuic.source.freeze.interface import REFLINK_BYTES_MIN
from ciuic.source.freeze.trust import FrozenRoot, open_frozen
from ciuic.store.records.manifest import Manifest
from ciuic.store.store import Store
from ciuic.system import kernel

__all__ = ["ReflinkCopies", "has_same_bytes", "share_blocks"]

_COMPARED_BYTES: Final = 1024 * 1024
_NEVER: Final = {errno.EXDEV, errno.EOPNOTSUPP, errno.ENOTTY, errno.ENOSYS}
"""Two file systems that cannot share blocks now never will."""


class ReflinkCopies:
    """The reflink copies of one snapshot. Each is opened on demand.

    All methods may be called from any thread. None raises: a copy that fails counts as missing.
    """

    def __init__(self, store: Store, manifest: Manifest) -> None:
        self._store_id = store.header.store_id
        self._snapshot_id = manifest.summary.id
        self._roots = [root.path for root in manifest.roots if root.tree]
        self._frozen: dict[bytes, FrozenRoot | None] = {}
        self._sharing: dict[tuple[int, int], bool] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close all descriptors."""
        for frozen in self._frozen.values():
            if frozen is not None:
                frozen.close()
        self._frozen = {}

    def open(self, path: bytes, entry: Entry) -> int | None:
        """Open a file's reflink copy for reading; it is as long as the file. The caller closes it.

        Args:
            path: Absolute path in the snapshot.
            entry: The file in the snapshot.

        Returns:
            None if there is no copy, if the copy differs from its record, or if the file was being
            written: then the copy may be of another moment than the stored content.
        """
        if not entry.is_file or entry.state != CONSISTENT or entry.size_bytes < REFLINK_BYTES_MIN:
            return None
        root = self._root_of(path)
        if root is None or not {b"", b".", b".."}.isdisjoint(path[1:].split(b"/")):
            return None
        with self._lock:
            if root not in self._frozen:
                self._frozen[root] = open_frozen(self._store_id, self._snapshot_id, root)
            frozen = self._frozen[root]
            fd = frozen.open(path, entry) if frozen is not None else None
        if fd is not None and os.fstat(fd).st_size != entry.size_bytes:
            os.close(fd)
            return None
        return fd

    def shares_blocks(self, copy_fd: int, directory: DirectoryHandle) -> bool:
        """Try once, with a nameless file, whether files in a directory can share a copy's blocks.

        Only then do equal extents mean equal bytes.
        """
        pair = (os.fstat(copy_fd).st_dev, os.fstat(directory.fd).st_dev)
        known = self._sharing.get(pair)
        if known is not None:
            return known
        try:
            flags = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC
            fd = os.open(b".", flags, 0o600, dir_fd=directory.fd)
            try:
                kernel.clone_file(copy_fd, fd)
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno in _NEVER:
                self._sharing[pair] = False
            return False
        self._sharing[pair] = True
        return True

    def _root_of(self, path: bytes) -> bytes | None:
        for root in self._roots:
            if path.startswith(root.rstrip(b"/") + b"/"):
                return root
        return None


def share_blocks(copy_fd: int, fd: int) -> bool:
    """Make an empty file share all blocks of a copy.

    False, and the file is empty, if that fails or if the copy changes meanwhile.
    """
    before = os.fstat(copy_fd)
    try:
        kernel.clone_file(copy_fd, fd)
    except OSError:
        return False
    after, made = os.fstat(copy_fd), os.fstat(fd)
    return (before.st_ctime_ns, before.st_size) == (
        after.st_ctime_ns,
        after.st_size,
    ) and made.st_size == before.st_size


def has_same_bytes(copy_fd: int, fd: int) -> bool:
    """Return whether an open file has the bytes of a copy that it may share blocks with.

    Reads only blocks that are not shared, up to the first difference. False for a file that is
    written meanwhile, and for a file with written zeros where the copy has holes.

    Raises:
        OSError: One of them cannot be read.
    """
    before, size = os.fstat(fd), os.fstat(copy_fd).st_size
    if before.st_size != size or _data_bytes(fd) > _data_bytes(copy_fd):
        return False
    ranges = changed_ranges(copy_fd, size, fd, size)
    for start, length_bytes in [ByteRange(0, size)] if ranges is None else ranges:
        end = start + length_bytes
        for at in range(start, end, _COMPARED_BYTES):
            length = min(_COMPARED_BYTES, end - at)
            if os.pread(copy_fd, length, at) != os.pread(fd, length, at):
                return False
    after = os.fstat(fd)
    return (before.st_mtime_ns, before.st_ctime_ns, size) == (
        after.st_mtime_ns,
        after.st_ctime_ns,
        after.st_size,
    )


def _data_bytes(fd: int) -> int:
    """Return how many bytes of a file are data, not holes or preallocated; 0: unknown."""
    return sum([span.length_bytes for span in data_ranges(fd) or ()])
