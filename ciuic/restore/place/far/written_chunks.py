"""Chunks that this restore has written: they are read again from there, and not from a bucket.

The base of a delta is often an older version of the file that was restored just before. It needs
no second request, no room in a cache and no second decoding. The reader compares each chunk with
its ID, so a file that a program has changed meanwhile costs a request, and nothing else.
"""

import contextlib
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final

from ciuic.ids import ChunkId
from ciuic.store.records.kinds import ALONE_BYTES
from ciuic.system.buffers import BufferPool
from ciuic.view.chunk_plan import Part

__all__ = ["WrittenChunks"]

_FILES_MAX: Final = 64
_CHUNKS_MAX: Final = 32768
_ALIGNMENT: Final = 4096
_BUFFER_BYTES: Final = 2 * 1024 * 1024
_buffers: Final = BufferPool(_BUFFER_BYTES)


class WrittenChunks:
    """The chunks of the last files. See ``ChunksWritten``.

    One thread calls all methods but ``lend``, while no other reads.

    Attributes:
        last: The number of the file that was begun last.
    """

    def __init__(self) -> None:
        self._files: OrderedDict[int, int] = OrderedDict()
        """The open descriptors, by the number of the file."""
        self._chunks: OrderedDict[bytes, tuple[int, int, int]] = OrderedDict()
        """The number of the file, the offset and the length of each chunk."""
        self.last = 0

    def close(self) -> None:
        """Forget all of them."""
        self._chunks.clear()
        while self._files:
            self._forget_oldest()

    def add_file(self, fd: int) -> int:
        """Begin a file; returns its number, for ``add``."""
        number = self.last = self.last + 1
        # Not by its name: the owner of the directory may have put another file there.
        path = b"/proc/self/fd/%d" % fd
        flags = os.O_RDONLY | os.O_CLOEXEC
        try:
            self._files[number] = os.open(path, flags | os.O_DIRECT)  # as it was written
        except OSError:
            self._files[number] = os.open(path, flags)
        while len(self._files) > _FILES_MAX:
            self._forget_oldest()
        return number

    def add(self, number: int, parts: Iterable[Part]) -> None:
        """Note the chunks of a part of a file that is complete."""
        if number not in self._files:
            return
        for offset, piece in parts:
            # A slice has another length than its chunk, and ``lend`` compares them.
            if piece.id and not piece.start_bytes and piece.length_bytes >= ALONE_BYTES:
                self._chunks[piece.id] = number, offset, piece.length_bytes
        while len(self._chunks) > _CHUNKS_MAX:
            self._chunks.popitem(last=False)

    def forget_after(self, number: int) -> None:
        """Forget the files that were begun after one: they are removed, and would keep their space.

        Args:
            number: Of that one.
        """
        while self._files and next(reversed(self._files)) > number:
            os.close(self._files.popitem()[1])

    def __contains__(self, chunk_id: object) -> bool:
        found = self._chunks.get(chunk_id) if isinstance(chunk_id, bytes) else None
        return found is not None and found[0] in self._files

    @contextlib.contextmanager
    def lend(self, chunk_id: ChunkId, length_bytes: int) -> Iterator[memoryview | None]:
        """See ``ChunksWritten``."""
        number, offset, length = self._chunks.get(chunk_id, (0, 0, 0))
        fd = self._files.get(number, -1)
        begin = offset % _ALIGNMENT
        if fd < 0 or length != length_bytes or begin + length > _BUFFER_BYTES:
            yield None
            return
        buffer = _buffers.take()
        try:
            view = memoryview(buffer)
            wanted = -(-(begin + length) // _ALIGNMENT) * _ALIGNMENT
            read = 0
            with contextlib.suppress(OSError):
                read = os.preadv(fd, [view[:wanted]], offset - begin)
            yield view[begin : begin + length] if read >= begin + length else None
        finally:
            _buffers.give_back(buffer)

    def _forget_oldest(self) -> None:
        _, fd = self._files.popitem(last=False)
        os.close(fd)
