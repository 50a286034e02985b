"""Chunks that end where their own bytes say so: an insertion moves the cuts behind it along.

The rule is FastCDC (Xia et al., 2020) as pyfastcdc and the Rust crate fastcdc have it, with the
gear table of the paper's authors and normalisation level 1; decision 0016 has the candidates.
A cut depends on the bytes since the cut before it and on nothing else, so that two runs over the
same bytes that have one cut in common have all further ones.

Guarantees:
    - cuts are the same however a stretch is divided into blocks.
    - no chunk is longer than ``size_bytes``; none but a stretch's last is shorter than
      ``least_bytes``.
    - of a block at most ``size_bytes`` are copied, where a chunk lies across its start.
"""

import warnings
from collections.abc import Generator, Iterable, Iterator
from typing import Final

from ciuic.chunking.fixed import FixedChunker

with warnings.catch_warnings():
    # It warns that its extension is missing: such a file is cut by the fixed rule then.
    warnings.simplefilter("ignore")
    from pyfastcdc import FastCDC

__all__ = ["AVERAGE_BYTES", "IS_COMPILED", "LEAST_BYTES", "ContentChunker"]

AVERAGE_BYTES: Final = range(256, 4 * 1024 * 1024 + 1)
LEAST_BYTES: Final = range(64, 1024 * 1024 + 1)
"""What the library takes; powers of two, so that another one need not round as it does."""

IS_COMPILED: Final[bool] = FastCDC.__module__.startswith("pyfastcdc.cy")
"""Without its extension it has the same cuts at 5 MB/s, and holds the interpreter's lock."""

_LEVEL: Final = 1
"""At 2 and 3 chunks are more alike in length, and two sequences of cuts that begin apart, as in a
log that has lost its head, take two and four times as long to fall in step."""


class ContentChunker(FixedChunker):
    """Cuts one file by its content; the regions that ``before`` and ``after`` tell are fixed.

    Args:
        size_bytes: No chunk is longer.
        average_bytes: Chunks are about so long, and a little longer.
        least_bytes: None is shorter.
    """

    def __init__(self, size_bytes: int, average_bytes: int, least_bytes: int) -> None:
        super().__init__(size_bytes)
        self._gear = FastCDC(
            average_bytes,
            min_size=least_bytes,
            max_size=size_bytes,
            normalized_chunking=_LEVEL,
        )

    def chunks(self, blocks: Iterable[tuple[int, memoryview]]) -> Iterator[tuple[int, memoryview]]:
        """See ``Chunker``; a stretch of blocks that touch is cut as if it were one block."""
        rest = memoryview(b"")
        end = 0
        for offset, block in blocks:
            if rest and offset != end:
                yield end - len(rest), rest
                rest = block[:0]
            end = offset + len(block)
            while rest:
                # No cut was found in the rest, but one may be within the longest chunk's length.
                across = memoryview(b"".join((rest, block[: self.size_bytes - len(rest)])))
                length = self._first(across)
                if not length:
                    rest, block = across, block[:0]  # noqa: PLW2901 - all of it is in the rest
                    break
                yield end - len(block) - len(rest), across[:length]
                block = block[max(0, length - len(rest)) :]  # noqa: PLW2901 - what is left of it
                rest = rest[length:]
            if block:
                rest = yield from self._cut(end - len(block), block)
        if rest:
            yield end - len(rest), rest

    def _cut(
        self, offset: int, block: memoryview
    ) -> Generator[tuple[int, memoryview], None, memoryview]:
        """Yield the chunks of a block that are sure to end there; return what is left of it."""
        at = 0
        for one in self._gear.cut_buf(block):
            until = at + one.length
            if until == len(block) and one.length < self.size_bytes:
                break
            yield offset + at, block[at:until]
            at = until
        return block[at:]

    def _first(self, block: memoryview) -> int:
        """Length of the first chunk; 0: it may go on behind the block."""
        length = next(self._gear.cut_buf(block)).length
        return length if length < len(block) or length == self.size_bytes else 0
