"""What a snapshot says by itself about its step and its metrics: ``state.json`` of the library.

It is read as JSON that any program may have written: what is no number is left out.
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

__all__ = ["METRICS_MAX", "SavedState", "metrics_of", "step_of"]

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
    if not isinstance(state, dict):
        return None
    step = state.get("step")
    is_step = isinstance(step, int) and not isinstance(step, bool)
    metrics = state.get("metrics")
    numbers = dict(_numbers(metrics)) if isinstance(metrics, dict) else {}
    return SavedState(step if is_step else None, _number(state.get("epoch")), numbers)


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
