"""Cuts at tensors, so that a tensor gives the same chunks at any offset.

The rule (docs/format.md, "By tensor"; decision 0014):

- A tensor of ``SMALL_BYTES`` or more is a stretch of its own.
- Smaller neighbors form one stretch, from the start of the first to the end of the last, including
  the bytes between them. It ends as soon as it is ``SMALL_BYTES`` long, before a large tensor, and
  before a gap of ``SMALL_BYTES`` or more.
- The bytes outside of these stretches (headers, padding) form stretches between them.
- Each stretch is cut at multiples of the chunk size, counted from its start. The stretch after the
  last tensor has no end: a file may grow there.

Guarantees:
    - Cuts depend only on the layout and the chunk size, not on the data.
    - No chunk is longer than the chunk size.
    - If the bytes before a stretch grow or shrink, its cuts move by the same distance.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

from ciuic.formats.headers import WIDTHS, Span

__all__ = ["SMALL_BYTES", "TensorChunker"]

SMALL_BYTES: Final = 64 * 1024
"""A chunk costs about 120 bytes in recipe, pack and chunk index: 0.2% of 64 KiB."""
_NUMBER_BYTES: Final = {**WIDTHS, "C64": WIDTHS["F32"], "C128": WIDTHS["F64"]}
"""Bytes per number of each type. A complex element consists of two floats."""


class TensorChunker:
    """Cuts one file by its tensor layout.

    Args:
        spans: The tensors, in order and without overlap.
        size_bytes: Maximum chunk size.
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
        """Return the last cut within a block's length, or the next cut if there is none."""
        end = self.before(offset_bytes + block_bytes)
        return end if end > offset_bytes else self.after(offset_bytes)

    def width_bytes(self, offset_bytes: int) -> int:
        """See ``Chunker``; 0 also for a stretch of tensors of several widths."""
        return self._widths[self._bounds[bisect_right(self._bounds, offset_bytes) - 1]]

    def chunks(self, blocks: Iterable[tuple[int, memoryview]]) -> Iterator[tuple[int, memoryview]]:
        """See ``Chunker``; a block is cut at its end."""
        for offset, block in blocks:
            end = offset + len(block)
            bounds = [offset]
            while (cut := self.after(bounds[-1])) < end:
                bounds.append(cut)
            bounds.append(end)
            for start, stop in pairwise(bounds):
                yield start, block[start - offset : stop - offset]


def _stretches(spans: Iterable[Span]) -> Iterable[tuple[int, int, int]]:
    """Yield start, end and bytes per element of each large tensor and each run of small tensors."""
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
