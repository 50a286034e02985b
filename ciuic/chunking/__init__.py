"""Bytes -> chunk boundaries.

A chunker decides where a stretch of data is cut; it sees positions and bytes, never files. The
choice is recorded in the store's header, so that every run over a store cuts alike. Which files
are cut by which rule: docs/format.md, section 7.
"""

from collections.abc import Iterable, Iterator
from typing import Protocol

from ciuic.chunking.content import ContentChunker
from ciuic.chunking.fixed import FixedChunker
from ciuic.chunking.rewritten import is_rewritten
from ciuic.chunking.tensor import TensorChunker

__all__ = ["Chunker", "ContentChunker", "FixedChunker", "TensorChunker", "is_rewritten"]


class Chunker(Protocol):
    """Where to cut one file.

    ``before`` and ``after`` are known before its data is read: cuts, or where cuts depend on the
    data the bounds of regions that stand for them.
    """

    def before(self, offset_bytes: int) -> int:
        """The last bound at ``offset_bytes`` or before; the file's first byte is one."""
        ...

    def after(self, offset_bytes: int) -> int:
        """The first bound behind ``offset_bytes``, wherever the file may end."""
        ...

    def block_end(self, offset_bytes: int, block_bytes: int) -> int:
        """Where a block that begins at ``offset_bytes`` ends, if it is about ``block_bytes`` long.

        Whoever reads asks for blocks that end there, since a cut there costs nothing.
        """
        ...

    def width_bytes(self, offset_bytes: int) -> int:
        """Of an element of the chunk that begins there, by the file's header; 0: not known."""
        ...

    def chunks(self, blocks: Iterable[tuple[int, memoryview]]) -> Iterator[tuple[int, memoryview]]:
        """Cut blocks into chunks, each with its position in the file.

        Args:
            blocks: Stretches of the file with their positions, in order; a file is always cut
                where two of them do not touch.

        Yields:
            All of the blocks' bytes in order; mostly views into the blocks.
        """
        ...
