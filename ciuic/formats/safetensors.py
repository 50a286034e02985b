"""safetensors: the length of a JSON object, the object, the tensors.

https://github.com/huggingface/safetensors, "Format". The object has for each tensor its element
type, its shape and two offsets, counted from the end of the object.
"""

import math
import re
import sys
from typing import Annotated, Final

import msgspec

from ciuic.formats.headers import NAME_BYTES_MAX, WIDTHS, Headers, ImpossibleError, Span

__all__ = ["begins", "end_bytes", "spans"]

_LENGTH_BYTES: Final = 8
_METADATA: Final = "__metadata__"
_DIMENSIONS_MAX: Final = 64
_ELEMENT: Final = re.compile(r"[A-Z][A-Z0-9_]{1,15}", re.ASCII)
"""The names of element types; types of less than a byte are packed."""

_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Tensor(msgspec.Struct):
    dtype: str
    shape: Annotated[list[_Count], msgspec.Meta(max_length=_DIMENSIONS_MAX)]
    data_offsets: tuple[_Count, _Count]


_table: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_tensor: Final = msgspec.json.Decoder(_Tensor)


def begins(magic: bytes) -> bool:
    """Return whether a file may be in this format, which has no magic.

    The high bytes of the length are zeros, and a JSON object follows.
    """
    return magic[4:_LENGTH_BYTES] == bytes(4) and magic[8:9] == b"{"


def end_bytes(headers: Headers) -> int:
    """Return the length that a file in this format must have."""
    length = int.from_bytes(headers.at(0, _LENGTH_BYTES), "little")
    empty = _LENGTH_BYTES + length
    return max([span.offset_bytes + span.length_bytes for span in spans(headers)], default=empty)


def spans(headers: Headers) -> list[Span]:
    """Return the tensors of a file in this format, in any order."""
    length = int.from_bytes(headers.at(0, _LENGTH_BYTES), "little")
    start = _LENGTH_BYTES + length
    text = headers.at(_LENGTH_BYTES, length)
    try:
        table = _table.decode(text)
        return [
            _span(headers, name, _tensor.decode(raw), start)
            for name, raw in table.items()
            if name != _METADATA
        ]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ImpossibleError("not a table of tensors") from error


def _span(headers: Headers, name: str, tensor: _Tensor, start: int) -> Span:
    first, end = tensor.data_offsets
    width = WIDTHS.get(tensor.dtype, 0)
    if end < first or (width and math.prod(tensor.shape) * width != end - first):
        raise ImpossibleError("a tensor's shape and place don't agree")
    element = sys.intern(tensor.dtype) if _ELEMENT.fullmatch(tensor.dtype) else ""
    name = name if len(name.encode()) <= NAME_BYTES_MAX else ""
    headers.keep_shape(name, tensor.shape)
    return Span(start + first, end - first, width, name, element)
