"""Cuts at multiples of the chunk size, counted from the file's start.

Data that is rewritten in place keeps its chunks. A hole before the data changes nothing, because
offsets count in the file and not in the data.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise

__all__ = ["FixedChunker"]


class FixedChunker:
    """Cuts one file at every multiple of ``size_bytes``."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes

    def before(self, offset_bytes: int) -> int:
        """See ``Chunker``."""
        return offset_bytes - offset_bytes % self.size_bytes

    def after(self, offset_bytes: int) -> int:
        """See ``Chunker``."""
        return self.before(offset_bytes) + self.size_bytes

    def block_end(self, offset_bytes: int, block_bytes: int) -> int:
        """Return the next multiple of the whole chunks in a block, or of one chunk."""
        whole_bytes = max(1, block_bytes // self.size_bytes) * self.size_bytes
        return offset_bytes - offset_bytes % whole_bytes + whole_bytes

    def width_bytes(self, offset_bytes: int) -> int:
        """See ``Chunker``: no header was read, so the width is not known."""
        del offset_bytes
        return 0

    def chunks(self, blocks: Iterable[tuple[int, memoryview]]) -> Iterator[tuple[int, memoryview]]:
        """See ``Chunker``; a block is cut at its end."""
        size = self.size_bytes
        for offset, block in blocks:
            first = size - offset % size
            bounds = [0, *range(first, len(block), size), len(block)]
            for start, end in pairwise(bounds):
                yield offset + start, block[start:end]
