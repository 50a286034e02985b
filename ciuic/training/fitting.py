"""How a model differs from the one that was saved: parameters renamed, resized or retyped."""

import sys
import warnings
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

__all__ = ["fitting_state"]

_SHOWN_MAX: Final = 8
"""The most names in one message: a model of another kind differs in all of them."""


def fitting_state(module: object, state: Any, *, strict: bool, name: str) -> Any:
    """Return what ``load_state_dict`` of a module of torch takes, and warn of what differs.

    With ``strict``, torch itself raises for other names and shapes. Without, this leaves out
    parameters of another shape, because torch would raise for them anyway. torch converts another
    type without a warning, which may lose bits: this warns of it in both cases.

    Args:
        module: An object with ``load_state_dict``; any but a module of torch takes the state as is.
        state: The state that was saved for it.
        strict: The names must be those of the module.
        name: The name of the object, for the warning.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(module, torch.nn.Module) or not isinstance(state, Mapping):
        return state
    own = module.state_dict()
    shapes = {
        key: (tuple(state[key].shape), tuple(value.shape))
        for key, value in own.items()
        if _is_tensor(torch, value) and _is_tensor(torch, state.get(key))
    }
    resized = [key for key, (old, new) in shapes.items() if old != new]
    retyped = [
        f"{key} ({state[key].dtype} to {own[key].dtype})"
        for key in shapes
        if state[key].dtype != own[key].dtype and key not in resized
    ]
    differences = {"converted to another type": retyped}
    if not strict:
        differences |= {
            "left as they are, because the snapshot lacks them": [
                key for key in own if key not in state
            ],
            "not in the object": [key for key in state if key not in own],
            "left as they are, because they had another shape": [
                f"{key} ({shapes[key][0]} to {shapes[key][1]})" for key in resized
            ],
        }
        if resized:
            state = _without(state, resized)
    said = [f"{what}: {_listed(keys)}" for what, keys in differences.items() if keys]
    if said:
        warnings.warn(
            f"ciuic: the {name} differs from the one that was saved; {'; '.join(said)}",
            RuntimeWarning,
            stacklevel=5,
        )
    return state


def _without(state: Any, keys: Sequence[str]) -> Any:
    kept = OrderedDict([(key, value) for key, value in state.items() if key not in keys])
    # load_state_dict reads the versions of modules from this attribute.
    if hasattr(state, "_metadata"):
        kept._metadata = state._metadata  # type: ignore[attr-defined]
    return kept


def _is_tensor(torch: Any, value: object) -> bool:
    return isinstance(value, torch.Tensor) and not torch.nn.parameter.is_lazy(value)


def _listed(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - _SHOWN_MAX:,} more" if len(keys) > _SHOWN_MAX else ""
    return f"{', '.join(keys[:_SHOWN_MAX])}{more}"
