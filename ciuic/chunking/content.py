"""Cuts by content, so that an insertion moves the cuts after it by the same distance.

The rule is FastCDC (Xia et al., 2020) as in pyfastcdc and the Rust crate fastcdc, with the gear
table of the paper's authors and normalization level 1; decision 0016 has the alternatives. A cut
depends only on the bytes since the cut before it. Two runs over the same bytes that have one cut in
common therefore have all later cuts in common.

Guarantees:
    - Cuts do not depend on how a range is divided into blocks.
    - No chunk is longer than ``size_bytes``. Only the last chunk of a range is shorter than
      ``least_bytes``.
    - At most ``size_bytes`` bytes of a block are copied: a chunk that begins in the block before.
"""

import warnings
from collections.abc import Generator, Iterable, Iterator
from typing import Final

from ciuic.chunking.fixed import FixedChunker

with warnings.catch_warnings():
    # It warns if its extension is missing; ciuic then uses the fixed rule.
    warnings.simplefilter("ignore")
    from pyfastcdc import FastCDC

__all__ = ["AVERAGE_BYTES", "IS_COMPILED", "LEAST_BYTES", "ContentChunker"]

AVERAGE_BYTES: Final = range(256, 4 * 1024 * 1024 + 1)
LEAST_BYTES: Final = range(64, 1024 * 1024 + 1)
"""Lengths that the library accepts. ciuic allows only powers of two, so that another library does
not have to round in the same way."""

IS_COMPILED: Final[bool] = FastCDC.__module__.startswith("pyfastcdc.cy")
"""Without its extension, the library cuts the same at 5 MB/s, and holds the interpreter's lock."""

_LEVEL: Final = 1
"""At levels 2 and 3 chunk sizes vary less, but two sequences of cuts with different starts, as in a
log that has lost its head, take two and four times as long to coincide."""


class ContentChunker(FixedChunker):
    """Cuts one file by its content; ``before`` and ``after`` return bounds of fixed regions.

    Args:
        size_bytes: Maximum chunk size.
        average_bytes: Average chunk size; the actual average is a little higher.
        least_bytes: Minimum chunk size.
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
        """See ``Chunker``; adjacent blocks are cut as if they were one block."""
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
        """Yield the chunks that certainly end in a block; return the rest of the block."""
        at = 0
        for chunk in self._gear.cut_buf(block):
            until = at + chunk.length
            if until == len(block) and chunk.length < self.size_bytes:
                break
            yield offset + at, block[at:until]
            at = until
        return block[at:]

    def _first(self, block: memoryview) -> int:
        """Return the length of the first chunk; 0 if it may continue after the block."""
        length = next(self._gear.cut_buf(block)).length
        return length if length < len(block) or length == self.size_bytes else 0
