"""Sparse deltas: the positions and the differences of the few elements that changed.

Fine-tuning in few bits leaves most numbers unchanged, and so does training that touches few rows
of a table. A dense delta still stores a difference for every element. A general compressor then
has to find the zeros again in each byte plane, and needs two to four times the bytes that the
changes take. A sparse delta stores only the changed elements: the number of unchanged elements
before each of them, and the differences, encoded as a dense delta of just those elements.

This codec also handles elements of one byte, such as fp8; the other codecs do not.

The compiled core finds changed elements and puts them back; where it is missing, numpy does
(``changes``).

Byte layout: docs/format.md, "Codec 4". Figures: decision 0015.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from ciuic.codec import dense_delta, zstd
from ciuic.errors import CorruptionError
from ciuic.system.core import buffer, core

__all__ = ["WIDTHS", "decode", "encode"]

WIDTHS: Final = (1, 2, 4, 8)
_RAW: Final = 0
_ZSTD: Final = 1
_HEADER: Final = struct.Struct("<BBIB")
_COLUMN: Final = struct.Struct("<BI")
_GAP_BYTES_MAX: Final = 4
_SHARE: Final = 2
"""At most one in this many elements may have changed, which bounds a reader's memory."""
_PROBED_MAX: Final = 4096
"""Changed elements in the sample that decides how to encode the differences."""


class _Changes(NamedTuple):
    """The elements that changed.

    Attributes:
        gaps: A column for each byte of a gap, lowest first.
        now: The elements; with a width of one byte their differences, folded.
        before: The elements of the delta base in the same places.
    """

    gaps: Sequence[memoryview]
    now: memoryview
    before: memoryview


def encode(
    plain: bytes | memoryview, delta_base: bytes | memoryview, width: int, skip: int
) -> memoryview | None:
    """Encode ``plain`` as the elements that differ from ``delta_base``; None if too many differ.

    Args:
        plain: The payload.
        delta_base: Its delta base, of the same length.
        width: Bytes per element: one of ``WIDTHS``.
        skip: Bytes before the first element, fewer than ``width``.
    """
    changes = _found(plain, delta_base, width, skip)
    if changes is None:
        return None
    count = len(changes.gaps[0])
    end = skip + (len(plain) - skip) // width * width
    parts = [_HEADER.pack(width, skip, count, len(changes.gaps)), plain[:skip], plain[end:]]
    for column in changes.gaps:
        parts += _encode_column(column)
    if width == 1:
        parts += _encode_column(changes.now)
    elif count:
        parts.append(_encode_values(changes, width))
    return memoryview(b"".join(parts))


def _found(
    plain: bytes | memoryview, delta_base: bytes | memoryview, width: int, skip: int
) -> _Changes | None:
    """Return the elements that differ; None if there are too many."""
    compiled = core()
    if compiled is None:
        from ciuic.codec import changes

        found = changes.find(plain, delta_base, width, skip, _SHARE)
        return None if found is None else _Changes(*found)
    functions, targets = compiled
    count = functions.sparse_count(targets, width, plain, delta_base, skip)
    if count > (len(plain) - skip) // width // _SHARE:
        return None
    gaps = buffer(_GAP_BYTES_MAX * count)
    now, before = (buffer(count * width) for _ in range(2))
    used = functions.sparse_split(width, plain, delta_base, skip, gaps, now, before)
    return _Changes([gaps[at * count : (at + 1) * count] for at in range(used)], now, before)


def decode(stored: memoryview, plain_bytes: int, delta_base: bytes | memoryview) -> memoryview:
    """Decode what ``encode`` returned, given the same delta base.

    Raises:
        CorruptionError: ``encode`` cannot have made ``stored`` from this delta base.
    """
    if len(delta_base) != plain_bytes:
        raise CorruptionError("the delta base of a sparse delta has the wrong length")
    if len(stored) < _HEADER.size:
        raise CorruptionError("a sparse delta is cut short")
    width, skip, count, used = _HEADER.unpack_from(stored)
    if width not in WIDTHS or skip >= width or skip > plain_bytes:
        raise CorruptionError("a sparse delta has impossible elements")
    element_count = (plain_bytes - skip) // width
    if count > element_count // _SHARE or not 1 <= used <= _GAP_BYTES_MAX:
        raise CorruptionError("a sparse delta has impossible positions")
    at, end = _HEADER.size, skip + element_count * width
    edges = stored[at : at + plain_bytes - element_count * width]
    if len(edges) != plain_bytes - element_count * width:
        raise CorruptionError("a sparse delta is cut short")
    at += len(edges)
    gaps: list[memoryview] = []
    for _ in range(used):
        column, at = _decode_column(stored, at, count)
        gaps.append(column)
    places = _Places(gaps, delta_base, width, skip)
    out = _put(places, _decode_values(places, stored, at))
    out[:skip] = edges[:skip]
    out[end:] = edges[skip:]
    return out


