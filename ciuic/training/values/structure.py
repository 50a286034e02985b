"""Python values as JSON and back: loading runs no code of a file.

JSON's own values stay as they are. Every other value is an object whose key ``$`` names its type.
The writer passes arrays on, and the JSON has their file and their name. It also passes on a value
of another type if the program has allowed a pickle of it; a load returns the bytes of the pickle.
"""

import base64
import math
import struct
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sized
from typing import Any, Final

import numpy as np

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.training.values.arrays import UnstorableError, is_array, read_dtype, written_dtype
from ciuic.training.values.composed import COMPOSED, compose, parts_of
from ciuic.training.values.pickles import PICKLE, Pickles

__all__ = ["UNREADABLE", "Json", "Path", "StructureWriter", "read_structure", "written_path"]

Json = Any
"""A value of JSON."""
Path = tuple[object, ...]
"""The keys that lead to a value; the first is the name of its section."""

_KIND: Final = "$"
_DEPTH_MAX: Final = 100
_SHARED_MAX: Final = 250_000
"""Containers that may be written again, which takes seconds. A list that holds another one twice,
and so on, 40 levels deep, would be written a million million times."""
_INT_BITS_MAX: Final = 63
UNREADABLE: Final = (
    KeyError,
    IndexError,
    TypeError,
    ValueError,
    AttributeError,
    RuntimeError,  # of torch: a shape that does not fit, an unknown device
    struct.error,
)
"""The exceptions that reading a structure can raise if no ``StructureWriter`` wrote it."""
_FACTORIES: Final = {"int": int, "float": float, "list": list, "dict": dict, "set": set}


def written_path(path: Path) -> str:
    """Return a path as a user writes it: ``optimizer['state'][0]``."""
    return (
        f"{str(path[0]).removesuffix('_state_dict')}{''.join([f'[{key!r}]' for key in path[1:]])}"
    )


