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

import bisect
import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ciuic.codec import planes, probing
from ciuic.codec.plan import Plan
from ciuic.errors import CorruptionError
from ciuic.system.core import Core, core

__all__ = ["WIDTHS", "DeltaPlan", "Words", "decode", "elements", "encode", "probe"]

WIDTHS: Final = (2, 4, 8)
_SHIFTS: Final = {2: (0, 3, 4, 5), 4: (0, 6), 8: (0,)}
"""Rotations to try: the ones that performed best (decision 0015)."""
_CUTS_MAX: Final = 7
_PARTS: Final = 6
"""Number of classes: more classes save next to nothing (decision 0015)."""
_HEADER: Final = struct.Struct("<BBB")
_CLASS: Final = struct.Struct("<IB")

Words = npt.NDArray[Any]
"""An array of unsigned integers; its width is known only at run time."""


class DeltaPlan(NamedTuple):
    """How to encode the differences.

    Attributes:
        width: Bytes per element: 2, 4 or 8.
        skip: Bytes before the first element.
        cuts: The lowest exponent of the second class, of the third, and so on.
        classes: For each class, the rotation in bits and the plan of its byte planes.
        fraction: Expected stored bytes per uncompressed byte.
    """

    width: int
    skip: int
    cuts: bytes
    classes: tuple[tuple[int, Plan], ...]
    fraction: float


def probe(plain: bytes, delta_base: bytes, width: int, skip: int) -> DeltaPlan:
    """Choose a plan from two samples of the same places."""
    differences = _folded(plain, delta_base, width, skip)
    old = elements(delta_base, width, skip)
    cuts = _cuts(old) if width == min(WIDTHS) else b""
    classes: list[tuple[int, Plan]] = []
    expected = 0.0
    for members in _classes(old, cuts):
        part = differences[members]
        tried = [
            (shift, probing.plan(_rotated(part, shift).tobytes(), width))
            for shift in _SHIFTS[width]
        ]
        best = min(tried, key=lambda found: found[1].fraction)
        classes.append(best)
        expected += best[1].fraction * len(part)
    fraction = expected / max(len(differences), 1)
    return DeltaPlan(width, skip, cuts, tuple(classes), fraction)


def encode(
    plain: bytes | memoryview, delta_base: bytes | memoryview, plan: DeltaPlan
) -> memoryview:
    """Encode ``plain`` as a difference from ``delta_base``, which has the same length."""
    width, skip, cuts, classes, _ = plan
    end = skip + (len(plain) - skip) // width * width
    parts = [_HEADER.pack(width, skip, len(cuts)), cuts, plain[:skip], plain[end:]]
    compiled = core()
    if compiled is None:
        sorted_parts = _sorted_by_numpy(plain, delta_base, plan)
    else:
        sorted_parts = _sorted_compiled(compiled, plain, delta_base, plan)
    for part, (shift, body_plan) in zip(sorted_parts, classes, strict=True):
        body = planes.encode(part, body_plan)
        parts += [_CLASS.pack(len(body), shift), body]
    return memoryview(b"".join(parts))


def _sorted_by_numpy(
    plain: bytes | memoryview, delta_base: bytes | memoryview, plan: DeltaPlan
) -> Iterator[memoryview]:
    """For each class the differences, rotated."""
    differences = _folded(plain, delta_base, plan.width, plan.skip)
    members = _classes(elements(delta_base, plan.width, plan.skip), plan.cuts)
    for own, (shift, _) in zip(members, plan.classes, strict=True):
        yield _rotated(differences[own], shift).view(np.uint8).data


