"""Pickles as ``torch.save`` writes them, without torch."""

import collections
import io
import pickle
import sys
import types
from collections.abc import Callable

import pytest

__all__ = ["Parameter", "Pickles", "Storage", "Tensor", "pickles_of_torch"]


class Storage:
    """The persistent ID of a storage in torch's pickles: type, name, number of elements."""

    def __init__(self, kind: str, key: str, count: int) -> None:
        self.told = ("storage", getattr(sys.modules["torch"], kind), key, "cpu", count)


class Tensor:
    """A class that pickles like a torch tensor."""

    def __init__(self, storage: Storage, *shape: int, offset: int = 0, dtype: str = "") -> None:
        strides = (1,) * len(shape)
        self.arguments = (storage, offset, shape, strides, False, collections.OrderedDict())
        self.dtype = dtype

    def __reduce__(self):
        utils = sys.modules["torch._utils"]
        if self.dtype:
            dtype = getattr(sys.modules["torch"], self.dtype)
            return utils._rebuild_tensor_v3, (*self.arguments, dtype)
        return utils._rebuild_tensor_v2, self.arguments


class Parameter:
    """A class that pickles like a torch parameter."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __reduce__(self):
        hooks = collections.OrderedDict()
        return sys.modules["torch._utils"]._rebuild_parameter, (self.tensor, True, hooks)


class _Pickler(pickle._Pickler):
    def persistent_id(self, obj):
        return obj.told if isinstance(obj, Storage) else None


Pickles = Callable[..., bytes]


def pickles_of_torch(monkeypatch: pytest.MonkeyPatch) -> Pickles:
    """Pickles a state as torch does; only the names of torch's classes are needed."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    for name in ("FloatStorage", "BFloat16Storage", "LongStorage", "UntypedStorage", "OddStorage"):
        setattr(torch, name, type(name, (), {"__module__": "torch"}))
    for name in ("float8_e4m3fn", "uint16"):
        setattr(torch, name, type(name, (), {"__module__": "torch"}))
    for name in ("_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_parameter"):
        function = types.FunctionType((lambda: None).__code__, {}, name)
        function.__module__, function.__qualname__ = "torch._utils", name
        setattr(utils, name, function)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch._utils", utils)

    def dumps(state: object, protocol: int = 2) -> bytes:
        file = io.BytesIO()
        _Pickler(file, protocol).dump(state)
        return file.getvalue()

    return dumps
