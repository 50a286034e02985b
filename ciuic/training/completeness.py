"""Warns once of what a resumed training would lack: parts not saved, and parts not loaded."""

import contextlib
import inspect
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ciuic.ids import SnapshotId
from ciuic.training import rng
from ciuic.training.loading.state import LoadedState

__all__ = ["Completeness", "warn_program"]

_MODEL: Final = "model_state_dict"
_OURS: Final = (str(Path(__file__).parents[1]) + os.sep, contextlib.__file__)
"""Files whose frames are between the warning and the user's program."""


class Completeness:
    """Looks at the first full save of a manager, and at what was loaded before it.

    It warns only of what can be known: the objects of torch show whether a model is trained, and
    whether a scheduler changes an optimizer. A loaded state knows what was read from it.
    """

    def __init__(self) -> None:
        self._is_done = False
        self._id: SnapshotId | None = None
        self._unread: list[set[str]] = []
        self._drawn: dict[str, bytes] = {}

    def loaded(self, state: LoadedState) -> None:
        """Note a state from which the training may continue, before its first full save."""
        if not self._is_done:
            self._id = state.snapshot_id
            self._unread.append(state.unread)
            self._drawn = self._drawn or rng.fingerprints()

    def check(
        self, parts: Mapping[str, object], extra: object, epoch: object, step: object
    ) -> None:
        """Warn of what the first full save lacks, and of what was not loaded before it.

        Args:
            parts: The model, the optimizer and the other objects by their names; None: not given.
            extra: What ``save_snapshot`` got; parts that it has are not missing.
            epoch: The same.
            step: The same.
        """
        if self._is_done:
            return
        self._is_done = True
        lacking = list(_not_saved(parts, extra, epoch, step))
        if lacking:
            warn_program(
                f"a training that goes on from this state will differ: {'; '.join(lacking)}"
            )
        ignored = list(self._not_loaded(parts))
        if ignored:
            warn_program(
                f"this training does not go on as {self._id} was saved: {'; '.join(ignored)}"
            )

    def _not_loaded(self, parts: Mapping[str, object]) -> Iterator[str]:
        unread = set.intersection(*self._unread) if self._unread else {_MODEL}
        if _MODEL in unread:
            return  # the program only looked at the state, such as its step
        for name, value in parts.items():
            key = f"{name}_state_dict"
            if value is not None and key in unread:
                yield f"{key} was not loaded"
        now = rng.fingerprints()
        moved = any(now.get(name, before) != before for name, before in self._drawn.items())
        if "rng" in unread and moved:
            yield "random numbers were drawn without a call of restore_rng() of the loaded state"


def _not_saved(
    parts: Mapping[str, object], extra: object, epoch: object, step: object
) -> Iterator[str]:
    objects = [found for value in parts.values() for found in _objects(value)]
    has_place = epoch is not None or step is not None
    if not any(_is_trained(found, has_place=has_place) for found in objects):
        return
    if parts["optimizer"] is None and not _has(objects, extra, "param_groups"):
        yield "it has no optimizer (give optimizer, or optimizer={} if there is none)"
    is_scheduled = any(
        hasattr(getattr(found, "step", None), "_wrapped_by_lr_sched") for found in objects
    )
    if parts["scheduler"] is None and is_scheduled and not _has(objects, extra, "last_epoch"):
        yield "a scheduler changes the optimizer's learning rate, and is not in it (give scheduler)"
    if not has_place and extra is None:
        yield "it has neither epoch nor step"


def _objects(value: object) -> Iterator[object]:
    """Yield an object, or each object in a dict."""
    if type(value) is dict:
        for inner in value.values():
            yield from _objects(inner)
    else:
        yield value


def _is_trained(value: object, *, has_place: bool) -> bool:
    """Return whether this is a module of torch in a training: at an epoch, or with gradients."""
    torch: Any = sys.modules.get("torch")
    return (
        torch is not None
        and isinstance(value, torch.nn.Module)
        and any(
            parameter.requires_grad and (has_place or parameter.grad is not None)
            for parameter in value.parameters()
        )
    )


def _has(objects: list[object], extra: object, name: str) -> bool:
    """Return whether an object has an attribute, or the value of the user has it as a key."""
    return any(hasattr(found, name) for found in objects) or _has_key(extra, name)


def _has_key(value: object, name: str) -> bool:
    if isinstance(value, Mapping):
        return name in value or any(_has_key(inner, name) for inner in value.values())
    return isinstance(value, (list, tuple)) and any(_has_key(inner, name) for inner in value)


def warn_program(what: str) -> None:
    """Warn at the line of the user's program that called the library."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame, level = frame.f_back, level + 1
    warnings.warn(f"ciuic: {what}", RuntimeWarning, stacklevel=level)
