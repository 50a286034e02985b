"""The content of a file that is uploaded: a piece of it at a time, or all of it in memory.

It is read, not mapped: if the file is cut meanwhile, or its disk fails, a mapping ends the process.
"""

import os
from collections.abc import Iterator
from io import FileIO
from typing import Final

from ciuic.errors import StoreError
from ciuic.store.directory.faults import store_faults

__all__ = ["FileBody"]

_PIECE_BYTES: Final = 1024 * 1024


class FileBody:
    """The content of an open file to which no program writes.

    Args:
        file: The file.
        size_bytes: Its length.

    Attributes:
        size_bytes: Its length.
    """

    def __init__(self, file: FileIO, size_bytes: int) -> None:
        self._file = file
        self.size_bytes = size_bytes

    def pieces(self) -> Iterator[memoryview]:
        """Yield the content in pieces. Each is valid until the next one is asked for.

        Raises:
            StoreError: The file cannot be read, or was cut.
        """
        buffer = memoryview(bytearray(min(_PIECE_BYTES, self.size_bytes)))
        at = 0
        while at < self.size_bytes:
            piece = buffer[: self.size_bytes - at]
            self._fill(piece, at)
            yield piece
            at += len(piece)

    def read(self) -> memoryview:
        """Return the content; raises as ``pieces`` does."""
        content = memoryview(bytearray(self.size_bytes))
        self._fill(content, 0)
        return content

    def read_at(self, length_bytes: int, offset_bytes: int) -> bytes:
        """Return a part of the content, less at its end; raises as ``pieces`` does."""
        found = bytearray(max(0, min(length_bytes, self.size_bytes - offset_bytes)))
        self._fill(memoryview(found), offset_bytes)
        return bytes(found)

    def _fill(self, out: memoryview, at: int) -> None:
        with store_faults("read", str(self._file.name)):
            while out:
                read = os.preadv(self._file.fileno(), [out], at)
                if not read:
                    raise StoreError(f"{self._file.name} was cut before it was uploaded")
                at += read
                out = out[read:]
