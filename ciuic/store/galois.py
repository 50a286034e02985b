"""Arithmetic of the Reed-Solomon code, by ISA-L: the home of pyeclib.

pyeclib's wheels carry Intel's library. Its own functions want all segments of a pack at once, which
would mean to keep the pack in memory or to read it again from the disk; ISA-L adds one segment
after another to the parity, as the pack is written, at memory's speed. Decision 0012.

The field is GF(256) over x^8 + x^4 + x^3 + x^2 + 1; docs/format.md, "Parity", has the matrix.
"""

import ctypes
import functools
import os
from collections.abc import Sequence
from typing import Final, NamedTuple

import pyeclib

from ciuic.errors import StoreError

__all__ = ["Coder", "ParityUnavailableError", "address"]

_CARRIED: Final = os.path.join("pyeclib.libs", "libisal-pyeclib.so.2")
_SYSTEM: Final = "libisal.so.2"
_TABLE_BYTES: Final = 32
"""What ISA-L expands one coefficient to."""


class ParityUnavailableError(StoreError):
    """This machine can't compute parity."""

    default_hint = "Install pyeclib again, or set 'parity = 0' to go without."


def address(buffer: object) -> int:
    """Where a writable buffer lies (bytearray, mmap): good while it is kept and not resized."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))  # type: ignore[arg-type]


class Coder:
    """The code of ``segments`` segments of data and ``rows`` of parity: 256 in all, at most.

    Any ``segments`` of them give back all others. Buffers are given as addresses; whoever calls
    keeps them alive, and makes sure that they are long enough.

    Attributes:
        matrix: The coefficients: of the first row for each segment, then of the second.

    Raises:
        ParityUnavailableError: There is no ISA-L on this machine.
    """

    def __init__(self, segments: int, rows: int) -> None:
        self.segments = segments
        self.rows = rows
        whole = (ctypes.c_ubyte * ((segments + rows) * segments))()
        _library().gf_gen_cauchy1_matrix(whole, segments + rows, segments)
        # The first rows are those of the data itself.
        self.matrix = bytes(whole)[segments * segments :]
        self._tables = _tables(self.matrix, segments, rows)

    def add(self, segment: int, source: int, length_bytes: int, parity: Sequence[int]) -> None:
        """Let a stretch of one segment take part in the same stretch of all rows of parity."""
        _add(self._tables, segment, source, length_bytes, parity)

    def solve(
        self,
        *,
        lost: Sequence[int],
        used: Sequence[int],
        segments: Sequence[int],
        parity: Sequence[int],
        length_bytes: int,
    ) -> None:
        """Compute lost segments, in place.

        Args:
            lost: Their numbers.
            used: As many rows of parity that are sound.
            segments: The address of each segment's stretch; the lost ones are overwritten.
            parity: The addresses of the rows ``used``: overwritten as well.
            length_bytes: Of the stretch.
        """
        count = len(lost)
        width = self.segments
        chosen = b"".join([self.matrix[row * width : (row + 1) * width] for row in used])
        tables = _tables(chosen, width, count)
        for number, source in enumerate(segments):
            if number not in lost:
                _add(tables, number, source, length_bytes, parity)
        # What is left in the parity is what the lost ones put there.
        system = bytes([chosen[row * width + number] for row in range(count) for number in lost])
        inverse = _tables(_inverse(system, count), count, count).expanded
        _library().ec_encode_data(
            length_bytes,
            count,
            count,
            inverse,
            _addresses(parity),
            _addresses([segments[number] for number in lost]),
        )


class _Tables(NamedTuple):
    """Coefficients as ISA-L wants them, and of how many segments."""

    segments: int
    expanded: "ctypes.Array[ctypes.c_ubyte]"


def _add(
    tables: _Tables, segment: int, source: int, length_bytes: int, parity: Sequence[int]
) -> None:
    _library().ec_encode_data_update(
        length_bytes,
        tables.segments,
        len(parity),
        segment,
        tables.expanded,
        ctypes.c_void_p(source),
        _addresses(parity),
    )


def _addresses(values: Sequence[int]) -> "ctypes.Array[ctypes.c_void_p]":
    return (ctypes.c_void_p * len(values))(*values)


def _tables(matrix: bytes, segments: int, rows: int) -> _Tables:
    made = (ctypes.c_ubyte * (_TABLE_BYTES * segments * rows))()
    _library().ec_init_tables(segments, rows, matrix, made)
    return _Tables(segments, made)


def _inverse(matrix: bytes, count: int) -> bytes:
    # ISA-L works in the matrix that it is given.
    given = (ctypes.c_ubyte * (count * count)).from_buffer_copy(matrix)
    made = (ctypes.c_ubyte * (count * count))()
    if _library().gf_invert_matrix(given, made, count) != 0:
        raise AssertionError("every square part of a Cauchy matrix has an inverse")
    return bytes(made)


@functools.cache
def _library() -> ctypes.PyDLL:
    """ISA-L: the one in pyeclib's wheel; a pyeclib that was built here uses the system's."""
    packages = os.path.dirname(os.path.dirname(pyeclib.__file__))
    for place in (os.path.join(packages, _CARRIED), _SYSTEM):
        try:
            # A call takes some 30 us. To give up the interpreter's lock for it, and wait to have
            # it back, takes whoever writes packs longer.
            return ctypes.PyDLL(place)
        except OSError:
            continue
    raise ParityUnavailableError(
        "parity can't be computed: ISA-L, which the package pyeclib brings, can't be loaded"
    )
