"""Read a snapshot of the library: every byte is checked before a value is used."""

import json
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.ids import SnapshotId
from ciuic.model import SnapshotSummary
from ciuic.store.store import Store
from ciuic.training import rng
from ciuic.training.arrays import rebuild
from ciuic.training.files import STATE_FORMAT, STATE_NAME
from ciuic.training.loading.files import StateFiles
from ciuic.training.loading.places import FindPlaces, Places
from ciuic.training.ranks.job import rank_directory
from ciuic.training.structure import UNREADABLE, read_structure
from ciuic.units import counted

__all__ = ["LoadedState", "load"]

_RNG: Final = "rng"
_LOADER: Final = "dataloader_state_dict"
_RANKS: Final = "ranks"
"""The section with the number of ranks, in a state of several."""
_OF_EACH_RANK: Final = frozenset([_RNG, _LOADER, "extra"])


class LoadedState(Mapping[str, Any]):
    """A state from a snapshot: a mapping with the keys of ``save_snapshot``.

    Attributes:
        snapshot_id: The snapshot.
        skipped: Snapshots that could not be loaded before this one, and why.
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
            KeyError: The snapshot has no such state, because it holds only the weights.
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
    rank: int = 0,
    rank_count: int = 1,
    find_places: FindPlaces = lambda _: {},
) -> LoadedState:
    """Read the state that a snapshot holds for a rank.

    Rank 0 also checks the parts of the other ranks: it chooses the snapshot for all.

    Args:
        store: The open store.
        summary: The snapshot.
        skipped: See ``LoadedState``.
        place: Receives each tensor of torch and returns it, on its device.
        rank: The number of this rank.
        rank_count: The number of ranks. If another number of ranks has saved the state, the state
            comes without generators and data loader, and with a warning.
        find_places: Receives the structure of the state, and returns tensors of the user to read
            to. If this raises, their content is arbitrary.

    Raises:
        CorruptionError: A byte of the snapshot is damaged or missing.
        UnknownFormatError: A later version of ciuic wrote it.
    """
    # Each of several ranks has a directory; that of rank 0 also has what all have in common.
    has_ranks = not StateFiles(store, summary).has(STATE_NAME)
    directory = rank_directory(0) if has_ranks else ""
    values, versions = _read(store, summary, directory, place, find_places)
    saved_count = values.pop(_RANKS, 1)
    if _RNG not in values:
        # The weights alone are the same for all ranks.
        return LoadedState(summary.id, values, skipped, versions)
    if saved_count != rank_count:
        del values[_RNG]
        values.pop(_LOADER, None)
        saved = counted(saved_count, "rank")
        warnings.warn(
            f"ciuic: {summary.id} was saved by {saved} and is loaded by {rank_count}: it comes"
            " without the states of the random number generators and of the data loader",
            RuntimeWarning,
            stacklevel=4,
        )
    elif rank == 0:
        for other in range(1, rank_count):
            _read(store, summary, rank_directory(other), place)
    else:
        own, _ = _read(store, summary, rank_directory(rank), place)
        kept = {name: value for name, value in values.items() if name not in _OF_EACH_RANK}
        values = {**kept, **own}
    return LoadedState(summary.id, values, skipped, versions)


def _read(
    store: Store,
    summary: SnapshotSummary,
    directory: str,
    place: Callable[[Any], Any],
    find_places: FindPlaces = lambda _: {},
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values of the state in a directory of a snapshot, and the versions."""
    files = StateFiles(store, summary, directory)
    try:
        document = json.loads(files.bytes_of(STATE_NAME).tobytes())
        version = document["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(f"{STATE_NAME} of {summary.id} is not a state: {error!r}") from error
    if version != STATE_FORMAT:
        raise UnknownFormatError(
            f"{summary.id} has a state of version {version}, and this ciuic knows {STATE_FORMAT}"
        )
    try:
        places = find_places(document["state"])
    except UNREADABLE:
        # What is wrong with the structure, its reader says.
        places = {}
    values: dict[str, Any] = read_structure(document["state"], _Arrays(files, place, places).get)
    return values, document["versions"]


class _Arrays:
    """The arrays of one snapshot; an array that the state holds twice is built once."""

    def __init__(self, files: StateFiles, place: Callable[[Any], Any], places: Places) -> None:
        self._files = files
        self._place = place
        self._places = places
        self._data: dict[str, dict[str, np.ndarray]] = {}
        self._built: dict[tuple[str, str], Any] = {}

    def get(self, description: dict[str, Any]) -> Any:
        file, name = description["file"], description["name"]
        if (file, name) not in self._built:
            data = self._of_file(file)[name]
            own = self._places.get((file, name))
            is_own = own is not None and own[1] is data
            found = own[0] if own is not None and is_own else rebuild(description, data)
            is_tensor = description["$"] == "torch.Tensor"
            self._built[file, name] = self._place(found) if is_tensor else found
        return self._built[file, name]

    def _of_file(self, file: str) -> dict[str, np.ndarray]:
        """Read a file; returns the bytes of each of its tensors."""
        if file not in self._data:
            start = 8 + int.from_bytes(self._files.bytes_of(file, 0, 8).tobytes(), "little")
            rows = _rows(json.loads(self._files.bytes_of(file, 8, start).tobytes()))
            sizes = {name: end - begin for name, (begin, end) in rows.items()}
            if start + sum(sizes.values()) > self._files.size_bytes(file):
                raise CorruptionError(f"{file} is shorter than its header says")
            own = {
                name: found[1]
                for name, size_bytes in sizes.items()
                if (found := self._places.get((file, name))) and found[1].nbytes == size_bytes
            }
            # One large piece of memory: it is much faster to get than many small ones.
            left = {name: size for name, size in sizes.items() if name not in own}
            shared = np.empty(sum(left.values()), np.uint8)
            at = 0
            for name, size_bytes in left.items():
                own[name] = shared[at : at + size_bytes]
                at += size_bytes
            targets = [(start + rows[name][0], data) for name, data in own.items() if data.size]
            self._files.read_into(file, targets)
            self._data[file] = own
        return self._data[file]


def _rows(table: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Return where each tensor of a file begins and ends, in the order of the file."""
    rows = {
        name: (row["data_offsets"][0], row["data_offsets"][1])
        for name, row in table.items()
        if name != "__metadata__"
    }
    return dict(sorted(rows.items(), key=operator.itemgetter(1)))
