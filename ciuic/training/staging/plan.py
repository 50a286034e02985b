"""Plan the files of a state: where each array goes.

A program saves states of one structure again and again, so the next save uses the plan of the last
one again if it still fits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ciuic.training.files import TensorFile, header
from ciuic.training.layers.groups import Layer, group_file, group_of
from ciuic.training.staging.copying import address_of, copy_bytes
from ciuic.training.staging.gpu import GpuCopies, is_on_gpu
from ciuic.training.values.arrays import (
    ArrayLeaf,
    copy_arrays,
    describe,
    kind_of,
    memory_of,
    place_for,
)
from ciuic.training.values.pickles import Pickles
from ciuic.training.values.structure import Json, Path, StructureWriter

__all__ = ["Part", "StagePlan", "make_plan"]

Part = tuple[int, int]
"""Offset and length of a part of a file in the shared memory."""
_ALIGNMENT_BYTES: Final = 64
_MODEL: Final = "model_state_dict"
_FILES: Final = {
    _MODEL: "weights.safetensors",
    "optimizer_state_dict": "optimizer.safetensors",
    "rng": "rng.safetensors",
}
"""The file for the arrays of a section."""
_PLAIN_KEYS: Final = frozenset([str, int])
_OTHER_FILE: Final = "extra.safetensors"


class _ChangedError(Exception):
    """A state has another structure than the plan."""


@dataclass(slots=True)
class _Planned:
    """An array of the state.

    Attributes:
        path: The keys that lead to it.
        kind: See ``kind_of``.
        leaf: How it is stored.
        same: Number of the first array that is the same memory; its own number if it is the first.
        json: Its part of ``state.json``.
        offset_bytes: Its place in the shared memory, if it is the first.
    """

    path: Path
    kind: tuple[object, ...]
    leaf: ArrayLeaf
    same: int
    json: Json
    offset_bytes: int = -1


class StagePlan:
    """The files that a state makes, and their places in the shared memory.

    Args:
        arrays: The arrays of the state, in the order in which ``StructureWriter`` meets them.
        files: For each file its header, and the number of the array for each tensor.
        frozen: The numbers of the arrays that only files of frozen layers have.
        fits_again: Another state may fit the plan.

    Attributes:
        files: Name and parts of each file.
        frozen: Path, kind and place in the shared memory of each array of a frozen layer. States
            for which this is the same can leave out the copy.
        size_bytes: Length of the arrays and the headers in the shared memory.
    """

    def __init__(
        self,
        arrays: list[_Planned],
        files: dict[str, tuple[bytes, list[int]]],
        frozen: frozenset[int],
        *,
        fits_again: bool,
    ) -> None:
        self.fits_again = fits_again
        self._arrays = arrays
        unique = [at for at, planned in enumerate(arrays) if planned.same == at]
        # First: the full state and the weights alone have them at the same places.
        self._unique = sorted(unique, key=lambda at: at not in frozen)
        end = 0
        for at in self._unique:
            arrays[at].offset_bytes = end
            end += -(-arrays[at].leaf.size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        self.frozen = tuple(
            [
                (arrays[at].path, arrays[at].kind, arrays[at].offset_bytes)
                for at in self._unique[: len(frozen)]
            ]
        )
        self._headers: list[tuple[int, np.ndarray]] = []
        self.files: list[tuple[str, tuple[Part, ...]]] = []
        for name, (head, numbers) in files.items():
            self._headers.append((end, np.frombuffer(head, np.uint8)))
            found = [(arrays[at].offset_bytes, arrays[at].leaf.size_bytes) for at in numbers]
            self.files.append((name, ((end, len(head)), *[part for part in found if part[1]])))
            end += len(head)
        self.size_bytes = end
        self._memory: np.ndarray | None = None
        self._places: dict[int, Any] = {}
        self._on_gpu: frozenset[int] = frozenset()

    def match(
        self, sections: Mapping[str, object], pickles: Pickles
    ) -> tuple[Json, list[Any]] | None:
        """Return the JSON of a state and its arrays; None if the plan does not fit it.

        Args:
            sections: The values of the state, by the names of their sections.
            pickles: Collects the values that are stored as pickles.

        Raises:
            TypeError: A value cannot be stored; the message names it.
        """
        values: list[Any] = []
        seen: dict[tuple[object, ...], int] = {}
        arrays = self._arrays

        def add(value: Any, path: Path) -> Json:
            at = len(values)
            if at == len(arrays):
                raise _ChangedError
            planned = arrays[at]
            if planned.path != path or planned.kind != kind_of(value):
                raise _ChangedError
            memory = memory_of(value, planned.kind)
            if memory is not None and seen.setdefault(memory, at) != planned.same:
                raise _ChangedError
            values.append(value)
            return planned.json

        try:
            written = _write(sections, StructureWriter(add, pickles))
        except _ChangedError:
            return None
        return (written, values) if len(values) == len(arrays) else None

    def copy(
        self, values: list[Any], memory: np.ndarray, gpu: GpuCopies, *, copies_frozen: bool = True
    ) -> None:
        """Copy the arrays and the headers to their places.

        Args:
            values: The arrays of a state that the plan fits.
            memory: The shared memory, of at least ``size_bytes``.
            gpu: Copies the tensors of GPUs.
            copies_frozen: False: leave out the arrays of ``frozen``.
        """
        if memory is not self._memory:
            self._places = {at: self._place(at, values[at], memory) for at in self._unique}
            # In every state that fits, they are the same: their device is part of their kind.
            self._on_gpu = frozenset([at for at in self._unique if is_on_gpu(values[at])])
            self._memory = memory
        begin = 0 if copies_frozen else len(self.frozen)
        numbers = self._unique[begin:]
        if self._on_gpu:
            gpu.copy([self._pair(at, values) for at in numbers if at in self._on_gpu], memory)
            numbers = [at for at in numbers if at not in self._on_gpu]
        self._copy_memory(numbers, values, memory)
        for begin, head in self._headers:
            memory[begin : begin + len(head)] = head

    def _copy_memory(self, numbers: Sequence[int], values: list[Any], memory: np.ndarray) -> None:
        """Copy the arrays of this machine's memory: those in order at once, the others by torch."""
        plain, others = [], []
        for at in numbers:
            address = address_of(values[at])
            if address:
                planned = self._arrays[at]
                plain.append((planned.offset_bytes, address, planned.leaf.size_bytes))
            else:
                others.append(at)
        if not copy_bytes(plain, memory):
            others = list(numbers)
        copy_arrays([self._pair(at, values) for at in others])

    def _pair(self, at: int, values: list[Any]) -> tuple[Any, Any]:
        """Return the place of an array, and the array."""
        return self._places[at], values[at]

    def _place(self, at: int, value: Any, memory: np.ndarray) -> Any:
        begin = self._arrays[at].offset_bytes
        return place_for(value, memory[begin : begin + self._arrays[at].leaf.size_bytes])


