"""The log that a snapshot holds, against the log as it is now.

Its length proves nothing: a log that has been started over may have grown past it. So its chunks
are compared, by their hashes, with the same places of the log. That reads recipes and slices from
the store, and nothing else. What many snapshots share of a log is hashed once.
"""

import os
from typing import BinaryIO, Final

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.model import Entry
from ciuic.store.records.kinds import DATA
from ciuic.store.records.recipe_nodes import Piece, cut, iter_pieces
from ciuic.store.store import Store
from ciuic.system.hashing import data_id

__all__ = ["Beginnings", "end_of"]

_BLOCK_BYTES: Final = 1024 * 1024
_END_BYTES: Final = 256 * 1024


class Beginnings:
    """Tells whether a log still begins as snapshots hold it.

    Args:
        store: An open store.
        log: The log as it is now. While it is compared, lines may be added.
    """

    def __init__(self, store: Store, log: BinaryIO) -> None:
        self._store = store
        self._fd = log.fileno()
        self._known: dict[tuple[int, int, bytes, int], bool] = {}

    def has(self, entry: Entry) -> bool:
        """Return whether the log begins with the bytes of a stored file; False if it is damaged."""
        if entry.size_bytes > os.fstat(self._fd).st_size:
            return False
        offset = 0
        try:
            for piece in iter_pieces(self._store.reader.node, entry):
                key = (offset, piece.length_bytes, piece.id, piece.start_bytes)
                if key not in self._known:
                    self._known[key] = self._has_piece(offset, piece)
                if not self._known[key]:
                    return False
                offset += piece.length_bytes
        except (CorruptionError, UnknownFormatError, OSError):
            return False
        return True

    def _has_piece(self, offset: int, piece: Piece) -> bool:
        if not piece.id:
            return self._has_zeros(offset, offset + piece.length_bytes)
        data = os.pread(self._fd, piece.length_bytes, offset)
        if len(data) != piece.length_bytes:
            return False
        if data_id(data) == piece.id:
            return True
        place = self._store.reader.places([piece.id]).get(piece.id)
        if place is None or place.length_bytes == piece.length_bytes:
            return False
        return cut(memoryview(self._store.reader.chunk(piece.id, kind=DATA)), piece) == data

    def _has_zeros(self, offset: int, end: int) -> bool:
        while offset < end:
            block = os.pread(self._fd, min(_BLOCK_BYTES, end - offset), offset)
            if not block or block.count(0) != len(block):
                return False
            offset += len(block)
        return True


def end_of(store: Store, entry: Entry) -> list[bytes]:
    """Return the last lines of a stored file: those that begin in its last 256 KiB.

    Raises:
        CorruptionError: A chunk is missing or damaged.
    """
    begin = max(0, entry.size_bytes - _END_BYTES)
    found: list[bytes | memoryview] = []
    offset = 0
    for piece in iter_pieces(store.reader.node, entry):
        skipped = max(0, begin - offset)
        if skipped < piece.length_bytes:
            found.append(_bytes_of(store, piece, skipped))
        offset += piece.length_bytes
    lines = b"".join(found).split(b"\n")
    return lines[1:] if begin else lines


def _bytes_of(store: Store, piece: Piece, skipped: int) -> bytes | memoryview:
    if not piece.id:
        return bytes(piece.length_bytes - skipped)
    return cut(memoryview(store.reader.chunk(piece.id, kind=DATA)), piece)[skipped:]
