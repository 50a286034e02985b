"""A range of bytes in a file."""

from typing import NamedTuple

__all__ = ["ByteRange"]


class ByteRange(NamedTuple):
    """A range of bytes in a file.

    Attributes:
        offset_bytes: Where the range begins.
        length_bytes: Length of the range.
    """

    offset_bytes: int
    length_bytes: int
