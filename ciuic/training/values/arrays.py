"""Tensors of torch and arrays of numpy as bytes, and back, to the last bit.

An array is stored as a tensor of a safetensors file. If safetensors lacks the element type, the
bytes are stored with another type, and ``state.json`` has the real one.
"""

import contextlib
import importlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ciuic.errors import UnknownFormatError
from ciuic.formats.headers import WIDTHS
from ciuic.hints import pip_install

__all__ = [
    "ArrayLeaf",
    "Description",
    "UnstorableError",
    "copy_arrays",
    "describe",
    "is_array",
    "kind_of",
    "memory_of",
    "place_for",
    "read_dtype",
    "rebuild",
    "written_dtype",
]

Array = Any
"""A tensor of torch or an array of numpy: torch may be missing, so there is no common type."""
Description = dict[str, Any]
"""The part of ``state.json`` that describes an array: values of JSON."""

_TORCH_AS_IS: Final = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "complex64": "C64",
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
}
_TORCH_IN_PAIRS: Final = {"complex128": "F64", "complex32": "F16"}
_TORCH_AS_BYTES: Final = frozenset(
    {"float8_e4m3fnuz", "float8_e5m2fnuz", "float4_e2m1fn_x2", "bits8", "bits16"}
)
_NUMPY_AS_IS: Final = {
    "<f8": "F64",
    "<f4": "F32",
    "<f2": "F16",
    "<c8": "C64",
    "|b1": "BOOL",
    "|u1": "U8",
    "|i1": "I8",
    "<u2": "U16",
    "<i2": "I16",
    "<u4": "U32",
    "<i4": "I32",
    "<u8": "U64",
    "<i8": "I64",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
}
_NUMPY_IN_PAIRS: Final = {"<c16": "F64"}
_NUMPY_KINDS: Final = "biufcmMSUV"
_MORE_TYPES: Final = "ml_dtypes"
"""The package from which numpy gets more element types, as the arrays of JAX have them."""
_OF_PACKAGE: Final = 2
"""``isbuiltin`` of a type that a package has added to numpy."""


class UnstorableError(Exception):
    """A value cannot be stored; the message says why, without its name."""


@dataclass(frozen=True, slots=True)
class ArrayLeaf:
    """How an array is stored.

    Attributes:
        stored_dtype: Element type in the safetensors file.
        stored_shape: Shape there.
        size_bytes: Length of its bytes.
        description: What ``rebuild`` needs.
    """

    stored_dtype: str
    stored_shape: tuple[int, ...]
    size_bytes: int
    description: Description


def is_array(value: object) -> bool:
    """Return whether a value is a tensor or an array."""
    if isinstance(value, np.ndarray):
        return True
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def describe(value: Array) -> ArrayLeaf:
    """Return how an array is stored.

    Raises:
        UnstorableError: It has no plain bytes, or its class would be lost.
    """
    return _numpy_leaf(value) if isinstance(value, np.ndarray) else _torch_leaf(value)


def kind_of(value: Array) -> tuple[object, ...]:
    """Return what decides how an array is stored: equal kinds have equal descriptions.

    Raises:
        UnstorableError: It has no shape.
    """
    if isinstance(value, np.ndarray):
        return type(value), value.dtype, value.shape
    try:
        return type(value), value.dtype, value.shape, value.device, value.layout
    except RuntimeError:
        # Only here: the training waits while each tensor is asked.
        _refuse_nested(value)
        raise


def memory_of(value: Array, kind: tuple[object, ...]) -> tuple[object, ...] | None:
    """Return a key that is equal for two arrays which show the same memory in the same way.

    None if the array is empty. ``describe`` must have accepted an array of this kind.

    Args:
        value: The array.
        kind: What ``kind_of`` returns for it: another call would take longer than all else here.

    Raises:
        UnstorableError: It has less memory than its shape needs.
    """
    # Without the class: a parameter and a tensor may be the same memory.
    if isinstance(value, np.ndarray):
        start = value.__array_interface__["data"][0]
        return ("numpy", start, kind[1:], value.strides) if value.nbytes else None
    if not value.numel():
        return None
    _refuse_short(value)
    return value.data_ptr(), kind[1:], value.stride(), value.is_conj(), value.is_neg()


def place_for(value: Array, data: np.ndarray) -> Array:
    """Return a view of ``data`` that ``copy_arrays`` copies the array to; None: it is empty.

    Args:
        value: The array.
        data: As many bytes as it has.
    """
    if isinstance(value, np.ndarray):
        return data.view(value.dtype).reshape(value.shape) if data.size else None
    import torch

    if not data.size:
        return None
    name = str(value.dtype).removeprefix("torch.")
    # A tensor that is made in inference mode could not be written to outside of it.
    with torch.inference_mode(mode=False):
        memory = torch.from_numpy(data)
        is_bytes = name in _TORCH_AS_BYTES and value.element_size() == 1
        return memory.view(value.shape) if is_bytes else memory.view(value.dtype).view(value.shape)


def copy_arrays(pairs: Iterable[tuple[Array, Array]]) -> None:
    """Copy arrays to the places that ``place_for`` has returned.

    Args:
        pairs: A place, and the array.
    """
    torch = sys.modules.get("torch")
    with torch.no_grad() if torch is not None else contextlib.nullcontext():
        for place, value in pairs:
            if place is None:
                continue
            if isinstance(place, np.ndarray):
                np.copyto(place, value)
            else:
                place.copy_(value if value.dtype is place.dtype else value.view(place.dtype))


