"""Find the layers that a snapshot lacks in older ones."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ciuic.errors import CorruptionError
from ciuic.ids import SnapshotId
from ciuic.model import SnapshotSummary
from ciuic.store.store import Store
from ciuic.training.files import STATE_NAME
from ciuic.training.loading.files import StateFiles
from ciuic.training.reducing import arrays_in
from ciuic.training.values.structure import UNREADABLE, Json

__all__ = ["LayerOrigin", "OlderLayers", "Source", "origins_of", "without_files"]

_MODEL: Final = "model_state_dict"
_MAPPINGS: Final = frozenset(["dict", "OrderedDict", "defaultdict", "Counter"])


class LayerOrigin(NamedTuple):
    """Where a layer is from.

    Attributes:
        step: The step of its parameters; None: the save gave none.
        snapshot_id: The snapshot that they were read from.
    """

    step: int | None
    snapshot_id: SnapshotId


class Source(NamedTuple):
    """Files that have a layer, and where the layer is from."""

    files: StateFiles
    origin: LayerOrigin


class OlderLayers:
    """Finds a damaged or missing layer in older snapshots.

    Args:
        store: The open store.
        summaries: The snapshots, newest first.
        directory: See ``StateFiles``.
    """

    def __init__(
        self, store: Store, summaries: Sequence[SnapshotSummary], directory: str = ""
    ) -> None:
        self._store, self._summaries, self._directory = store, summaries, directory

    def sources(self, state: Json, file: str) -> Iterator[Source]:
        """Yield the snapshots that have a layer with the same tensors, newest first.

        Args:
            state: The structure of the state that lacks the layer.
            file: The layer's file.
        """
        wanted = _tensors(state, file)
        for summary in self._summaries:
            files = StateFiles(self._store, summary, self._directory)
            try:
                document = json.loads(files.bytes_of(STATE_NAME).tobytes())
                origin = origins_of(document, summary.id).get(file)
                if origin is not None and _tensors(document["state"], file) == wanted:
                    yield Source(files, origin)
            except (CorruptionError, *UNREADABLE):
                continue


def origins_of(document: Mapping[str, Any], snapshot_id: SnapshotId) -> dict[str, LayerOrigin]:
    """Return where the layers of a state are from, by their files, as ``state.json`` says it."""
    return {
        group["file"]: LayerOrigin(group["step"], snapshot_id)
        for group in document.get("layers", ())
    }


def without_files(state: Json, files: Collection[str]) -> Json:
    """Return a state without what is in these files.

    In the model, entries of mappings are left out. Any other section that needs one of the files,
    such as metrics with an array, is None.
    """
    return {
        name: _without(value, files) if name == _MODEL else _unless_in(value, files)
        for name, value in state.items()
    }


def _without(value: Json, files: Collection[str]) -> Json:
    if isinstance(value, list):
        return [_without(inner, files) for inner in value]
    if not isinstance(value, dict):
        return value
    if value.get("$") in _MAPPINGS:
        pairs = [
            [key, _without(inner, files)]
            for key, inner in value["items"]
            if not _is_array_in(inner, files)
        ]
        return {**value, "items": pairs}
    return {
        key: _without(inner, files)
        for key, inner in value.items()
        if not _is_array_in(inner, files)
    }


def _unless_in(value: Json, files: Collection[str]) -> Json:
    return None if any(array["file"] in files for array in arrays_in(value)) else value


def _is_array_in(value: Json, files: Collection[str]) -> bool:
    if not isinstance(value, dict) or "$" not in value or "items" in value:
        return False
    return any(array["file"] in files for array in arrays_in(value))


def _tensors(state: Json, file: str) -> dict[str, tuple[Any, ...]]:
    """Return name, type and shape of each array that is in a file."""
    return {
        one["name"]: (one["$"], one["dtype"], one["shape"])
        for one in arrays_in(state)
        if one["file"] == file
    }
