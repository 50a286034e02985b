"""How a pack is cut into segments and sectors for its parity. docs/format.md, "Parity"."""

import math
from typing import Final, NamedTuple

__all__ = [
    "BLOCK_BYTES",
    "PARITY_DEFAULT",
    "SECTORS_KNOWN",
    "SHARDS_MAX",
    "Shape",
    "rounded_up",
    "shape_for",
    "shape_while_writing",
]

PARITY_DEFAULT: Final = 0.04
"""The share of a pack that its parity takes unless the configuration says otherwise."""
BLOCK_BYTES: Final = 4096
SECTORS_KNOWN: Final = frozenset({512, 1024, 2048, 4096, 8192, 16384, 32768, 65536})
"""Sector lengths that this version reads."""
SHARDS_MAX: Final = 256
"""Segments and rows together: the field has this many elements."""
_ROWS: Final = 4
_SEGMENTS_MIN, _SEGMENTS_MAX = 4, 200
_SMALL_SECTOR_BYTES: Final = 512
_SMALL_PACK_BYTES: Final = 1024 * 1024
_FOOTER_BYTES_MAX: Final = 3 * 1024 * 1024


class Shape(NamedTuple):
    """How a pack is cut for its parity.

    Attributes:
        segments: Number of segments; the last ones may be past the pack's end: zeros.
        rows: Rows of parity, each as long as a segment.
        sector_bytes: Length of the range that has a checksum of its own.
        segment_bytes: A multiple of ``sector_bytes``.
    """

    segments: int
    rows: int
    sector_bytes: int
    segment_bytes: int

    @property
    def parity_bytes(self) -> int:
        """Length of all rows."""
        return self.rows * self.segment_bytes


def shape_for(size_bytes: int, share: float) -> Shape:
    """Return how to cut a pack of this length; parity takes ``share`` of it (above 0, to 1)."""
    segment_bytes = rounded_up(-(-size_bytes // _segments(share)), BLOCK_BYTES)
    segments = -(-size_bytes // segment_bytes)
    sector_bytes = _SMALL_SECTOR_BYTES if size_bytes < _SMALL_PACK_BYTES else BLOCK_BYTES
    return Shape(segments, _rows(segments, share), sector_bytes, segment_bytes)


def shape_while_writing(full_bytes: int, share: float) -> Shape:
    """Return how to cut a pack being written that will be a little over ``full_bytes`` long."""
    segments = _segments(share)
    segment_bytes = rounded_up(-(-full_bytes // segments), BLOCK_BYTES)
    segments_max = -(-(full_bytes + _FOOTER_BYTES_MAX) // segment_bytes)
    rows = _rows(segments, share)
    return Shape(min(segments_max, SHARDS_MAX - rows), rows, BLOCK_BYTES, segment_bytes)


def _segments(share: float) -> int:
    """Number of segments of a large pack: many small ones, if the share allows it.

    The more segments a word has, the more sectors can be lost at any offset.
    """
    return max(_SEGMENTS_MIN, min(_SEGMENTS_MAX, int(_ROWS / share)))


def _rows(segments: int, share: float) -> int:
    """Rows of parity: the share of the segments, but at least four.

    A disk loses whole blocks of 4 KiB, whatever the length of the pack. With four rows any four
    blocks can be lost. A pack of up to four blocks has as many rows as blocks, so its parity
    alone restores it.
    """
    # The rounding error of a binary product must not become a row of its own.
    return max(min(_ROWS, segments), math.ceil(share * segments - 1e-9))


def rounded_up(value: int, unit: int) -> int:
    """Return the smallest multiple of ``unit`` that is not below ``value``."""
    return -(-value // unit) * unit
