"""Columns of elements with numpy: what the compiled core does in C (``core/planes.c``).

``planes`` and ``probing`` import this only where the core is missing.

The code does arithmetic on whole arrays without strides: numpy shifts, narrows and widens adjacent
elements three times as fast as it picks every second one. It multiplies instead of shifting left,
because numpy vectorizes the multiplication of narrow numbers and not their shift.
"""

import functools
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ciuic.codec.plan import TOP_BYTES

__all__ = ["join", "split", "tally"]

_SIGN_AND_LOW: Final = 0x807F
_EXPONENT_BIT: Final = 7
_NEAR: Final = 16
"""Number of values of half a byte."""
_LOG_BITS: Final = 20
"""Bits after the point of the logarithms of ``tally``."""

Words = npt.NDArray[Any]
"""An array of unsigned integers; its width is known only at run time."""
Bytes = npt.NDArray[np.uint8]


class _Scratch(threading.local):
    """Three reused arrays per thread: fresh memory is slower than the arithmetic in it."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, dtype=np.uint8)

    def take(self, width: int, count: int) -> tuple[Words, Words, Words]:
        """Lend an array of elements and two arrays of 16-bit words, of arbitrary content."""
        first, second = count * width, count * (width + TOP_BYTES)
        needed = second + count * TOP_BYTES
        if len(self._bytes) < needed:
            self._bytes = np.empty(-(-needed // 4096) * 4096, dtype=np.uint8)
        parts = self._bytes[:first], self._bytes[first:second], self._bytes[second:needed]
        return parts[0].view(f"<u{width}"), parts[1].view("<u2"), parts[2].view("<u2")


scratch = _Scratch()


def split(packed: bytes, plain: bytes | memoryview, skip: int, count: int, out: memoryview) -> int:
    """Write all columns of elements to ``out``, as ``planes_split`` of the compiled core does."""
    width = packed[0]
    words = np.frombuffer(plain, dtype=f"<u{width}", count=count, offset=skip)
    spare, top, narrow = scratch.take(width, count)
    pick(words, width - TOP_BYTES, top, spare)
    target = np.frombuffer(out, dtype=np.uint8)
    at = found = 0
    for number, (byte, size, is_pairs, lowest) in enumerate(_columns(packed)):
        raw = target[at : at + count * size]
        if byte < width - TOP_BYTES:
            pick(words, byte, raw.view(f"<u{size}"), spare)
        elif byte < width - 1:
            pick_signs(top, raw, narrow, spare.view("<u2")[:count])
        else:
            pick_exponents(top, raw, narrow)
        if is_pairs:
            found |= _to_pairs(raw, lowest) << number
        at += count * size
    return found


def _columns(packed: bytes) -> Iterator[tuple[int, int, bool, int]]:
    """First byte in the element, width, whether in pairs, and lowest value of each column."""
    byte = 0
    for at in range(1, len(packed), 3):
        size, is_pairs, lowest = packed[at : at + 3]
        yield byte, size, bool(is_pairs), lowest
        byte += size


def _to_pairs(raw: Bytes, lowest: int) -> bool:
    """Turn a column into its low and high pairs, in place; returns whether a high one is not 0."""
    near = np.subtract(raw, np.uint8(lowest))
    first, second = near.reshape(2, -1)
    low, high = raw.reshape(2, -1)
    np.multiply(second, 16, out=low)
    np.bitwise_or(low, np.bitwise_and(first, 0x0F), out=low)
    np.right_shift(first, 4, out=high)
    np.bitwise_or(high, np.bitwise_and(second, 0xF0), out=high)
    return bool(near.max(initial=0) >= _NEAR)


def join(
    packed: bytes, bodies: Sequence[bytes | memoryview], count: int, out: memoryview, skip: int
) -> None:
    """Undo ``split``, as ``planes_join`` of the compiled core does."""
    width = packed[0]
    words = np.frombuffer(out, dtype=f"<u{width}", count=count, offset=skip)
    spare, top, narrow = scratch.take(width, count)
    for number, (byte, size, is_pairs, lowest) in enumerate(_columns(packed)):
        low, high = bodies[2 * number : 2 * number + 2]
        values = _from_pairs(low, high, lowest) if is_pairs else np.frombuffer(low, f"<u{size}")
        if byte < width - TOP_BYTES:
            put(values, byte, words, spare)
        elif byte < width - 1:
            put_signs(values, top)
        else:
            put_exponents(values, top, narrow)
    put(top, width - TOP_BYTES, words, spare)


def _from_pairs(low: bytes | memoryview, high: bytes | memoryview, lowest: int) -> Words:
    """Undo ``_to_pairs``; without high pairs all of them are 0."""
    values = np.empty(2 * len(low), dtype=np.uint8)
    first, second = values.reshape(2, -1)
    pairs = np.frombuffer(low, dtype=np.uint8)
    np.bitwise_and(pairs, 0x0F, out=first)
    np.right_shift(pairs, 4, out=second)
    if len(high):
        pairs = np.frombuffer(high, dtype=np.uint8)
        np.bitwise_or(first, np.multiply(pairs, 16), out=first)
        np.bitwise_or(second, np.bitwise_and(pairs, 0xF0), out=second)
    return np.add(values, np.uint8(lowest), out=values)


def tally(sample: bytes | memoryview, width: int, skip: int) -> tuple[tuple[int, int, int], ...]:
    """Return how the bytes of elements are spread, as ``planes_tally`` of the core does."""
    count = (len(sample) - skip) // width
    flat = np.frombuffer(sample, np.uint8, count * width, skip)
    parts = [flat[byte::width] for byte in range(width - TOP_BYTES)]
    top = flat.view("<u2")[width // TOP_BYTES - 1 :: width // TOP_BYTES].copy()
    signs, exponents = np.empty((TOP_BYTES, count), dtype=np.uint8)
    pick_signs(top, signs, np.empty_like(top), np.empty_like(top))
    pick_exponents(top, exponents, np.empty_like(top))
    weights = _weights(1 << max(count, 1).bit_length())
    return tuple(_spread(column, weights) for column in (*parts, signs, exponents))


def _spread(column: Bytes, weights: npt.NDArray[np.uint64]) -> tuple[int, int, int]:
    counts = np.bincount(column, minlength=256)
    total = np.cumsum(np.concatenate([counts, counts[:_NEAR]]))
    near = total[_NEAR:] - total[:-_NEAR]
    last = int(near.argmax())
    bits = int(weights[len(column)]) - int(weights[counts].sum())
    return bits, int(near[last]), (last + 1) % 256


@functools.lru_cache(4)
def _weights(end: int) -> npt.NDArray[np.uint64]:
    """Return each number below ``end``, times its binary logarithm, in units of 2**-20; of 0: 0.

    In integers only, a bit of the logarithm at a time, so that every machine has the same.
    """
    numbers = np.arange(end, dtype=np.uint64)
    whole = np.array([max(number.bit_length() - 1, 0) for number in range(end)], dtype=np.uint64)
    mantissa = numbers << (np.uint64(31) - whole)
    logs = whole
    for _ in range(_LOG_BITS):
        mantissa = mantissa * mantissa >> np.uint64(31)
        bit = mantissa >> np.uint64(32)
        mantissa >>= bit
        logs = logs << np.uint64(1) | bit
    return np.asarray(numbers * logs)


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
    """Return the lowest 7 of 16 bits, and above them the highest bit: a float's sign."""
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
    """Return the 8 bits between those of ``pick_signs``."""
    np.right_shift(top, _EXPONENT_BIT, out=spare)
    np.copyto(out, spare, casting="unsafe")


def put_exponents(exponents: Bytes, top: Words, spare: Words) -> None:
    """Undo ``pick_exponents``; the bits must be clear in ``top``."""
    np.copyto(spare, exponents)
    np.multiply(spare, 1 << _EXPONENT_BIT, out=spare)
    np.bitwise_or(top, spare, out=top)
