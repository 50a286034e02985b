"""Deltas: what has changed in numbers since an earlier version of them.

A step of training moves each number a little. As integers, two versions of a float lie as far
apart as there are floats between them: a small difference, whose high bytes shrink to almost
nothing. Signs are folded into the lowest bit, so that small is small on both sides of zero.

The same step is many floats wide for a number near zero, and few for a large one. Numbers of 2
bytes are therefore sorted into six classes by the exponents of the earlier version, which whoever
decodes has as well, and each class is encoded by itself. The differences of a class are rotated
until what is left of their noise fills whole bytes, and taken apart into byte planes.

Byte layout: docs/format.md, "Codec 3". Figures, and what else was tried: decision 0015.
"""

import struct
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ciuic.codec import planes
from ciuic.codec.planes import Plan
from ciuic.errors import CorruptionError

__all__ = ["WIDTHS", "DeltaPlan", "decode", "encode", "probe"]

WIDTHS: Final = (2, 4, 8)
_SHIFTS: Final = {2: (0, 3, 4, 5), 4: (0, 6), 8: (0,)}
"""Which rotations are tried: the ones that came out best (decision 0015)."""
_CUTS_MAX: Final = 7
_PARTS: Final = 6
"""Classes that elements are sorted into: more gain next to nothing (decision 0015)."""
_HEADER: Final = struct.Struct("<BBB")
_CLASS: Final = struct.Struct("<IB")

Words = npt.NDArray[Any]


class DeltaPlan(NamedTuple):
    """How to store differences.

    Attributes:
        width: Bytes of an element: 2, 4 or 8.
        skip: Bytes before the first element.
        cuts: The lowest exponents of the second class and of each one after it.
        classes: For each class how far to rotate, and how to take apart what comes of it.
        fraction: What the bytes are expected to shrink to.
    """

    width: int
    skip: int
    cuts: bytes
    classes: tuple[tuple[int, Plan], ...]
    fraction: float


def probe(plain: bytes, reference: bytes, width: int, skip: int) -> DeltaPlan:
    """The plan that two samples from the same places suggest."""
    differences = _folded(plain, reference, width, skip)
    old = _elements(reference, width, skip)
    cuts = _cuts(old) if width == min(WIDTHS) else b""
    classes: list[tuple[int, Plan]] = []
    expected = 0.0
    for members in _classes(old, cuts):
        part = differences[members]
        tried = [
            (shift, planes.plan(_rotated(part, shift).tobytes(), width)) for shift in _SHIFTS[width]
        ]
        best = min(tried, key=lambda one: one[1].fraction)
        classes.append(best)
        expected += best[1].fraction * len(part)
    fraction = expected / max(len(differences), 1)
    return DeltaPlan(width, skip, cuts, tuple(classes), fraction)


def encode(plain: bytes | memoryview, reference: bytes | memoryview, plan: DeltaPlan) -> memoryview:
    """``plain`` as a difference from ``reference``, which is as long."""
    width, skip, cuts, classes, _ = plan
    differences = _folded(plain, reference, width, skip)
    end = skip + len(differences) * width
    parts = [_HEADER.pack(width, skip, len(cuts)), cuts, plain[:skip], plain[end:]]
    members = _classes(_elements(reference, width, skip), cuts)
    for own, (shift, body_plan) in zip(members, classes, strict=True):
        part = _rotated(differences[own], shift)
        body = planes.encode(part.view(np.uint8).data, body_plan)
        parts += [_CLASS.pack(len(body), shift), body]
    return memoryview(b"".join(parts))


