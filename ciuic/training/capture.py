"""Plan the files of a state, and copy the state into shared memory."""

import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

import ciuic
from ciuic.training.arrays import ArrayLeaf, describe
from ciuic.training.files import STATE_NAME, TensorFile, header, state_document
from ciuic.training.staging import StagingBuffer
from ciuic.training.structure import Path, StructureWriter

__all__ = ["Part", "StagedFile", "stage"]

Part = tuple[int, int]
"""Offset and length of a part of a file in the shared memory."""
_ALIGNMENT_BYTES: Final = 64
_FILES: Final = {
    "model_state_dict": "weights.safetensors",
    "optimizer_state_dict": "optimizer.safetensors",
    "rng": "rng.safetensors",
}
"""The file for the arrays of a section."""
_OTHER_FILE: Final = "extra.safetensors"


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file whose bytes are in the shared memory.

    Attributes:
        name: Its path below the root of the snapshot.
        parts: Its bytes, in order.
    """

    name: str
    parts: tuple[Part, ...]


class _Planned:
    """An array and its place; an array that shares its memory with another one has that place."""

    def __init__(self, leaf: ArrayLeaf, file: str, name: str) -> None:
        self.leaf, self.file, self.name = leaf, file, name
        self.offset_bytes = -1


class _Planner:
    """Assigns arrays to files, and remembers which arrays are the same memory."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[TensorFile, list[_Planned]]] = {}
        self.unique: list[_Planned] = []
        self._same: dict[tuple[object, ...], _Planned] = {}

    def add(self, value: Any, path: Path) -> object:
        """Plan an array; returns its JSON. ``value`` is a tensor or an array."""
        leaf = describe(value)
        file = _FILES.get(str(path[0]), _OTHER_FILE)
        wanted = ".".join(map(str, path[1:])) or str(path[0])
        if file == _OTHER_FILE:
            wanted = ".".join(map(str, path))
        table, planned = self.files.setdefault(file, (TensorFile(), []))
        same = self._same.get(leaf.memory) if leaf.memory is not None else None
        name = table.add(wanted, leaf.stored_dtype, leaf.stored_shape, leaf.size_bytes)
        own = _Planned(leaf, file, name)
        if same is None:
            self.unique.append(own)
            if leaf.memory is not None:
                self._same[leaf.memory] = own
            planned.append(own)
            return {**leaf.description, "file": file, "name": name}
        planned.append(same)
        return {**leaf.description, "file": same.file, "name": same.name}


def stage(sections: Mapping[str, object], buffer: StagingBuffer) -> list[StagedFile]:
    """Copy a state into the shared memory; returns the files that it makes.

    When this returns, the state may change.

    Args:
        sections: The values of the state, by the names of their sections.
        buffer: The shared memory; no other process is reading it.

    Raises:
        TypeError: A value can't be stored; the message names it.
        ResourceError: There is not enough memory.
    """
    planner = _Planner()
    writer = StructureWriter(planner.add)
    written = {name: writer.write(value, (name,)) for name, value in sections.items()}
    document = state_document({"versions": _versions(), "state": written})
    blobs: list[bytes] = [document]
    orders: dict[str, list[int]] = {}
    for file, (table, planned) in planner.files.items():
        # The widest elements first: every tensor is aligned in the file.
        order = sorted(range(len(planned)), key=lambda at: -_element_bytes(planned[at].leaf))
        orders[file] = order
        blobs.append(header([table.rows[at] for at in order]))
    memory, places = _reserve(buffer, planner.unique, blobs)
    for own in planner.unique:
        own.leaf.copy(memory[own.offset_bytes : own.offset_bytes + own.leaf.size_bytes])
    files = [StagedFile(STATE_NAME, (places[0],))]
    for (file, (_, planned)), place in zip(planner.files.items(), places[1:], strict=True):
        tensors = [
            (planned[at].offset_bytes, planned[at].leaf.size_bytes)
            for at in orders[file]
            if planned[at].leaf.size_bytes
        ]
        files.append(StagedFile(file, (place, *tensors)))
    return files


def _reserve(
    buffer: StagingBuffer, arrays: list[_Planned], blobs: list[bytes]
) -> tuple[np.ndarray, list[Part]]:
    """Assign places to arrays and blobs, and copy the blobs."""
    at = 0
    for planned in arrays:
        planned.offset_bytes = at
        at += -(-planned.leaf.size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    places = []
    for blob in blobs:
        places.append((at, len(blob)))
        at += len(blob)
    memory = buffer.reserve(at)
    for (begin, length), blob in zip(places, blobs, strict=True):
        memory[begin : begin + length] = np.frombuffer(blob, np.uint8)
    return memory, places


def _element_bytes(leaf: ArrayLeaf) -> int:
    count = 1
    for length in leaf.stored_shape:
        count *= length
    return leaf.size_bytes // count if count else 1


def _versions() -> dict[str, str]:
    """Return the versions of the programs that made the state, for people who look for a cause."""
    found = {
        "ciuic": ciuic.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = str(torch.__version__)
    return found
