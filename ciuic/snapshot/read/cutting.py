"""Decide how a file is cut into chunks, by its format."""

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from ciuic.chunking import Chunker, FixedChunker, TensorChunker, is_rewritten
from ciuic.codec import looks_like_numbers
from ciuic.formats.headers import Span
from ciuic.formats.spans import MAGIC_BYTES, layout
from ciuic.snapshot.read.reader_context import ReaderContext
from ciuic.source.file import OpenFile
from ciuic.store.records.header import CONTENT, FIXED

__all__ = ["Cutter", "Cutting"]

_LOOKS: Final = 4
_LOOK_BYTES: Final = 2048


class Cutting(NamedTuple):
    """How one file is cut.

    Attributes:
        chunker: Cuts it.
        spans: Its tensors; None: it is not cut at tensor boundaries.
    """

    chunker: Chunker
    spans: tuple[Span, ...] | None


class Cutter:
    """Decides how files are cut.

    Args:
        context: What the readers share.
    """

    def __init__(self, context: ReaderContext) -> None:
        self._context = context
        self._chunking = context.store.header.chunking
        self._chunk_bytes = context.chunk_bytes
        self.fixed = Cutting(FixedChunker(context.chunk_bytes), None)

    def cutting(self, opened: OpenFile) -> Cutting:
        """Decide by the current headers of a file.

        If a program writes to the file meanwhile, the headers may change. The file is then read
        again or counts as being written, and the stored bytes are right, wherever they are cut.

        Raises:
            SourceError: The file cannot be read.
        """
        try:
            read = partial(self.peek, opened)
            return self.cutting_of(opened.before.st_size, read=read, look=opened.peek)
        finally:
            opened.peeked()

    def cutting_of(
        self,
        size_bytes: int,
        *,
        read: Callable[[int, int], bytes],
        look: Callable[[int, int], bytes],
    ) -> Cutting:
        """Decide by the headers of any byte string of this length.

        Args:
            size_bytes: Its length.
            read: Reads (offset, length) of its headers.
            look: Reads (offset, length) of its data.
        """
        if self._chunking.kind == FIXED or size_bytes <= self._context.small_bytes:
            return self.fixed
        spans = layout(read, size_bytes)
        if spans is not None:
            return Cutting(TensorChunker(spans, self._chunk_bytes), spans)
        is_short = size_bytes <= self._chunk_bytes
        if self._chunking.kind != CONTENT or is_short:
            return self.fixed
        if is_rewritten(look) or _holds_numbers(look, size_bytes):
            return self.fixed
        return self._by_content()

    def peek(self, opened: OpenFile, offset_bytes: int, length_bytes: int) -> bytes:
        """Read some bytes of a header.

        Raises:
            CancelledError: The snapshot was interrupted.
            SourceError: The file cannot be read.
        """
        self._context.check_stopped()
        # The magic number, which is read of every file, is not counted.
        if offset_bytes or length_bytes > MAGIC_BYTES:
            self._context.count(length_bytes)
        return opened.peek(offset_bytes, length_bytes)

    def _by_content(self) -> Cutting:
        """Cut by content, with a new chunker: threads cannot share one."""
        from ciuic.chunking.content import IS_COMPILED, ContentChunker

        if not IS_COMPILED:
            return self.fixed
        average_bytes, least_bytes = self._chunking.average_bytes, self._chunking.least_bytes
        return Cutting(ContentChunker(self._chunk_bytes, average_bytes, least_bytes), None)


def _holds_numbers(read: Callable[[int, int], bytes], size_bytes: int) -> bool:
    """Return whether a file without a known header looks like an array of numbers.

    Arrays are overwritten in place: cut at fixed offsets, they line up with their last version.
    """
    step = size_bytes // (_LOOKS + 1) // 8 * 8
    return looks_like_numbers([read(step * at, _LOOK_BYTES) for at in range(1, _LOOKS + 1)])
