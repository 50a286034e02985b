"""What a snapshot says by itself about its step and its metrics: ``state.json`` of the library.

It is read as JSON that any program may have written: what is not a number is left out.
"""

import json
import math
import re
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.model import SnapshotSummary
from ciuic.snapshot.memory import STATE_ROOT
from ciuic.store.store import Store
from ciuic.view.content import read_file
from ciuic.view.located import Located
from ciuic.view.locator import Locator

__all__ = ["METRICS_MAX", "SavedState", "metrics_of", "settings_of", "step_of"]

METRICS_MAX: Final = 64
_STATE_BYTES_MAX: Final = 16 * 1024 * 1024
_PLACES: Final = (b"/state.json", b"/rank-00000/state.json")
_STEP_TAG: Final = re.compile(r"step-(\d{1,18})", re.ASCII)
_NAME_MAX: Final = 100


class SavedState(NamedTuple):
    """What ``state.json`` says.

    Attributes:
        step: The step; None if the program gave none.
        epoch: The epoch, if it is a number.
        metrics: The numbers in ``metrics``; those in a dictionary there as ``NAME.KEY``.
    """

    step: int | None
    epoch: float | None
    metrics: dict[str, float]


def step_of(summary: SnapshotSummary) -> int | None:
    """Return the step of a snapshot of the library, from its tags; None for other snapshots."""
    if STATE_ROOT not in summary.roots:
        return None
    found = [match for match in map(_STEP_TAG.fullmatch, summary.tags) if match is not None]
    return int(found[0][1]) if found else None


def metrics_of(store: Store, summary: SnapshotSummary) -> SavedState | None:
    """Read ``state.json`` of a snapshot; None if it has none that can be read."""
    state = _state_of(store, summary)
    if state is None:
        return None
    step = state.get("step")
    if isinstance(step, bool) or not isinstance(step, int):
        step = None
    metrics = state.get("metrics")
    numbers = dict(_numbers(metrics)) if isinstance(metrics, dict) else {}
    return SavedState(step, _number(state.get("epoch")), numbers)


def settings_of(store: Store, summary: SnapshotSummary) -> list[str]:
    """Return what ``state.json`` says of settings, as lines of JSON; none if it cannot be read.

    They are the program's ``extra``, and the groups of the optimizer without their parameters.
    """
    state = _state_of(store, summary) or {}
    optimizer = state.get("optimizer_state_dict")
    groups = optimizer.get("param_groups") if isinstance(optimizer, dict) else None
    found: dict[str, object] = {}
    if state.get("extra") is not None:
        found["extra"] = state["extra"]
    if isinstance(groups, list):
        found["param_groups"] = [
            {key: value for key, value in group.items() if key != "params"}
            for group in groups
            if isinstance(group, dict)
        ]
    try:
        return json.dumps(_plain(found), indent=2).split("\n") if found else []
    except (ValueError, RecursionError):
        return []


def _plain(value: object) -> object:
    """Return a value as a person would write it: a float as a number."""
    if isinstance(value, dict):
        if value.get("$") == "float":
            return _number(value)
        return {str(key): _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


def _state_of(store: Store, summary: SnapshotSummary) -> dict[str, object] | None:
    if STATE_ROOT not in summary.roots:
        return None
    try:
        locator = Locator(store, store.manifest(summary.id))
        found = next((one for one in _candidates(locator) if one is not None), None)
        if found is None or not 0 < found.entry.size_bytes <= _STATE_BYTES_MAX:
            return None
        document = json.loads(b"".join(read_file(store, found.entry)))
    except (CorruptionError, UnknownFormatError, ValueError, RecursionError):
        return None
    state = document.get("state") if isinstance(document, dict) else None
    return state if isinstance(state, dict) else None


def _candidates(locator: Locator) -> Iterator[Located | None]:
    for place in _PLACES:
        found = locator.find(STATE_ROOT + place)
        yield found if found is not None and found.entry.is_file else None


def _numbers(metrics: dict[object, object]) -> Iterator[tuple[str, float]]:
    count = 0
    for name, value in metrics.items():
        pairs: list[tuple[object, object]] = [(name, value)]
        if isinstance(value, dict) and "$" not in value:
            pairs = [(f"{name}.{key}", inner) for key, inner in value.items()]
        for key, inner in pairs:
            number = _number(inner)
            if number is not None and len(str(key)) <= _NAME_MAX and count < METRICS_MAX:
                count += 1
                yield str(key), number


def _number(value: object) -> float | None:
    if isinstance(value, dict) and value.get("$") == "float":
        try:
            number: float = struct.unpack(">d", bytes.fromhex(str(value.get("bits"))))[0]
        except (ValueError, struct.error):
            return None
        return number
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf
