"""Columns of elements with numpy: what the compiled core does in C (``core/planes.c``).

The code does arithmetic on whole arrays without strides: numpy shifts, narrows and widens adjacent
elements three times as fast as it picks every second one. It multiplies instead of shifting left,
because numpy vectorizes the multiplication of narrow numbers and not their shift.
"""

import threading
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = [
    "TOP_BYTES",
    "Bytes",
    "Words",
    "pick",
    "pick_exponents",
    "pick_signs",
    "put",
    "put_exponents",
    "put_signs",
    "scratch",
]

TOP_BYTES: Final = 2
"""Bytes that the sign and the exponent of a float span."""
_SIGN_AND_LOW: Final = 0x807F
_EXPONENT_BIT: Final = 7

Words = npt.NDArray[Any]
"""An array of unsigned integers; its width is known only at run time."""
Bytes = npt.NDArray[np.uint8]


class _Scratch(threading.local):
    """Three reused arrays per thread: fresh memory is slower than the arithmetic in it."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, dtype=np.uint8)

    def take(self, width: int, count: int) -> tuple[Words, Words, Words]:
        """An array of elements and two arrays of 16-bit words; their content is arbitrary."""
        first, second = count * width, count * (width + TOP_BYTES)
        needed = second + count * TOP_BYTES
        if len(self._bytes) < needed:
            self._bytes = np.empty(-(-needed // 4096) * 4096, dtype=np.uint8)
        parts = self._bytes[:first], self._bytes[first:second], self._bytes[second:needed]
        return parts[0].view(f"<u{width}"), parts[1].view("<u2"), parts[2].view("<u2")


scratch = _Scratch()


def pick(words: Words, byte: int, out: Words, spare: Words) -> None:
    """Copy as many bytes of each word as ``out`` holds, from byte ``byte`` upwards."""
    shifted = np.right_shift(words, 8 * byte, out=spare) if byte else words
    np.copyto(out, shifted, casting="unsafe")


def put(values: Words, byte: int, words: Words, spare: Words) -> None:
    """Undo ``pick``. The call for the lowest byte comes first and overwrites ``words``."""
    if byte == 0:
        np.copyto(words, values)
        return
    np.copyto(spare, values)
    np.multiply(spare, 1 << 8 * byte, out=spare)
    np.bitwise_or(words, spare, out=words)


def pick_signs(top: Words, out: Bytes, spare: Words, other: Words) -> None:
    """The lowest 7 of 16 bits, and above them the highest bit: a float's sign."""
    np.bitwise_and(top, _SIGN_AND_LOW, out=spare)
    np.right_shift(spare, 8, out=other)
    np.bitwise_or(spare, other, out=spare)
    np.copyto(out, spare, casting="unsafe")


def put_signs(signs: Bytes, top: Words) -> None:
    """Undo ``pick_signs``; overwrites ``top``."""
    # As signed numbers: widening copies the sign into the highest bit and all bits between.
    np.copyto(top.view("<i2"), signs.view(np.int8))
    np.bitwise_and(top, _SIGN_AND_LOW, out=top)


def pick_exponents(top: Words, out: Bytes, spare: Words) -> None:
    """The 8 bits between those of ``pick_signs``."""
    np.right_shift(top, _EXPONENT_BIT, out=spare)
    np.copyto(out, spare, casting="unsafe")


def put_exponents(exponents: Bytes, top: Words, spare: Words) -> None:
    """Undo ``pick_exponents``; the bits must be clear in ``top``."""
    np.copyto(spare, exponents)
    np.multiply(spare, 1 << _EXPONENT_BIT, out=spare)
    np.bitwise_or(top, spare, out=top)
