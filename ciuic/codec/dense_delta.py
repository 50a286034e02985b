"""Dense deltas: the difference of every number from its value in the delta base.

A training step moves each number a little. Read as integers, two floats differ by the count of
floats between them. That difference is small, and its high bytes shrink to almost nothing. The
sign is folded into the lowest bit, so that small differences of either sign are small numbers.

The same step spans many floats near zero and few floats far from zero. So numbers of 2 bytes are
sorted into six classes by their exponent in the delta base, which the decoder has as well, and
each class is encoded separately. The differences of a class are rotated until their remaining
noise fills whole bytes, and then split into byte planes.

Byte layout: docs/format.md, "Codec 3". Figures and alternatives that were tried: decision 0015.
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from ciuic.codec import planes
from ciuic.codec.plan import WIDTHS, DeltaPlan
from ciuic.errors import CorruptionError
from ciuic.system.core import buffer, core

__all__ = ["decode", "encode", "probe"]

_CUTS_MAX: Final = 7
_HEADER: Final = struct.Struct("<BBB")
_CLASS: Final = struct.Struct("<IB")


def probe(
    plain: bytes | memoryview, delta_base: bytes | memoryview, width: int, skip: int, step: int = 1
) -> DeltaPlan:
    """Choose a plan from each ``step``th number of two samples of the same places.

    This loads numpy, with the compiled core as well.
    """
    from ciuic.codec import differences

    return differences.probe(plain, delta_base, width, skip, step)


def encode(
    plain: bytes | memoryview, delta_base: bytes | memoryview, plan: DeltaPlan
) -> memoryview:
    """Encode ``plain`` as a difference from ``delta_base``, which has the same length."""
    width, skip, cuts, classes, _ = plan
    end = skip + (len(plain) - skip) // width * width
    parts = [_HEADER.pack(width, skip, len(cuts)), cuts, plain[:skip], plain[end:]]
    sorted_parts = _sorted(plain, delta_base, plan)
    for part, (shift, body_plan) in zip(sorted_parts, classes, strict=True):
        body = planes.encode(part, body_plan)
        parts += [_CLASS.pack(len(body), shift), body]
    return memoryview(b"".join(parts))


def _sorted(
    plain: bytes | memoryview, delta_base: bytes | memoryview, plan: DeltaPlan
) -> Iterator[memoryview]:
    """For each class the differences, rotated."""
    compiled = core()
    if compiled is None:
        from ciuic.codec import differences

        yield from differences.split(plain, delta_base, plan)
        return
    width, skip, cuts, classes, _ = plan
    packed = _packed(width, cuts, [shift for shift, _ in classes])
    out = buffer((len(plain) - skip) // width * width)
    sizes = compiled.functions.delta_split(compiled.targets, packed, plain, delta_base, skip, out)
    at = 0
    for size in sizes:
        yield out[at : at + size * width]
        at += size * width


def _packed(width: int, cuts: bytes, shifts: Sequence[int]) -> bytes:
    """Classes as the compiled core takes them."""
    edges = pairwise([0, *cuts, 256])
    class_of = b"".join([bytes([own]) * (end - begin) for own, (begin, end) in enumerate(edges)])
    return bytes([width, len(cuts) + 1, *shifts]).ljust(2 + _CUTS_MAX + 1, b"\0") + class_of


def decode(
    stored: memoryview,
    plain_bytes: int,
    delta_base: bytes | memoryview,
    out: memoryview | None = None,
) -> memoryview:
    """Decode what ``encode`` returned, given the same delta base.

    Args:
        stored: The payload.
        plain_bytes: Length of the decoded payload.
        delta_base: The delta base.
        out: Writable memory of that length, to decode to; None: fresh memory.

    Raises:
        CorruptionError: ``encode`` cannot have made ``stored`` from this delta base.
    """
    if len(delta_base) != plain_bytes:
        raise CorruptionError("the delta base of a delta has the wrong length")
    if len(stored) < _HEADER.size:
        raise CorruptionError("a delta is cut short")
    width, skip, cut_count = _HEADER.unpack_from(stored)
    if width not in WIDTHS or skip >= width or skip > plain_bytes or cut_count > _CUTS_MAX:
        raise CorruptionError("a delta has an impossible header")
    at = _HEADER.size
    cuts = bytes(stored[at : at + cut_count])
    if len(cuts) != cut_count or any(low >= high for low, high in pairwise(cuts)):
        raise CorruptionError("a delta has impossible classes")
    at += cut_count
    count = (plain_bytes - skip) // width
    end = skip + count * width
    edges = stored[at : at + plain_bytes - count * width]
    if len(edges) != plain_bytes - count * width:
        raise CorruptionError("a delta is cut short")
    shape = _Shape(width, skip, cuts)
    if out is None:
        out = buffer(plain_bytes)
    _decode_classes(stored[at + len(edges) :], delta_base, shape, out)
    out[:skip] = edges[:skip]
    out[end:] = edges[skip:]
    return out


class _Shape(NamedTuple):
    """Width and skip of the elements in bytes, and the exponents where classes begin."""

    width: int
    skip: int
    cuts: bytes


def _decode_classes(
    stored: memoryview, delta_base: bytes | memoryview, shape: _Shape, out: memoryview
) -> None:
    """Decode all classes and write the elements to their places in ``out``."""
    parts: list[tuple[memoryview, int]] = []
    at = 0
    for size in _sizes(delta_base, shape):
        body, shift, at = _decode_class(stored, at, size, shape.width)
        parts.append((body, shift))
    if at != len(stored):
        raise CorruptionError("a delta does not have the length of its classes")
    _join(parts, delta_base, shape, out)


def _sizes(delta_base: bytes | memoryview, shape: _Shape) -> Sequence[int]:
    """Return the number of elements of each class."""
    width, skip, cuts = shape
    compiled = core()
    if compiled is not None:
        unrotated = _packed(width, cuts, bytes(len(cuts) + 1))
        return compiled.functions.delta_sizes(unrotated, delta_base, skip)
    from ciuic.codec import differences

    return differences.sizes(delta_base, width, skip, cuts)


def _join(
    parts: Sequence[tuple[memoryview, int]],
    delta_base: bytes | memoryview,
    shape: _Shape,
    out: memoryview,
) -> None:
    """Undo ``_sorted``."""
    width, skip, cuts = shape
    compiled = core()
    if compiled is not None:
        functions, targets = compiled
        packed = _packed(width, cuts, [shift for _, shift in parts])
        functions.delta_join(targets, packed, [body for body, _ in parts], delta_base, skip, out)
        return
    from ciuic.codec import differences

    differences.join(parts, delta_base, width, skip, cuts, out)


def _decode_class(
    stored: memoryview, at: int, count: int, width: int
) -> tuple[memoryview, int, int]:
    """Return the differences of a class, its rotation in bits, and the offset of its end."""
    if len(stored) - at < _CLASS.size:
        raise CorruptionError("a delta is cut short")
    length, shift = _CLASS.unpack_from(stored, at)
    if shift >= 8 * width:
        raise CorruptionError("a delta is rotated by more bits than its elements have")
    at += _CLASS.size
    return planes.decode(stored[at : at + length], count * width), shift, at + length
