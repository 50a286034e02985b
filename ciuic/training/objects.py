"""The states of a user's objects: anything with ``state_dict``, or containers of arrays."""

from collections.abc import Mapping
from typing import Any

__all__ = ["load_into", "state_of"]


def state_of(value: object, name: str) -> Any:
    """Return the state of an object, or of each object in a mapping, a list or a tuple.

    Raises:
        TypeError: It has none; the message has its name.
    """
    state_dict = getattr(value, "state_dict", None)
    if callable(state_dict) and not isinstance(value, type):
        return state_dict()
    if type(value) is dict:
        return {
            key: state_of(inner, f"{name}[{key!r}]") if _holds_objects(inner) else inner
            for key, inner in value.items()
        }
    if isinstance(value, Mapping) or type(value) in {list, tuple}:
        return value
    raise TypeError(
        f"{name} has no state: {type(value).__qualname__} has no method state_dict and is no dict"
    )


def load_into(target: object, state: Any, *, strict: bool, name: str) -> None:
    """Load a state into the object that it was taken of, or into each object of a dict.

    Args:
        target: The object, or a dict of objects.
        state: What ``state_of`` returned for it.
        strict: For a module of torch: refuse other keys than its own.
        name: The object's name, for messages.

    Raises:
        TypeError: The object has no method ``load_state_dict``.
    """
    load = getattr(target, "load_state_dict", None)
    if callable(load):
        # Only modules have the option, and False is the only value that changes anything.
        load(state) if strict else load(state, strict=False)
    elif type(target) is dict and isinstance(state, Mapping) and target.keys() == state.keys():
        for key, inner in target.items():
            load_into(inner, state[key], strict=strict, name=f"{name}[{key!r}]")
    else:
        raise TypeError(
            f"{name} can't take a state: {type(target).__qualname__} has no method load_state_dict"
        )


def _holds_objects(value: object) -> bool:
    return type(value) is dict or callable(getattr(value, "state_dict", None))
