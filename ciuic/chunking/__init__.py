"""Cuts the bytes of files into chunks.

A chunker sees offsets and bytes, and no files. The store's header records the rules, so every run
cuts in the same way. docs/format.md, "Cutting files into chunks", says which rule applies to which
file. ``content`` is imported only when it is needed: its library takes a tenth of the time of a
short snapshot.
"""

from collections.abc import Iterable, Iterator
from typing import Protocol

from ciuic.chunking.by_tensor import TensorChunker
from ciuic.chunking.fixed import FixedChunker
from ciuic.chunking.rewritten import is_rewritten

__all__ = ["Chunker", "FixedChunker", "TensorChunker", "is_rewritten"]


class Chunker(Protocol):
    """Decides where one file is cut.

    The bounds that ``before`` and ``after`` return are known before the data is read. They are
    cuts, or bounds of fixed regions if the cuts depend on the data.
    """

    def before(self, offset_bytes: int) -> int:
        """Return the last bound at or before ``offset_bytes``; the start of the file is a bound."""
        ...

    def after(self, offset_bytes: int) -> int:
        """Return the first bound after ``offset_bytes``, regardless of the file's end."""
        ...

    def block_end(self, offset_bytes: int, block_bytes: int) -> int:
        """Return where a block of about ``block_bytes`` from ``offset_bytes`` on should end.

        Readers read blocks that end there, because a cut there costs nothing.
        """
        ...

    def width_bytes(self, offset_bytes: int) -> int:
        """Return the bytes per element of the chunk that begins there; 0 if they are not known."""
        ...

    def chunks(self, blocks: Iterable[tuple[int, memoryview]]) -> Iterator[tuple[int, memoryview]]:
        """Cut blocks into chunks, each with its position in the file.

        Args:
            blocks: Ranges of the file with their offsets, in order. A gap between two blocks is
                always a cut.

        Yields:
            Offset and bytes of each chunk, in order; mostly views into the blocks.
        """
        ...
