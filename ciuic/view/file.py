"""Random access to a file of a snapshot: its pieces around an offset, and their bytes."""

from collections.abc import Iterator

from ciuic.errors import CorruptionError
from ciuic.ids import ChunkId
from ciuic.model import Entry
from ciuic.store.records.kinds import DATA
from ciuic.store.records.recipe_nodes import HOLE, Piece, cut, pieces_from
from ciuic.store.store import Store

__all__ = ["StoredFile"]


class StoredFile:
    """A file of a snapshot that can be read at any offset. For one thread.

    It remembers the pieces around the last offset, and one chunk.
    """

    def __init__(self, store: Store, entry: Entry) -> None:
        self._reader = store.reader
        self._entry = entry
        self._around: list[tuple[int, Piece]] = []
        self._further: Iterator[tuple[int, Piece]] = iter(())
        self._chunk: tuple[ChunkId, memoryview] = HOLE, memoryview(b"")

    def read(self, offset_bytes: int, length_bytes: int) -> bytes:
        """Return the bytes at an offset; fewer at the end of the file."""
        length = min(length_bytes, self._entry.size_bytes - offset_bytes)
        return b"" if length <= 0 else bytes(self.data(self.pieces(offset_bytes, length)))

    def pieces(self, offset_bytes: int, length_bytes: int) -> list[Piece]:
        """Return the pieces of a range, which must be inside the file.

        Raises:
            CorruptionError: The pieces are shorter than the file.
        """
        end = offset_bytes + length_bytes
        if not self._around or not self._around[0][0] <= offset_bytes <= self._end():
            self._around = []
            self._further = pieces_from(self._reader.node, self._entry, offset_bytes)
        while self._end() < end:
            following = next(self._further, None)
            if following is None:
                raise CorruptionError("a file's pieces are shorter than the file")
            self._around.append(following)
        self._around = [
            (at, piece) for at, piece in self._around if at + piece.length_bytes > offset_bytes
        ]
        return [_clipped(at, piece, offset_bytes, end) for at, piece in self._around if at < end]

    def data(self, pieces: list[Piece]) -> bytes | memoryview:
        """Return the bytes of pieces."""
        parts = [self._read_piece(piece) for piece in pieces]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _end(self) -> int:
        if not self._around:
            return 0
        at, piece = self._around[-1]
        return at + piece.length_bytes

    def _read_piece(self, piece: Piece) -> bytes | memoryview:
        if not piece.id:
            return bytes(piece.length_bytes)
        if self._chunk[0] != piece.id:
            self._chunk = piece.id, memoryview(self._reader.chunk(piece.id, kind=DATA))
        return cut(self._chunk[1], piece)


def _clipped(at: int, piece: Piece, begin: int, end: int) -> Piece:
    """Return the part between two offsets of a piece that begins at ``at``."""
    first, last = max(at, begin), min(at + piece.length_bytes, end)
    return Piece(last - first, piece.id, piece.start_bytes + first - at if piece.id else 0)
