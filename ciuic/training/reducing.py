"""Reduce a full state to its weights, without what only a resumed run needs."""

from collections.abc import Iterator
from typing import Any, Final

__all__ = ["REDUCED", "arrays_in", "weights_alone"]

REDUCED: Final = "reduced"
"""The tag of a snapshot that had the full state, and keeps the weights alone."""
_KEPT: Final = ("model_state_dict", "epoch", "step", "metrics")


def weights_alone(document: dict[str, Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the state of the channel ``weights``, and the files that hold its arrays.

    Args:
        document: The JSON of ``state.json``, of either channel.
    """
    state = {name: value for name, value in document["state"].items() if name in _KEPT}
    return {**document, "state": state}, frozenset([array["file"] for array in arrays_in(state)])


def arrays_in(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the description of each array in a structure."""
    if isinstance(value, dict):
        # An object of a user that has this key is written as a list of pairs.
        if "$" in value and isinstance(value.get("file"), str):
            yield value
        for inner in value.values():
            yield from arrays_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from arrays_in(inner)
