"""Read the files of a snapshot into memory: each chunk is hashed and compared with its ID."""

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np

from ciuic.errors import CorruptionError, PathNotFoundError
from ciuic.model import Entry, SnapshotSummary
from ciuic.snapshot.memory import STATE_ROOT
from ciuic.store.packs.reader import StoreReader
from ciuic.store.records.recipe_nodes import HOLE, Piece, iter_pieces
from ciuic.store.store import Store
from ciuic.system.workers.threads import share
from ciuic.training.loading.ahead import reading_ahead
from ciuic.view.chunk_plan import Part, group_by_frame, read_parts
from ciuic.view.locator import Locator

__all__ = ["StateFiles"]

_THREADS_MAX: Final = 8


class StateFiles:
    """The files of one snapshot, or of a directory of it.

    Args:
        store: The open store.
        summary: The snapshot.
        directory: A directory below the root, as a prefix of names; it ends with ``/``.
    """

    def __init__(self, store: Store, summary: SnapshotSummary, directory: str = "") -> None:
        self._directory = directory
        self._store = store
        self._id = summary.id
        self._locator = Locator(store, store.manifest(summary.id))
        self._pieces: dict[str, tuple[list[Piece], list[int]]] = {}

    def has(self, name: str) -> bool:
        """Return whether the snapshot has a file.

        Raises:
            CorruptionError: A directory above it is damaged.
        """
        return self._locator.find(self._path(name)) is not None

    def entry(self, name: str) -> Entry:
        """Return the entry of a file.

        Raises:
            CorruptionError: The file is damaged or missing.
        """
        try:
            return self._locator.locate(self._path(name)).entry
        except PathNotFoundError as error:
            raise CorruptionError(f"{self._id} lacks the file {name}") from error

    def size_bytes(self, name: str) -> int:
        """Return the length of a file.

        Raises:
            CorruptionError: The file is damaged or missing.
        """
        return self._pieces_of(name)[1][-1]

    def bytes_of(self, name: str, begin: int = 0, end: int | None = None) -> np.ndarray:
        """Read a range of a file; each chunk is hashed and compared with its ID.

        Args:
            name: Path of the file below the root.
            begin: First byte.
            end: The byte after the last; None: the end of the file.

        Raises:
            CorruptionError: The file is damaged, missing, or too short.
        """
        size_bytes = self.size_bytes(name)
        end = size_bytes if end is None else end
        if not 0 <= begin <= end <= size_bytes:
            raise CorruptionError(f"{name} of {self._id} is shorter than it should be")
        data = np.empty(end - begin, np.uint8)
        self.read_into(name, [(begin, data)] if data.size else [])
        return data

    def read_into(self, name: str, targets: Sequence[tuple[int, np.ndarray]]) -> None:
        """Read ranges of a file into memory; each chunk is hashed and compared with its ID.

        Args:
            name: Path of the file below the root.
            targets: Where each range begins in the file, and writable memory as long as the range:
                contiguous arrays of bytes, none of them empty.

        Raises:
            CorruptionError: The file is damaged, missing, or too short. The content of the targets
                is then arbitrary.
        """
        pieces, ends = self._pieces_of(name)
        if any(begin < 0 or begin + len(data) > ends[-1] for begin, data in targets):
            raise CorruptionError(f"{name} of {self._id} is shorter than it should be")
        ranges: dict[int, list[_Range]] = {}
        parts: dict[int, Part] = {}
        for begin, data in targets:
            end, memory = begin + len(data), data.data
            for number in range(bisect_right(ends, begin) - 1, bisect_left(ends, end)):
                first, stop = max(ends[number], begin), min(ends[number + 1], end)
                target = memory[first - begin : stop - begin]
                if pieces[number].id == HOLE:
                    target[:] = bytes(len(target))
                else:
                    offset = ends[number]
                    parts[offset] = Part(offset, pieces[number])
                    ranges.setdefault(offset, []).append(_Range(first - offset, target))
        self._read_parts(parts.values(), ranges)

    def _read_parts(self, parts: Iterable[Part], ranges: Mapping[int, "list[_Range]"]) -> None:
        """Read pieces of a file, each into the targets at its offset."""
        reader = self._store.reader
        groups = group_by_frame(reader, parts, reads_ahead=False)
        with reading_ahead(reader, [group[0].piece.id for group in groups]) as ahead:

            def read(number: int) -> None:
                group = groups[number]
                with ahead.frame(number) as raw:
                    if len(group) == 1 and _read_straight(
                        reader, group[0], ranges[group[0].offset], raw
                    ):
                        return
                for offset, plain in read_parts(reader, group):
                    for begin, target in ranges[offset]:
                        target[:] = memoryview(plain)[begin : begin + len(target)]

            count = min(_THREADS_MAX, len(os.sched_getaffinity(0)))
            share(read, range(len(groups)), count, "read")

    def _path(self, name: str) -> bytes:
        return STATE_ROOT + b"/" + (self._directory + name).encode()

    def _pieces_of(self, name: str) -> tuple[list[Piece], list[int]]:
        """Return the pieces of a file, and where each begins, and the end of the last."""
        if name not in self._pieces:
            entry = self.entry(name)
            pieces = list(iter_pieces(self._store.reader.node, entry))
            ends = list(accumulate([piece.length_bytes for piece in pieces], initial=0))
            if ends[-1] != entry.size_bytes:
                raise CorruptionError(f"{name} of {self._id} is not as long as its entry says")
            self._pieces[name] = pieces, ends
        return self._pieces[name]


class _Range(NamedTuple):
    """A part of a piece: its first byte, counted from that of the piece, and where it belongs."""

    begin: int
    target: memoryview


def _read_straight(
    reader: StoreReader, part: Part, ranges: Sequence[_Range], raw: memoryview | None
) -> bool:
    """Read a piece without a copy, if it is a chunk that belongs to one target."""
    piece = part.piece
    if len(ranges) > 1 or piece.start_bytes or len(ranges[0].target) != piece.length_bytes:
        return False
    return reader.read_into(piece.id, ranges[0].target, raw=raw)
