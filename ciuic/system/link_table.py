"""A table of hard-linked files by device and inode, in bounded memory.

If other names of a file are outside the walked directories (caches of uv, pnpm and conda), the
record of the file waits for names that never come. So records beyond a limit go to an anonymous
file. It is a log of records; each has the position of the previous record in its hash bucket. Only
the heads of the buckets are in memory.
"""

import contextlib
import errno
import os
import struct
from array import array
from typing import Any, Final, Generic, TypeVar

import msgspec

from ciuic.system.hashing import checksum

__all__ = ["LinkTable"]

Record = TypeVar("Record")

_BUCKETS: Final = 1 << 18
"""The buckets take 2 MB. With a million records, a lookup takes about four reads."""
_HEAD: Final = struct.Struct("<QI")
_KEY: Final = struct.Struct("<QQ")
_READ_BYTES: Final = 512
"""Most records are shorter."""


class LinkTable(Generic[Record]):
    """Records by device and inode in a file; a later record of an inode replaces an older one.

    Args:
        kind: Type of the records, for msgspec.
        directories: Candidates for the directory of the file; the first writable one is used.
    """

    # Any: msgspec's decoder takes every type.
    def __init__(self, kind: Any, directories: tuple[str, ...]) -> None:
        self._directories = directories
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(kind).decode
        self._fd = -1
        self._buckets: array[int] = array("Q")
        self._end = 0

    def put(self, records: dict[tuple[int, int], Record]) -> bool:
        """Add records; returns False and adds none if the file cannot be written."""
        if self._fd < 0 and not self._make():
            return False
        out, end = bytearray(), self._end
        heads: dict[int, int] = {}
        for key, record in records.items():
            packed, bucket = _packed(key)
            data = self._encode(record)
            before = heads.get(bucket, self._buckets[bucket])
            # The position plus one: 0 marks the end of a bucket.
            heads[bucket] = end + len(out) + 1
            out += packed + _HEAD.pack(before, len(data)) + data
        if not self._write(out):
            return False
        for bucket, head in heads.items():
            self._buckets[bucket] = head
        return True

    def get(self, key: tuple[int, int]) -> Record | None:
        """Return the record of an inode; None if it is missing or the file cannot be read."""
        if self._fd < 0:
            return None
        packed, bucket = _packed(key)
        fd, head = self._fd, self._buckets[bucket]
        with contextlib.suppress(OSError):
            while head:
                data = os.pread(fd, _READ_BYTES, head - 1)
                found, start = data[: _KEY.size], _KEY.size + _HEAD.size
                head_before, length = _HEAD.unpack_from(data, _KEY.size)
                if found == packed:
                    body = data[start : start + length]
                    if len(body) < length:
                        body = os.pread(fd, length, head - 1 + start)
                    record: Record = self._decode(body)
                    return record
                head = head_before
        return None

    def close(self) -> None:
        """Close the anonymous file, which removes it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _make(self) -> bool:
        for directory in self._directories:
            with contextlib.suppress(OSError):
                self._fd = _open_anonymous(directory)
                self._buckets = array("Q", bytes(8 * _BUCKETS))
                return True
        return False

    def _write(self, data: bytearray) -> bool:
        at, view = self._end, memoryview(data)
        try:
            while view:
                written = os.pwrite(self._fd, view, at)
                at, view = at + written, view[written:]
        except OSError:
            return False
        self._end = at
        return True


def _open_anonymous(directory: str) -> int:
    """Make a file without a name, and return its descriptor.

    ``tempfile`` does the same; importing it takes longer than most restores of one file.
    """
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        return os.open(directory, flags | os.O_TMPFILE, 0o600)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
    name = os.path.join(directory, f"ciuic-{os.urandom(16).hex()}")
    fd = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink(name)
    return fd


def _packed(key: tuple[int, int]) -> tuple[bytes, int]:
    mask = (1 << 64) - 1
    packed = _KEY.pack(key[0] & mask, key[1] & mask)
    return packed, checksum(packed) % _BUCKETS