class _Places(NamedTuple):
    """Where the changed elements are.

    Attributes:
        gaps: A column for each byte of a gap, lowest first.
        delta_base: The delta base.
        width: Bytes per element.
        skip: Bytes before the first element.
    """

    gaps: Sequence[memoryview]
    delta_base: bytes | memoryview
    width: int
    skip: int


def _decode_values(places: _Places, stored: memoryview, at: int) -> memoryview:
    """Return the new elements; with a width of one byte their differences, folded."""
    count = len(places.gaps[0])
    before = _take(places)
    if places.width == 1:
        values, at = _decode_column(stored, at, count)
    elif count:
        if bytes(stored[at : at + 2]) != bytes([places.width, 0]):
            raise CorruptionError("the new values of a sparse delta have another width or skip")
        values, at = dense_delta.decode(stored[at:], len(before), before), len(stored)
    else:
        values = before
    if at != len(stored):
        raise CorruptionError("a sparse delta does not have the length of its columns")
    return values


def _take(places: _Places) -> memoryview:
    """Return the elements of the delta base that have changed."""
    gaps, delta_base, width, skip = places
    compiled = core()
    if compiled is None:
        from ciuic.codec import changes

        taken = changes.take(gaps, delta_base, width, skip)
        if taken is None:
            raise _beyond_the_end()
        return taken
    out = buffer(len(gaps[0]) * width)
    if not compiled.functions.sparse_take(width, gaps, delta_base, skip, out):
        raise _beyond_the_end()
    return out


def _put(places: _Places, values: memoryview) -> memoryview:
    """Return the delta base with the new elements in their places."""
    gaps, delta_base, width, skip = places
    compiled = core()
    if compiled is None:
        from ciuic.codec import changes

        joined = changes.put(gaps, values, delta_base, width, skip)
        if joined is None:
            raise _beyond_the_end()
        return joined
    out = buffer(len(delta_base))
    if not compiled.functions.sparse_join(width, gaps, values, delta_base, skip, out):
        raise _beyond_the_end()
    return out


def _beyond_the_end() -> CorruptionError:
    return CorruptionError("a sparse delta goes beyond its end")


def _encode_values(changes: _Changes, width: int) -> memoryview:
    """Encode the changed elements, one after another, as a dense delta."""
    step = -(-len(changes.now) // width // _PROBED_MAX)
    plan = dense_delta.probe(changes.now, changes.before, width, 0, step)
    return dense_delta.encode(changes.now, changes.before, plan)


def _encode_column(raw: memoryview) -> list[bytes | memoryview]:
    """Encode bytes without order but perhaps with few distinct values: coding, length, body."""
    coded = zstd.compress_entropy(raw)
    coding, body = (_ZSTD, coded) if len(coded) < len(raw) else (_RAW, raw)
    return [_COLUMN.pack(coding, len(body)), body]


def _decode_column(stored: memoryview, at: int, count: int) -> tuple[memoryview, int]:
    """Return a column of ``count`` bytes, and the offset of its end."""
    if len(stored) - at < _COLUMN.size:
        raise CorruptionError("a sparse delta is cut short")
    coding, length = _COLUMN.unpack_from(stored, at)
    at += _COLUMN.size
    body = stored[at : at + length]
    if len(body) != length:
        raise CorruptionError("a sparse delta is cut short")
    if coding == _ZSTD:
        body = memoryview(zstd.decompress(body, count))
    elif coding != _RAW:
        raise CorruptionError(f"a column of a sparse delta has the unknown coding {coding}")
    if len(body) != count:
        raise CorruptionError("a column of a sparse delta has the wrong length")
    return body, at + length
