"""Byte planes: numbers of 2, 4 or 8 bytes, with their exponents taken out and coded.

A float's exponent lies across its two highest bytes, below the sign. It becomes a column of bytes
of its own, which has little entropy and shrinks to a third. What is left is noise; it is stored
as it is, in columns as wide as possible. Why so: decision 0007. Byte layout: docs/format.md,
"Codec 2".

All of it is arithmetic on whole arrays without strides: numpy shifts, narrows and widens
neighbours at three times the speed at which it picks out every second of them. Where it is left
to choose, it multiplies: narrow numbers are shifted to the left one by one, and multiplied many at
a time.
"""

import struct
import threading
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ciuic.codec import zstd
from ciuic.errors import CorruptionError

__all__ = ["PAIRS", "RAW", "ZSTD", "Column", "Plan", "decode", "encode", "plan", "probe"]

RAW: Final = 0
ZSTD: Final = 1
PAIRS: Final = 2

_WIDTHS: Final = (2, 4, 8)
_COLUMN_WIDTHS: Final = (1, 2, 4)
_TOP_BYTES: Final = 2
_SIGN_AND_LOW: Final = 0x807F
_EXPONENT_BIT: Final = 7
_HEADER: Final = struct.Struct("<BB")
_COLUMN: Final = struct.Struct("<BBI")
_PAIRS: Final = struct.Struct("<BI")
_NOISE_BITS: Final = 7.6
"""Entropy of a byte above which coding gains less than it costs."""
_BETTER: Final = 0.98
"""A wider element must gain this much over a narrower one: 2 fits what 4 fits, as a rule."""
_SURE: Final = 0.9
"""Floats of 4 bytes come out below this, others that look like them above."""
_NEAR: Final = 16
"""How many values half a byte can tell apart."""
_NEAR_SHARE: Final = 0.9
"""A column of which this much is within ``_NEAR`` values of each other is coded in pairs."""

Words = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]


class Column(NamedTuple):
    """Some neighbouring bytes of every element.

    Attributes:
        width: How many: 1, 2 or 4.
        coding: What to try: ``RAW``, ``ZSTD``, or ``PAIRS`` for a single byte.
        base: Where the values begin that most bytes have, for ``PAIRS``.
    """

    width: int
    coding: int
    base: int = 0


class Plan(NamedTuple):
    """How to take elements apart.

    Attributes:
        width: Bytes of an element.
        skip: Bytes before the first element: not everything begins where its chunk does.
        columns: All bytes of an element, lowest first; the last two columns are single bytes.
        fraction: What the bytes are expected to shrink to.
    """

    width: int
    skip: int
    columns: tuple[Column, ...]
    fraction: float


def probe(sample: bytes, width: int = 0) -> Plan:
    """The plan that a sample suggests.

    Args:
        sample: Of the bytes, each stretch from a multiple of 8.
        width: Bytes of an element, if something says so. It is believed where the sample bears
            it out: a header may lie.
    """
    if width in _WIDTHS:
        told = plan(sample, width)
        if told.fraction < _SURE:
            return told
    four = plan(sample, 4)
    # Elements of 4 bytes have one exponent in four bytes. What shows two may be narrower; what
    # shows none, or half of one, wider.
    if four.fraction < _SURE and four.columns[0].width == _TOP_BYTES:
        return four
    two = plan(sample, 2)
    best = four if four.fraction < two.fraction * _BETTER else two
    if best.fraction < _SURE:
        return best
    eight = plan(sample, 8)
    return eight if eight.fraction < best.fraction * _BETTER else best


def encode(plain: bytes | memoryview, plan: Plan) -> memoryview:
    """``plain`` in columns, according to a plan."""
    width, skip, columns, _ = plan
    count = _even(len(plain) - skip, width)
    words = np.frombuffer(plain, dtype=f"<u{width}", count=count, offset=skip)
    spare, top, narrow = _scratch.take(width, count)
    _pick(words, width - _TOP_BYTES, top, spare)
    header = bytearray(_HEADER.pack(width, skip))
    begin = at = len(header) + len(columns) * _COLUMN.size
    out = np.empty(begin + len(plain), dtype=np.uint8)
    byte = 0
    for column in columns:
        raw = out[at : at + count * column.width]
        if byte < width - _TOP_BYTES:
            _pick(words, byte, raw.view(f"<u{column.width}"), spare)
        elif byte < width - 1:
            _pick_signs(top, raw, narrow, spare.view("<u2")[:count])
        else:
            _pick_exponents(top, raw, narrow)
        coding, length = RAW, len(raw)
        if column.coding != RAW:
            coded = _encode_column(column, raw)
            if len(coded) < length:
                coding, length = column.coding, len(coded)
                raw[:length] = np.frombuffer(coded, dtype=np.uint8)
        header += _COLUMN.pack(column.width, coding, length)
        at += length
        byte += column.width
    out[:begin] = header
    for rest in (plain[:skip], plain[skip + count * width :]):
        out[at : at + len(rest)] = np.frombuffer(rest, dtype=np.uint8)
        at += len(rest)
    return memoryview(out.data)[:at]


