"""The snapshots of a store on the curve of a logged field: how one finds the step to go back to."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ciuic.catalog import known_lost
from ciuic.ids import SnapshotId
from ciuic.model import SUSPECT_TAG, SnapshotSummary
from ciuic.store.store import Store
from ciuic.timeline.curve import Curve, Point
from ciuic.timeline.logs import Log, fields_of, main_field
from ciuic.timeline.placing import BY_STATE, Offsets, Place, read_logs
from ciuic.timeline.states import metrics_of, step_of
from ciuic.view.damage import DamageSurvey

__all__ = [
    "DAMAGED",
    "IN_FLUX",
    "STATES",
    "SUSPECT",
    "WHOLE",
    "Marker",
    "Timeline",
    "make_timeline",
    "states_of",
]

WHOLE: Final = "whole"
IN_FLUX: Final = "in flux"
SUSPECT: Final = "suspect"
DAMAGED: Final = "damaged"
STATES: Final = (WHOLE, IN_FLUX, SUSPECT, DAMAGED)
"""What a snapshot is marked as; of several that hold, the last one."""


class Marker(NamedTuple):
    """A snapshot on a timeline.

    Attributes:
        snapshot: The snapshot.
        state: One of ``STATES``.
        step: The step at which it was taken; None: nothing says so.
        value: The last value of the field before it.
        placed_by: See ``Place.by``; empty: it has no step.
    """

    snapshot: SnapshotSummary
    state: str
    step: int | None
    value: float | None
    placed_by: str


class Timeline(NamedTuple):
    """The values of a field, and the snapshots.

    Attributes:
        field: The field; None: nothing has been logged.
        logs: The logs that were read.
        curves: The points of each stretch of each log, or those that the snapshots hold.
        markers: The snapshots, newest first.
        not_finite: How many values are left out, because they are not finite.
    """

    field: str | None
    logs: list[Log]
    curves: list[list[Point]]
    markers: list[Marker]
    not_finite: int


def make_timeline(
    store: Store,
    snapshots: Sequence[SnapshotSummary],
    paths: Sequence[bytes],
    *,
    field: str | None = None,
    offsets: Offsets | None = None,
    read: Callable[[int, bytes], None] = lambda _size_bytes, _path: None,
) -> Timeline:
    """Place snapshots on the curve of a field.

    Without a log, the curve has the metrics that snapshots of the library hold.

    Args:
        store: An open store.
        snapshots: Newest first.
        paths: The logs.
        field: The field; None: the loss, or the first field of the log that is a metric.
        offsets: What is known of logs in snapshots from earlier calls.
        read: Called with the bytes that were read so far of a log.

    Raises:
        UsageError: A log cannot be read.
    """
    states = states_of(store, snapshots)
    if not paths:
        return _by_states(store, snapshots, states, field)
    if field is None:
        field = main_field([name for path in paths for name in fields_of(path)])
    fields = [] if field is None else [field]
    wanted = [(path, fields) for path in paths]
    known = Offsets() if offsets is None else offsets
    found = read_logs(store, snapshots, wanted, offsets=known, read=read)
    curves = [curve for log in found.logs for curve in log.curves]
    return Timeline(
        field,
        found.logs,
        [points for curve in curves for points in curve.points()],
        [_marker(snapshot, states[snapshot.id], found.place(snapshot)) for snapshot in snapshots],
        sum(curve.not_finite for curve in curves),
    )


def states_of(store: Store, snapshots: Sequence[SnapshotSummary]) -> dict[SnapshotId, str]:
    """Return one of ``STATES`` for each snapshot. Only content that a record names is read.

    A snapshot is damaged if it needs a chunk that the chunk index remembers as lost, or one that a
    record of damage names and that cannot be read.
    """
    lost = known_lost(store)
    # Without damage no tree needs to be read: a walk over 1,000 snapshots would take long.
    survey = DamageSurvey(store, lost) if lost or store.known_damage() else None
    return {
        snapshot.id: _state(snapshot, is_sound=survey is None or survey.is_sound(snapshot.id))
        for snapshot in snapshots
    }


def _state(summary: SnapshotSummary, *, is_sound: bool) -> str:
    if not is_sound:
        return DAMAGED
    if SUSPECT_TAG in summary.tags:
        return SUSPECT
    return IN_FLUX if summary.flux_count else WHOLE


def _by_states(
    store: Store,
    snapshots: Sequence[SnapshotSummary],
    states: dict[SnapshotId, str],
    field: str | None,
) -> Timeline:
    saved = {snapshot.id: metrics_of(store, snapshot) for snapshot in snapshots}
    if field is None:
        names = [name for state in saved.values() if state is not None for name in state.metrics]
        field = main_field(list(dict.fromkeys(names)))
    curve = Curve()
    markers = []
    for snapshot in reversed(snapshots):
        state = saved[snapshot.id]
        step = None if state is None else state.step
        step = step_of(snapshot) if step is None else step
        value = None if state is None or field is None else state.metrics.get(field)
        if step is not None and value is not None:
            curve.add(step, value)
        by = "" if step is None else BY_STATE
        markers.append(Marker(snapshot, states[snapshot.id], step, value, by))
    return Timeline(field, [], curve.points(), markers[::-1], curve.not_finite)


def _marker(summary: SnapshotSummary, state: str, place: Place | None) -> Marker:
    if place is None:
        return Marker(summary, state, None, None, "")
    values = () if place.moment is None else place.moment.values
    return Marker(summary, state, place.step, next(iter(values), None), place.by)
