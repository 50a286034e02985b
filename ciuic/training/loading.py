"""Read a snapshot of the library: every byte is checked before a value is used."""

import json
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import Any, Final

import numpy as np

from ciuic.errors import CorruptionError, PathNotFoundError, UnknownFormatError
from ciuic.ids import SnapshotId
from ciuic.model import Entry, SnapshotSummary
from ciuic.snapshot.memory import STATE_ROOT
from ciuic.store.records.kinds import DATA
from ciuic.store.records.recipe_nodes import HOLE, Piece, cut, iter_pieces
from ciuic.store.store import Store
from ciuic.training import rng
from ciuic.training.arrays import rebuild
from ciuic.training.files import STATE_FORMAT, STATE_NAME
from ciuic.training.structure import read_structure
from ciuic.view.locator import Locator

__all__ = ["LoadedState", "StateFiles", "load"]

_RNG: Final = "rng"
_THREADS_MAX: Final = 8


class LoadedState(Mapping[str, Any]):
    """A state from a snapshot: a mapping with the keys of ``save_snapshot``.

    Attributes:
        snapshot_id: The snapshot.
        skipped: Newer snapshots that could not be loaded, and why.
        versions: The versions of ciuic, numpy, Python and torch that saved it.
    """

    def __init__(
        self,
        snapshot_id: SnapshotId,
        values: dict[str, Any],
        skipped: Mapping[SnapshotId, str],
        versions: Mapping[str, str],
    ) -> None:
        self.snapshot_id = snapshot_id
        self.skipped = dict(skipped)
        self.versions = dict(versions)
        self._rng = values.pop(_RNG, None)
        self._values = values

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def restore_rng(self) -> None:
        """Put the random number generators of Python, numpy and torch into the saved state.

        Call it last, after the data loader has been moved forward.

        Raises:
            KeyError: The snapshot has no such state, because it holds the weights alone.
        """
        if self._rng is None:
            raise KeyError(f"{self.snapshot_id} has no state of the random number generators")
        rng.restore(self._rng)


def load(
    store: Store,
    summary: SnapshotSummary,
    *,
    skipped: Mapping[SnapshotId, str],
    place: Callable[[Any], Any],
) -> LoadedState:
    """Read the state that a snapshot holds.

    Args:
        store: The open store.
        summary: The snapshot.
        skipped: See ``LoadedState``.
        place: Receives each tensor of torch and returns it, on its device.

    Raises:
        CorruptionError: A byte of the snapshot is damaged or missing.
        UnknownFormatError: A later version of ciuic wrote it.
    """
    files = StateFiles(store, summary)
    try:
        document = json.loads(files.bytes_of(STATE_NAME).tobytes())
        version = document["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(f"{STATE_NAME} of {summary.id} is no state: {error!r}") from error
    if version != STATE_FORMAT:
        raise UnknownFormatError(
            f"{summary.id} has a state of version {version}, and this ciuic knows {STATE_FORMAT}"
        )
    arrays = _Arrays(files, place)
    values = read_structure(document["state"], arrays.get)
    return LoadedState(summary.id, values, skipped, document["versions"])


class StateFiles:
    """The files of one snapshot."""

    def __init__(self, store: Store, summary: SnapshotSummary) -> None:
        self._store = store
        self._id = summary.id
        self._locator = Locator(store, store.manifest(summary.id))
        self._pieces: dict[str, tuple[list[Piece], list[int]]] = {}

    def bytes_of(self, name: str, begin: int = 0, end: int | None = None) -> np.ndarray:
        """Read a range of a file; each chunk is hashed and compared with its ID.

        Args:
            name: Path of the file below the root.
            begin: First byte.
            end: The byte after the last; None: the end of the file.

        Raises:
            CorruptionError: The file is damaged, missing, or too short.
        """
        pieces, ends = self._pieces_of(name)
        end = ends[-1] if end is None else end
        if not 0 <= begin <= end <= ends[-1]:
            raise CorruptionError(f"{name} of {self._id} is shorter than it should be")
        data = np.empty(end - begin, np.uint8)

        def read(number: int) -> None:
            piece = pieces[number]
            first, last = max(ends[number], begin), min(ends[number + 1], end)
            target = data[first - begin : last - begin]
            if piece.id == HOLE:
                target[:] = 0
                return
            chunk = memoryview(self._store.reader.chunk(piece.id, kind=DATA))
            plain = np.frombuffer(cut(chunk, piece), np.uint8)
            target[:] = plain[first - ends[number] : last - ends[number]]

        numbers = range(bisect_right(ends, begin) - 1, bisect_left(ends, end))
        if begin == end:
            return data
        pool = ThreadPoolExecutor(min(_THREADS_MAX, len(os.sched_getaffinity(0))))
        try:
            for _ in pool.map(read, numbers):
                pass
        finally:
            pool.shutdown(cancel_futures=True)
        return data

    def _pieces_of(self, name: str) -> tuple[list[Piece], list[int]]:
        """Return the pieces of a file, and where each begins, and the end of the last."""
        if name not in self._pieces:
            try:
                entry: Entry = self._locator.locate(STATE_ROOT + b"/" + name.encode()).entry
            except PathNotFoundError as error:
                raise CorruptionError(f"{self._id} lacks the file {name}") from error
            pieces = list(iter_pieces(self._store.reader.node, entry))
            ends = list(accumulate([piece.length_bytes for piece in pieces], initial=0))
            if ends[-1] != entry.size_bytes:
                raise CorruptionError(f"{name} of {self._id} is not as long as its entry says")
            self._pieces[name] = pieces, ends
        return self._pieces[name]


class _Arrays:
    """The arrays of one snapshot; an array that the state holds twice is built once."""

    def __init__(self, files: StateFiles, place: Callable[[Any], Any]) -> None:
        self._files = files
        self._place = place
        self._data: dict[str, dict[str, np.ndarray]] = {}
        self._built: dict[tuple[str, str], Any] = {}

    def get(self, description: dict[str, Any]) -> Any:
        file, name = description["file"], description["name"]
        if (file, name) not in self._built:
            found = rebuild(description, self._of_file(file)[name])
            is_tensor = description["$"] == "torch.Tensor"
            self._built[file, name] = self._place(found) if is_tensor else found
        return self._built[file, name]

    def _of_file(self, file: str) -> dict[str, np.ndarray]:
        if file not in self._data:
            data = self._files.bytes_of(file)
            start = 8 + int.from_bytes(data[:8].tobytes(), "little")
            table: dict[str, Any] = json.loads(data[8:start].tobytes())
            self._data[file] = {
                name: data[start + row["data_offsets"][0] : start + row["data_offsets"][1]]
                for name, row in table.items()
                if name != "__metadata__"
            }
        return self._data[file]
