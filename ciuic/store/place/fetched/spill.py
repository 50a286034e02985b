"""A file without a name, for parts of packs that do not fit into memory.

It takes a part of the free space, and less when other programs take more. If its disk is full or
fails, it takes nothing more: that costs requests, and no snapshot.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Final

from ciuic.source.mounts import mounts
from ciuic.system.buffers import BufferPool
from ciuic.system.free_space import free_space

__all__ = ["PART_BYTES_MAX", "Spill"]

PART_BYTES_MAX: Final = 4 * 1024 * 1024
_PIECE_BYTES: Final = 1024 * 1024
_BLOCK_BYTES: Final = 4096
_buffers: Final = BufferPool(_PIECE_BYTES)
_FREE_SHARE: Final = 4
"""The file takes at most a quarter of what is free, itself included: a restore to this file system
needs the rest."""
_RESERVE_BYTES: Final = 1024**3
_LOOK_PARTS: Final = 8
"""The free space is looked at again after this many parts."""
_SLOTS_MAX: Final = 4096
"""16 GiB of the longest parts: a process that waits, as a mount does, keeps its file, and several
processes share a disk."""


class Spill:
    """A file of numbered slots. The caller holds a lock, except for ``read`` and ``write``.

    Args:
        directory: Where the file is made, when its first slot is asked for.

    Attributes:
        is_begun: The file exists.
        has_failed: It cannot be made, or a part could not be written. It takes no part any more.
    """

    def __init__(self, directory: str) -> None:
        self.is_begun = False
        self._directory = directory
        self._fd = -1
        self.has_failed = False
        self._slots = 0
        self._slots_max = 0
        self._free: list[int] = []
        self._until_look = 0

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def slots_max(self) -> int:
        """Return how many parts may be in the file now; 0: none, and the file should be closed."""
        if self.has_failed:
            return 0
        if not self._until_look:
            self._until_look = _LOOK_PARTS
            self._slots_max = self._affordable()
        self._until_look -= 1
        return self._slots_max

    @property
    def taken(self) -> int:
        """How many slots are not free."""
        return self._slots - len(self._free)

    def take_slot(self) -> int:
        """Return a slot that is free."""
        if self._free:
            return self._free.pop()
        self._slots += 1
        return self._slots - 1

    def give_back(self, slot: int) -> None:
        """Make a slot free again."""
        self._free.append(slot)

    def write(self, slot: int, data: bytes | memoryview) -> bool:
        """Write a part; return whether it was written."""
        with contextlib.suppress(OSError):
            # Another thread's write may have failed meanwhile: what this one wrote is cut off.
            if self._write(slot * PART_BYTES_MAX, memoryview(data)) and not self.has_failed:
                return True
        self.has_failed = True  # before the file is cut: `read` then sees the flag, or the bytes
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, 0)
        return False

    def read(self, slot: int, offset_bytes: int, length_bytes: int) -> bytes:
        """Return bytes of a part; fewer if the disk fails, none if the file was cut."""
        begin = offset_bytes // _BLOCK_BYTES * _BLOCK_BYTES
        end = offset_bytes + length_bytes
        found: list[bytes] = []
        with contextlib.suppress(OSError), _borrowed() as buffer:
            while begin < end:
                wanted = min(_PIECE_BYTES, _whole_blocks(end - begin))
                read = os.preadv(self._fd, [buffer[:wanted]], slot * PART_BYTES_MAX + begin)
                skipped = max(0, offset_bytes - begin)
                found.append(bytes(buffer[skipped : min(read, end - begin)]))
                begin += wanted
        return b"" if self.has_failed else b"".join(found)

    def _write(self, at: int, data: memoryview) -> bool:
        with _borrowed() as buffer:
            for begin in range(0, len(data), _PIECE_BYTES):
                piece = data[begin : begin + _PIECE_BYTES]
                buffer[: len(piece)] = piece
                padded = _whole_blocks(len(piece))
                if os.pwrite(self._fd, buffer[:padded], at + begin) != padded:
                    return False
        return True

    def _affordable(self) -> int:
        try:
            if self._fd < 0:
                # No name that is removed at once: a kill in between would leave the file.
                self._fd = _opened(self._directory)
                self.is_begun = True
                self.has_failed = _is_in_memory(self._fd)
            used_bytes = os.fstat(self._fd).st_blocks * 512
            free_bytes = free_space(self._directory).available_bytes
        except OSError:
            self.has_failed = True
            return 0
        share = 0 if self.has_failed else (free_bytes + used_bytes - _RESERVE_BYTES) // _FREE_SHARE
        # Freed slots keep their blocks: a file that has become too large is closed as a whole.
        if share < used_bytes:
            return 0
        return min(share // PART_BYTES_MAX, _SLOTS_MAX)


def _opened(directory: str) -> int:
    flags = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC
    try:
        # Past the page cache: filling new pages of it took as much processor time as fetching.
        return os.open(directory, flags | os.O_DIRECT, 0o600)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return os.open(directory, flags, 0o600)


@contextlib.contextmanager
def _borrowed() -> Iterator[memoryview]:
    """Lend a buffer with the alignment that O_DIRECT needs."""
    buffer = _buffers.take()
    try:
        with memoryview(buffer) as view:
            yield view
    finally:
        _buffers.give_back(buffer)


def _whole_blocks(length_bytes: int) -> int:
    return -(-length_bytes // _BLOCK_BYTES) * _BLOCK_BYTES


def _is_in_memory(fd: int) -> bool:
    device = os.fstat(fd).st_dev
    return any(one.device == device and one.kind in {b"tmpfs", b"ramfs"} for one in mounts())
