"""Describes the tensors of a file: names, types, shapes and exact ranges.

This is for reports and not for cuts: small tensors have exact ranges, too, and the pickle of
``torch.save`` is searched for the names of the tensors. It is never executed. If it is odd, the
tensors have the names in the archive and no type. The tensors in a file of a distributed checkpoint
have the names in its ``.metadata``.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

from ciuic.formats import torch_pickle, zip_archive
from ciuic.formats.headers import NAMES_BYTES_MAX, WIDTHS, Headers, NoLayoutError, Part, Read, Span
from ciuic.formats.spans import spans_in

__all__ = ["Tensor", "called_by_parts", "called_by_pickle", "described"]

_ARCHIVED: Final = "data/"


class Tensor(NamedTuple):
    """One tensor.

    Attributes:
        name: Its name; not empty, and unique in the file.
        place: The name of its bytes in the file, such as ``data/17``; may equal ``name``.
        element: The type of its elements; empty: unknown.
        shape: Its dimensions; None: unknown.
        offset_bytes: Offset of its first element in the file.
        length_bytes: Length of all its elements.
    """

    name: str
    place: str
    element: str
    shape: tuple[int, ...] | None
    offset_bytes: int
    length_bytes: int


def described(read: Read, size_bytes: int, parts: Sequence[Part] = ()) -> tuple[Tensor, ...] | None:
    """Return the tensors of a file in order; None as ``layout``.

    Args:
        read: Reads (offset, length) of the file; returns fewer bytes at its end.
        size_bytes: Length of the file.
        parts: The content of a file of a distributed checkpoint, in order.
    """
    headers = Headers(read, size_bytes, closely=True)
    spans = spans_in(headers)
    if spans is None:
        return None
    pickles = _pickled(headers)
    taken: set[str] = set()
    found = []
    for number, span in enumerate(spans):
        tensor = _tensor(span, pickles.get(span.name), headers.shapes.get(span.name))
        name = _part_name(parts, span) or tensor.name
        if not name or name in taken:
            name = tensor.place
        while not name or name in taken:
            name = f"#{number}{name}"
        taken.add(name)
        found.append(tensor._replace(name=name))
    return tuple(found)


def called_by_parts(spans: Sequence[Span], parts: Sequence[Part]) -> tuple[Span, ...]:
    """Name the spans of a file of a distributed checkpoint after its parts.

    A span that is in no part has no name.
    """
    return tuple(
        [span._replace(name=_within_part(_part_name(parts, span), span)) for span in spans]
    )


def called_by_pickle(read: Read, size_bytes: int, spans: Sequence[Span]) -> tuple[Span, ...] | None:
    """Name the spans of a file of ``torch.save`` after its pickle; None if that is not possible.

    A span that the pickle does not name has no name. The result is None for another file, and for
    a pickle that is too long.
    """
    if not spans or not spans[0].name.startswith(_ARCHIVED):
        return None
    try:
        (found,) = zip_archive.pickles(Headers(read, size_bytes))
    except (NoLayoutError, ValueError):
        return None
    prefix, pickle = found
    if len(pickle) > NAMES_BYTES_MAX:
        return None
    known = {prefix + key: tensor.name for key, tensor in torch_pickle.read(pickle).items()}
    if not known:
        return None
    return tuple([span._replace(name=known.get(span.name, "")) for span in spans])


def _within_part(part: str, span: Span) -> str:
    """Return a span's name in a part; an archive that is a part may contain several tensors."""
    return f"{part}/{span.name.rpartition('/')[2]}" if part else ""


def _part_name(parts: Sequence[Part], span: Span) -> str:
    """Return the name of the part that contains a tensor; empty if there is none."""
    at = bisect_right(parts, span.offset_bytes, key=lambda part: part.offset_bytes) - 1
    if at < 0 or span.offset_bytes >= parts[at].offset_bytes + parts[at].length_bytes:
        return ""
    return parts[at].name


def _pickled(headers: Headers) -> dict[str, torch_pickle.Pickled]:
    """Return the tensors in the pickles of an archive of ``torch.save``, by name in the archive."""
    try:
        if not zip_archive.begins(headers.at(0, len(zip_archive.MAGIC))):
            return {}
        return {
            prefix + key: tensor
            for prefix, pickle in zip_archive.pickles(headers)
            for key, tensor in torch_pickle.read(pickle).items()
        }
    except NoLayoutError:
        return {}


def _tensor(
    span: Span, found: torch_pickle.Pickled | None, shape: tuple[int, ...] | None
) -> Tensor:
    name, element = span.name, span.element
    if found is not None:
        name, element, shape = found.name, found.element, found.shape
    width = WIDTHS.get(element, 0)
    count = span.length_bytes // width if width else 0
    if width and (span.length_bytes % width or (found is not None and found.elements != count)):
        element, shape = "", None
    elif shape is not None and width and math.prod(shape) != count:
        shape = None
    return Tensor(name, span.name, element, shape, span.offset_bytes, span.length_bytes)