def decode(stored: memoryview, plain_bytes: int) -> memoryview:
    """The ``plain_bytes`` bytes that ``encode`` was given.

    Raises:
        CorruptionError: ``stored`` is nothing that ``encode`` makes.
    """
    width, skip, columns, at = _parse_header(stored)
    count = _even(max(plain_bytes - skip, 0), width)
    out = np.empty(plain_bytes, dtype=np.uint8)
    end = skip + count * width
    words = out[skip:end].view(f"<u{width}")
    spare, top, narrow = _scratch.take(width, count)
    byte = 0
    for column, coding, length in columns:
        body = stored[at : at + length]
        if len(body) != length:
            raise CorruptionError("a payload of byte planes is cut short")
        values = _decode_column(coding, body, count, column)
        if byte < width - _TOP_BYTES:
            _put(values, byte, words, spare)
        elif byte < width - 1:
            _put_signs(values, top)
        else:
            _put_exponents(values, top, narrow)
        at += length
        byte += column
    _put(top, width - _TOP_BYTES, words, spare)
    rest = np.frombuffer(stored[at:], dtype=np.uint8)
    if len(rest) != plain_bytes - count * width:
        raise CorruptionError("a payload of byte planes does not have the length of its columns")
    out[:skip] = rest[:skip]
    out[end:] = rest[skip:]
    return memoryview(out.data)


class _Scratch(threading.local):
    """Three arrays a thread, used again: fresh memory is slower than the arithmetic in it."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, dtype=np.uint8)

    def take(self, width: int, count: int) -> tuple[Words, Words, Words]:
        """An array of elements and two of their highest 16 bits; their content is anything."""
        first, second = count * width, count * (width + _TOP_BYTES)
        needed = second + count * _TOP_BYTES
        if len(self._bytes) < needed:
            self._bytes = np.empty(-(-needed // 4096) * 4096, dtype=np.uint8)
        parts = self._bytes[:first], self._bytes[first:second], self._bytes[second:needed]
        return parts[0].view(f"<u{width}"), parts[1].view("<u2"), parts[2].view("<u2")


_scratch = _Scratch()


def _even(plain_bytes: int, width: int) -> int:
    """How many elements are taken apart: an even number, so that they make pairs."""
    return plain_bytes // (2 * width) * 2


def _pick(words: Words, byte: int, out: Words, spare: Words) -> None:
    """Those bytes of each word that fit ``out``, from this one upwards."""
    shifted = np.right_shift(words, 8 * byte, out=spare) if byte else words
    np.copyto(out, shifted, casting="unsafe")


def _put(values: Words, byte: int, words: Words, spare: Words) -> None:
    """Undo ``_pick``; the lowest byte comes first, and makes an end of what was in ``words``."""
    if byte == 0:
        np.copyto(words, values)
        return
    np.copyto(spare, values)
    np.multiply(spare, 1 << 8 * byte, out=spare)
    np.bitwise_or(words, spare, out=words)


def _pick_signs(top: Words, out: Bytes, spare: Words, other: Words) -> None:
    """The lowest 7 of 16 bits, and above them the highest: a float's sign."""
    np.bitwise_and(top, _SIGN_AND_LOW, out=spare)
    np.right_shift(spare, 8, out=other)
    np.bitwise_or(spare, other, out=spare)
    np.copyto(out, spare, casting="unsafe")


def _put_signs(signs: Bytes, top: Words) -> None:
    """Undo ``_pick_signs``, and make an end of what was in ``top``."""
    # As signed numbers: widening copies the sign to the bits between, and to the highest.
    np.copyto(top.view("<i2"), signs.view(np.int8))
    np.bitwise_and(top, _SIGN_AND_LOW, out=top)


def _pick_exponents(top: Words, out: Bytes, spare: Words) -> None:
    """The 8 bits between those of ``_pick_signs``."""
    np.right_shift(top, _EXPONENT_BIT, out=spare)
    np.copyto(out, spare, casting="unsafe")


def _put_exponents(exponents: Bytes, top: Words, spare: Words) -> None:
    """Undo ``_pick_exponents``; the bits must be clear in ``top``."""
    np.copyto(spare, exponents)
    np.multiply(spare, 1 << _EXPONENT_BIT, out=spare)
    np.bitwise_or(top, spare, out=top)


def _encode_column(column: Column, raw: Bytes) -> bytes:
    if column.coding == ZSTD:
        return zstd.compress_entropy(raw.data)
    near = np.subtract(raw, np.uint8(column.base))
    first, second = near.reshape(2, -1)
    pairs = np.multiply(second, 16)
    if near.max(initial=0) < _NEAR:
        np.bitwise_or(pairs, first, out=pairs)
        high = b""
    else:
        np.bitwise_or(pairs, np.bitwise_and(first, 0x0F), out=pairs)
        np.right_shift(first, 4, out=first)
        np.bitwise_and(second, 0xF0, out=second)
        high = zstd.compress_entropy(np.bitwise_or(first, second, out=first).data)
    low = zstd.compress_entropy(pairs.data)
    return _PAIRS.pack(column.base, len(low)) + low + high


