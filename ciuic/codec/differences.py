"""Differences of numbers with numpy: how to encode them, and what the compiled core does in C.

``dense_delta`` imports this to choose a plan, and where the core is missing (``core/deltas.c``).
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ciuic.codec import probing
from ciuic.codec.plan import WIDTHS, DeltaPlan, Plan

__all__ = ["Words", "elements", "join", "probe", "sizes", "split"]

_SHIFTS: Final = {2: (0, 3, 4, 5), 4: (0, 6), 8: (0,)}
"""Rotations to try: the ones that performed best (decision 0015)."""
_PARTS: Final = 6
"""Number of classes: more classes save next to nothing (decision 0015)."""

Words = npt.NDArray[Any]
"""An array of unsigned integers; its width is known only at run time."""


def probe(
    plain: bytes | memoryview, delta_base: bytes | memoryview, width: int, skip: int, step: int
) -> DeltaPlan:
    """See ``dense_delta.probe``."""
    if step > 1:
        plain = elements(plain, width, skip)[::step].tobytes()
        delta_base = elements(delta_base, width, skip)[::step].tobytes()
        skip = 0
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


def sizes(delta_base: bytes | memoryview, width: int, skip: int, cuts: bytes) -> list[int]:
    """Return the number of elements of each class."""
    old = elements(delta_base, width, skip)
    return [len(old) if isinstance(own, slice) else len(own) for own in _classes(old, cuts)]


def split(
    plain: bytes | memoryview, delta_base: bytes | memoryview, plan: DeltaPlan
) -> Iterator[memoryview]:
    """For each class the differences, rotated."""
    differences = _folded(plain, delta_base, plan.width, plan.skip)
    members = _classes(elements(delta_base, plan.width, plan.skip), plan.cuts)
    for own, (shift, _) in zip(members, plan.classes, strict=True):
        yield _rotated(differences[own], shift).view(np.uint8).data


def join(  # noqa: PLR0917 - what the core's function takes
    parts: Sequence[tuple[memoryview, int]],
    delta_base: bytes | memoryview,
    width: int,
    skip: int,
    cuts: bytes,
    out: memoryview,
) -> None:
    """Undo ``split``.

    Args:
        parts: For each class the differences, as many as ``sizes`` says, and their rotation.
        delta_base: The delta base.
        width: Bytes of an element.
        skip: Bytes before the first element.
        cuts: The exponents where classes begin.
        out: Receives the elements, from byte ``skip`` on.
    """
    old, words = elements(delta_base, width, skip), elements(out, width, skip)
    for own, (body, shift) in zip(_classes(old, cuts), parts, strict=True):
        back = 8 * width - shift if shift else 0
        words[own] = _rotated(np.frombuffer(body, old.dtype), back)
    _unfold(words, old)


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
    """Return the 8 bits below the highest bit."""
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
    """Return the differences of all whole elements, with the sign in the lowest bit."""
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