def decode(stored: memoryview, plain_bytes: int, reference: bytes | memoryview) -> memoryview:
    """The ``plain_bytes`` bytes that ``encode`` was given, from the same reference.

    Raises:
        CorruptionError: ``stored`` is nothing that ``encode`` makes from such a reference.
    """
    if len(reference) != plain_bytes:
        raise CorruptionError("a delta's reference has another length")
    if len(stored) < _HEADER.size:
        raise CorruptionError("a delta is cut short")
    width, skip, cut_count = _HEADER.unpack_from(stored)
    if width not in WIDTHS or skip >= width or skip > plain_bytes or cut_count > _CUTS_MAX:
        raise CorruptionError("a delta has elements or classes that can't be")
    at = _HEADER.size
    cuts = bytes(stored[at : at + cut_count])
    if len(cuts) != cut_count or any(one >= other for one, other in pairwise(cuts)):
        raise CorruptionError("a delta has classes that can't be")
    at += cut_count
    old = _elements(reference, width, skip)
    edges = stored[at : at + plain_bytes - len(old) * width]
    if len(edges) != plain_bytes - len(old) * width:
        raise CorruptionError("a delta is cut short")
    words = _decode_classes(stored[at + len(edges) :], old, cuts)
    _unfold(words, old)
    body = words.view(np.uint8).data
    if not edges:
        return memoryview(body)
    return memoryview(b"".join([edges[:skip], body, edges[skip:]]))


def _decode_classes(stored: memoryview, old: Words, cuts: bytes) -> Words:
    """The differences, folded, in the order of the elements."""
    width = old.itemsize
    words = np.empty(0, old.dtype)
    at = 0
    for own in _classes(old, cuts):
        if len(stored) - at < _CLASS.size:
            raise CorruptionError("a delta is cut short")
        length, shift = _CLASS.unpack_from(stored, at)
        if shift >= 8 * width:
            raise CorruptionError("a delta is rotated further than it has bits")
        at += _CLASS.size
        count = len(old) if isinstance(own, slice) else len(own)
        body = planes.decode(stored[at : at + length], count * width)
        at += length
        part = _rotated(np.frombuffer(body, old.dtype), 8 * width - shift if shift else 0)
        if isinstance(own, slice):
            words = part
        else:
            words = words if len(words) else np.empty(len(old), old.dtype)
            words[own] = part
    if at != len(stored):
        raise CorruptionError("a delta does not have the length of its classes")
    return words


def _elements(data: bytes | memoryview, width: int, skip: int) -> Words:
    return np.frombuffer(data, f"<u{width}", (len(data) - skip) // width, skip)


def _cuts(old: Words) -> bytes:
    """Exponents at which numbers fall into classes of about one size, or into fewer."""
    exponents = np.sort(_exponents(old))
    bounds = {int(exponents[len(exponents) * part // _PARTS]) for part in range(1, _PARTS)}
    return bytes(sorted(bounds - {int(exponents[0])}))


def _classes(old: Words, cuts: bytes) -> Iterator[Any]:
    """For each class the numbers of its elements; of a single one, all."""
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
    """The 8 bits below the highest."""
    shifted: Words = old >> (8 * old.itemsize - 9)
    return shifted.astype(np.uint8)


def _rotated(words: Words, bits: int) -> Words:
    """Rotated to the left."""
    if not bits:
        return words
    high = words << bits
    np.bitwise_or(high, words >> (8 * words.itemsize - bits), out=high)
    return np.asarray(high)


def _folded(
    plain: bytes | memoryview, reference: bytes | memoryview, width: int, skip: int
) -> Words:
    """The differences of all whole elements; the sign is the lowest bit."""
    new = _elements(plain, width, skip)
    difference = new - _elements(reference, width, skip)
    signs = difference.view(f"<i{width}") >> (8 * width - 1)
    np.left_shift(difference, 1, out=difference)
    np.bitwise_xor(difference, signs.view(new.dtype), out=difference)
    return np.asarray(difference)


def _unfold(words: Words, reference: Words) -> None:
    """Undo ``_folded``, in place."""
    signs = np.bitwise_and(words, 1)
    np.negative(signs, out=signs)
    np.right_shift(words, 1, out=words)
    np.bitwise_xor(words, signs, out=words)
    np.add(words, reference, out=words)
