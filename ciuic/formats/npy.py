"""npy: a magic, the length of a Python dictionary, the dictionary as text, one array.

Specification: numpy.lib.format. The text is never evaluated, only searched for element type and
shape.
"""

import math
import re
import struct
import sys
from typing import Final

from ciuic.formats.headers import CutShortError, Headers, NoLayoutError, Span

__all__ = ["array_span", "begins", "end_bytes", "spans"]

_MAGIC: Final = b"\x93NUMPY"
_LENGTHS: Final = {1: struct.Struct("<H"), 2: struct.Struct("<I"), 3: struct.Struct("<I")}
_HEADER_BYTES_MAX: Final = 64 * 1024
_ELEMENT: Final = re.compile(rb"'descr': '[<|=]([?biufcV])([0-9]{1,2})'")
_SHAPE: Final = re.compile(rb"'shape': \(([0-9, ]{0,256})\)")
_WIDTHS: Final = (1, 2, 4, 8, 16)
_KINDS: Final = {b"?": "BOOL", b"b": "BOOL", b"i": "I", b"u": "U", b"f": "F", b"c": "C"}
_NAME: Final = "array"
"""The name of the array: a file has one array and no name for it."""


def begins(magic: bytes) -> bool:
    """Return whether the magic matches."""
    return magic.startswith(_MAGIC)


def spans(headers: Headers) -> list[Span]:
    """Return the array of a file in this format."""
    return [array_span(headers, 0, headers.size_bytes, _NAME)]


def end_bytes(headers: Headers) -> int:
    """Return the length that a file in this format must have; ``headers`` are read closely."""
    span = array_span(headers, 0, headers.size_bytes, _NAME)
    shape = headers.shapes.get(_NAME)
    if shape is None:
        raise NoLayoutError("an array of unknown shape")
    return span.offset_bytes + math.prod(shape) * span.width_bytes


def array_span(headers: Headers, start: int, end: int, name: str) -> Span:
    """Return the array whose header begins at ``start`` of a file, and which ends at ``end``."""
    head = headers.at(start, len(_MAGIC) + 2)
    length = _LENGTHS.get(head[len(_MAGIC)])
    if not begins(head) or length is None:
        raise NoLayoutError("no array of a known version")
    at = start + len(head)
    (text_bytes,) = length.unpack(headers.at(at, length.size))
    at += length.size
    if text_bytes > _HEADER_BYTES_MAX:
        raise NoLayoutError("an array's header is too long")
    if at + text_bytes > end:
        raise CutShortError("an array's header is cut short")
    text = headers.at(at, text_bytes)
    found, shape = _ELEMENT.search(text), _SHAPE.search(text)
    if shape is not None:
        headers.keep_shape(name, [int(length) for length in re.findall(rb"[0-9]+", shape[1])])
    at += text_bytes
    if found is None or int(found[2]) not in _WIDTHS:
        return Span(at, end - at, name=name)
    return Span(at, end - at, int(found[2]), name, _element(found[1], int(found[2])))


def _element(kind: bytes, width: int) -> str:
    """Return ``F32`` for numpy's ``<f4``; empty for types without a name, as numpy stores bytes."""
    name = _KINDS.get(kind, "")
    return sys.intern(name if name in ("", "BOOL") else f"{name}{8 * width}")
