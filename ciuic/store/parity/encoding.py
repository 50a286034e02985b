"""Header and checksum pages of a parity file: bytes <-> values, no I/O.

docs/format.md, "Parity", specifies them.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ciuic.errors import CorruptionError
from ciuic.ids import PackId
from ciuic.store.parity.shape import BLOCK_BYTES, SECTORS_KNOWN, SHARDS_MAX, Shape, rounded_up
from ciuic.system.hashing import checksum

__all__ = [
    "HEADER_BYTES",
    "PAGE_BYTES",
    "PAGE_SUMS",
    "Header",
    "decode_page",
    "encode_header",
    "encode_pages",
    "parse_header",
    "rows_offset_bytes",
    "table_bytes",
]

_MAGIC: Final = b"CIUICPR1"
_HEADER: Final = struct.Struct("<8sQIIIIQ32sQ")
HEADER_BYTES: Final = _HEADER.size
_SUM_BYTES: Final = 8
_SUMMED_BYTES: Final = _HEADER.size - _SUM_BYTES
_CODE: Final = 1
_SEGMENT_BYTES_MAX: Final = 1 << 40
PAGE_SUMS: Final = 511
"""Checksums in a page; the last page may have fewer."""
PAGE_BYTES: Final = (PAGE_SUMS + 1) * _SUM_BYTES


class Header(NamedTuple):
    """What a parity file says of its pack.

    Attributes:
        size_bytes: Length of the pack.
        shape: How the pack was cut.
    """

    size_bytes: int
    shape: Shape


def encode_header(pack_id: PackId, size_bytes: int, shape: Shape) -> bytes:
    """Return the header, its own checksum at the end."""
    fields = (_MAGIC, size_bytes, shape.segments, shape.rows, shape.sector_bytes, _CODE)
    bare = _HEADER.pack(*fields, shape.segment_bytes, pack_id, 0)[:_SUMMED_BYTES]
    return bare + _sum_bytes(bare)


def parse_header(data: bytes, pack_id: PackId) -> Header:
    """Check and decode a header.

    Raises:
        CorruptionError: It is damaged, belongs to another pack, or has impossible values.
    """
    if len(data) != _HEADER.size:
        raise CorruptionError("the parity is cut short")
    magic, size, segments, rows, sector, code, segment, stored_id, own_sum = _HEADER.unpack(data)
    if magic != _MAGIC or checksum(data[:_SUMMED_BYTES]) != own_sum:
        raise CorruptionError("the parity's header is damaged")
    if stored_id != pack_id:
        raise CorruptionError("the parity is that of another pack")
    if code != _CODE:
        raise CorruptionError(f"parity of kind {code} is not known to this version of ciuic")
    is_possible = (
        sector in SECTORS_KNOWN
        and segments >= 1
        and rows >= 1
        and segments + rows <= SHARDS_MAX
        and 0 < segment <= _SEGMENT_BYTES_MAX
        and segment % sector == 0
        and 0 < size <= segments * segment
    )
    if not is_possible:
        raise CorruptionError("the parity's header has impossible values")
    return Header(size, Shape(segments, rows, sector, segment))


def encode_pages(pack_id: PackId, sums: Sequence[int]) -> Iterator[bytes]:
    """Checksums of sectors as pages, each with a checksum of its own at its end."""
    for number, start in enumerate(range(0, len(sums), PAGE_SUMS)):
        part = sums[start : start + PAGE_SUMS]
        page = struct.pack(f"<{len(part)}Q", *part)
        yield page + _page_sum(pack_id, number, page)


def decode_page(
    pack_id: PackId, number: int, data: bytes, sums_count: int
) -> tuple[int, ...] | None:
    """Return the ``sums_count`` checksums of page ``number``; None if the page is damaged."""
    page = data[:-_SUM_BYTES]
    is_sound = len(page) == _SUM_BYTES * sums_count
    if not is_sound or _page_sum(pack_id, number, page) != data[-_SUM_BYTES:]:
        return None
    return struct.unpack(f"<{sums_count}Q", page)


def table_bytes(sums_count: int) -> int:
    """Return the length of all pages of a table with this many checksums."""
    return _SUM_BYTES * (sums_count + -(-sums_count // PAGE_SUMS))


def rows_offset_bytes(table_length_bytes: int) -> int:
    """Return where the rows begin: at a block, so that a lost block costs each word one row."""
    return rounded_up(_HEADER.size + table_length_bytes, BLOCK_BYTES)


def _page_sum(pack_id: PackId, number: int, page: bytes) -> bytes:
    return _sum_bytes(pack_id + number.to_bytes(8, "little") + page)


def _sum_bytes(data: bytes) -> bytes:
    return checksum(data).to_bytes(_SUM_BYTES, "little")
