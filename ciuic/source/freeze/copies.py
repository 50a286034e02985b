"""The records of reflink copies: a sorted table with 64 bytes for each copy."""

import bisect
import mmap
import os
import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from ciuic.source.freeze.extents import fingerprint

__all__ = ["COPY_BYTES", "SIGN", "Copies", "Copy"]

_KEY: Final = struct.Struct(">QQQ")
_RECORD: Final = struct.Struct(">QQQQQQ16s")
COPY_BYTES: Final = _RECORD.size
SIGN: Final = 1 << 63
"""Added to times, so that records with negative times sort first."""


class Copy(NamedTuple):
    """The record of one reflink copy.

    Attributes:
        key: Inode, change time and size of the file that was copied.
        number: The copy's name in ``copies/``.
        ino: The copy's own inode.
        ctime_ns: The copy's own change time.
        extents: Fingerprint of the copy's extents; zeros if the file system has no extent maps.
    """

    key: tuple[int, int, int]
    number: int
    ino: int
    ctime_ns: int
    extents: bytes

    @classmethod
    def of(cls, key: tuple[int, int, int], number: int, fd: int) -> "Copy":
        """Return the record of an open copy."""
        status = os.fstat(fd)
        return cls(key, number, status.st_ino, status.st_ctime_ns, fingerprint(fd) or bytes(16))

    def matches(self, fd: int, size_bytes: int) -> bool:
        """Return whether an open file is the recorded copy, unchanged."""
        status = os.fstat(fd)
        return (
            (status.st_ino, status.st_ctime_ns) == (self.ino, self.ctime_ns)
            and status.st_size == size_bytes == self.key[2]
            and (fingerprint(fd) or bytes(16)) == self.extents
        )

    def packed(self) -> bytes:
        """Return the record as 64 bytes, which sort by the key."""
        ino, ctime_ns, size_bytes = self.key
        return _RECORD.pack(
            ino, ctime_ns + SIGN, size_bytes, self.number, self.ino, self.ctime_ns, self.extents
        )


class Copies:
    """A sorted table of 64 bytes for each copy, in a record's file or in memory."""

    def __init__(self, data: bytes | mmap.mmap = b"", first: int = 0, count: int = 0) -> None:
        self._data = data
        self._first = first
        self._count = count

    @classmethod
    def of(cls, packed: Iterable[bytes]) -> "Copies":
        """Return the table of packed records, which may be in any order."""
        ordered = sorted(packed)
        return cls(b"".join(ordered), 0, len(ordered))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, at: int) -> bytes:
        start = self._first + at * _RECORD.size
        return self._data[start : start + _RECORD.size]

    def raw(self) -> bytes:
        """Return the whole table."""
        return self._data[self._first : self._first + self._count * _RECORD.size]

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of the copies, which are their names in ``copies/``."""
        return (fields[3] for fields in _RECORD.iter_unpack(self.raw()))

    def find(self, ino: int, ctime_ns: int, size_bytes: int) -> Copy | None:
        """Return the record of the copy of a file in this state; None if it has no copy."""
        wanted = _KEY.pack(ino, ctime_ns + SIGN, size_bytes)
        at = bisect.bisect_left(self, wanted, 0, self._count)
        if at == self._count or not self[at].startswith(wanted):
            return None
        _, _, _, number, own_ino, own_ctime_ns, found = _RECORD.unpack(self[at])
        return Copy((ino, ctime_ns, size_bytes), number, own_ino, own_ctime_ns, found)
