"""Write the recipe of a file from its data and the holes between."""

from collections.abc import Iterator

from ciuic.ids import ChunkId
from ciuic.snapshot.read.changed_ranges import Kept
from ciuic.snapshot.read.source_file import NO_CONTENT, Recipe
from ciuic.store.packs.writer import StoreWriter
from ciuic.store.records.recipe_nodes import HOLE, Piece, RecipeBuilder

__all__ = ["RecipeWriter"]


class RecipeWriter:
    """Writes the recipe of one file, in order.

    Args:
        writer: Stores recipe nodes.
        expected: Old pieces that the file must still have, because their ranges are unchanged.

    Attributes:
        missed: The first offset at which a chunk differs from the expected piece; None: no chunk
            differs.
    """

    def __init__(self, writer: StoreWriter, expected: Iterator[Kept] | None = None) -> None:
        self._builder = RecipeBuilder(writer.put_node)
        self._first: Piece | None = None
        self._count = 0
        self._end = 0
        self._is_fresh = False
        self._expected = iter(()) if expected is None else expected
        self._expected_next = next(self._expected, None)
        self.missed: int | None = None

    def add_data(self, offset_bytes: int, length_bytes: int, chunk_id: ChunkId) -> None:
        """Add a chunk that was read and stored."""
        self._add_hole(offset_bytes)
        self._compare(offset_bytes, length_bytes, chunk_id)
        self._is_fresh = True
        self._add(Piece(length_bytes, chunk_id))

    def add_kept(self, kept: Kept) -> None:
        """Add a piece of the old recipe."""
        self._add_hole(kept.offset_bytes)
        self._is_fresh = False  # it may be a slice: only a recipe can say so
        self._add(kept.piece)

    def finish(self, size_bytes: int) -> Recipe:
        """Return how the store holds the file.

        Args:
            size_bytes: Length of the file; 0 if the file has shrunk and ends with its last data.
        """
        self._add_hole(size_bytes)
        if self._first is None:
            return Recipe(NO_CONTENT, 0, self._end)
        if self._count == 1 and self._first.id != HOLE and self._is_fresh:
            return Recipe(self._first.id, 0, self._end)
        if self._count == 1:
            self._builder.add(self._first)
        recipe_id, level = self._builder.finish()
        return Recipe(recipe_id, level + 1, self._end)

    def _compare(self, offset_bytes: int, length_bytes: int, chunk_id: ChunkId) -> None:
        while self._expected_next is not None and self._expected_next.offset_bytes < offset_bytes:
            self._expected_next = next(self._expected, None)
        wanted = self._expected_next
        if wanted is None or wanted.offset_bytes != offset_bytes or wanted.piece.id == chunk_id:
            return
        if wanted.length_bytes != length_bytes:  # the file was cut elsewhere: no change
            return
        if self.missed is None:
            self.missed = offset_bytes

    def _add_hole(self, until: int) -> None:
        if until > self._end:
            self._add(Piece(until - self._end, HOLE))

    def _add(self, piece: Piece) -> None:
        self._count += 1
        self._end += piece.length_bytes
        if self._first is None:
            self._first = piece
            return
        if self._count == 2:
            self._builder.add(self._first)
        self._builder.add(piece)
