"""Chooses how to split numbers into byte planes, by a sample of them."""

from collections.abc import Sequence
from typing import Final

from ciuic.codec.plan import COLUMN_WIDTHS, PAIRS, RAW, TOP_BYTES, WIDTHS, ZSTD, Column, Plan
from ciuic.system.core import core

__all__ = ["plan", "probe"]

_UNIT: Final = 1 << 20
"""The core and numpy count bits in units of 1/2**20, in integers: so both choose the same plan."""
_NOISE_BITS: Final = 7.6
"""Entropy of a byte above which coding gains less than it costs."""
_BETTER: Final = 0.98
"""A wider element must gain this much over a narrower one: what fits 4 mostly fits 2 as well."""
_SURE: Final = 0.9
"""Floats of 4 bytes have a fraction below this; other data that resembles them, above."""
_NEAR_SHARE: Final = 0.9
"""A column is coded in pairs if this share of it is within 16 adjacent values: half a byte."""

_Spread = tuple[int, int, int]
"""Of the bytes of a column: entropy in units, most bytes within 16 values, the lowest of these."""


def probe(sample: bytes, width: int = 0) -> Plan:
    """Choose a plan from a sample.

    Args:
        sample: Parts of the payload, each from a multiple of 8.
        width: Bytes per element, from a file's header; 0: unknown. It is used only if the sample
            confirms it, because a header may lie.
    """
    if width in WIDTHS:
        told = plan(sample, width)
        if told.fraction < _SURE:
            return told
    four = plan(sample, 4)
    # Elements of 4 bytes show one exponent in four bytes. Two exponents suggest a narrower
    # element; none, or half of one, a wider element.
    if four.fraction < _SURE and four.columns[0].width == TOP_BYTES:
        return four
    two = plan(sample, 2)
    best = four if four.fraction < two.fraction * _BETTER else two
    if best.fraction < _SURE:
        return best
    eight = plan(sample, 8)
    return eight if eight.fraction < best.fraction * _BETTER else best


def plan(sample: bytes | memoryview, width: int, skip: int = 0) -> Plan:
    """Return the plan for elements of this width, by the order-0 entropy of each byte."""
    count = (len(sample) - skip) // width
    spreads = _tally(sample, width, skip)
    bits = [spread[0] / (count * _UNIT) if count else 8.0 for spread in spreads]
    kept = [value if value <= _NOISE_BITS else 8.0 for value in bits]
    coded = [value < 8 for value in kept]
    if skip == 0 and sum(coded) == 1 and not coded[-1]:
        # Each element shows one exponent, but not on top: the elements start at another byte.
        return plan(sample, width, coded.index(True) + 1)
    return Plan(width, skip, _columns(coded, spreads, count), sum(kept) / (8 * width))


def _tally(sample: bytes | memoryview, width: int, skip: int) -> Sequence[_Spread]:
    """Return how the bytes of each position are spread: ``core/planes.h``."""
    compiled = core()
    if compiled is not None:
        return compiled.functions.planes_tally(width, sample, skip)
    from ciuic.codec import columns

    return columns.tally(sample, width, skip)


def _columns(coded: list[bool], spreads: Sequence[_Spread], count: int) -> tuple[Column, ...]:
    """Single bytes where they are coded or on top; elsewhere columns as wide as possible."""
    width = len(coded)
    columns: list[Column] = []
    byte = 0
    while byte < width:
        if coded[byte]:
            columns.append(_coded_column(spreads[byte], count))
            byte += 1
            continue
        end = width - TOP_BYTES if byte < width - TOP_BYTES else byte + 1
        free = next((at for at in range(byte, end) if coded[at]), end) - byte
        column = max([size for size in COLUMN_WIDTHS if size <= free])
        columns.append(Column(column, RAW))
        byte += column
    return tuple(columns)


def _coded_column(spread: _Spread, count: int) -> Column:
    """Return the coding for bytes that are spread like this."""
    _, near, lowest = spread
    return Column(1, ZSTD) if near < count * _NEAR_SHARE else Column(1, PAIRS, lowest)
