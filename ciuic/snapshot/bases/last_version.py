"""Find the old chunk for each chunk of a new file, by tensor or by offset.

In a file of tensors, the old chunk is the one at the same position within the tensor of the same
name (tensors without a name are numbered). Outside tensors, and in other files, it is the chunk at
the same offset. ``torch.save`` uses numbers as names. If the same numbers cannot be the same
tensors, the pickle in the file gives the tensors' names.
"""

import itertools
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.formats.headers import Part, Span
from ciuic.formats.names import called_by_parts, called_by_pickle
from ciuic.formats.spans import layout
from ciuic.ids import ChunkId
from ciuic.model import Entry
from ciuic.snapshot.bases.new_version import NewVersion
from ciuic.snapshot.bases.skips import Skips
from ciuic.store.packs.reader import StoreReader
from ciuic.store.records.kinds import DATA
from ciuic.store.records.recipe_nodes import HOLE, iter_pieces
from ciuic.system.hashing import ID_BYTES

__all__ = ["ChunkBases", "LastVersion", "Names"]

_NO_CHUNK: Final = ChunkId(b"")


class Names(NamedTuple):
    """The tensors of a new version, by their names.

    Attributes:
        new: The new version.
        spans: Its tensors.
        held: The parts in the last version, if both are files of a distributed checkpoint; the
            names of ``spans`` are then from METADATA.
    """

    new: NewVersion
    spans: Sequence[Span]
    held: Sequence[Part] = ()


def _span_keys(spans: Sequence[Span]) -> list[str | int]:
    """Return a key for each tensor: its name, or a number if it has none."""
    nameless = itertools.count()
    return [span.name or next(nameless) for span in spans]


def _shape(spans: Sequence[Span]) -> list[tuple[str, int]]:
    """Return names and lengths, which are the same if the same tensors were saved twice."""
    return [(span.name, span.length_bytes) for span in spans]


