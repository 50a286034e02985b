"""Byte planes: numbers of 2, 4 or 8 bytes, with their exponents in a column of their own.

A float's exponent spans its two highest bytes, below the sign. As a column of bytes it has little
entropy and shrinks to a third. The rest is noise and is stored raw, in columns as wide as
possible. Reasons: decision 0007. Byte layout: docs/format.md, "Codec 2".

The compiled core splits and joins columns; where it is missing, numpy does (``columns``). zstd
codes those that shrink.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from ciuic.codec import zstd
from ciuic.codec.columns import (
    TOP_BYTES,
    Bytes,
    Words,
    pick,
    pick_exponents,
    pick_signs,
    put,
    put_exponents,
    put_signs,
    scratch,
)
from ciuic.codec.plan import COLUMN_WIDTHS, PAIRS, RAW, WIDTHS, ZSTD, Column, Plan
from ciuic.errors import CorruptionError
from ciuic.system.core import Core, core

__all__ = ["decode", "encode"]

_HEADER: Final = struct.Struct("<BB")
_COLUMN: Final = struct.Struct("<BBI")
_PAIRS: Final = struct.Struct("<BI")
_NEAR: Final = 16
"""Number of values of half a byte."""


def encode(plain: bytes | memoryview, plan: Plan) -> memoryview:
    """Split ``plain`` into columns, according to a plan."""
    compiled = core()
    width, skip, columns, _ = plan
    count = _even(len(plain) - skip, width)
    if compiled is not None:
        return _encode_compiled(compiled, plain, plan, count)
    words = np.frombuffer(plain, dtype=f"<u{width}", count=count, offset=skip)
    spare, top, narrow = scratch.take(width, count)
    pick(words, width - TOP_BYTES, top, spare)
    header = bytearray(_HEADER.pack(width, skip))
    begin = at = len(header) + len(columns) * _COLUMN.size
    out = np.empty(begin + len(plain), dtype=np.uint8)
    byte = 0
    for column in columns:
        raw = out[at : at + count * column.width]
        if byte < width - TOP_BYTES:
            pick(words, byte, raw.view(f"<u{column.width}"), spare)
        elif byte < width - 1:
            pick_signs(top, raw, narrow, spare.view("<u2")[:count])
        else:
            pick_exponents(top, raw, narrow)
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


def _encode_compiled(
    compiled: Core, plain: bytes | memoryview, plan: Plan, count: int
) -> memoryview:
    """As ``encode``. All columns are split at once; those that shrink then move together."""
    width, skip, columns, _ = plan
    header = bytearray(_HEADER.pack(width, skip))
    begin = at = source = len(header) + len(columns) * _COLUMN.size
    out = memoryview(compiled.functions.buffer(begin + len(plain)))
    packed = _packed(width, [(own.width, own.coding == PAIRS, own.lowest) for own in columns])
    high = compiled.functions.planes_split(compiled.targets, packed, plain, skip, count, out, begin)
    for number, column in enumerate(columns):
        size = count * column.width
        raw = out[source : source + size]
        coding, body = column.coding, raw
        if column.coding == ZSTD:
            body = memoryview(zstd.compress_entropy(raw))
        elif column.coding == PAIRS:
            body = memoryview(_encode_pairs(raw, column.lowest, has_high=bool(high >> number & 1)))
        if len(body) >= size:
            coding = RAW
            body = raw if column.coding != PAIRS else _raw_column(compiled, plain, plan, number)
        header += _COLUMN.pack(column.width, coding, len(body))
        if body is not raw or at != source:
            out[at : at + len(body)] = body
        at += len(body)
        source += size
    out[:begin] = header
    for rest in (plain[:skip], plain[skip + count * width :]):
        out[at : at + len(rest)] = rest
        at += len(rest)
    return out[:at]


def _raw_column(compiled: Core, plain: bytes | memoryview, plan: Plan, number: int) -> memoryview:
    """One column of ``plain``, for the rare one that its coding does not shrink."""
    width, skip, columns, _ = plan
    count = _even(len(plain) - skip, width)
    packed = _packed(width, [(column.width, False, 0) for column in columns])
    out = compiled.functions.buffer(count * width)
    compiled.functions.planes_split(compiled.targets, packed, plain, skip, count, out, 0)
    begin = count * sum(column.width for column in columns[:number])
    return memoryview(out)[begin : begin + count * columns[number].width]


def _packed(width: int, columns: Sequence[tuple[int, bool, int]]) -> bytes:
    """A plan as the compiled core takes it: width, whether in pairs, lowest of each column."""
    return bytes([width, *(int(value) for column in columns for value in column)])


class _Body(NamedTuple):
    """A column without its outer coding.

    Attributes:
        width: Bytes of the column in each element.
        is_pairs: It consists of pairs.
        lowest: For pairs: the lowest of the values that most bytes have.
        low: Its bytes, or its low pairs.
        high: Its high pairs; empty if all are 0.
    """

    width: int
    is_pairs: bool
    lowest: int
    low: bytes | memoryview
    high: bytes | memoryview


def decode(stored: memoryview, plain_bytes: int) -> memoryview:
    """Decode what ``encode`` returned.

    Raises:
        CorruptionError: ``encode`` cannot have made ``stored``.
    """
    width, skip, columns, at = _parse_header(stored)
    skip = min(skip, plain_bytes)  # beyond the end: there are no elements
    count = _even(plain_bytes - skip, width)
    bodies: list[_Body] = []
    for column, coding, length in columns:
        body = stored[at : at + length]
        if len(body) != length:
            raise CorruptionError("a payload of byte planes is cut short")
        bodies.append(_decode_column(coding, body, count, column))
        at += length
    rest = stored[at:]
    if len(rest) != plain_bytes - count * width:
        raise CorruptionError("a payload of byte planes has the wrong length for its columns")
    compiled = core()
    if compiled is None:
        values = np.empty(plain_bytes, dtype=np.uint8)
        _join(bodies, values[skip : skip + count * width].view(f"<u{width}"))
        out = memoryview(values.data)
    else:
        out = memoryview(compiled.functions.buffer(plain_bytes))
        packed = _packed(width, [(own.width, own.is_pairs, own.lowest) for own in bodies])
        parts = [part for own in bodies for part in (own.low, own.high)]
        compiled.functions.planes_join(compiled.targets, packed, parts, count, out, skip)
    end = skip + count * width
    out[:skip] = rest[:skip]
    out[end:] = rest[skip:]
    return out


def _join(bodies: Sequence[_Body], words: Words) -> None:
    """Join columns to elements with numpy."""
    width = words.itemsize
    spare, top, narrow = scratch.take(width, len(words))
    byte = 0
    for body in bodies:
        values = _values(body)
        if byte < width - TOP_BYTES:
            put(values, byte, words, spare)
        elif byte < width - 1:
            put_signs(values, top)
        else:
            put_exponents(values, top, narrow)
        byte += body.width
    put(top, width - TOP_BYTES, words, spare)


def _even(plain_bytes: int, width: int) -> int:
    """The number of elements to split: an even number, so that they form pairs."""
    return plain_bytes // (2 * width) * 2


def _encode_column(column: Column, raw: Bytes) -> bytes:
    if column.coding == ZSTD:
        return zstd.compress_entropy(raw.data)
    near = np.subtract(raw, np.uint8(column.lowest))
    first, second = near.reshape(2, -1)
    pairs = np.empty_like(near)
    low, high = pairs.reshape(2, -1)
    np.multiply(second, 16, out=low)
    np.bitwise_or(low, np.bitwise_and(first, 0x0F), out=low)
    has_high = bool(near.max(initial=0) >= _NEAR)
    if has_high:
        np.right_shift(first, 4, out=high)
        np.bitwise_or(high, np.bitwise_and(second, 0xF0), out=high)
    return _encode_pairs(pairs.data, column.lowest, has_high=has_high)


def _encode_pairs(pairs: memoryview, lowest: int, *, has_high: bool) -> bytes:
    """Code low and high pairs, one half each; without ``has_high`` the second half is no data."""
    half = len(pairs) // 2
    low = zstd.compress_entropy(pairs[:half])
    high = zstd.compress_entropy(pairs[half:]) if has_high else b""
    return _PAIRS.pack(lowest, len(low)) + low + high


def _parse_header(stored: memoryview) -> tuple[int, int, list[tuple[int, int, int]], int]:
    """Width, skip; bytes, coding and stored length of each column; offset of the header's end."""
    try:
        width, skip = _HEADER.unpack_from(stored)
        at = _HEADER.size
        columns: list[tuple[int, int, int]] = []
        widths: list[int] = []
        while sum(widths) < width <= WIDTHS[-1]:
            columns.append(_COLUMN.unpack_from(stored, at))
            widths.append(columns[-1][0])
            if widths[-1] not in COLUMN_WIDTHS:
                break
            at += _COLUMN.size
    except struct.error as error:
        raise CorruptionError("the header of a payload of byte planes is cut short") from error
    if (
        width not in WIDTHS
        or skip >= width
        or sum(widths) != width
        or widths[-TOP_BYTES:] != [1] * TOP_BYTES
    ):
        raise CorruptionError("a payload of byte planes has columns that do not form an element")
    return width, skip, columns, at