class StructureWriter:
    """Turns values into JSON.

    Args:
        add_array: Receives an array and its path, and returns its JSON.
        pickles: Stores what the program has allowed; None: there are no pickles.
    """

    def __init__(
        self, add_array: Callable[[Any, Path], Json], pickles: Pickles | None = None
    ) -> None:
        self._add_array = add_array
        self._pickles = pickles
        self._open: set[int] = set()
        self._known: dict[int, object] = {}
        """The containers that were written, by their IDs, which stay theirs."""
        self._written = self._held = 0
        """Containers that were written, and values that the known ones hold."""
        self._writers: dict[type, Callable[[Any, Path], Json]] = {
            float: self._float,
            int: self._int,
            complex: lambda value, _: _kind("complex", bits=[_bits(value.real), _bits(value.imag)]),
            bytes: lambda value, _: _kind("bytes", base64=_base64(value)),
            bytearray: lambda value, _: _kind("bytearray", base64=_base64(value)),
            dict: self._dict,
            OrderedDict: self._ordered,
            defaultdict: self._defaultdict,
            Counter: lambda value, path: _kind("Counter", items=self._pairs(value, path)),
            list: self._items,
            tuple: lambda value, path: _kind("tuple", items=self._items(value, path)),
            set: lambda value, path: _kind("set", items=self._items(value, path)),
            frozenset: lambda value, path: _kind("frozenset", items=self._items(value, path)),
        }

    def write(self, value: object, path: Path) -> Json:
        """Return the JSON of a value.

        Raises:
            TypeError: It, or a value in it, cannot be stored; the message names it.
        """
        if value is None or type(value) in {bool, str}:
            return value
        if id(value) in self._open:
            raise TypeError(f"{written_path(path)} cannot be stored: it contains itself")
        if len(self._open) >= _DEPTH_MAX:
            raise TypeError(f"{written_path(path)} cannot be stored: it is nested too deep")
        self._open.add(id(value))
        try:
            return self._write(value, path)
        except UnstorableError as error:
            return self._pickled(value, written_path(path), str(error))
        finally:
            self._open.discard(id(value))

    def _pickled(self, value: object, name: str, reason: str) -> Json:
        """Return the JSON of a value that only pickle can store."""
        found, how = None, ""
        if self._pickles is not None:
            found = self._pickles.add(value, name)
            how = f'; pickle_leaves=["{name}"] would store it as a pickle'
        if found is None:
            raise TypeError(f"{name} cannot be stored: it {reason}{how}")
        return found

    def _write(self, value: object, path: Path) -> Json:
        writer = self._writers.get(type(value))
        if writer is not None:
            return writer(value, path)
        composed = parts_of(value)
        if composed is not None:
            description, parts = composed
            written = {key: self.write(part, (*path, key)) for key, part in parts.items()}
            return {**description, "parts": written}
        if is_array(value):
            return self._add_array(value, path)
        if isinstance(value, np.generic):
            return _numpy_scalar(value)
        found = _torch_value(value)
        if found is None:
            name = f"{type(value).__module__}.{type(value).__qualname__}"
            # Such as an array of JAX: its user should not take the pickle that is offered next.
            how = "; numpy.asarray makes an array of it" if hasattr(value, "__array__") else ""
            raise UnstorableError(
                f"is a {name}; a snapshot holds tensors, arrays, numbers, text and containers{how}"
            )
        return found

    def _float(self, value: float, _: Path) -> Json:
        return value if math.isfinite(value) else _kind("float", bits=_bits(value))

    def _int(self, value: int, _: Path) -> Json:
        return value if value.bit_length() <= _INT_BITS_MAX else _kind("int", hex=f"{value:x}")

    def _count(self, value: Sized, path: Path) -> None:
        """Count a container that is written.

        Raises:
            TypeError: The state holds few containers, and each of them again and again.
        """
        self._written += 1
        if id(value) not in self._known:
            self._known[id(value)] = value
            self._held += len(value)
        elif self._written > _SHARED_MAX + self._held:
            raise TypeError(
                f"{written_path(path[:2])} cannot be stored: it holds the same containers again and"
                f" again, more than {_SHARED_MAX:,} times"
            )

    def _dict(self, value: dict[object, object], path: Path) -> Json:
        if all(type(key) is str for key in value) and _KIND not in value:
            self._count(value, path)
            return {key: self.write(inner, (*path, key)) for key, inner in value.items()}
        return _kind("dict", items=self._pairs(value, path))

    def _ordered(self, value: "OrderedDict[object, object]", path: Path) -> Json:
        found = _kind("OrderedDict", items=self._pairs(value, path))
        # load_state_dict reads the versions of modules from this attribute.
        metadata = getattr(value, "_metadata", None)
        if metadata is not None:
            found["metadata"] = self.write(metadata, (*path, "_metadata"))
        return found

    def _defaultdict(self, value: "defaultdict[object, object]", path: Path) -> Json:
        factory = value.default_factory
        names = [name for name, known in _FACTORIES.items() if known is factory]
        if factory is not None and not names:
            raise UnstorableError(f"is a defaultdict whose factory {factory!r} is code")
        return _kind("defaultdict", factory=names[:1], items=self._pairs(value, path))

    def _pairs(self, value: Mapping[Any, object], path: Path) -> list[Json]:
        self._count(value, path)
        return [
            [self.write(key, (*path, key)), self.write(inner, (*path, key))]
            for key, inner in value.items()
        ]

    def _items(self, value: Collection[object], path: Path) -> list[Json]:
        self._count(value, path)
        return [self.write(inner, (*path, at)) for at, inner in enumerate(value)]


def read_structure(value: Json, get_array: Callable[[Json], Any]) -> Any:
    """Return the value that a JSON value stands for.

    Args:
        value: What ``StructureWriter.write`` returned.
        get_array: Returns an array, or a ``PickledLeaf``, for its JSON.

    Raises:
        CorruptionError: It is not a value that ``StructureWriter`` writes.
        UnknownFormatError: A later version wrote it.
    """
    try:
        return _read(value, get_array)
    except UNREADABLE as error:
        raise CorruptionError(f"state.json has a value that cannot be read: {error!r}") from error