class LastVersion:
    """The chunks of a file's last version.

    Args:
        reader: Reader of the store.
        entry: The last version.
        names: The tensors of the new version; None: it is not a file of tensors.

    Attributes:
        shared_bytes: Bytes of tensors with the same name and length in both versions.
    """

    def __init__(self, reader: StoreReader, entry: Entry, names: Names | None = None) -> None:
        self._reader = reader
        self._size_bytes = entry.size_bytes
        self._offsets = array("q")
        self._starts = array("q")
        self._ids = bytearray()
        try:
            at = 0
            for piece in iter_pieces(reader.node, entry):
                self._offsets.append(at)
                self._starts.append(piece.start_bytes)
                self._ids += piece.id if piece.id != HOLE else bytes(ID_BYTES)
                at += piece.length_bytes
        except CorruptionError:
            pass  # the chunks after the damaged part have no delta base
        self._spans = names.spans if names is not None else ()
        self._begins = [span.offset_bytes for span in self._spans]
        self._skips = Skips()
        new, old = self._matched_tensors(names) if names is not None else ((), ())
        self._keys = _span_keys(new)
        by_key = dict(zip(_span_keys(old), old, strict=True))
        self._old_begins = {key: span.offset_bytes for key, span in by_key.items()}
        self.shared_bytes = sum(
            [
                span.length_bytes
                for span in new
                if span.name in by_key and by_key[span.name].length_bytes == span.length_bytes
            ]
        )

    def at(self, offset_bytes: int) -> ChunkId:
        """Return the old chunk for the new chunk that begins here; empty: there is none.

        The old chunk may have another length; then it is not a delta base.
        """
        tensor = self._tensor(offset_bytes)
        if tensor >= 0:
            old_begin = self._old_begins.get(self._keys[tensor])
            if old_begin is None:
                return _NO_CHUNK
            offset_bytes += old_begin - self._spans[tensor].offset_bytes
        at = bisect_left(self._offsets, offset_bytes)
        if at == len(self._offsets) or self._offsets[at] != offset_bytes or self._starts[at]:
            return _NO_CHUNK
        return self._chunk_id(at)

    def likely_at(self, offset_bytes: int) -> ChunkId:
        """Like ``at``, but return nothing if the last chunks of the tensor were not similar.

        Most tensors behave uniformly: first moments of Adam are never similar to their old
        version, and each comparison costs reading and decoding the old chunk.
        """
        is_skipped = self._skips.should_skip(self._tensor(offset_bytes), offset_bytes)
        return _NO_CHUNK if is_skipped else self.at(offset_bytes)

    def tell(self, offset_bytes: int, *, is_like: bool) -> None:
        """Record whether the chunk that begins here was similar to the old chunk from ``at``."""
        self._skips.tell(self._tensor(offset_bytes), offset_bytes, is_like=is_like)

    def _chunk_id(self, at: int) -> ChunkId:
        """Return the ID of the old chunk of this number; empty if it is a hole."""
        chunk_id = ChunkId(bytes(self._ids[at * ID_BYTES : (at + 1) * ID_BYTES]))
        return chunk_id if any(chunk_id) else _NO_CHUNK

    def _tensor(self, offset_bytes: int) -> int:
        """Return the number of the tensor that holds an offset; -1: none does."""
        number = bisect_right(self._begins, offset_bytes) - 1
        if number >= 0:
            span = self._spans[number]
            if offset_bytes - span.offset_bytes < span.length_bytes:
                return number
        return -1

    def _matched_tensors(self, names: Names) -> tuple[Sequence[Span], Sequence[Span]]:
        """Return the tensors of both versions with names that are the same for the same tensor."""
        new = names.spans
        try:
            old = layout(self.read, self._size_bytes) or ()
            if names.held:
                return new, called_by_parts(old, names.held)
            if _shape(old) == _shape(new):
                return new, old
            old_named = called_by_pickle(self.read, self._size_bytes, old)
            new_named = names.new.spans_by_pickle() if old_named is not None else None
            if new_named is None or old_named is None:
                return new, old
            return new_named, old_named
        except (CorruptionError, UnknownFormatError):
            return new, ()

    def read(self, offset_bytes: int, length_bytes: int) -> bytes:
        """Read bytes of the last version; fewer at its end.

        Raises:
            CorruptionError: A chunk of the last version is damaged.
            UnknownFormatError: A newer ciuic has stored it.
        """
        end = min(offset_bytes + length_bytes, self._size_bytes)
        parts = []
        at = bisect_right(self._offsets, offset_bytes) - 1
        while offset_bytes < end and 0 <= at < len(self._offsets):
            behind = self._offsets[at + 1] if at + 1 < len(self._offsets) else self._size_bytes
            count = min(end, behind) - offset_bytes
            chunk_id = self._chunk_id(at)
            if chunk_id:
                start = self._starts[at] + offset_bytes - self._offsets[at]
                part = bytes(self._reader.chunk(chunk_id, kind=DATA)[start : start + count])
            else:
                part = bytes(count)
            if len(part) != count:
                raise CorruptionError("a chunk is shorter than the recipe of its file says")
            parts.append(part)
            offset_bytes += count
            at += 1
        return b"".join(parts)


class ChunkBases:
    """The old chunks for some of a file's chunks, by the new chunks' IDs.

    Args:
        version: The last version of the file.
        offsets: Offset of each chunk in the new file.
    """

    def __init__(self, version: LastVersion, offsets: Mapping[ChunkId, int]) -> None:
        self._version = version
        self._offsets = offsets

    def of(self, chunk_id: ChunkId) -> ChunkId:
        """See ``PreviousVersions``."""
        return self._version.likely_at(self._offsets[chunk_id])

    def tell(self, chunk_id: ChunkId, *, is_like: bool) -> None:
        """See ``PreviousVersions``."""
        self._version.tell(self._offsets[chunk_id], is_like=is_like)
