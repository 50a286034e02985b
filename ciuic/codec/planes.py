"""Byte planes: numbers of 2, 4 or 8 bytes, with their exponents in a column of their own.

A float's exponent spans its two highest bytes, below the sign. As a column of bytes it has little
entropy and shrinks to a third. The rest is noise and is stored raw, in columns as wide as
possible. Reasons: decision 0007. Byte layout: docs/format.md, "Codec 2".

The compiled core splits and joins columns; where it is missing, numpy does (``columns``), which is
loaded only then. zstd codes those that shrink.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from ciuic.codec import zstd
from ciuic.codec.plan import COLUMN_WIDTHS, PAIRS, RAW, TOP_BYTES, WIDTHS, ZSTD, Plan
from ciuic.errors import CorruptionError
from ciuic.system.core import buffer, core
from ciuic.system.hashing import checksum

__all__ = ["decode", "encode", "matches"]

_HEADER: Final = struct.Struct("<BB")
_COLUMN: Final = struct.Struct("<BBI")
_PAIRS: Final = struct.Struct("<BI")


def encode(plain: bytes | memoryview, plan: Plan) -> memoryview:
    """Split ``plain`` into columns, according to a plan.

    All columns are split at once; those that shrink, and those after them, then move together.
    """
    width, skip, columns, _ = plan
    count = _even(len(plain) - skip, width)
    header = bytearray(_HEADER.pack(width, skip))
    begin = at = source = len(header) + len(columns) * _COLUMN.size
    out = buffer(begin + len(plain))
    packed = _packed(width, [(own.width, own.coding == PAIRS, own.lowest) for own in columns])
    high = _split(packed, plain, skip, count, out[begin:])
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
            body = raw if column.coding != PAIRS else _raw_column(plain, plan, number)
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


def _raw_column(plain: bytes | memoryview, plan: Plan, number: int) -> memoryview:
    """Return one column of ``plain``, for the rare one that its coding does not shrink."""
    width, skip, columns, _ = plan
    count = _even(len(plain) - skip, width)
    packed = _packed(width, [(column.width, False, 0) for column in columns])
    out = buffer(count * width)
    _split(packed, plain, skip, count, out)
    begin = count * sum(column.width for column in columns[:number])
    return out[begin : begin + count * columns[number].width]


def _split(packed: bytes, plain: bytes | memoryview, skip: int, count: int, out: memoryview) -> int:
    """Write all columns to ``out``; returns a mask of the columns that have high pairs."""
    compiled = core()
    if compiled is not None:
        functions, targets = compiled
        return functions.planes_split(targets, packed, plain, skip, count, out, 0)
    from ciuic.codec import columns

    return columns.split(packed, plain, skip, count, out)


def _join(
    packed: bytes, bodies: Sequence[bytes | memoryview], count: int, out: memoryview, skip: int
) -> None:
    """Undo ``_split``: two bodies for each column; the second may be empty."""
    compiled = core()
    if compiled is not None:
        compiled.functions.planes_join(compiled.targets, packed, bodies, count, out, skip)
        return
    from ciuic.codec import columns

    columns.join(packed, bodies, count, out, skip)


def _packed(width: int, columns: Sequence[tuple[int, bool, int]]) -> bytes:
    """Return a plan for the compiled core: width, whether in pairs, lowest of each column."""
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


def decode(stored: memoryview, plain_bytes: int, out: memoryview | None = None) -> memoryview:
    """Decode what ``encode`` returned.

    Args:
        stored: The payload.
        plain_bytes: Length of the decoded payload.
        out: Writable memory of that length, to decode to; None: fresh memory.

    Raises:
        CorruptionError: ``encode`` cannot have made ``stored``.
    """
    packed, bodies, skip, count, rest = _parsed(stored, plain_bytes)
    if out is None:
        out = buffer(plain_bytes)
    _join(packed, bodies, count, out, skip)
    end = skip + count * packed[0]
    out[:skip] = rest[:skip]
    out[end:] = rest[skip:]
    return out


def matches(stored: memoryview, plain: bytes | memoryview) -> bool:
    """Return whether ``stored`` decodes to ``plain``; the core needs no memory for the result.

    Raises:
        CorruptionError: ``encode`` cannot have made ``stored``.
    """
    compiled = core()
    if compiled is None:
        # By checksum: comparing a bytes object with a memoryview walks it element by element.
        return checksum(decode(stored, len(plain))) == checksum(plain)
    functions, targets = compiled
    packed, bodies, skip, count, rest = _parsed(stored, len(plain))
    ends = plain[:skip], plain[skip + count * packed[0] :]
    return functions.planes_match(targets, packed, bodies, count, plain, skip) and b"".join(
        ends
    ) == bytes(rest)


def _parsed(
    stored: memoryview, plain_bytes: int
) -> tuple[bytes, list[bytes | memoryview], int, int, memoryview]:
    """Undo all codings.

    Returns:
        The plan as the core takes it, two bodies for each column, the bytes before the first
        element, the number of elements, and the bytes before and after them.
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
    packed = _packed(width, [(own.width, own.is_pairs, own.lowest) for own in bodies])
    parts = [part for own in bodies for part in (own.low, own.high)]
    return packed, parts, skip, count, rest


def _even(plain_bytes: int, width: int) -> int:
    """Return the number of elements to split: an even number, so that they form pairs."""
    return plain_bytes // (2 * width) * 2


def _encode_pairs(pairs: memoryview, lowest: int, *, has_high: bool) -> bytes:
    """Code low and high pairs, one half each; without ``has_high`` the second half is not data."""
    half = len(pairs) // 2
    low = zstd.compress_entropy(pairs[:half])
    high = zstd.compress_entropy(pairs[half:]) if has_high else b""
    return _PAIRS.pack(lowest, len(low)) + low + high


def _parse_header(stored: memoryview) -> tuple[int, int, list[tuple[int, int, int]], int]:
    """Return width, skip, the columns (bytes, coding, stored length), and the header's end."""
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
    """Return a column of ``count`` elements, ``width`` bytes of each."""
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
