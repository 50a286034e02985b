"""An open file of a mounted snapshot: reading at any place, reading ahead, and finding holes."""

import errno
import itertools
import os
from collections import deque
from collections.abc import Iterator
from typing import Final

from ciuic.errors import CorruptionError
from ciuic.model import Entry
from ciuic.mount.chunks import Chunks
from ciuic.store.packs.reader import StoreReader
from ciuic.store.records.recipe_nodes import Piece, cut, iter_pieces, pieces_from
from ciuic.view.chunk_plan import Part

__all__ = ["OpenFile", "hole_bytes"]

_GAP_BYTES: Final = 128 * 1024
"""A read that begins this close to the end of the one before it may be sequential."""
_SLACK_BYTES: Final = 4 * 1024 * 1024
"""The kernel reads ahead with several requests at once, which arrive in any order."""
_AHEAD_MIN_BYTES: Final = 2 * 1024 * 1024
_AHEAD_MAX_BYTES: Final = 12 * 1024 * 1024
_PIECES_MAX: Final = 1 << 20
"""Pieces that are looked at to find a hole; a hostile recipe may have billions."""


class OpenFile:
    """A regular file. For one thread.

    Args:
        reader: Reads the nodes of its recipe.
        chunks: Reads its chunks.
        entry: The file.
    """

    def __init__(self, reader: StoreReader, chunks: Chunks, entry: Entry) -> None:
        self._get = reader.node
        self._chunks = chunks
        self._entry = entry
        self._parts: deque[Part] = deque()
        """Consecutive pieces, without a gap."""
        self._further: Iterator[tuple[int, Piece]] = iter(())
        self._next = -1
        """Where a sequential reader goes on; -1 before the first read."""
        self._asked_to = 0
        self._ahead_bytes = 0

    def read_into(self, offset: int, out: memoryview) -> int:
        """Write the bytes at an offset to memory.

        Returns:
            How many: fewer at the end of the file.

        Raises:
            CorruptionError: The bytes are damaged.
        """
        end = min(offset + len(out), self._entry.size_bytes)
        if offset >= end:
            return 0
        self._cover(offset, end)
        self._read_ahead(offset, end)
        for part in self._parts:
            if part.offset >= end:
                break
            begin, until = max(offset, part.offset), min(end, _end(part))
            if begin < until:
                self._copy(part, begin, out[begin - offset : until - offset])
        return end - offset

    def seek(self, offset: int, whence: int) -> int:
        """Return where the next data or the next hole begins, as ``lseek`` does.

        Raises:
            OSError: ENXIO: there is none.
        """
        size_bytes = self._entry.size_bytes
        if whence not in {os.SEEK_DATA, os.SEEK_HOLE}:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if not 0 <= offset < size_bytes:
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        wants_data = whence == os.SEEK_DATA
        at = offset
        for number, (begin, piece) in enumerate(pieces_from(self._get, self._entry, offset)):
            at = max(begin, offset)
            if bool(piece.id) == wants_data:
                return at
            if number >= _PIECES_MAX:
                # To call a hole data is right, only slow.
                return at if wants_data else size_bytes
        if wants_data:
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        return size_bytes

    def _cover(self, offset: int, end: int) -> None:
        """Make ``_parts`` cover the file from ``offset`` to ``end``."""
        parts = self._parts
        if not parts or not parts[0].offset <= offset <= _end(parts[-1]):
            parts.clear()
            self._further = pieces_from(self._get, self._entry, offset)
        self._extend(end)
        if _end(parts[-1]) < end if parts else True:
            raise CorruptionError("a file's pieces are shorter than the file")
        while _end(parts[0]) + _SLACK_BYTES <= offset:
            parts.popleft()

    def _extend(self, end: int) -> None:
        parts = self._parts
        while not parts or _end(parts[-1]) < end:
            following = next(self._further, None)
            if following is None:
                return
            parts.append(Part(*following))

    def _read_ahead(self, offset: int, end: int) -> None:
        """Have the next chunks decoded if the file is read sequentially."""
        before, self._next = self._next, max(self._next, end)
        slack = _SLACK_BYTES if self._ahead_bytes else _GAP_BYTES
        if before < 0 or abs(offset - before) > slack:
            self._next, self._ahead_bytes, self._asked_to = end, 0, end
            return
        self._ahead_bytes = min(max(2 * self._ahead_bytes, _AHEAD_MIN_BYTES), _AHEAD_MAX_BYTES)
        wanted = min(self._next + self._ahead_bytes, self._entry.size_bytes)
        # Half a window at a time: each call asks the chunk index once.
        if wanted - self._asked_to < min(self._ahead_bytes // 2, wanted - self._next):
            return
        try:
            self._extend(wanted)
        except CorruptionError:
            return  # a read of that range raises the error
        # The pieces of this read too: its chunks are decoded side by side.
        begin = max(self._asked_to, offset)
        ahead = [part for part in self._parts if _end(part) > begin and part.offset < wanted]
        if self._chunks.expect(ahead):
            self._asked_to = wanted

    def _copy(self, part: Part, begin: int, out: memoryview) -> None:
        piece = part.piece
        if not piece.id:
            out[:] = bytes(len(out))
            return
        start = piece.start_bytes + begin - part.offset
        out[:] = cut(self._chunks.get(piece.id), Piece(len(out), piece.id, start))


def hole_bytes(reader: StoreReader, entry: Entry) -> int:
    """Return how many bytes of a file are holes; 0 if its pieces cannot be read.

    Only the first million pieces are counted: those of a terabyte.
    """
    if entry.level == 0:
        return 0
    try:
        pieces = itertools.islice(iter_pieces(reader.node, entry), _PIECES_MAX)
        return sum([piece.length_bytes for piece in pieces if not piece.id])
    except CorruptionError:
        return 0


def _end(part: Part) -> int:
    return part.offset + part.piece.length_bytes
