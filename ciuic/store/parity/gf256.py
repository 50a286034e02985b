"""GF(256) arithmetic in Python and numpy, over x^8 + x^4 + x^3 + x^2 + 1.

The small matrices are always computed here. ``TableArithmetic`` multiplies whole segments where
the compiled core is missing, with the same result to the bit, slower.
docs/format.md, "Parity", specifies the field and the matrix.
"""

import functools
from collections.abc import Sequence
from typing import Final, NamedTuple

__all__ = ["TableArithmetic", "cauchy_matrix", "inverse_matrix"]

_POLYNOMIAL: Final = 0x11D
_ORDER: Final = 255


class _Logarithms(NamedTuple):
    exponent: tuple[int, ...]
    logarithm: tuple[int, ...]


@functools.cache
def _logarithms() -> _Logarithms:
    """Powers of 2, twice in a row so that sums of two logarithms need no modulus; and back."""
    powers: list[int] = []
    value = 1
    for _ in range(_ORDER):
        powers.append(value)
        value <<= 1
        if value > _ORDER:
            value ^= _POLYNOMIAL
    logarithm = [0] * (_ORDER + 1)
    for at, power in enumerate(powers):
        logarithm[power] = at
    return _Logarithms(tuple(powers * 2), tuple(logarithm))


def _product(left: int, right: int) -> int:
    if not left or not right:
        return 0
    exponent, logarithm = _logarithms()
    return exponent[logarithm[left] + logarithm[right]]


def _reciprocal(value: int) -> int:
    exponent, logarithm = _logarithms()
    return exponent[_ORDER - logarithm[value]]


def cauchy_matrix(segments: int, rows: int) -> bytes:
    """Return the coefficients of ``rows`` rows of parity over ``segments`` segments, row by row."""
    return bytes(
        _reciprocal((segments + row) ^ segment)
        for row in range(rows)
        for segment in range(segments)
    )


def inverse_matrix(matrix: bytes, size: int) -> bytes:
    """Return the inverse of a square matrix, by Gauss-Jordan elimination.

    Raises:
        ZeroDivisionError: The matrix is singular. No square part of a Cauchy matrix is.
    """
    work = [
        [*matrix[row * size : (row + 1) * size], *(int(row == column) for column in range(size))]
        for row in range(size)
    ]
    for column in range(size):
        pivot = next((row for row in range(column, size) if work[row][column]), None)
        if pivot is None:
            raise ZeroDivisionError("the matrix is singular")
        work[column], work[pivot] = work[pivot], work[column]
        factor = _reciprocal(work[column][column])
        work[column] = [_product(factor, value) for value in work[column]]
        for row in range(size):
            factor = work[row][column]
            if row != column and factor:
                work[row] = [
                    value ^ _product(factor, other)
                    for value, other in zip(work[row], work[column], strict=True)
                ]
    return bytes(value for row in work for value in row[size:])


class TableArithmetic:
    """Multiplication of segments by tables of products, and addition with numpy."""

    def add(self, coefficients: bytes, source: memoryview, rows: Sequence[memoryview]) -> None:
        """Add one segment, times its coefficients, to each row. All have the same length."""
        import numpy as np

        # bytes.translate looks bytes up about ten times as fast as an index array does.
        data = bytes(source)
        for number, row in enumerate(rows):
            target = np.frombuffer(row, np.uint8)
            table = _products(coefficients[number])
            np.bitwise_xor(target, np.frombuffer(data.translate(table), np.uint8), out=target)


@functools.cache
def _products(factor: int) -> bytes:
    """Return the products of ``factor`` with 0 to 255."""
    return bytes(_product(factor, value) for value in range(_ORDER + 1))
