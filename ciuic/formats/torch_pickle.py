"""A pickle from ``torch.save`` -> the names, types and shapes of its tensors. Nothing is executed.

``pickle_machine`` follows the opcodes. The keys on the path to a tensor make up its name, such as
``optimizer.state.3.exp_avg``. The files of a distributed checkpoint contain no names: the names
are in a pickle beside them, ``.metadata``.

Guarantees:
    - ``read`` and ``parts`` return for any bytes; an odd pickle has no tensors.
    - ``pickle_machine`` bounds memory and time, and ``NAME_BYTES_MAX`` bounds names.
"""

import math
import warnings
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from ciuic.formats.headers import NAME_BYTES_MAX, Part
from ciuic.formats.pickle_machine import (
    OTHER,
    Container,
    OddPickleError,
    PickleMachine,
    Tensor,
    shape_of,
)

__all__ = ["PICKLE_BYTES_MAX", "Pickled", "parts", "read"]

PICKLE_BYTES_MAX: Final = 16 * 1024 * 1024
_DEPTH_MAX: Final = 64
_ATTRIBUTES_MAX: Final = 16
"""Attributes looked at per object of a distributed checkpoint: a hostile file may repeat one."""


class Pickled(NamedTuple):
    """A tensor as a pickle describes it.

    Attributes:
        name: The keys on the path to it, joined by dots; may be empty.
        element: The type of its elements; empty if the type is unknown here.
        elements: Number of elements in its storage.
        shape: None if the tensor does not cover its whole storage.
    """

    name: str
    element: str
    elements: int
    shape: tuple[int, ...] | None


def read(pickle: bytes) -> dict[str, Pickled]:
    """Return the tensors of a pickle, by the names of their storages: ``17`` for ``data/17``.

    If several tensors share a storage, the first one names it.
    """
    return _tensors(_unpickled(pickle))


def parts(pickle: bytes) -> dict[str, list[Part]]:
    """Return what each file of a distributed checkpoint holds, in order, from its ``.metadata``.

    Files have the names that ``.metadata`` uses. Incomplete entries are left out.
    """
    found: dict[str, list[Part]] = {}
    storage = _attributes(_unpickled(pickle)).get("storage_data")
    for key, value in storage.items if isinstance(storage, Container) else ():
        index, place = _attributes(key), _attributes(value)
        match index.get("fqn"), *[place.get(key) for key in ("relative_path", "offset", "length")]:
            case [str(name), str(file), int(offset), int(length)] if offset >= 0 < length:
                begins = _integers(index.get("offset"))
                if any(begins):
                    name += f"[{', '.join(map(str, begins))}]"
                if len(name.encode(errors="surrogatepass")) <= NAME_BYTES_MAX:
                    found.setdefault(file, []).append(Part(offset, length, name))
    for ranges in found.values():
        ranges.sort()
    return found


def _unpickled(pickle: bytes) -> Any:
    """Return the value that unpickling would return; ``OTHER`` for an odd pickle."""
    if len(pickle) > PICKLE_BYTES_MAX:
        return OTHER
    try:
        # Python warns about odd escapes in text; no user can act on that.
        with warnings.catch_warnings(action="ignore"):
            return PickleMachine().run(pickle)
    except (OddPickleError, ValueError, IndexError, KeyError):
        return OTHER


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, from its state."""
    few = value.items[:_ATTRIBUTES_MAX] if isinstance(value, Container) else []
    return {
        name: one
        for key, state in few
        if key is None and isinstance(state, Container)
        for name, one in state.items[:_ATTRIBUTES_MAX]
        if isinstance(name, str)
    }


def _integers(value: Any) -> tuple[int, ...]:
    """Return the integers of a ``torch.Size``, which are the arguments of its call."""
    match value.items if isinstance(value, Container) else ():
        case [(None, (tuple(found),))] if shape_of(found) is not None:
            return found
    return ()


class _Way(NamedTuple):
    """The keys on the path to a value, last key first."""

    depth: int
    before: "_Way | None"
    key: str


_TOP: Final = _Way(0, None, "")


def _tensors(top: Any) -> dict[str, Pickled]:
    """Return every tensor below a value. Iterative, because the value may be nested deeply."""
    found: dict[str, Pickled] = {}
    seen: set[int] = set()
    waiting = [(_TOP, top)]
    while waiting:
        way, value = waiting.pop()
        if isinstance(value, Tensor):
            if value.storage.key not in found:
                found[value.storage.key] = _pickled(way, value)
            continue
        if not isinstance(value, (Container, tuple)) or id(value) in seen or way.depth > _DEPTH_MAX:
            continue
        seen.add(id(value))
        waiting += reversed(list(_inner(way, value)))
    return found


def _pickled(way: _Way, tensor: Tensor) -> Pickled:
    storage, shape = tensor.storage, tensor.shape
    is_all = shape is not None and math.prod(shape) == storage.elements
    return Pickled(_name(way), tensor.element, storage.elements, shape if is_all else None)


def _inner(way: _Way, value: "Container | tuple[Any, ...]") -> Iterator[tuple[_Way, Any]]:
    items = value.items if isinstance(value, Container) else enumerate(value)
    for key, one in items:
        if isinstance(one, (Container, Tensor, tuple)):
            # The arguments of a call and the state of an object have no key of their own.
            text = str(key) if isinstance(key, (str, int)) else ""
            yield _Way(way.depth + 1, way, text), one


def _name(way: _Way) -> str:
    keys: list[str] = []
    at: _Way | None = way
    while at is not None:
        if at.key:
            keys.append(at.key)
        at = at.before
    if sum([len(key) for key in keys]) > NAME_BYTES_MAX:
        return ""
    name = ".".join(keys[::-1])
    return name if len(name.encode(errors="surrogatepass")) <= NAME_BYTES_MAX else ""
