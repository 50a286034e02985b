"""Bytes -> chunk boundaries.

A chunker decides where a stretch of data is cut; it sees positions and bytes, never files. The
choice is recorded in the store's header, so that every run over a store cuts alike.
"""

from typing import Protocol

from ciuic.chunking.fixed import FixedChunker
from ciuic.chunking.tensor import TensorChunker

__all__ = ["Chunker", "FixedChunker", "TensorChunker"]


class Chunker(Protocol):
    """Where to cut: positions in one file, known before its data is read."""

    def before(self, offset_bytes: int) -> int:
        """The last cut at ``offset_bytes`` or before; the file's first byte is one."""
        ...

    def after(self, offset_bytes: int) -> int:
        """The first cut behind ``offset_bytes``, wherever the file may end."""
        ...

    def block_end(self, offset_bytes: int, block_bytes: int) -> int:
        """Where a block that begins at ``offset_bytes`` ends, if it is about ``block_bytes`` long.

        A block is cut at its end, so it ends where a file is cut anyway.
        """
        ...

    def cuts(self, offset_bytes: int, block: memoryview) -> list[memoryview]:
        """Cut ``block``, which starts at ``offset_bytes`` of its file, into chunks in order.

        The chunks are views into ``block`` and together are all of it.
        """
        ...