def rebuild(description: Description, data: np.ndarray) -> Array:
    """Return the array that a description and its bytes make; it uses the memory of ``data``.

    Raises:
        UnknownFormatError: This version of torch or numpy lacks the element type.
        ValueError: The description and the number of bytes don't agree.
    """
    shape = tuple(description["shape"])
    if description["$"] == "numpy.ndarray":
        return data.view(read_dtype(description["dtype"])).reshape(shape)
    import torch

    dtype = getattr(torch, description["dtype"], None)
    if not isinstance(dtype, torch.dtype):
        raise UnknownFormatError(
            f"this version of torch has no element type {description['dtype']}",
            hint="Load the snapshot with a newer version of torch.",
        )
    if not data.size:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(data).view(dtype).view(shape)


def written_dtype(dtype: "np.dtype[Any]") -> str:
    """Return the text that ``read_dtype`` turns into an element type of numpy.

    Raises:
        UnstorableError: There is none.
    """
    if dtype.isbuiltin != _OF_PACKAGE:
        return dtype.str
    # numpy's own text would name another type: V2 for bfloat16, and f1, which nothing can read.
    if dtype.type.__module__ != _MORE_TYPES or not dtype.isnative:
        raise UnstorableError(f"has the element type {dtype}, which is not one of numpy")
    return dtype.name


def read_dtype(text: str) -> "np.dtype[Any]":
    """Return the element type of numpy that ``written_dtype`` has written.

    Raises:
        UnknownFormatError: Neither numpy nor the installed package has it.
        TypeError: It was not written by ``written_dtype``.
    """
    if text.startswith(("<", ">", "|")):
        return np.dtype(text)
    package: Any = None
    with contextlib.suppress(ImportError):
        package = importlib.import_module(_MORE_TYPES)
    found = getattr(package, text, None)
    # Only a type of numbers: the text comes from a file.
    if not isinstance(found, type) or not issubclass(found, np.generic):
        raise UnknownFormatError(
            f"the element type {text} of numpy needs the package {_MORE_TYPES}, or a newer one",
            hint=f"Install it: {pip_install('--upgrade', _MORE_TYPES)}",
        )
    return np.dtype(found)


def _numpy_leaf(array: np.ndarray) -> ArrayLeaf:
    if type(array) is not np.ndarray:
        raise UnstorableError(f"is a {type(array).__name__}, a subclass of numpy.ndarray")
    dtype = array.dtype
    if dtype.kind not in _NUMPY_KINDS or dtype.hasobject or dtype.names or dtype.subdtype:
        raise UnstorableError(f"is an array of {dtype}, whose elements are not numbers or text")
    name = written_dtype(dtype)
    return ArrayLeaf(
        *_stored(name, dtype.itemsize, array.shape, _NUMPY_AS_IS, _NUMPY_IN_PAIRS),
        size_bytes=array.nbytes,
        description={"$": "numpy.ndarray", "dtype": name, "shape": list(array.shape)},
    )


def _torch_leaf(tensor: Array) -> ArrayLeaf:
    name = str(tensor.dtype).removeprefix("torch.")
    _refuse_torch(tensor, name)
    shape = tuple(tensor.shape)
    item_bytes = tensor.element_size()
    return ArrayLeaf(
        *_stored(name, item_bytes, shape, _TORCH_AS_IS, _TORCH_IN_PAIRS),
        size_bytes=tensor.numel() * item_bytes,
        description={"$": "torch.Tensor", "dtype": name, "shape": list(shape)},
    )


def _refuse_torch(tensor: Array, name: str) -> None:
    import torch

    if type(tensor) not in {torch.Tensor, torch.nn.Parameter}:
        raise UnstorableError(f"is a {type(tensor).__name__}, which is not a plain tensor")
    if tensor.layout is not torch.strided:
        raise UnstorableError(f"is a sparse tensor ({tensor.layout})")
    if tensor.is_quantized:
        raise UnstorableError(f"is a quantized tensor ({tensor.dtype})")
    _refuse_nested(tensor)
    if tensor.device.type == "meta":
        raise UnstorableError("is a tensor without data (device 'meta')")
    if name not in _TORCH_AS_IS and name not in _TORCH_IN_PAIRS and name not in _TORCH_AS_BYTES:
        raise UnstorableError(f"is a tensor of the unknown element type {tensor.dtype}")
    _refuse_short(tensor)


def _refuse_nested(tensor: Array) -> None:
    if tensor.is_nested:
        raise UnstorableError("is a nested tensor")


def _refuse_short(tensor: Array) -> None:
    """Refuse a tensor that ends behind its storage, where torch would read without a look.

    Programs free the memory of a tensor by resizing its storage, as FSDP does between two steps.
    """
    last = tensor.numel() - 1
    if not tensor.is_contiguous():
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        last = sum((length - 1) * stride for length, stride in steps)
    end = tensor.storage_offset() + last + 1
    if last >= 0 and end * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise UnstorableError("has no memory, or too little: its storage was freed or made smaller")


def _stored(
    name: str,
    item_bytes: int,
    shape: tuple[int, ...],
    as_is: dict[str, str],
    in_pairs: dict[str, str],
) -> tuple[str, tuple[int, ...]]:
    """Return the element type and the shape in the safetensors file."""
    if name in as_is:
        return as_is[name], shape
    if name in in_pairs:
        return in_pairs[name], (*shape, item_bytes // WIDTHS[in_pairs[name]])
    return "U8", shape if item_bytes == 1 else (*shape, item_bytes)
