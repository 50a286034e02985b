"""GGUF: counts, keys and values, a table of tensors, the tensors.

https://github.com/ggml-org/ggml, docs/gguf.md; versions 2 and 3, little-endian. Values are
skipped, except for the alignment of the tensors.
"""

import math
import struct
from itertools import pairwise
from typing import Final

from ciuic.formats.headers import SPANS_MAX, Headers, NoLayoutError, Span, named

__all__ = ["begins", "spans"]

_MAGIC: Final = b"GGUF"
_HEAD: Final = struct.Struct("<4sIQQ")
_VERSIONS: Final = (2, 3)
_ALIGNMENT: Final = b"general.alignment"
_ALIGNMENT_DEFAULT: Final = 32
_ALIGNMENT_MAX: Final = 1024 * 1024
_VALUE_BYTES: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_U32: Final = 4
_STRING: Final = 8
_ARRAY: Final = 9
_WIDTHS: Final = {0: 4, 1: 2, 24: 1, 25: 2, 26: 4, 27: 8, 28: 8, 30: 2}
"""Bytes per element of the types that are not packed: F32, F16, I8, I16, I32, I64, F64, BF16. A
tensor of another type, packed in blocks, ends where the next tensor begins."""
_BLOCKS: Final = {
    2: (32, 18),
    3: (32, 20),
    6: (32, 22),
    7: (32, 24),
    8: (32, 34),
    10: (256, 84),
    11: (256, 110),
    12: (256, 144),
    13: (256, 176),
    14: (256, 210),
}
"""Elements and bytes of a block, for the usual packed types: Q4_0 to Q8_0, Q2_K to Q6_K."""
_ELEMENTS: Final = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    30: "BF16",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}
_DIMENSIONS_MAX: Final = 8
_PAIRS_MAX: Final = 10_000
"""The most keys: models have a few dozen."""
_ITEMS_MAX: Final = 1_000_000
"""The most strings and keys: the largest vocabularies have 256,000 tokens and as many merges."""
_READ_BYTES: Final = 64 * 1024


class _Cursor:
    """Reads a file from its start, within the bounds of ``Headers``."""

    def __init__(self, headers: Headers) -> None:
        self._headers = headers
        self._buffer = b""
        self._start = 0
        self._at = 0
        self.items = 0

    @property
    def offset_bytes(self) -> int:
        """The offset in the file."""
        return self._start + self._at

    def number(self, length: int) -> int:
        """Read an integer of ``length`` bytes."""
        return int.from_bytes(self.take(length), "little")

    def take(self, length: int) -> bytes:
        """Read ``length`` bytes."""
        if self._at + length > len(self._buffer):
            self._refill(length)
        self._at += length
        return self._buffer[self._at - length : self._at]

    def skip(self, length: int) -> None:
        """Skip ``length`` bytes."""
        self._at += length
        if self._at > len(self._buffer):
            self._start, self._at, self._buffer = self.offset_bytes, 0, b""

    def string(self) -> bytes:
        """Read a length and a string of that length."""
        self.count()
        return self.take(self.number(8))

    def count(self) -> None:
        """Count a string or key, and enforce their maximum."""
        self.items += 1
        if self.items > _ITEMS_MAX:
            raise NoLayoutError("too many values")

    def _refill(self, length: int) -> None:
        start = self.offset_bytes
        wanted = max(length, min(_READ_BYTES, self._headers.size_bytes - start))
        self._buffer = self._headers.at(start, wanted)
        self._start, self._at = start, 0


def begins(magic: bytes) -> bool:
    """Return whether the magic matches."""
    return magic.startswith(_MAGIC)


def spans(headers: Headers) -> list[Span]:
    """Return the tensors of a file in this format, in any order."""
    start, table = _table(headers)
    bounds = [*table, (headers.size_bytes - start, 0, 0, "")]
    return [_span(start, tensor, following[0]) for tensor, following in pairwise(bounds)]


def end_bytes(headers: Headers) -> int:
    """Return the length that a file in this format must have at least."""
    start, table = _table(headers)
    ends = [offset + _length(elements, kind) for offset, elements, kind, _ in table]
    return start + max(ends, default=0)


def _length(elements: int, kind: int) -> int:
    """Return the bytes of a tensor; 0 for a packed type that is not known."""
    if kind in _WIDTHS:
        return elements * _WIDTHS[kind]
    block_elements, block_bytes = _BLOCKS.get(kind, (1, 0))
    return elements // block_elements * block_bytes


def _table(headers: Headers) -> tuple[int, list[tuple[int, int, int, str]]]:
    """Return where the data begin, and the tensors in the order of their offsets."""
    cursor = _Cursor(headers)
    _, version, tensors, pairs = _HEAD.unpack(cursor.take(_HEAD.size))
    if version not in _VERSIONS or tensors > SPANS_MAX or pairs > _PAIRS_MAX:
        raise NoLayoutError("not of a known version")
    alignment = _ALIGNMENT_DEFAULT
    for _ in range(pairs):
        key, kind = cursor.string(), cursor.number(4)
        if key == _ALIGNMENT and kind == _U32:
            alignment = cursor.number(4)
        else:
            _skip_value(cursor, kind)
    if not 0 < alignment <= _ALIGNMENT_MAX:
        raise NoLayoutError("no such alignment")
    table = sorted([_tensor(headers, cursor) for _ in range(tensors)])
    return -(-cursor.offset_bytes // alignment) * alignment, table


def _skip_value(cursor: _Cursor, kind: int) -> None:
    if kind == _STRING:
        cursor.skip(cursor.number(8))
        return
    if kind != _ARRAY:
        cursor.skip(_width(kind))
        return
    element, count = cursor.number(4), cursor.number(8)
    if element != _STRING:
        cursor.skip(_width(element) * count)
        return
    for _ in range(count):
        cursor.count()
        cursor.skip(cursor.number(8))


def _width(kind: int) -> int:
    """Return the bytes of a value; unknown types, and arrays of arrays, are refused."""
    width = _VALUE_BYTES.get(kind)
    if width is None:
        raise NoLayoutError("a value of no known type")
    return width


def _tensor(headers: Headers, cursor: _Cursor) -> tuple[int, int, int, str]:
    """Read a tensor's offset in the data, its number of elements, its type and its name."""
    name = named(cursor.string())
    dimensions = cursor.number(4)
    if dimensions > _DIMENSIONS_MAX:
        raise NoLayoutError("too many dimensions")
    shape = [cursor.number(8) for _ in range(dimensions)]
    # GGUF has the fastest dimension first; the other formats have it last.
    headers.keep_shape(name, shape[::-1])
    elements = math.prod(shape)
    kind = cursor.number(4)
    return cursor.number(8), elements, kind, name


def _span(start: int, tensor: tuple[int, int, int, str], end: int) -> Span:
    offset, elements, kind, name = tensor
    width = _WIDTHS.get(kind, 0)
    length = elements * width if width else end - offset
    if length > end - offset:
        raise NoLayoutError("tensors overlap")
    return Span(start + offset, length, width, name, _ELEMENTS.get(kind, ""))