def _decode_column(coding: int, body: memoryview, count: int, width: int) -> _Body:
    """A column of ``count`` elements, ``width`` bytes of each."""
    size = count * width
    if coding == PAIRS and width == 1:
        return _decode_pairs(body, size)
    if coding == ZSTD:
        body = memoryview(zstd.decompress(body, size))
    elif coding != RAW:
        raise CorruptionError(f"a byte plane has the unknown coding {coding}")
    if len(body) != size:
        raise CorruptionError("a byte plane has the wrong length")
    return _Body(width, False, 0, body, b"")


def _decode_pairs(body: memoryview, size: int) -> _Body:
    if len(body) < _PAIRS.size:
        raise CorruptionError("a byte plane of pairs has no header")
    lowest, length = _PAIRS.unpack_from(body)
    low, high = body[_PAIRS.size :][:length], body[_PAIRS.size :][length:]
    if len(low) != length:
        raise CorruptionError("a byte plane of pairs is cut short")
    upper = zstd.decompress(high, size // 2) if len(high) else b""
    return _Body(1, True, lowest, zstd.decompress(low, size // 2), upper)


def _values(body: _Body) -> Words:
    """The numbers of a column."""
    if not body.is_pairs:
        return np.frombuffer(body.low, dtype=f"<u{body.width}")
    values = np.empty(2 * len(body.low), dtype=np.uint8)
    first, second = values.reshape(2, -1)
    pairs = np.frombuffer(body.low, dtype=np.uint8)
    np.bitwise_and(pairs, 0x0F, out=first)
    np.right_shift(pairs, 4, out=second)
    if len(body.high):
        pairs = np.frombuffer(body.high, dtype=np.uint8)
        np.bitwise_or(first, np.multiply(pairs, 16), out=first)
        np.bitwise_or(second, np.bitwise_and(pairs, 0xF0), out=second)
    return np.add(values, np.uint8(body.lowest), out=values)
