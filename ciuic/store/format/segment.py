"""Index segments: the ends of many packs in one object, for a store in a bucket.

A segment holds the end of each pack (footer and trailer) byte for byte, and the ID of the pack has
a hash of its footer. So a reader can check a segment without reading the packs. Byte layout:
docs/format.md, "Index segments".
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.ids import PackId

__all__ = ["HEAD_BYTES", "PackEnd", "Segment", "encode_segment", "table_bytes"]

_MAGIC: Final = b"CIUICSG1"
_HEAD: Final = struct.Struct("<8sII")
_ENTRY: Final = struct.Struct("<32sQII")
HEAD_BYTES: Final = _HEAD.size


class PackEnd(NamedTuple):
    """The end of a pack, from the first byte of its footer.

    Attributes:
        pack_id: The pack.
        size_bytes: The length of the whole pack.
        data: Footer and trailer.
    """

    pack_id: PackId
    size_bytes: int
    data: bytes


class _Entry(NamedTuple):
    """Where the end of a pack is in a segment."""

    pack_id: PackId
    size_bytes: int
    offset_bytes: int
    length_bytes: int


def encode_segment(ends: Sequence[PackEnd]) -> bytes:
    """Encode a segment."""
    offset = HEAD_BYTES + len(ends) * _ENTRY.size
    table = []
    for end in ends:
        table.append(_ENTRY.pack(end.pack_id, end.size_bytes, offset, len(end.data)))
        offset += len(end.data)
    head = _HEAD.pack(_MAGIC, len(ends), 0)
    return b"".join([head, *table, *[end.data for end in ends]])


def table_bytes(head: bytes) -> int:
    """Return the length of a segment's head and table, from its first ``HEAD_BYTES`` bytes.

    Raises:
        CorruptionError: No segment begins here.
        UnknownFormatError: A later version wrote it.
    """
    if len(head) < HEAD_BYTES or head[: len(_MAGIC)] != _MAGIC:
        raise CorruptionError("no index segment begins here")
    count: int
    _, count, flags = _HEAD.unpack_from(head)
    if flags:
        raise UnknownFormatError(f"an index segment with flags {flags:#x} is not known")
    return HEAD_BYTES + count * _ENTRY.size


class Segment:
    """The table of a segment.

    Args:
        head: At least its first bytes: head and table.

    Raises:
        CorruptionError: It is cut short.
        UnknownFormatError: A later version wrote it.
    """

    def __init__(self, head: bytes) -> None:
        length = table_bytes(head)
        if len(head) < length:
            raise CorruptionError("the index segment is cut short")
        # Not a list of entries: with a million packs, it would take ten times as much memory.
        self._table = head[HEAD_BYTES:length]

    def __len__(self) -> int:
        return len(self._table) // _ENTRY.size

    def entry(self, row: int) -> _Entry:
        """Return what a row of the table says."""
        return _Entry(*_ENTRY.unpack_from(self._table, row * _ENTRY.size))

    def pack_ids(self) -> list[PackId]:
        """Return the pack of each row."""
        return [PackId(fields[0]) for fields in _ENTRY.iter_unpack(self._table)]