def _read(value: Json, get: Callable[[Json], Any]) -> Any:
    if isinstance(value, list):
        return [_read(inner, get) for inner in value]
    if not isinstance(value, dict):
        return value
    if _KIND not in value:
        return {key: _read(inner, get) for key, inner in value.items()}
    kind = value[_KIND]
    if kind in {"torch.Tensor", "numpy.ndarray", PICKLE}:
        return get(value)
    if kind in COMPOSED:
        return compose(value, {key: _read(inner, get) for key, inner in value["parts"].items()})
    if kind in _READERS:
        return _READERS[kind](value)
    if kind in _CONTAINERS:
        return _CONTAINERS[kind]([_read(inner, get) for inner in value["items"]])
    if kind == "OrderedDict":
        found: OrderedDict[Any, Any] = OrderedDict(_read(value["items"], get))
        if "metadata" in value:
            found._metadata = _read(value["metadata"], get)  # type: ignore[attr-defined]
        return found
    if kind == "defaultdict":
        factory = _FACTORIES[value["factory"][0]] if value["factory"] else None
        return defaultdict(factory, _read(value["items"], get))
    raise UnknownFormatError(f"state.json has a value of the unknown type {kind!r}")


def _torch_of(name: str, kind: str) -> Any:
    import torch

    found = getattr(torch, name, None) if kind == "torch.dtype" else torch.device(name)
    if kind == "torch.dtype" and not isinstance(found, torch.dtype):
        raise UnknownFormatError(
            f"this version of torch has no element type {name}",
            hint="Load the snapshot with a newer version of torch.",
        )
    return found


def _torch_size(items: Iterable[int]) -> Any:
    import torch

    return torch.Size(items)


def _counter(pairs: list[Any]) -> "Counter[Any]":
    return Counter(dict(pairs))


def _from_bits(text: str) -> float:
    number: float = struct.unpack(">d", bytes.fromhex(text))[0]
    return number


_READERS: Final[dict[str, Callable[[Json], Any]]] = {
    "float": lambda value: _from_bits(value["bits"]),
    "int": lambda value: int(value["hex"], 16),
    "complex": lambda value: complex(*map(_from_bits, value["bits"])),
    "bytes": lambda value: base64.b64decode(value["base64"]),
    "bytearray": lambda value: bytearray(base64.b64decode(value["base64"])),
    "numpy.scalar": lambda value: np.frombuffer(
        base64.b64decode(value["base64"]), read_dtype(value["dtype"])
    )[0],
    "torch.dtype": lambda value: _torch_of(value["name"], "torch.dtype"),
    "torch.device": lambda value: _torch_of(value["name"], "torch.device"),
    "torch.Size": lambda value: _torch_size(value["sizes"]),
}
_CONTAINERS: Final[dict[str, Callable[[list[Any]], Any]]] = {
    "dict": dict,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "Counter": _counter,
}


def _kind(kind: str, /, **fields: Json) -> dict[str, Json]:
    return {_KIND: kind, **fields}


def _bits(number: float) -> str:
    return struct.pack(">d", number).hex()


def _base64(data: bytes | bytearray) -> str:
    return base64.b64encode(data).decode()


def _numpy_scalar(value: np.generic) -> Json:
    if value.dtype.hasobject or value.dtype.names:
        raise UnstorableError(f"is a numpy scalar of {value.dtype}")
    return _kind("numpy.scalar", dtype=written_dtype(value.dtype), base64=_base64(value.tobytes()))


def _torch_value(value: Any) -> Json | None:
    """Return the JSON of a size, a type or a device of torch; None: it is none of these."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return None
    if type(value) is torch.Size:
        return _kind("torch.Size", sizes=list(value))
    if isinstance(value, torch.dtype):
        return _kind("torch.dtype", name=str(value).removeprefix("torch."))
    if isinstance(value, torch.device):
        return _kind("torch.device", name=str(value))
    return None
