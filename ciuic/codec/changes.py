"""Changed elements with numpy: what the compiled core does in C (``core/sparse.c``).

``sparse_delta`` imports this only where the core is missing.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ciuic.codec.differences import Words, elements

__all__ = ["find", "put", "take"]

_GAP_BYTES: Final = 4

_Bytes = npt.NDArray[np.uint8]
_Found = tuple[list[memoryview], memoryview, memoryview]
"""A column for each byte of a gap; the elements; those of the delta base in the same places."""


def find(
    plain: bytes | memoryview, delta_base: bytes | memoryview, width: int, skip: int, share: int
) -> _Found | None:
    """Return the elements that differ; None if they are more than one in ``share``."""
    new, old = elements(plain, width, skip), elements(delta_base, width, skip)
    differs = new != old
    if np.count_nonzero(differs) > len(new) // share:
        return None
    places = np.flatnonzero(differs)
    gaps = (np.diff(places, prepend=-1) - 1).astype("<u4")
    columns = gaps.view(np.uint8).reshape(-1, _GAP_BYTES).T
    used = max([1, *[at + 1 for at in range(_GAP_BYTES) if columns[at].any()]])
    now, before = new[places], old[places]
    if width == 1:
        now = _folded(now - before)
    return (
        [memoryview(np.ascontiguousarray(columns[at]).data) for at in range(used)],
        memoryview(now.view(np.uint8).data),
        memoryview(before.view(np.uint8).data),
    )


def take(
    gaps: Sequence[memoryview], delta_base: bytes | memoryview, width: int, skip: int
) -> memoryview | None:
    """Return the elements of the delta base that changed; None if a gap leads beyond its end."""
    old = elements(delta_base, width, skip)
    places = _places(gaps, len(old))
    return None if places is None else memoryview(old[places].view(np.uint8).data)


def put(
    gaps: Sequence[memoryview],
    values: memoryview,
    delta_base: bytes | memoryview,
    width: int,
    skip: int,
) -> memoryview | None:
    """Return the delta base with the new elements; None if a gap leads beyond its end."""
    plain = np.frombuffer(delta_base, np.uint8).copy()
    words = elements(plain.data, width, skip)
    places = _places(gaps, len(words))
    if places is None:
        return None
    if width == 1:
        words[places] += _unfolded(np.frombuffer(values, np.uint8))
    else:
        words[places] = np.frombuffer(values, words.dtype)
    return memoryview(plain.data)


def _places(columns: Sequence[memoryview], count: int) -> Words | None:
    """Return the index of each changed element; None if one is beyond ``count`` elements."""
    gaps = np.zeros((len(columns[0]), _GAP_BYTES), np.uint8)
    for at, column in enumerate(columns):
        gaps[:, at] = np.frombuffer(column, np.uint8)
    # In 64 bits: the gaps have 32 bits each, and no sum of gaps that fit in memory overflows.
    indexes = gaps.view("<u4").reshape(-1).astype(np.int64)
    indexes[1:] += 1
    np.cumsum(indexes, out=indexes)
    return None if len(indexes) and indexes[-1] >= count else indexes


def _folded(difference: _Bytes) -> _Bytes:
    """Move the sign into the lowest bit."""
    signs = (difference.view(np.int8) >> 7).view(np.uint8)
    return np.asarray(difference << 1 ^ signs)


def _unfolded(folded: _Bytes) -> _Bytes:
    return np.asarray(folded >> 1 ^ -(folded & 1))
