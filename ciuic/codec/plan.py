"""How elements of 2, 4 or 8 bytes are split into columns. Importing this loads no numpy."""

from typing import Final, NamedTuple

__all__ = [
    "COLUMN_WIDTHS",
    "PAIRS",
    "RAW",
    "TOP_BYTES",
    "WIDTHS",
    "ZSTD",
    "Column",
    "DeltaPlan",
    "Plan",
]

RAW: Final = 0
ZSTD: Final = 1
PAIRS: Final = 2
"""Codings of a column, as docs/format.md numbers them under "Codec 2"."""

WIDTHS: Final = (2, 4, 8)
"""Bytes of an element."""
COLUMN_WIDTHS: Final = (1, 2, 4)
TOP_BYTES: Final = 2
"""Bytes that the sign and the exponent of a float span."""


class Column(NamedTuple):
    """Neighboring bytes of every element.

    Attributes:
        width: Number of bytes: 1, 2 or 4.
        coding: The coding to try: ``RAW``, ``ZSTD``, or ``PAIRS`` for a single byte.
        lowest: For ``PAIRS``: the lowest of the 16 values that most bytes have.
    """

    width: int
    coding: int
    lowest: int = 0


class Plan(NamedTuple):
    """How elements are split.

    Attributes:
        width: Bytes per element.
        skip: Bytes before the first element: not every element begins where its chunk does.
        columns: All bytes of an element, lowest first; the last two columns are single bytes.
        fraction: Expected stored bytes per uncompressed byte.
    """

    width: int
    skip: int
    columns: tuple[Column, ...]
    fraction: float


class DeltaPlan(NamedTuple):
    """How to encode the differences.

    Attributes:
        width: Bytes per element: 2, 4 or 8.
        skip: Bytes before the first element.
        cuts: The lowest exponent of the second class, of the third, and so on.
        classes: For each class, the rotation in bits and the plan of its byte planes.
        fraction: Expected stored bytes per uncompressed byte.
    """

    width: int
    skip: int
    cuts: bytes
    classes: tuple[tuple[int, Plan], ...]
    fraction: float
