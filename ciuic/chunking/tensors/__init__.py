"""A file's headers -> where its tensors lie.

Recognised by what they begin with, never by name: safetensors, what ``torch.save`` writes (also
one behind the other, as in ``.distcp``), ``.npz``, ``.npy``, GGUF, HDF5 and the archives of Keras
that hold it. Of HDF5 those datasets are found that are neither chunked nor compressed.

Guarantees:
    - for any file ``layout`` returns: None, or spans in order, apart from one another, not empty
      and within the file. It raises only what ``read`` raises.
    - names don't tell two saves of the same state apart, and are ``NAME_BYTES_MAX`` long at most.
    - it reads at most ``HEADER_BYTES_MAX`` bytes, and never more than the file has.
    - nothing in the file is executed: for ``layout`` not one opcode of a pickle is looked at.
"""

from collections.abc import Callable
from typing import Final

from ciuic.chunking.tensors import gguf, hdf5, npy, safetensors, zipped
from ciuic.chunking.tensors.headers import (
    HEADER_BYTES_MAX,
    NAME_BYTES_MAX,
    SPANS_MAX,
    WIDTHS,
    Headers,
    NoLayoutError,
    Read,
    Span,
)

__all__ = [
    "HEADER_BYTES_MAX",
    "KIND_BYTES",
    "MAGIC_BYTES",
    "NAME_BYTES_MAX",
    "SPANS_MAX",
    "WIDTHS",
    "Read",
    "Span",
    "is_recognised",
    "kind_of",
    "layout",
    "spans_in",
]

MAGIC_BYTES: Final = 16
"""So much is read of a file that is none of these."""
KIND_BYTES: Final = 512
"""What an archive's first member is called lies within."""

_FORMATS: Final[tuple[tuple[Callable[[bytes], bool], Callable[[Headers], list[Span]]], ...]] = (
    (safetensors.begins, safetensors.spans),
    (zipped.begins, zipped.spans),
    (npy.begins, npy.spans),
    (gguf.begins, gguf.spans),
    (hdf5.begins, hdf5.spans),
)
_KINDS: Final = (
    (safetensors.begins, "safetensors"),
    (npy.begins, "npy"),
    (gguf.begins, "gguf"),
    (hdf5.begins, "hdf5"),
)


def kind_of(head: bytes) -> str:
    """What the first ``KIND_BYTES`` of a file say that it is; empty: nothing that is known here.

    The parts of a distributed checkpoint begin like what ``torch.save`` writes.
    """
    if zipped.begins(head):
        return zipped.kind_of(head)
    return next((kind for begins, kind in _KINDS if begins(head[:MAGIC_BYTES])), "")


def is_recognised(magic: bytes) -> bool:
    """The first ``MAGIC_BYTES`` of a file are those of one of these formats."""
    return any(begins(magic) for begins, _ in _FORMATS)


def layout(read: Read, size_bytes: int) -> tuple[Span, ...] | None:
    """Where the tensors of a file lie; None: it is none that is known, or not as it should be.

    Args:
        read: Gives the bytes at an offset, so many; fewer if the file ends before.
        size_bytes: The file's length.
    """
    return spans_in(Headers(read, size_bytes))


def spans_in(headers: Headers) -> tuple[Span, ...] | None:
    """The same, for who has more to ask of the headers."""
    size_bytes = headers.size_bytes
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
