"""The course of a run: the values of its metrics by step, from what its snapshots hold.

A snapshot of the library holds its metrics. Other snapshots hold the logs that the training had
written: files that end in ``.jsonl`` or ``.ndjson``. The last snapshot holds all of them.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Final, NamedTuple, TypeVar

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.guard.logs.tail import LINE_BYTES_MAX
from ciuic.ids import SnapshotId
from ciuic.model import Entry, SnapshotSummary
from ciuic.snapshot.memory import STATE_ROOT
from ciuic.store.store import Store
from ciuic.timeline.compare import Against
from ciuic.timeline.curve import Curve, Point
from ciuic.timeline.logs import FIELDS_MAX, curves_of, fields_in
from ciuic.timeline.runs import Run
from ciuic.timeline.states import SavedState, metrics_of, step_of
from ciuic.view.content import read_file
from ciuic.view.listing import walk
from ciuic.view.located import Located
from ciuic.view.locator import Locator

__all__ = ["Course", "Courses", "at_steps", "steps_of"]

_SUFFIXES: Final = (b".jsonl", b".ndjson")
_DEPTH_MAX: Final = 3
_ENTRIES_MAX: Final = 20_000
_LOGS_MAX: Final = 16
_FIRST_LINES: Final = 500
_KEPT_MAX: Final = 32
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_LogsKey = tuple[SnapshotId, tuple[bytes, ...], tuple[bytes, ...]]


class Course(NamedTuple):
    """The metrics of a run.

    Attributes:
        curves: The values of each field, by step. Of a training that was rolled back, what was
            logged before and undone is left out. Values that are not finite are left out too,
            except at the end: the first and the last of those after the last finite one.
        logs: The logs that were read, in the last snapshot; empty: the snapshots hold the metrics.
    """

    curves: dict[str, list[Point]]
    logs: list[bytes]


class Courses:
    """Reads courses. What snapshots hold never changes, so some of it is kept."""

    def __init__(self) -> None:
        self._states: dict[SnapshotId, SavedState | None] = {}
        self._curves: dict[tuple[bytes, int, int], dict[str, list[Point]]] = {}
        self._logs: dict[_LogsKey, list[Located]] = {}
        self._contents: dict[tuple[object, ...], Against] = {}

    def state(self, store: Store, summary: SnapshotSummary) -> SavedState | None:
        """Return what a snapshot of the library says of its metrics."""
        if summary.id not in self._states:
            self._states[summary.id] = metrics_of(store, summary)
        return self._states[summary.id]

    def course(
        self,
        store: Store,
        run: Run,
        last: SnapshotSummary,
        logs: Sequence[bytes] = (),
        *,
        check: Callable[[], None] = lambda: None,
    ) -> Course:
        """Return the course of a run.

        Args:
            store: An open store.
            run: The run.
            last: Its last snapshot.
            logs: The paths of logs inside the run; none: those with the usual suffixes.
            check: Called again and again; it may raise an error to end this.

        Raises:
            CorruptionError: A log, or a directory above it, is damaged.
        """
        if STATE_ROOT in last.roots:
            return Course(self._saved(store, run), [])
        curves: dict[str, list[Point]] = {}
        found = self._find(store, last, run.places, tuple(logs))
        for _, entry in found:
            for field, points in self._logged(store, entry, check).items():
                curves.setdefault(field, points)  # of several ranks, the first one
        return Course(curves, [path for path, _ in found])

    def against(self, key: tuple[object, ...], compared: Callable[[], Against]) -> Against:
        """Return how two directories of snapshots differ, computed once.

        Args:
            key: The IDs of the snapshots, and the directories.
            compared: Computes it.
        """
        if key not in self._contents:
            _make_room(self._contents)
            self._contents[key] = compared()
        return self._contents[key]

    def _find(
        self,
        store: Store,
        last: SnapshotSummary,
        places: tuple[bytes, ...],
        logs: tuple[bytes, ...],
    ) -> list[Located]:
        key = last.id, places, logs
        if key not in self._logs:
            _make_room(self._logs)
            self._logs[key] = list(_find_logs(store, last, places, logs))
        return self._logs[key]

    def _saved(self, store: Store, run: Run) -> dict[str, list[Point]]:
        curves: dict[str, Curve] = {}
        for snapshot in reversed(run.snapshots):
            state = self.state(store, snapshot)
            step = step_of(snapshot) if state is None or state.step is None else state.step
            if state is None or step is None:
                continue
            for name, value in state.metrics.items():
                if name in curves or len(curves) < FIELDS_MAX:
                    curves.setdefault(name, Curve()).add(step, value)
        return {name: _gone_on(curve) for name, curve in curves.items()}

    def _logged(
        self, store: Store, entry: Entry, check: Callable[[], None]
    ) -> dict[str, list[Point]]:
        key = entry.content, entry.level, entry.size_bytes
        if key not in self._curves:
            lines = _lines(read_file(store, entry), check)
            first = list(islice(lines, _FIRST_LINES))
            fields = fields_in(first)
            curves = curves_of(chain(first, lines), fields)
            _make_room(self._curves)
            pairs = zip(fields, curves, strict=True)
            self._curves[key] = {name: _gone_on(curve) for name, curve in pairs}
        return self._curves[key]


def _make_room(kept: dict[_Key, _Value]) -> None:
    while len(kept) >= _KEPT_MAX:
        del kept[next(iter(kept))]


def steps_of(curves: Sequence[Sequence[Point]], count: int) -> list[int]:
    """Return some of the steps at which any of the curves has a value, evenly, the ends too."""
    steps = sorted({point.step for curve in curves for point in curve})
    if len(steps) <= count:
        return steps
    if count == 1:
        return steps[-1:]
    return [steps[at * (len(steps) - 1) // (count - 1)] for at in range(count)]


def at_steps(curve: Sequence[Point], steps: Sequence[int]) -> list[float | None]:
    """Return the last value at or before each step; None before the first and after the last."""
    known = [point.step for point in curve]
    found: list[float | None] = []
    for step in steps:
        at = bisect_right(known, step)
        is_inside = at and step <= known[-1]
        found.append(curve[at - 1].value if is_inside else None)
    return found


def _gone_on(curve: Curve) -> list[Point]:
    """Join the stretches: each replaces what was logged at its first step and after."""
    found: list[Point] = []
    for stretch in (*curve.points(), curve.tail):
        while found and stretch and found[-1].step >= stretch[0].step:
            found.pop()
        found += stretch
    return found


def _find_logs(
    store: Store, summary: SnapshotSummary, places: Sequence[bytes], logs: Sequence[bytes]
) -> Iterator[Located]:
    locator = Locator(store, store.manifest(summary.id))
    for place in places:
        if logs:
            wanted = [locator.find(os.path.join(place, log)) for log in logs]
            yield from (one for one in wanted if one is not None and one.entry.is_file)
            continue
        top = locator.find(place)
        if top is not None:
            yield from islice(_usual_logs(store, top), _LOGS_MAX)


def _usual_logs(store: Store, top: Located) -> Iterator[Located]:
    depth = top.path.rstrip(b"/").count(b"/")

    def is_far(found: Located) -> bool:
        return found.path.rstrip(b"/").count(b"/") > depth + _DEPTH_MAX

    found = walk(store, top, skips=is_far, on_damage=lambda _path, _error: None)
    for one in islice(found, _ENTRIES_MAX):
        if one.entry.is_file and one.entry.size_bytes and one.path.endswith(_SUFFIXES):
            yield one


def _lines(parts: Iterator[bytes | memoryview], check: Callable[[], None]) -> Iterator[bytes]:
    """Yield the lines of a file; one that is too long is left out."""
    rest, is_long = b"", False
    try:
        for part in parts:
            check()
            lines = (rest + bytes(part)).split(b"\n")
            rest = lines.pop()
            if lines and is_long:
                del lines[0]
                is_long = False
            yield from (line for line in lines if len(line) <= LINE_BYTES_MAX)
            if len(rest) > LINE_BYTES_MAX:
                rest, is_long = b"", True
    except UnknownFormatError as error:
        raise CorruptionError(error.message) from error
    if rest and not is_long:
        yield rest
