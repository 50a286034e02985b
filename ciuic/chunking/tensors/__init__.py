"""A file's headers -> where its tensors lie.

Recognised by what they begin with, never by name: safetensors, what ``torch.save`` writes (also
one behind the other, as in ``.distcp``), ``.npz``, ``.npy``, GGUF, HDF5 and the archives of Keras
that hold it. Of HDF5 those datasets are found that are neither chunked nor compressed.

Guarantees:
    - for any file ``layout`` returns: None, or spans in order, apart from one another, not empty
      and within the file. It raises only what ``read`` raises.
    - it reads at most ``HEADER_BYTES_MAX`` bytes, and never more than the file has.
    - nothing in the file is executed: of a pickle not one opcode is looked at.
"""

from collections.abc import Callable
from typing import Final

from ciuic.chunking.tensors import gguf, hdf5, npy, safetensors, zipped
from ciuic.chunking.tensors.headers import (
    HEADER_BYTES_MAX,
    SPANS_MAX,
    Headers,
    NoLayoutError,
    Read,
    Span,
)

__all__ = ["HEADER_BYTES_MAX", "MAGIC_BYTES", "SPANS_MAX", "Read", "Span", "layout"]

MAGIC_BYTES: Final = 16
"""So much is read of a file that is none of these."""

_FORMATS: Final[tuple[tuple[Callable[[bytes], bool], Callable[[Headers], list[Span]]], ...]] = (
    (safetensors.begins, safetensors.spans),
    (zipped.begins, zipped.spans),
    (npy.begins, npy.spans),
    (gguf.begins, gguf.spans),
    (hdf5.begins, hdf5.spans),
)


def layout(read: Read, size_bytes: int) -> tuple[Span, ...] | None:
    """Where the tensors of a file lie; None: it is none that is known, or not as it should be.

    Args:
        read: Gives the bytes at an offset, so many; fewer if the file ends before.
        size_bytes: The file's length.
    """
    headers = Headers(read, size_bytes)
    try:
        magic = headers.at(0, min(MAGIC_BYTES, size_bytes))
        for begins, spans in _FORMATS:
            if begins(magic):
                return _checked(spans(headers), size_bytes)
    except NoLayoutError:
        pass
    return None


def _checked(spans: list[Span], size_bytes: int) -> tuple[Span, ...] | None:
    """The spans in order, if they can all be true."""
    found = sorted([one for one in spans if one.length_bytes])
    end = 0
    for one in found:
        if one.offset_bytes < end or one.length_bytes < 0:
            return None
        end = one.offset_bytes + one.length_bytes
    return tuple(found) if 0 < len(found) <= SPANS_MAX and end <= size_bytes else None