def make_plan(
    sections: Mapping[str, object], pickles: Pickles, layers: Sequence[Layer] = ()
) -> tuple[StagePlan, Json, list[Any]]:
    """Plan a state; returns the plan, the JSON of the state, and its arrays.

    Args:
        sections: The values of the state, by the names of their sections.
        pickles: Collects the values that are stored as pickles.
        layers: The groups of the model's parameters; none: all are in one file.

    Raises:
        TypeError: A value cannot be stored; the message names it.
    """
    planner = _Planner(layers)
    written = _write(sections, StructureWriter(planner.add, pickles))
    return planner.finish(), written, planner.values


class _Planner:
    """Assigns arrays to files, and remembers which arrays are the same memory."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.values: list[Any] = []
        self._layers = layers
        self._arrays: list[_Planned] = []
        self._files: dict[str, tuple[TensorFile, list[int]]] = {}
        self._seen: dict[tuple[object, ...], int] = {}

    def add(self, value: Any, path: Path) -> Json:
        """Plan an array; returns its JSON. ``value`` is a tensor or an array."""
        leaf = describe(value)
        file = _FILES.get(str(path[0]), _OTHER_FILE)
        named = path if file == _OTHER_FILE else path[1:]
        wanted = ".".join(map(str, named)) or str(path[0])
        if self._layers and path[0] == _MODEL:
            file = group_file(group_of(self._layers, wanted))
        table, numbers = self._files.setdefault(file, (TensorFile(), []))
        name = table.add(wanted, leaf.stored_dtype, leaf.stored_shape, leaf.size_bytes)
        at = len(self.values)
        kind = kind_of(value)
        memory = memory_of(value, kind)
        same = at if memory is None else self._seen.setdefault(memory, at)
        numbers.append(same)
        json = {**leaf.description, "file": file, "name": name}
        if same != at:
            first = self._arrays[same].json
            json |= {"file": first["file"], "name": first["name"]}
        self.values.append(value)
        self._arrays.append(_Planned(path, kind, leaf, same, json))
        return json

    def finish(self) -> StagePlan:
        """Return the plan."""
        files = {}
        for name, (table, numbers) in self._files.items():
            # The widest elements first: every tensor is aligned in the file.
            widths = [self._element_bytes(at) for at in numbers]
            order = sorted(range(len(numbers)), key=lambda row: -widths[row])
            files[name] = (
                header([table.rows[row] for row in order]),
                [numbers[row] for row in order],
            )
        # Other keys, such as parameters, cannot be compared, and the plan would keep them in
        # memory.
        is_plain = all(_PLAIN_KEYS.issuperset(map(type, one.path)) for one in self._arrays)
        return StagePlan(self._arrays, files, self._frozen(), fits_again=is_plain)

    def _frozen(self) -> frozenset[int]:
        """Return the arrays that only files of frozen layers have; others may be tied to them."""
        names = {group_file(layer.name) for layer in self._layers if layer.frozen}
        frozen, others = set[int](), set[int]()
        for name, (_, numbers) in self._files.items():
            (frozen if name in names else others).update(numbers)
        return frozenset(frozen - others)

    def _element_bytes(self, at: int) -> int:
        leaf = self._arrays[at].leaf
        count = 1
        for length in leaf.stored_shape:
            count *= length
        return leaf.size_bytes // count if count else 1


def _write(sections: Mapping[str, object], writer: StructureWriter) -> Json:
    return {name: writer.write(value, (name,)) for name, value in sections.items()}