def _sorted_compiled(
    compiled: Core, plain: bytes | memoryview, delta_base: bytes | memoryview, plan: DeltaPlan
) -> Iterator[memoryview]:
    """As ``_sorted_by_numpy``; all classes are sorted at once."""
    width, skip, cuts, classes, _ = plan
    packed = _packed(width, cuts, [shift for shift, _ in classes])
    out = compiled.functions.buffer((len(plain) - skip) // width * width)
    sizes = compiled.functions.delta_split(compiled.targets, packed, plain, delta_base, skip, out)
    at = 0
    for size in sizes:
        yield memoryview(out)[at : at + size * width]
        at += size * width


def _packed(width: int, cuts: bytes, shifts: Sequence[int]) -> bytes:
    """Classes as the compiled core takes them."""
    class_of = bytes(bisect.bisect_right(cuts, exponent) for exponent in range(256))
    return bytes([width, len(cuts) + 1, *shifts]).ljust(2 + _CUTS_MAX + 1, b"\0") + class_of


def decode(stored: memoryview, plain_bytes: int, delta_base: bytes | memoryview) -> memoryview:
    """Decode what ``encode`` returned, given the same delta base.

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
    body = stored[at + len(edges) :]
    compiled = core()
    if compiled is None:
        old = elements(delta_base, width, skip)
        words = _decode_classes(body, old, cuts)
        _unfold(words, old)
        if not edges:
            return memoryview(words.view(np.uint8).data)
        return memoryview(b"".join([edges[:skip], words.view(np.uint8).data, edges[skip:]]))
    out = memoryview(compiled.functions.buffer(plain_bytes))
    _decode_compiled(compiled, body, delta_base, _Shape(width, skip, cuts), out)
    out[:skip] = edges[:skip]
    out[end:] = edges[skip:]
    return out


class _Shape(NamedTuple):
    """Width and skip of the elements in bytes, and the exponents where classes begin."""

    width: int
    skip: int
    cuts: bytes


def _decode_compiled(
    compiled: Core,
    stored: memoryview,
    delta_base: bytes | memoryview,
    shape: _Shape,
    out: memoryview,
) -> None:
    """Decode all classes and write the elements to their places in ``out``."""
    width, skip, cuts = shape
    unrotated = _packed(width, cuts, bytes(len(cuts) + 1))
    shifts: list[int] = []
    bodies: list[memoryview] = []
    at = 0
    for size in compiled.functions.delta_sizes(unrotated, delta_base, skip):
        body, shift, at = _decode_class(stored, at, size, width)
        shifts.append(shift)
        bodies.append(body)
    if at != len(stored):
        raise CorruptionError("a delta does not have the length of its classes")
    packed = _packed(width, cuts, shifts)
    compiled.functions.delta_join(compiled.targets, packed, bodies, delta_base, skip, out)


def _decode_class(
    stored: memoryview, at: int, count: int, width: int
) -> tuple[memoryview, int, int]:
    """The ``count`` differences of a class, its rotation in bits, and the offset of its end."""
    if len(stored) - at < _CLASS.size:
        raise CorruptionError("a delta is cut short")
    length, shift = _CLASS.unpack_from(stored, at)
    if shift >= 8 * width:
        raise CorruptionError("a delta is rotated by more bits than its elements have")
    at += _CLASS.size
    return planes.decode(stored[at : at + length], count * width), shift, at + length


def _decode_classes(stored: memoryview, old: Words, cuts: bytes) -> Words:
    """The folded differences, in the order of the elements."""
    width = old.itemsize
    words = np.empty(0, old.dtype)
    at = 0
    for own in _classes(old, cuts):
        count = len(old) if isinstance(own, slice) else len(own)
        body, shift, at = _decode_class(stored, at, count, width)
        part = _rotated(np.frombuffer(body, old.dtype), 8 * width - shift if shift else 0)
        if isinstance(own, slice):
            words = part
        else:
            words = words if len(words) else np.empty(len(old), old.dtype)
            words[own] = part
    if at != len(stored):
        raise CorruptionError("a delta does not have the length of its classes")
    return words


def elements(data: bytes | memoryview, width: int, skip: int) -> Words:
    """Return the whole elements of ``width`` bytes after the first ``skip`` bytes."""
    return np.frombuffer(data, f"<u{width}", (len(data) - skip) // width, skip)


def _cuts(old: Words) -> bytes:
    """Exponents that divide the numbers into classes of about equal size, or fewer classes."""
    exponents = np.sort(_exponents(old))
    bounds = {int(exponents[len(exponents) * part // _PARTS]) for part in range(1, _PARTS)}
    return bytes(sorted(bounds - {int(exponents[0])}))


def _classes(old: Words, cuts: bytes) -> Iterator[Any]:
    """For each class the indexes of its elements; a full slice if there is only one class."""
    if not cuts:
        yield slice(None)
        return
    exponents = _exponents(old)
    above = [exponents >= cut for cut in cuts]
    yield np.flatnonzero(~above[0])
    for low, high in pairwise(above):
        yield np.flatnonzero(low > high)
    yield np.flatnonzero(above[-1])


def _exponents(old: Words) -> Words:
    """The 8 bits below the highest bit."""
    shifted: Words = old >> (8 * old.itemsize - 9)
    return shifted.astype(np.uint8)


def _rotated(words: Words, bits: int) -> Words:
    """Rotate each word to the left."""
    if not bits:
        return words
    high = words << bits
    np.bitwise_or(high, words >> (8 * words.itemsize - bits), out=high)
    return np.asarray(high)


def _folded(
    plain: bytes | memoryview, delta_base: bytes | memoryview, width: int, skip: int
) -> Words:
    """The differences of all whole elements, with the sign in the lowest bit."""
    new = elements(plain, width, skip)
    difference = new - elements(delta_base, width, skip)
    signs = difference.view(f"<i{width}") >> (8 * width - 1)
    np.left_shift(difference, 1, out=difference)
    np.bitwise_xor(difference, signs.view(new.dtype), out=difference)
    return np.asarray(difference)


def _unfold(words: Words, delta_base: Words) -> None:
    """Undo ``_folded``, in place."""
    signs = np.bitwise_and(words, 1)
    np.negative(signs, out=signs)
    np.right_shift(words, 1, out=words)
    np.bitwise_xor(words, signs, out=words)
    np.add(words, delta_base, out=words)
