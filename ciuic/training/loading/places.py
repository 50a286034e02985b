"""Finds the user's own tensors to which a load can read without a copy.

Such a load takes no memory besides the user's. The caller still calls ``load_state_dict``, because
it checks the names. Its copy of a tensor to itself does nothing.
"""

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np

__all__ = ["FindPlaces", "Memory", "Places", "place_finder"]

_DIRECT_BYTES_MIN: Final = 64 * 1024
"""Smaller tensors share chunks, so a load copies them in any case."""

Json = Any
Memory = tuple[Any, np.ndarray]
"""A tensor of the user, and its bytes."""
Places = Mapping[tuple[str, str], Memory]
"""For tensors by their file and their name in it: the tensor to read to."""
FindPlaces = Callable[[Json], Places]
"""Returns the places for a structure."""


def place_finder(
    model: object, optimizer: object, map_location: object, *, strict: bool
) -> FindPlaces:
    """Return a function that finds the tensors to read to.

    It finds none for a load that moves tensors to a device, or that may leave some as they are.

    Args:
        model: The model that the state is loaded into; None: the caller gave none.
        optimizer: The optimizer.
        map_location: See ``read_state``.
        strict: The names in the snapshot must be those of the model.
    """
    if map_location is not None or not strict:
        return lambda _: {}
    return lambda state: _places_of(state, model, optimizer)


def _places_of(state: Json, model: object, optimizer: object) -> Places:
    """Find the tensors of a model and an optimizer that can be read to.

    Only plain modules and optimizers of torch have any. A class or a hook that changes a state
    while it loads it must receive tensors that are not the object's own.

    Args:
        state: The structure of a state, as ``StructureWriter`` wrote it.
        model: The model; anything else than a module has no place.
        optimizer: The optimizer.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(state, dict):
        return {}
    found: dict[tuple[str, str], Memory] = {}
    taken = _Taken()
    for key, target in (("model_state_dict", model), ("optimizer_state_dict", optimizer)):
        for description, tensor in _pairs(state.get(key), _live(torch, target)):
            if not _is_in_memory(torch, tensor):
                continue
            # Tied weights are one memory under two names, and the snapshot may have a value for
            # each. The last that torch loads must win, so this one is read here only if no tensor
            # before it, however small, shares its memory.
            is_free = taken.add(tensor.data_ptr(), tensor.data_ptr() + _extent_bytes(tensor))
            if not is_free or not _fits(description, tensor):
                continue
            own = tensor.detach()
            data = own.view(-1).view(torch.uint8).numpy()
            found.setdefault((description["file"], description["name"]), (own, data))
    return found


def _live(torch: Any, target: object) -> object:
    """Return the state of an object if a load may write to its own tensors; else None."""
    if type(target) is dict:
        return {key: _live(torch, inner) for key, inner in target.items()}
    if isinstance(target, torch.nn.Module):
        return target.state_dict() if all(map(_is_plain, target.modules())) else None
    if isinstance(target, torch.optim.Optimizer):
        is_plain = (
            type(target).load_state_dict is torch.optim.Optimizer.load_state_dict
            and not target._optimizer_load_state_dict_pre_hooks
        )
        return target.state_dict() if is_plain else None
    return None


def _is_plain(module: Any) -> bool:
    """Return whether a module copies each tensor of a state to its own one, as it is."""
    return not module._load_state_dict_pre_hooks and all(
        getattr(type(module), name).__module__.startswith("torch.nn.modules.")
        for name in ("load_state_dict", "_load_from_state_dict")
    )


def _pairs(value: Json, live: Any) -> Iterator[tuple[dict[str, Any], Any]]:
    """Pair the arrays of a structure with what is at the same path of a live state.

    The pairs have the order of the live state, in which torch loads them.
    """
    if isinstance(value, list):
        if type(live) is list:
            for inner, at in zip(value, live, strict=False):
                yield from _pairs(inner, at)
    elif isinstance(value, dict) and value.get("$") == "torch.Tensor":
        yield value, live
    elif isinstance(value, dict) and isinstance(live, Mapping):
        items = value.items() if "$" not in value else value.get("items", ())
        found = {key: inner for key, inner in items if isinstance(key, (str, int))}
        for key, at in live.items():
            if key in found:
                yield from _pairs(found[key], at)


class _Taken:
    """The ranges of memory that are taken: sorted, and merged where they overlap."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def add(self, begin: int, end: int) -> bool:
        """Take a range; returns whether no part of it was taken before."""
        first, last = bisect_right(self._ends, begin), bisect_left(self._begins, end)
        if first < last:
            begin, end = min(begin, self._begins[first]), max(end, self._ends[last - 1])
        self._begins[first:last], self._ends[first:last] = [begin], [end]
        return first >= last


def _is_in_memory(torch: Any, tensor: Any) -> bool:
    """Return whether this is a plain tensor with elements in this machine's memory."""
    return (
        type(tensor) in {torch.Tensor, torch.nn.Parameter}
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.nbytes > 0
    )


def _extent_bytes(tensor: Any) -> int:
    """Return how many bytes lie from the first element of a tensor to the end of its last."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last: int = sum([(count - 1) * stride for count, stride in steps])
    return (last + 1) * int(tensor.element_size())


def _fits(description: Mapping[str, Any], tensor: Any) -> bool:
    """Return whether a tensor has the type and the shape that a description says."""
    return (
        tensor.nbytes >= _DIRECT_BYTES_MIN
        and tensor.is_contiguous()
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and str(tensor.dtype) == f"torch.{description['dtype']}"
        and list(tensor.shape) == description["shape"]
    )
