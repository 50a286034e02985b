"""Bytes of tensors -> numbers, and the distance between two ranges of them.

Elements are equal if their bits are equal: NaN equals itself, and 0.0 differs from -0.0. Distances
are those of the numbers that the bits mean, summed in double precision. Pairs with a number that is
not finite are counted and left out of the sums. Numbers of 8 bits come from a table of all 256.
"""

import functools
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Distance", "compare"]

_NUMBERS: Final = {
    "BOOL": "u1",
    "U8": "u1",
    "I8": "i1",
    "U16": "<u2",
    "I16": "<i2",
    "F16": "<f2",
    "U32": "<u4",
    "I32": "<i4",
    "F32": "<f4",
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
    "C64": "<f4",
    "C128": "<f8",
}
_SMALL_FLOATS: Final = {
    "F8_E4M3": (4, 7),
    "F8_E4M3FNUZ": (4, 8),
    "F8_E5M2": (5, 15),
    "F8_E5M2FNUZ": (5, 16),
    "F8_E8M0": (8, 127),
}
"""Bits of the exponent, and its bias."""

_AT_ONCE: Final = 64 * 1024
"""Elements per step: two arrays of them in double precision fit in a core's own cache."""

_Bytes = npt.NDArray[np.uint8]
_Array = npt.NDArray[Any]


class Distance(NamedTuple):
    """The distance between two ranges of elements; distances of adjacent ranges add up.

    Attributes:
        elements: Number of elements.
        equal: Number of elements with equal bits.
        before_squared: Sum of the squares of the first range's numbers.
        apart_squared: Sum of the squares of the differences.
        odd: Pairs left out of the sums because a number is not finite.
    """

    elements: int = 0
    equal: int = 0
    before_squared: float = 0.0
    apart_squared: float = 0.0
    odd: int = 0

    def plus(self, other: "Distance") -> "Distance":
        """Return the distance over both ranges together."""
        return Distance(
            self.elements + other.elements,
            self.equal + other.equal,
            self.before_squared + other.before_squared,
            self.apart_squared + other.apart_squared,
            self.odd + other.odd,
        )


def compare(before: bytes | memoryview, after: bytes | memoryview, element: str) -> Distance:
    """Compare two ranges of equal length, which must be a multiple of the element's width.

    Args:
        before: The first range.
        after: The second range; may be the same object.
        element: The elements' type. Ranges of an unknown type are compared byte by byte,
            without sums.
    """
    old = np.frombuffer(before, np.uint8)
    new = old if after is before else np.frombuffer(after, np.uint8)
    width = _width(element)
    same = len(old) // width if new is old else _equal(old, new, width)
    if width == 1 and element not in _NUMBERS and element not in _SMALL_FLOATS:
        return Distance(len(old), same)
    found = Distance(len(old) // width, same)
    step = _AT_ONCE * width
    with np.errstate(all="ignore"):
        for at in range(0, len(old), step):
            part = old[at : at + step]
            other = part if new is old else new[at : at + step]
            found = found.plus(Distance(0, 0, *_sums(part, other, element)))
    return found


def _width(element: str) -> int:
    if element == "BF16":
        return 2
    width = np.dtype(_NUMBERS.get(element, "u1")).itemsize
    return 2 * width if element.startswith("C") else width


def _equal(old: _Bytes, new: _Bytes, width: int) -> int:
    part = min(width, 8)
    same = old.view(f"u{part}") == new.view(f"u{part}")
    if width > part:
        same = same.reshape(-1, width // part).all(axis=1)
    return int(np.count_nonzero(same))


def _sums(old: _Bytes, new: _Bytes, element: str) -> tuple[float, float, int]:
    before = _numbers(old, element)
    apart = np.zeros_like(before) if new is old else _numbers(new, element) - before
    sums = float(before @ before), float(apart @ apart)
    if np.isfinite(sums).all():
        return *sums, 0
    finite = np.isfinite(before) & np.isfinite(apart)
    before, apart = before[finite], apart[finite]
    return float(before @ before), float(apart @ apart), len(finite) - len(before)


def _numbers(raw: _Bytes, element: str) -> _Array:
    """Return the numbers in double precision; only the largest integers lose bits."""
    if element == "BF16":
        wide = raw.view("<u2").astype("<u4")
        return (wide << 16).view("<f4").astype(np.float64)
    if element in _SMALL_FLOATS:
        return _table(element)[raw]
    return raw.view(_NUMBERS[element]).astype(np.float64)


@functools.cache
def _table(element: str) -> npt.NDArray[np.float64]:
    """Return the numbers that the 256 bytes mean, in OCP 8-bit floating point and its variants."""
    exponent_bits, bias = _SMALL_FLOATS[element]
    codes = np.arange(256)
    if element == "F8_E8M0":
        found = np.ldexp(1.0, codes - bias)
        found[255] = np.nan
        return found
    fraction_bits = 7 - exponent_bits
    exponents = codes >> fraction_bits & (1 << exponent_bits) - 1
    fractions = (codes & (1 << fraction_bits) - 1) / (1 << fraction_bits)
    normal = np.ldexp(1.0 + fractions, exponents - bias)
    found = np.where(exponents == 0, np.ldexp(fractions, 1 - bias), normal)
    if element == "F8_E4M3":
        found[127::128] = np.nan
    elif element == "F8_E5M2":
        found[124::128] = np.inf
        for code in (125, 126, 127):
            found[code::128] = np.nan
    found[128:] *= -1
    if element.endswith("FNUZ"):
        found[128] = np.nan
    return found
