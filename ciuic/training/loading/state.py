"""Read a snapshot of the library: every byte is checked before a value is used."""

import contextlib
import json
import operator
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.ids import SnapshotId
from ciuic.model import SnapshotSummary
from ciuic.store.store import Store
from ciuic.training import rng
from ciuic.training.files import STATE_FORMAT, STATE_NAME
from ciuic.training.loading.files import StateFiles
from ciuic.training.loading.layers import (
    LayerOrigin,
    OlderLayers,
    Source,
    origins_of,
    without_files,
)
from ciuic.training.loading.places import FindPlaces, Places
from ciuic.training.ranks.job import rank_directory
from ciuic.training.reducing import arrays_in
from ciuic.training.values.arrays import rebuild
from ciuic.training.values.pickles import PICKLE, PickledLeaf
from ciuic.training.values.structure import UNREADABLE, read_structure
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
        layers: For each layer that it has, the step and the snapshot that the layer is from; empty
            if the state was saved without layers.
        joined: The step and the snapshot that the optimizer is from, if that is another snapshot.
        unread: The keys of states of objects that the program has not read yet, and ``rng`` until
            the generators are put back. States that are empty are left out.
    """

    def __init__(
        self,
        snapshot_id: SnapshotId,
        values: dict[str, Any],
        skipped: Mapping[SnapshotId, str],
        versions: Mapping[str, str],
        layers: Mapping[str, LayerOrigin],
    ) -> None:
        self.snapshot_id = snapshot_id
        self.skipped = dict(skipped)
        self.versions = dict(versions)
        self.layers = dict(layers)
        self.joined: LayerOrigin | None = None
        self._rng = values.pop(_RNG, None)
        self._values = values
        self.unread = {
            key
            for key, value in values.items()
            if key.endswith("_state_dict") and not (isinstance(value, Mapping) and not value)
        }
        if self._rng is not None:
            self.unread.add(_RNG)

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        self.unread.discard(key)
        return value

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def join(self, other: "LoadedState") -> None:
        """Take what this state lacks from another one, such as the optimizer of an older state."""
        self.joined = LayerOrigin(other.get("step"), other.snapshot_id)
        self.unread |= other.unread - {_RNG}
        self._values = {**other, **self._values}

    def restore_rng(self) -> None:
        """Put the random number generators of Python, numpy and torch into the saved state.

        Call it last, after the data loader has been moved forward.

        Raises:
            KeyError: The snapshot has no such state, because it holds only the weights.
        """
        if self._rng is None:
            raise KeyError(f"{self.snapshot_id} has no state of the random number generators")
        rng.restore(self._rng)
        self.unread.discard(_RNG)


def load(
    store: Store,
    summary: SnapshotSummary,
    *,
    skipped: Mapping[SnapshotId, str],
    place: Callable[[Any], Any],
    rank: int = 0,
    rank_count: int = 1,
    find_places: FindPlaces = lambda _: {},
    older: Sequence[SnapshotSummary] = (),
    sections: Collection[str] | None = None,
) -> LoadedState:
    """Read the state that a snapshot holds for a rank.

    Rank 0 also checks the parts of the other ranks: it chooses the snapshot for all.

    Args:
        store: The open store.
        summary: The snapshot.
        skipped: See ``LoadedState``.
        place: Receives each tensor of torch, and returns it on the device that the user wants.
        rank: The number of this rank.
        rank_count: The number of ranks. If another number of ranks has saved the state, the state
            comes without generators and data loader, and with a warning.
        find_places: Receives the structure of the state, and returns tensors of the user to read
            to. After an error of ``load``, their content is arbitrary.
        older: Snapshots to take a damaged or missing layer from, newest first.
        sections: Read only these; without ``rng``, only those of rank 0's part. None: all.

    Raises:
        CorruptionError: A byte of the snapshot is damaged or missing.
        UnknownFormatError: A later version of ciuic wrote it.
    """
    # Each of several ranks has a directory; that of rank 0 also has what all have in common.
    has_ranks = not StateFiles(store, summary).has(STATE_NAME)
    directory = rank_directory(0) if has_ranks else ""
    own_files = StateFiles(store, summary, directory)
    filling = OlderLayers(store, older, directory) if older else None
    values, versions, layers = _read(
        own_files, summary, place, find_places, older=filling, sections=sections
    )
    saved_count = values.pop(_RANKS, 1)
    if _RNG not in values:
        # The weights alone are the same for all ranks.
        return LoadedState(summary.id, values, skipped, versions, layers)
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
            _read(StateFiles(store, summary, rank_directory(other)), summary, place)
    else:
        own = _read(StateFiles(store, summary, rank_directory(rank)), summary, place).values
        kept = {name: value for name, value in values.items() if name not in _OF_EACH_RANK}
        values = {**kept, **own}
    return LoadedState(summary.id, values, skipped, versions, layers)


class _Read(NamedTuple):
    """What a directory of a snapshot holds."""

    values: dict[str, Any]
    versions: dict[str, str]
    layers: dict[str, LayerOrigin]


def _read(
    files: StateFiles,
    summary: SnapshotSummary,
    place: Callable[[Any], Any],
    find_places: FindPlaces = lambda _: {},
    *,
    older: OlderLayers | None = None,
    sections: Collection[str] | None = None,
) -> _Read:
    """Read the state in a directory of a snapshot. Arguments: see ``load``."""
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
        origins = origins_of(document, summary.id)
        names = {group["file"]: str(group["name"]) for group in document.get("layers", ())}
        state = document["state"]
        if sections is not None:
            state = {name: value for name, value in state.items() if name in sections}
        if not summary.is_complete:
            named = {one["file"] for one in arrays_in(state)} | origins.keys()
            missing = {file for file in named if not files.has(file)}
            if older is not None:
                missing.difference_update(origins)
            state = without_files(state, missing)
            origins = {file: found for file, found in origins.items() if file not in missing}
    except UNREADABLE as error:
        raise CorruptionError(f"{STATE_NAME} of {summary.id} is not a state: {error!r}") from error
    try:
        places = find_places(state)
    except UNREADABLE:
        # ``read_structure`` says what is wrong.
        places = {}

    def sources(file: str) -> Iterator[Source]:
        return older.sources(state, file) if older is not None and file in origins else iter(())

    arrays = _Arrays(files, place, places, sources)
    values: dict[str, Any] = read_structure(state, arrays.get)
    layers = {names[file]: origin for file, origin in {**origins, **arrays.filled}.items()}
    return _Read(values, document["versions"], layers)


class _Arrays:
    """The arrays of one snapshot; an array that the state holds twice is built once.

    Args:
        files: The files of the snapshot.
        place: See ``load``.
        places: Tensors of the user to read to.
        older: Returns where else a file can be read if it is damaged or missing.

    Attributes:
        filled: The files that were read from older snapshots, and where they are from.
    """

    def __init__(
        self,
        files: StateFiles,
        place: Callable[[Any], Any],
        places: Places,
        older: Callable[[str], Iterator[Source]],
    ) -> None:
        self._files = files
        self._place = place
        self._places = places
        self._data: dict[str, dict[str, np.ndarray]] = {}
        self._built: dict[tuple[str, str], Any] = {}
        self._older = older
        self.filled: dict[str, LayerOrigin] = {}

    def get(self, description: dict[str, Any]) -> Any:
        if description["$"] == PICKLE:
            data = self._files.bytes_of(description["file"])
            return PickledLeaf(str(description["class"]), data.tobytes())
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
        """Return the bytes of each tensor of a file."""
        if file not in self._data:
            try:
                self._data[file] = self._read(self._files, file)
            except CorruptionError:
                if not self._read_older(file):
                    raise
        return self._data[file]

    def _read_older(self, file: str) -> bool:
        """Read a file from the newest older snapshot that has it undamaged, if there is one."""
        for source in self._older(file):
            with contextlib.suppress(CorruptionError):
                self._data[file] = self._read(source.files, file)
                self.filled[file] = source.origin
                return True
        return False

    def _read(self, files: StateFiles, file: str) -> dict[str, np.ndarray]:
        """Read a file; returns the bytes of each of its tensors."""
        start = 8 + int.from_bytes(files.bytes_of(file, 0, 8).tobytes(), "little")
        rows = _rows(json.loads(files.bytes_of(file, 8, start).tobytes()))
        sizes = {name: end - begin for name, (begin, end) in rows.items()}
        if start + sum(sizes.values()) > files.size_bytes(file):
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
        files.read_into(file, targets)
        return own


def _rows(table: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Return where each tensor of a file begins and ends, in the order of the file."""
    rows = {
        name: (row["data_offsets"][0], row["data_offsets"][1])
        for name, row in table.items()
        if name != "__metadata__"
    }
    return dict(sorted(rows.items(), key=operator.itemgetter(1)))
