"""The Reed-Solomon code of the parity. docs/format.md, "Parity", has the field and the matrix.

The compiled core computes it, at memory speed. Where that is missing, numpy computes the same
bytes (``gf256``), slower; ``ciuic doctor`` says so.
"""

import functools
from collections.abc import Sequence
from typing import Protocol

from ciuic.store.parity.gf256 import TableArithmetic, cauchy_matrix, inverse_matrix
from ciuic.system.core import Core

__all__ = ["Arithmetic", "Coder", "CompiledArithmetic", "coder_for"]


class Arithmetic(Protocol):
    """Multiplies and adds whole segments."""

    def add(self, coefficients: bytes, source: memoryview, rows: Sequence[memoryview]) -> None:
        """Add one segment, times its coefficients, to each row. All have the same length.

        Args:
            coefficients: Of the segment, for each row.
            source: The segment.
            rows: Changed in place.
        """


class CompiledArithmetic:
    """Arithmetic by the compiled core."""

    def __init__(self, compiled: Core) -> None:
        self._core = compiled

    def add(self, coefficients: bytes, source: memoryview, rows: Sequence[memoryview]) -> None:
        """Add one segment, times its coefficients, to each row. All have the same length."""
        functions, targets = self._core
        functions.gf_add(targets, coefficients, source, rows)


class Coder:
    """The code of ``segments`` segments of data and ``rows`` rows of parity, 256 in all at most.

    Any ``segments`` of them restore all others.

    Args:
        segments: Number of segments.
        rows: Number of rows.
        compiled: The compiled core; None: numpy computes the same, slower.

    Attributes:
        matrix: The coefficients: those of the first row for each segment, then of the second.
    """

    def __init__(self, segments: int, rows: int, compiled: Core | None) -> None:
        self.segments = segments
        self.rows = rows
        self.matrix = cauchy_matrix(segments, rows)
        self._arithmetic: Arithmetic = (
            TableArithmetic() if compiled is None else CompiledArithmetic(compiled)
        )

    def add(self, segment: int, source: memoryview, parity: Sequence[memoryview]) -> None:
        """Add a range of one segment to the same range of all rows of parity."""
        self._add(self.matrix[segment :: self.segments], source, parity)

    def solve(
        self,
        *,
        lost: Sequence[int],
        used: Sequence[int],
        segments: Sequence[memoryview],
        parity: Sequence[memoryview],
    ) -> None:
        """Compute lost segments, in place.

        Args:
            lost: Their numbers.
            used: The numbers of as many sound rows of parity.
            segments: The same range of each segment; the lost ones are overwritten.
            parity: That range of the rows ``used``; overwritten as well.
        """
        count, width = len(lost), self.segments
        chosen = b"".join([self.matrix[row * width : (row + 1) * width] for row in used])
        for number, source in enumerate(segments):
            if number not in lost:
                self._add(chosen[number::width], source, parity)
        # The parity now holds only what the lost segments added to it.
        system = bytes([chosen[row * width + number] for row in range(count) for number in lost])
        inverse = inverse_matrix(system, count)
        targets = [segments[number] for number in lost]
        for target in targets:
            target[:] = bytes(len(target))
        for row, source in enumerate(parity):
            self._add(inverse[row::count], source, targets)

    def _add(self, coefficients: bytes, source: memoryview, rows: Sequence[memoryview]) -> None:
        if any(len(row) != len(source) for row in rows):
            raise ValueError("a segment and the rows that it is added to differ in length")
        self._arithmetic.add(coefficients, source, rows)


@functools.lru_cache(8)
def coder_for(segments: int, rows: int, compiled: Core | None) -> Coder:
    """Return the code of this many segments and rows; made once, used by all threads."""
    return Coder(segments, rows, compiled)
