"""The bytes of a file, and comparing two files that are cut into chunks in different places."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.model import Entry
from ciuic.store.records.kinds import DATA
from ciuic.store.records.recipe_nodes import Piece, cut, iter_pieces
from ciuic.store.store import Store

__all__ = ["has_same_bytes", "read_file"]

_ZEROS: Final = memoryview(bytes(1024 * 1024))
_CACHED_MAX: Final = 16
"""Number of chunks, not bytes: the smallest chunk may keep a whole frame in memory."""


def read_file(store: Store, entry: Entry) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a regular file, in order, checked; a hole is read as zeros.

    Raises:
        CorruptionError: A chunk is missing or damaged.
    """
    chunks = _ChunkCache(store)
    for piece in _pieces(store, entry):
        yield chunks.read(piece)


def has_same_bytes(store: Store, old: Entry, new: Entry) -> bool:
    """Return whether two files of one length have the same bytes although they have other chunks.

    Files of one chunk each differ as soon as their chunk IDs differ. Slices that file changes have
    left are compared byte by byte, up to the first difference. False if a chunk cannot be read.
    """
    if not old.level and not new.level:
        return False
    chunks = _ChunkCache(store)
    try:
        for left, right in _side_by_side(_pieces(store, old), _pieces(store, new)):
            if left != right and chunks.read(left) != chunks.read(right):
                return False
    except (CorruptionError, UnknownFormatError):
        return False
    return True


class _ChunkCache:
    """Keeps the chunks that were read last: in a file, slices of one chunk are close together."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._chunks: OrderedDict[bytes, memoryview] = OrderedDict()

    def read(self, piece: Piece) -> memoryview:
        """Return the bytes of a piece. A hole must not be longer than ``_ZEROS``."""
        if not piece.id:
            return _ZEROS[: piece.length_bytes]
        chunk = self._chunks.get(piece.id)
        if chunk is None:
            chunk = memoryview(self._store.reader.chunk(piece.id, kind=DATA))
            self._chunks[piece.id] = chunk
            if len(self._chunks) > _CACHED_MAX:
                self._chunks.popitem(last=False)
        self._chunks.move_to_end(piece.id)
        return cut(chunk, piece)


def _pieces(store: Store, entry: Entry) -> Iterator[Piece]:
    """Yield the pieces of a file, with holes in parts of at most the length of ``_ZEROS``."""
    for piece in iter_pieces(store.reader.node, entry):
        left = piece
        while not left.id and left.length_bytes > len(_ZEROS):
            yield _head(left, len(_ZEROS))
            left = Piece(left.length_bytes - len(_ZEROS), left.id)
        yield left


def _side_by_side(old: Iterator[Piece], new: Iterator[Piece]) -> Iterator[tuple[Piece, Piece]]:
    """Yield the pieces of two files of one length in pairs, each cut to the length of the other."""
    left, right = next(old, None), next(new, None)
    while left is not None and right is not None:
        length = min(left.length_bytes, right.length_bytes)
        yield _head(left, length), _head(right, length)
        left = _tail(left, length) or next(old, None)
        right = _tail(right, length) or next(new, None)


def _head(piece: Piece, length_bytes: int) -> Piece:
    return Piece(length_bytes, piece.id, piece.start_bytes)


def _tail(piece: Piece, length_bytes: int) -> Piece | None:
    left = piece.length_bytes - length_bytes
    return Piece(left, piece.id, piece.start_bytes + length_bytes) if left else None
