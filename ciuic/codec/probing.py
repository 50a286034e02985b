"""Chooses how to split numbers into byte planes, by a sample of them."""

from typing import Final

import numpy as np
import numpy.typing as npt

from ciuic.codec.columns import TOP_BYTES, pick_exponents, pick_signs
from ciuic.codec.plan import COLUMN_WIDTHS, PAIRS, RAW, WIDTHS, ZSTD, Column, Plan

__all__ = ["plan", "probe"]

_NOISE_BITS: Final = 7.6
"""Entropy of a byte above which coding gains less than it costs."""
_BETTER: Final = 0.98
"""A wider element must gain this much over a narrower one: what fits 4 mostly fits 2 as well."""
_SURE: Final = 0.9
"""Floats of 4 bytes have a fraction below this; other data that resembles them, above."""
_NEAR: Final = 16
"""Number of values of half a byte."""
_NEAR_SHARE: Final = 0.9
"""A column is coded in pairs if this share of it is within ``_NEAR`` adjacent values."""


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


def plan(sample: bytes, width: int, skip: int = 0) -> Plan:
    """The plan for elements of this width, from the order-0 entropy of each byte position."""
    count = (len(sample) - skip) // width
    flat = np.frombuffer(sample, np.uint8, count * width, skip)
    parts = [flat[byte::width] for byte in range(width - TOP_BYTES)]
    top = flat.view("<u2")[width // TOP_BYTES - 1 :: width // TOP_BYTES].copy()
    signs, exponents = np.empty((TOP_BYTES, count), dtype=np.uint8)
    pick_signs(top, signs, np.empty_like(top), np.empty_like(top))
    pick_exponents(top, exponents, np.empty_like(top))
    counts = np.array([np.bincount(column, minlength=256) for column in (*parts, signs, exponents)])
    weighted = np.multiply(counts, np.log2(np.maximum(counts, 1))).sum(axis=1)
    bits = [float(value) for value in np.log2(count) - weighted / count]
    kept = [value if value <= _NOISE_BITS else 8.0 for value in bits]
    coded = [value < 8 for value in kept]
    if skip == 0 and sum(coded) == 1 and not coded[-1]:
        # Each element shows one exponent, but not on top: the elements start at another byte.
        return plan(sample, width, coded.index(True) + 1)
    return Plan(width, skip, _columns(coded, counts), sum(kept) / (8 * width))


def _columns(coded: list[bool], counts: npt.NDArray[np.intp]) -> tuple[Column, ...]:
    """Single bytes where they are coded or on top; elsewhere columns as wide as possible."""
    width = len(coded)
    columns: list[Column] = []
    byte = 0
    while byte < width:
        if coded[byte]:
            columns.append(_coded_column(counts[byte]))
            byte += 1
            continue
        end = width - TOP_BYTES if byte < width - TOP_BYTES else byte + 1
        free = next((at for at in range(byte, end) if coded[at]), end) - byte
        column = max([size for size in COLUMN_WIDTHS if size <= free])
        columns.append(Column(column, RAW))
        byte += column
    return tuple(columns)


def _coded_column(counts: npt.NDArray[np.intp]) -> Column:
    """The coding for bytes of these frequencies."""
    total = np.cumsum(np.concatenate([counts, counts[:_NEAR]]))
    near = total[_NEAR:] - total[:-_NEAR]
    last = int(near.argmax())
    if near[last] < total[255] * _NEAR_SHARE:
        return Column(1, ZSTD)
    return Column(1, PAIRS, (last + 1) % 256)
