"""The states of a user's objects: anything with ``state_dict``, or containers of arrays."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from ciuic.errors import UsageError
from ciuic.training import rng
from ciuic.training.fitting import fitting_state
from ciuic.training.loading.state import LoadedState
from ciuic.training.ranks.job import Job
from ciuic.training.retention.policies import Policy, check_metrics
from ciuic.training.values.pickles import refuse_pickles

__all__ = ["fill", "load_into", "sections_of", "state_of"]


def sections_of(
    job: Job | None,
    model: object,
    always: Mapping[str, object],
    others: Mapping[str, object],
    extra: object,
    *,
    policies: Sequence[Policy],
    is_full: bool,
) -> dict[str, object]:
    """Return the sections of a state by their names; of several ranks, the part of this one.

    Args:
        job: Which of several ranks this is; None: there are no others.
        model: The model.
        always: Values that the weights alone have as well.
        others: Objects that only the full state has; None: the user did not give this one.
        extra: A value that only the full state has.
        policies: Policies that compare metrics.
        is_full: Return the full state, not the weights alone.

    Raises:
        UsageError: A policy cannot compare the value of its metric.
        TypeError: An object has no state; the message has its name.
    """
    check_metrics(policies, always.get("metrics"))
    sections: dict[str, object] = {}
    is_first = job is None or job.rank == 0
    if is_first:
        sections |= {"model_state_dict": state_of(model, "model"), **always}
    if not is_full:
        return sections
    for name, value in others.items():
        if value is not None and (is_first or name == "dataloader"):
            sections[f"{name}_state_dict"] = state_of(value, name)
    if job is not None and is_first:
        sections["ranks"] = job.world_size
    return {**sections, "extra": extra, "rng": rng.capture()}


def state_of(value: object, name: str) -> Any:
    """Return the state of an object, or of each object in a dict.

    Any other mapping, a list and a tuple are states themselves, as they are.

    Raises:
        TypeError: The object has no state; the message has its name.
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
        f"{name} has no state: {type(value).__qualname__} is not a dict and has no state_dict()"
    )


def load_into(target: object, state: Any, *, strict: bool, name: str) -> None:
    """Load a state into the object that it was taken from, or into each object of a dict.

    Args:
        target: The object, or a dict of objects.
        state: What ``state_of`` returned for it.
        strict: For a module of torch: refuse other keys than its own.
        name: The object's name, for messages.

    Raises:
        TypeError: The object has no method ``load_state_dict``, or the state has a pickle.
    """
    load = getattr(target, "load_state_dict", None)
    if callable(load):
        refuse_pickles(state, name)
        state = fitting_state(target, state, strict=strict, name=name)
        # Only modules have the option, and False is the only value that changes anything.
        load(state) if strict else load(state, strict=False)
    elif type(target) is dict and isinstance(state, Mapping) and target.keys() == state.keys():
        for key, inner in target.items():
            load_into(inner, state[key], strict=strict, name=f"{name}[{key!r}]")
    else:
        raise TypeError(
            f"{name} cannot take a state: {type(target).__qualname__} has no method load_state_dict"
        )


def fill(state: LoadedState, model: object, optimizer: object, *, strict: bool) -> None:
    """Load a state into a model and an optimizer; None: the caller gave none.

    This warns if the parts of the state are of several steps: the training that was saved never had
    that state.

    Raises:
        UsageError: The snapshot holds only the weights.
        TypeError: An object has no method ``load_state_dict``, or its state has a pickle.
    """
    mixture = _mixture(state)
    if mixture:
        warnings.warn(f"ciuic: {mixture}", RuntimeWarning, stacklevel=3)
    for target, key, is_strict in (
        (model, "model_state_dict", strict),
        (optimizer, "optimizer_state_dict", True),
    ):
        if target is None:
            continue
        if key not in state:
            raise UsageError(
                f"{state.snapshot_id} has no {key}: it holds only the weights",
                hint="Load a snapshot of the channel 'full'.",
            )
        load_into(target, state[key], strict=is_strict, name=key.removesuffix("_state_dict"))


def _mixture(state: LoadedState) -> str:
    """Return the step of each part, if a state has parts of several steps; else an empty text."""
    parts = {f"the layer {name}": origin for name, origin in state.layers.items()}
    if state.joined is not None:
        parts["the optimizer"] = state.joined
    is_one = all(origin == (state.get("step"), state.snapshot_id) for origin in parts.values())
    if is_one:
        return ""
    said = [
        f"{what} is of step {origin.step} ({origin.snapshot_id})" for what, origin in parts.items()
    ]
    return f"the state of step {state.get('step')} is of several steps: {', '.join(said)}"


def _holds_objects(value: object) -> bool:
    return type(value) is dict or callable(getattr(value, "state_dict", None))
