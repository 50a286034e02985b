"""Chunks that begin and end with tensors, so that a tensor is found again wherever it lies.

The rule, which docs/format.md has for other writers (section 7, decision 0014):

- A tensor of ``SMALL_BYTES`` or more is a stretch of its own.
- Smaller neighbours make one stretch together, from the first one's first byte to the last
  one's end, with what lies between them. It ends as soon as it is ``SMALL_BYTES`` long, and
  before a large tensor, and where ``SMALL_BYTES`` or more lie before the next tensor.
- What is in no stretch (headers, padding) makes stretches between them.
- Each stretch is cut at multiples of the chunk size, counted from its own first byte. What lies
  behind the last tensor has no end: a file may grow there.

Guarantees:
    - cuts are a function of the layout and the chunk size, never of the data.
    - no chunk is longer than the chunk size.
    - bytes in front of a stretch that grow or shrink move its cuts by as much.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

from ciuic.chunking.tensors import WIDTHS, Span

__all__ = ["SMALL_BYTES", "TensorChunker"]

SMALL_BYTES: Final = 64 * 1024
"""A chunk costs some 120 bytes in recipe, pack and catalog: for 64 KiB that is 0.2 %."""
_NUMBER_BYTES: Final = {**WIDTHS, "C64": WIDTHS["F32"], "C128": WIDTHS["F64"]}
"""Of what an element of each type is made of: complex ones of two floats."""


class TensorChunker:
    """Cuts one file by its layout.

    Args:
        spans: Its tensors, in order and apart from one another.
        size_bytes: No chunk is longer.
    """

    def __init__(self, spans: Iterable[Span], size_bytes: int) -> None:
        self._size_bytes = size_bytes
        widths = {0: 0}
        for start, end, width in _stretches(spans):
            widths[start] = width
            widths.setdefault(end, 0)
        self._bounds = sorted(widths)
        self._widths = widths

    def before(self, offset_bytes: int) -> int:
        """See ``Chunker``."""
        start = self._bounds[bisect_right(self._bounds, offset_bytes) - 1]
        return offset_bytes - (offset_bytes - start) % self._size_bytes

    def after(self, offset_bytes: int) -> int:
        """See ``Chunker``."""
        at = bisect_right(self._bounds, offset_bytes)
        start = self._bounds[at - 1]
        cut = offset_bytes - (offset_bytes - start) % self._size_bytes + self._size_bytes
        return cut if at == len(self._bounds) else min(cut, self._bounds[at])

    def block_end(self, offset_bytes: int, block_bytes: int) -> int:
        """The last cut within a block's length; a chunk is never shorter for the sake of it."""
        end = self.before(offset_bytes + block_bytes)
        return end if end > offset_bytes else self.after(offset_bytes)

    def width_bytes(self, offset_bytes: int) -> int:
        """See ``Chunker``; 0 also where tensors of several widths lie together."""
        return self._widths[self._bounds[bisect_right(self._bounds, offset_bytes) - 1]]

    def chunks(self, blocks: Iterable[tuple[int, memoryview]]) -> Iterator[tuple[int, memoryview]]:
        """See ``Chunker``; a block is cut at its end."""
        for offset, block in blocks:
            end = offset + len(block)
            bounds = [offset]
            while (cut := self.after(bounds[-1])) < end:
                bounds.append(cut)
            bounds.append(end)
            for one, other in pairwise(bounds):
                yield one, block[one - offset : other - offset]


def _stretches(spans: Iterable[Span]) -> Iterable[tuple[int, int, int]]:
    """First byte, end and elements' width of each large tensor, and of each run of small ones."""
    start = end = width = 0
    for span in spans:
        is_large = span.length_bytes >= SMALL_BYTES
        if start < end and (is_large or span.offset_bytes - end >= SMALL_BYTES):
            yield start, end, width
            start = end
        own = _NUMBER_BYTES.get(span.element, 0)
        if start == end:
            start, width = span.offset_bytes, own
        elif width != own or (span.offset_bytes - start) % max(own, 1):
            width = 0
        end = span.offset_bytes + span.length_bytes
        if end - start >= SMALL_BYTES:
            yield start, end, width
            start = end
    if start < end:
        yield start, end, width
