"""An open file as the search for its delta base sees it."""

import contextlib
from collections.abc import Sequence
from functools import cached_property, partial

from ciuic.errors import SourceError
from ciuic.formats.headers import NAMES_BYTES_MAX, Span
from ciuic.formats.names import called_by_pickle
from ciuic.snapshot.bases.old_directory import METADATA
from ciuic.snapshot.read.cutting import Cutter
from ciuic.snapshot.read.reader_context import ReaderContext
from ciuic.snapshot.read.source_file import SourceFile
from ciuic.source.file import OpenFile

__all__ = ["OpenedVersion"]


class OpenedVersion:
    """A file that is being stored. See ``NewVersion``.

    Args:
        context: What the readers share.
        cutter: Reads headers.
        file: The file.
        opened: The same file, open.
        spans: Its tensors; None: it is not a file of tensors.
    """

    def __init__(
        self,
        context: ReaderContext,
        cutter: Cutter,
        file: SourceFile,
        opened: OpenFile,
        spans: Sequence[Span] | None,
    ) -> None:
        self._context = context
        self._cutter = cutter
        self._file = file
        self._opened = opened
        self.name = file.name
        self.size_bytes = file.read_status.st_size
        self.spans = spans

    def spans_by_pickle(self) -> Sequence[Span] | None:
        """See ``NewVersion``."""
        return self._spans_by_pickle

    def metadata(self) -> bytes:
        """See ``NewVersion``.

        If the metadata belongs to another save, it gives wrong names: that costs reading wrong
        chunks.
        """
        file = self._file
        with contextlib.suppress(SourceError):
            owned = file.is_owned_by(self._context.uid)
            opened = OpenFile(file.directory.fd, METADATA, owned=owned, private=file.is_frozen)
            try:
                if opened.before.st_size <= NAMES_BYTES_MAX:
                    self._context.count(opened.before.st_size)
                    return opened.peek(0, opened.before.st_size)
            finally:
                opened.peeked()
                opened.close()
        return b""

    @cached_property
    def _spans_by_pickle(self) -> Sequence[Span] | None:
        opened = self._opened
        try:
            peek = partial(self._cutter.peek, opened)
            return called_by_pickle(peek, opened.before.st_size, self.spans or ())
        finally:
            opened.peeked()
