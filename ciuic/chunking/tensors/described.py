"""A file's headers -> its tensors, one by one: names, types, shapes and exact places.

For people who look, not for cuts: small tensors have a place of their own here, and of what
``torch.save`` writes the pickle is looked through for what its tensors are called. It is never
executed; where it holds a surprise, they are called as in the archive, and are of no known type.
What is in a file of a distributed checkpoint is called as its ``.metadata`` says.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

from ciuic.chunking.tensors import pickled, spans_in, zipped
from ciuic.chunking.tensors.headers import WIDTHS, Headers, NoLayoutError, Read, Span

__all__ = ["NAMES_BYTES_MAX", "Tensor", "called_by_parts", "called_by_pickle", "described"]

NAMES_BYTES_MAX: Final = 4 * 1024 * 1024
"""So much of a pickle is looked through to tell tensors from each other: some 15,000 of them, which
takes two seconds. With more they are told by their places."""
_ARCHIVED: Final = "data/"


class Tensor(NamedTuple):
    """One tensor.

    Attributes:
        name: What it is called; never empty, and no two of a file have the same.
        place: What its bytes are called in the file: ``data/17``, or the name again.
        element: The type of its elements; empty: not known.
        shape: Its dimensions; None: not known.
        offset_bytes: Where in the file its first element lies.
        length_bytes: Of all its elements.
    """

    name: str
    place: str
    element: str
    shape: tuple[int, ...] | None
    offset_bytes: int
    length_bytes: int


def described(
    read: Read, size_bytes: int, parts: Sequence[pickled.Part] = ()
) -> tuple[Tensor, ...] | None:
    """The tensors of a file in order; None: none of the formats is, or not as it should be.

    Args:
        read: Gives the bytes at an offset, so many; fewer if the file ends before.
        size_bytes: The file's length.
        parts: Of a file of a distributed checkpoint what it holds, in order.
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


def called_by_parts(spans: Sequence[Span], parts: Sequence[pickled.Part]) -> tuple[Span, ...]:
    """Spans of a file of a distributed checkpoint, called as its parts are and not by their places.

    One that lies in no part has no name.
    """
    return tuple([one._replace(name=_within_part(_part_name(parts, one), one)) for one in spans])


def called_by_pickle(read: Read, size_bytes: int, spans: Sequence[Span]) -> tuple[Span, ...] | None:
    """Spans of a file by ``torch.save``, called as its pickle calls them and not by their places.

    One that the pickle does not know has no name. None: it is no such file, or too much to read.
    """
    if not spans or not spans[0].name.startswith(_ARCHIVED):
        return None
    try:
        (found,) = zipped.pickles(Headers(read, size_bytes))
    except (NoLayoutError, ValueError):
        return None
    prefix, pickle = found
    if len(pickle) > NAMES_BYTES_MAX:
        return None
    known = {prefix + key: one.name for key, one in pickled.read(pickle).items()}
    return tuple([one._replace(name=known.get(one.name, "")) for one in spans]) if known else None


def _within_part(part: str, span: Span) -> str:
    """An archive that is a part may hold several tensors: the pickle in it may be of anything."""
    return f"{part}/{span.name.rpartition('/')[2]}" if part else ""


def _part_name(parts: Sequence[pickled.Part], span: Span) -> str:
    """What the part is called that a tensor lies in; empty: it lies in none."""
    at = bisect_right(parts, span.offset_bytes, key=lambda one: one.offset_bytes) - 1
    if at < 0 or span.offset_bytes >= parts[at].offset_bytes + parts[at].length_bytes:
        return ""
    return parts[at].name


def _pickled(headers: Headers) -> dict[str, pickled.Pickled]:
    """What the pickles of an archive of torch's say of its tensors."""
    try:
        if not zipped.begins(headers.at(0, len(zipped.MAGIC))):
            return {}
        return {
            prefix + key: one
            for prefix, pickle in zipped.pickles(headers)
            for key, one in pickled.read(pickle).items()
        }
    except NoLayoutError:
        return {}


def _tensor(span: Span, found: pickled.Pickled | None, shape: tuple[int, ...] | None) -> Tensor:
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
