"""Bytes -> chunk boundaries.

A chunker decides where a stretch of data is cut; it sees positions and bytes, never files. The
choice is recorded in the store's header, so that every run over a store cuts alike.
"""

from typing import Protocol

from ciuic.chunking.fixed import FixedChunker

__all__ = ["Chunker", "FixedChunker"]


class Chunker(Protocol):
    """Where to cut."""

    def cuts(self, offset_bytes: int, block: memoryview) -> list[memoryview]:
        """Cut ``block``, which starts at ``offset_bytes`` of its file, into chunks in order.

        The chunks are views into ``block`` and together are all of it.
        """
        ...
