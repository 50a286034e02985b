"""npy: a magic, the length of a Python dictionary, the dictionary as text, one array.

numpy.lib.format. The text is never evaluated: all that is looked for in it is the element type.
"""

import re
import struct
from typing import Final

from ciuic.chunking.tensors.headers import Headers, NoLayoutError, Span

__all__ = ["array_span", "begins", "spans"]

_MAGIC: Final = b"\x93NUMPY"
_LENGTHS: Final = {1: struct.Struct("<H"), 2: struct.Struct("<I"), 3: struct.Struct("<I")}
_HEADER_BYTES_MAX: Final = 64 * 1024
_ELEMENT: Final = re.compile(rb"'descr': '[<|=]([?biufcV])([0-9]{1,2})'")
_WIDTHS: Final = (1, 2, 4, 8, 16)


def begins(magic: bytes) -> bool:
    """The magic is there."""
    return magic.startswith(_MAGIC)


def spans(headers: Headers) -> list[Span]:
    """The array of a file that is one."""
    return [array_span(headers, 0, headers.size_bytes)]


def array_span(headers: Headers, start: int, end: int) -> Span:
    """The array whose header begins at ``start`` of a file and which ends at ``end``."""
    head = headers.at(start, len(_MAGIC) + 2)
    length = _LENGTHS.get(head[len(_MAGIC)])
    if not begins(head) or length is None:
        raise NoLayoutError("no array of a known version")
    at = start + len(head)
    (text_bytes,) = length.unpack(headers.at(at, length.size))
    at += length.size
    if text_bytes > _HEADER_BYTES_MAX or at + text_bytes > end:
        raise NoLayoutError("an array's header is too long")
    found = _ELEMENT.search(headers.at(at, text_bytes))
    width = int(found[2]) if found is not None else 0
    at += text_bytes
    return Span(at, end - at, width if width in _WIDTHS else 0)
