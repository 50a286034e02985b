"""A callback of Keras 3 that saves each epoch, with any of its back ends."""

import re
from collections.abc import Iterable
from typing import Any, Final

import keras
import numpy as np

from ciuic.errors import UsageError
from ciuic.training.loading.state import LoadedState
from ciuic.training.manager import SnapshotManager

__all__ = ["SnapshotCallback"]

_NUMBER: Final = re.compile(r"_\d+(?=[_/]|$)")


class SnapshotCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Saves the model and its optimizer at the end of each epoch, and restores them.

    Args:
        manager: Saves the snapshots; the caller closes it.
    """

    def __init__(self, manager: SnapshotManager) -> None:
        super().__init__()
        self._manager = manager
        self._loaded: LoadedState | None = None

    def restore(self, model: Any) -> int:
        """Load the latest snapshot into a compiled model; returns the epoch to go on with.

        Give it to ``fit`` as ``initial_epoch``. Without a snapshot it is 0.

        Raises:
            UsageError: The model has other variables than the saved one; the message names one.
        """
        self._loaded = self._manager.load_latest_snapshot(channel="full")
        if self._loaded is None:
            return 0
        model.optimizer.build(model.trainable_variables)
        pairs = [
            *_matched(model.variables, self._loaded["model_state_dict"]),
            *_matched(model.optimizer.variables, self._loaded["optimizer_state_dict"]),
        ]
        for variable, value in pairs:
            variable.assign(value)
        return int(self._loaded["epoch"]) + 1

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Put the random number generators back, once, before the first batch is drawn."""
        if self._loaded is not None:
            self._loaded.restore_rng()
            self._loaded = None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Save."""
        metrics = {name: float(value) for name, value in (logs or {}).items()}
        self._manager.save_snapshot(
            _state(self.model.variables),
            _state(self.model.optimizer.variables),
            epoch,
            metrics=metrics,
        )


def _named(variables: Iterable[Any]) -> dict[str, Any]:
    """Return variables by names that are the same for each model of one program.

    Keras numbers the names of models and layers again for each model that a process makes. Without
    these numbers, the second variable of a name gets ``#2``, and so on.
    """
    found: dict[str, Any] = {}
    for variable in variables:
        plain = _NUMBER.sub("", variable.path)
        name, number = plain, 1
        while name in found:
            number += 1
            name = f"{plain}#{number}"
        found[name] = variable
    return found


def _state(variables: Iterable[Any]) -> dict[str, Any]:
    return {
        name: np.asarray(keras.ops.convert_to_numpy(variable.value))
        for name, variable in _named(variables).items()
    }


def _matched(variables: Iterable[Any], state: dict[str, Any]) -> list[tuple[Any, Any]]:
    """Return each variable with its value in the snapshot.

    Raises:
        UsageError: A variable is only in one of them, or has another shape there.
    """
    named = _named(variables)
    different = sorted(named.keys() ^ state.keys())
    if different:
        raise UsageError(
            f"the model and the snapshot have different variables: only one has {different[0]}",
            hint="Build the model as it was when it was saved, with the same names of layers.",
        )
    for name, variable in named.items():
        if tuple(variable.shape) != state[name].shape:
            raise UsageError(
                f"{name} has the shape {tuple(variable.shape)}, and {state[name].shape} in the"
                " snapshot",
                hint="Build the model as it was when it was saved.",
            )
    return [(variable, state[name]) for name, variable in named.items()]