def _parse_header(stored: memoryview) -> tuple[int, int, list[tuple[int, int, int]], int]:
    """Width, skip; bytes, coding and stored length of each column; where the header ends."""
    try:
        width, skip = _HEADER.unpack_from(stored)
        at = _HEADER.size
        columns: list[tuple[int, int, int]] = []
        widths: list[int] = []
        while sum(widths) < width <= _WIDTHS[-1]:
            columns.append(_COLUMN.unpack_from(stored, at))
            widths.append(columns[-1][0])
            if widths[-1] not in _COLUMN_WIDTHS:
                break
            at += _COLUMN.size
    except struct.error as error:
        raise CorruptionError("the header of a payload of byte planes is cut short") from error
    if (
        width not in _WIDTHS
        or skip >= width
        or sum(widths) != width
        or widths[-_TOP_BYTES:] != [1] * _TOP_BYTES
    ):
        raise CorruptionError("a payload of byte planes has columns that make no element")
    return width, skip, columns, at


def _decode_column(coding: int, body: memoryview, count: int, width: int) -> Words:
    """``count`` numbers of ``width`` bytes."""
    size = count * width
    if coding == PAIRS and width == 1:
        return _decode_pairs(body, size)
    if coding == ZSTD:
        body = memoryview(zstd.decompress(body, size))
    elif coding != RAW:
        raise CorruptionError(f"a byte plane has the encoding {coding}, which does not exist")
    if len(body) != size:
        raise CorruptionError("a byte plane does not have the length of the others")
    return np.frombuffer(body, dtype=f"<u{width}")


def _decode_pairs(body: memoryview, size: int) -> Bytes:
    if len(body) < _PAIRS.size:
        raise CorruptionError("a byte plane of pairs has no header")
    base, length = _PAIRS.unpack_from(body)
    low, high = body[_PAIRS.size :][:length], body[_PAIRS.size :][length:]
    if len(low) != length:
        raise CorruptionError("a byte plane of pairs is cut short")
    values = np.empty(size, dtype=np.uint8)
    first, second = values.reshape(2, -1)
    pairs = np.frombuffer(zstd.decompress(low, size // 2), dtype=np.uint8)
    np.bitwise_and(pairs, 0x0F, out=first)
    np.right_shift(pairs, 4, out=second)
    if len(high):
        pairs = np.frombuffer(zstd.decompress(high, size // 2), dtype=np.uint8)
        np.bitwise_or(first, np.multiply(pairs, 16), out=first)
        np.bitwise_or(second, np.bitwise_and(pairs, 0xF0), out=second)
    return np.add(values, np.uint8(base), out=values)


def plan(sample: bytes, width: int, skip: int = 0) -> Plan:
    """The plan for elements of this width, from the order-0 entropy of each byte."""
    count = (len(sample) - skip) // width
    flat = np.frombuffer(sample, np.uint8, count * width, skip)
    parts = [flat[byte::width] for byte in range(width - _TOP_BYTES)]
    top = flat.view("<u2")[width // _TOP_BYTES - 1 :: width // _TOP_BYTES].copy()
    signs, exponents = np.empty((_TOP_BYTES, count), dtype=np.uint8)
    _pick_signs(top, signs, np.empty_like(top), np.empty_like(top))
    _pick_exponents(top, exponents, np.empty_like(top))
    counts = np.array([np.bincount(one, minlength=256) for one in (*parts, signs, exponents)])
    weighted = np.multiply(counts, np.log2(np.maximum(counts, 1))).sum(axis=1)
    bits = [float(one) for one in np.log2(count) - weighted / count]
    kept = [one if one <= _NOISE_BITS else 8.0 for one in bits]
    coded = [one < 8 for one in kept]
    if skip == 0 and sum(coded) == 1 and not coded[-1]:
        # One exponent in each, but not on top: these are not the elements' first bytes.
        return plan(sample, width, coded.index(True) + 1)
    return Plan(width, skip, _columns(coded, counts), sum(kept) / (8 * width))


def _columns(coded: list[bool], counts: npt.NDArray[np.intp]) -> tuple[Column, ...]:
    """Single bytes where they are coded or on top, the widest that there are elsewhere."""
    width = len(coded)
    columns: list[Column] = []
    byte = 0
    while byte < width:
        if coded[byte]:
            columns.append(_coded_column(counts[byte]))
            byte += 1
            continue
        end = width - _TOP_BYTES if byte < width - _TOP_BYTES else byte + 1
        room = next((at for at in range(byte, end) if coded[at]), end) - byte
        column = max([one for one in _COLUMN_WIDTHS if one <= room])
        columns.append(Column(column, RAW))
        byte += column
    return tuple(columns)


def _coded_column(counts: npt.NDArray[np.intp]) -> Column:
    """How to code bytes of these frequencies."""
    total = np.cumsum(np.concatenate([counts, counts[:_NEAR]]))
    near = total[_NEAR:] - total[:-_NEAR]
    last = int(near.argmax())
    if near[last] < total[255] * _NEAR_SHARE:
        return Column(1, ZSTD)
    return Column(1, PAIRS, (last + 1) % 256)
