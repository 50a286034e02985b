"""Finds the tensors of a file from its headers.

Formats are recognized by their first bytes, not by file names: safetensors, the archives of
``torch.save`` (also concatenated, as in ``.distcp``), ``.npz``, ``.npy``, GGUF, HDF5, and the
archives of Keras that contain it. HDF5 datasets that are chunked or compressed are not found.

Guarantees:
    - For any file, ``layout`` returns None, or spans that are sorted, not empty, without overlap
      and within the file. It raises only what ``read`` raises.
    - Names are the same in each save of a state, and at most ``NAME_BYTES_MAX`` long.
    - It reads at most ``HEADER_BYTES_MAX`` bytes, and at most the length of the file.
    - Nothing in the file is executed; ``layout`` does not read pickles.
"""

from collections.abc import Callable
from typing import Final

from ciuic.formats import gguf, hdf5, npy, safetensors, zip_archive
from ciuic.formats.headers import (
    SPANS_MAX,
    Headers,
    NoLayoutError,
    Read,
    Span,
)

__all__ = ["KIND_BYTES", "MAGIC_BYTES", "is_recognized", "kind_of", "layout", "spans_in"]

MAGIC_BYTES: Final = 16
"""Bytes that are read of a file in another format."""
KIND_BYTES: Final = 512
"""The start of a file that contains the name of an archive's first member."""

_FORMATS: Final[tuple[tuple[Callable[[bytes], bool], Callable[[Headers], list[Span]]], ...]] = (
    (safetensors.begins, safetensors.spans),
    (zip_archive.begins, zip_archive.spans),
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
    """Return the format of a file from its first ``KIND_BYTES``; empty if it is unknown.

    The parts of a distributed checkpoint begin like the archives of ``torch.save``.
    """
    if zip_archive.begins(head):
        return zip_archive.kind_of(head)
    return next((kind for begins, kind in _KINDS if begins(head[:MAGIC_BYTES])), "")


def is_recognized(magic: bytes) -> bool:
    """Return whether the first ``MAGIC_BYTES`` of a file are those of a known format."""
    return any(begins(magic) for begins, _ in _FORMATS)


def layout(read: Read, size_bytes: int) -> tuple[Span, ...] | None:
    """Find the tensors of a file; None if its format is unknown or its headers are impossible.

    Args:
        read: Reads (offset, length) of the file; returns fewer bytes at its end.
        size_bytes: Length of the file.
    """
    return spans_in(Headers(read, size_bytes))


def spans_in(headers: Headers) -> tuple[Span, ...] | None:
    """Like ``layout``, for a caller that reads more of the headers."""
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
    """Sort the spans; None if they overlap, or are outside the file."""
    found = sorted([span for span in spans if span.length_bytes])
    end = 0
    for span in found:
        if span.offset_bytes < end or span.length_bytes < 0:
            return None
        end = span.offset_bytes + span.length_bytes
    return tuple(found) if 0 < len(found) <= SPANS_MAX and end <= size_bytes else None
