"""Tensors of torch that consist of several plain tensors: sparse and quantized ones.

A snapshot holds their parts as plain tensors, and ``state.json`` says how they go together. No bit
changes, because none becomes a dense tensor of numbers.
"""

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final

from ciuic.training.values.arrays import UnstorableError

__all__ = ["COMPOSED", "Parts", "compose", "parts_of"]

Tensor = Any
"""A tensor of torch, which may be missing."""
Parts = tuple[dict[str, Any], dict[str, Tensor]]
"""What ``state.json`` says of a tensor, and its plain tensors."""

_SPARSE: Final = "torch.sparse"
_QUANTIZED: Final = "torch.quantized"
COMPOSED: Final = frozenset([_SPARSE, _QUANTIZED])
"""The kinds of ``state.json`` for these tensors."""
_ROWS: Final = ("sparse_csr", "sparse_bsr")
_COLUMNS: Final = ("sparse_csc", "sparse_bsc")
_QUANTIZED_TYPES: Final = frozenset(["quint8", "qint8", "qint32"])


def parts_of(value: Tensor) -> Parts | None:
    """Return the parts of a sparse or quantized tensor; None: the value is something else.

    Raises:
        UnstorableError: Its layout, its type or its scheme is unknown.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or type(value) not in {torch.Tensor, torch.nn.Parameter}:
        return None
    # First the case of nearly all tensors: the training waits for this.
    if value.layout is torch.strided and not value.is_quantized:
        return None
    if value.device.type == "meta":
        return None
    if value.is_quantized:
        return _quantized_parts(torch, value.detach())
    return _sparse_parts(value.detach())


def compose(description: Mapping[str, Any], parts: Mapping[str, Tensor]) -> Tensor:
    """Return the tensor that ``parts_of`` has taken apart.

    Raises:
        KeyError: A part is missing.
        RuntimeError: The parts don't go together.
        ValueError: The quantized type is unknown, or not that of the values.
    """
    import torch

    if description["$"] == _QUANTIZED:
        return _quantized(torch, description, parts)
    layout, shape = description["layout"], description["shape"]
    with warnings.catch_warnings():
        # torch warns once in a process that some layouts may change: a user cannot help that here.
        warnings.simplefilter("ignore", UserWarning)
        if layout == "sparse_coo":
            return torch.sparse_coo_tensor(
                parts["indices"],
                parts["values"],
                shape,
                check_invariants=True,
                is_coalesced=description["coalesced"],
            )
        return torch.sparse_compressed_tensor(
            parts["compressed"],
            parts["plain"],
            parts["values"],
            shape,
            layout=getattr(torch, layout),
            check_invariants=True,
        )


def _sparse_parts(value: Tensor) -> Parts:
    layout = str(value.layout).removeprefix("torch.")
    description = {"$": _SPARSE, "layout": layout, "shape": list(value.shape)}
    if layout == "sparse_coo":
        # With underscores: the public methods refuse a tensor whose indices may occur twice.
        parts = {"indices": value._indices(), "values": value._values()}
        return {**description, "coalesced": value.is_coalesced()}, parts
    if layout in _ROWS:
        compressed, plain = value.crow_indices(), value.col_indices()
    elif layout in _COLUMNS:
        compressed, plain = value.ccol_indices(), value.row_indices()
    else:
        raise UnstorableError(f"is a tensor of the layout {value.layout}")
    return description, {"compressed": compressed, "plain": plain, "values": value.values()}


def _quantized_parts(torch: Any, value: Tensor) -> Parts:
    name = str(value.dtype).removeprefix("torch.")
    if name not in _QUANTIZED_TYPES:
        raise UnstorableError(f"is a quantized tensor of the type {value.dtype}")
    try:
        scheme = value.qscheme()
    except RuntimeError as error:
        raise UnstorableError("is a quantized tensor without a scale") from error
    description: dict[str, Any] = {"$": _QUANTIZED, "dtype": name}
    parts = {"values": value.int_repr()}
    if scheme == torch.per_tensor_affine:
        return {**description, "scale": value.q_scale(), "zero_point": value.q_zero_point()}, parts
    if scheme not in {torch.per_channel_affine, torch.per_channel_affine_float_qparams}:
        raise UnstorableError(f"is a quantized tensor of the scheme {scheme}")
    parts["scales"] = value.q_per_channel_scales()
    parts["zero_points"] = value.q_per_channel_zero_points()
    return {**description, "axis": value.q_per_channel_axis()}, parts


def _quantized(torch: Any, description: Mapping[str, Any], parts: Mapping[str, Tensor]) -> Tensor:
    values = parts["values"]
    if description["dtype"] not in _QUANTIZED_TYPES:
        raise ValueError(f"unknown quantized type {description['dtype']!r}")
    make: Callable[..., Tensor]
    if "axis" in description:
        make = torch._make_per_channel_quantized_tensor
        found = make(values, parts["scales"], parts["zero_points"], description["axis"])
    else:
        make = torch._make_per_tensor_quantized_tensor
        found = make(values, description["scale"], description["zero_point"])
    if str(found.dtype) != f"torch.{description['dtype']}":
        raise ValueError(f"the values of a {description['dtype']} are of another type")
    return found
