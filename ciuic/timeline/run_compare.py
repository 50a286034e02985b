"""Runs beside each other: their metrics by step, and the last or the best snapshot of each."""

import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from ciuic.errors import SnapshotNotFoundError, UsageError
from ciuic.model import SnapshotSummary, path_text
from ciuic.snapshot.memory import STATE_ROOT
from ciuic.store.records.manifest import Manifest
from ciuic.store.store import Store
from ciuic.timeline.compare import Against, Compared, Comparison, compare_contents
from ciuic.timeline.courses import Course, Courses, at_steps, steps_of
from ciuic.timeline.curve import Point
from ciuic.timeline.logs import main_field
from ciuic.timeline.placing import Offsets
from ciuic.timeline.runs import Run
from ciuic.timeline.states import step_of
from ciuic.view.locator import Locator
from ciuic.view.part import part_of

__all__ = ["Best", "ComparedRun", "Metrics", "RunComparison", "compare_runs", "parse_best"]

_HIGHEST: Final = "max:"


class Best(NamedTuple):
    """Which snapshot of a run is the best one."""

    field: str
    is_highest: bool


class ComparedRun(NamedTuple):
    """A run in a comparison.

    Attributes:
        run: The run.
        course: Its metrics.
        last_step: The greatest step; None: nothing says so.
    """

    run: Run
    course: Course
    last_step: int | None


class Metrics(NamedTuple):
    """The values of a field at some steps.

    Attributes:
        field: The field.
        steps: The steps.
        values: For each step, one for each run; None: it has none there.
        not_finite_from: For each run, the step from which on no value is finite; None: there is
            none.
    """

    field: str
    steps: list[int]
    values: list[list[float | None]]
    not_finite_from: list[int | None]


class RunComparison(NamedTuple):
    """Some runs. The snapshot of the first is what the others are compared with.

    Attributes:
        runs: The runs.
        chosen: The chosen snapshot of each.
        fields: All fields, those first that several runs have.
    """

    runs: list[ComparedRun]
    chosen: Comparison
    fields: list[str]

    @property
    def names(self) -> list[str]:
        """A name for each run: of directories the last part, if that tells them apart."""
        names = [compared.run.name for compared in self.runs]
        short = [os.path.basename(name) or name for name in names]
        return short if len(set(short)) == len(names) else names

    @property
    def main_field(self) -> str | None:
        """The field to show first; None: there is none."""
        return main_field(self.fields)

    def metrics(self, field: str, rows: int) -> Metrics:
        """Return the values of a field at some of the steps."""
        curves = [compared.course.curves.get(field, []) for compared in self.runs]
        steps = steps_of(curves, rows)
        columns = [at_steps(curve, steps) for curve in curves]
        rows_of_values = [list(row) for row in zip(*columns, strict=True)]
        return Metrics(field, steps, rows_of_values, [_not_finite_from(curve) for curve in curves])


def parse_best(text: str | None) -> Best | None:
    """Parse ``FIELD`` (the lowest value is the best) or ``max:FIELD``.

    Raises:
        UsageError: It names no field.
    """
    if text is None:
        return None
    field = text.removeprefix(_HIGHEST)
    if not field:
        raise UsageError(f"{text!r} names no field", hint="Give 'loss', or 'max:accuracy'.")
    return Best(field, text.startswith(_HIGHEST))


def compare_runs(
    store: Store,
    runs: Sequence[Run],
    *,
    best: Best | None = None,
    logs: Sequence[bytes] = (),
    tensors: bool = True,
    courses: Courses | None = None,
    offsets: Offsets | None = None,
    done: Callable[[int, int], None] = lambda _done, _total: None,
    check: Callable[[], None] = lambda: None,
) -> RunComparison:
    """Compare runs with the first of them.

    If each run has one directory, their files are compared by their place in it. The paths of
    changes are then those of the first run, or of the only run that has the file.

    Args:
        store: An open store.
        runs: The runs.
        best: Compare the best snapshots; None: the last ones.
        logs: The paths of logs inside each run.
        tensors: Compare the tensors too, which reads the files that differ.
        courses: What is known from earlier calls.
        offsets: The same, of the ends of logs.
        done: Called with how many tensors of a file are compared, and how many it has.
        check: See ``read_all``.

    Raises:
        UsageError: A log is in none of the runs.
        SnapshotNotFoundError: No snapshot of a run has its directory, or a value of ``best``.
        CorruptionError: A manifest, a tree or a log is damaged.
    """
    outside = [log for log in logs if log.startswith(b"/")]
    if outside:
        raise UsageError(
            f"{path_text(outside[0])} is not inside the runs",
            hint="Name a log by its path inside each run: 'logs/train.jsonl'.",
        )
    known = _Known(store, courses or Courses(), offsets or Offsets(), check)
    lasts = [_last(store, run) for run in runs]
    found = [known.compared(run, last, logs) for run, last in zip(runs, lasts, strict=True)]
    if logs and not any(one.course.logs for one in found):
        names = ", ".join(repr(path_text(log)) for log in logs)
        raise UsageError(
            f"no run has the log {names}", hint="Name its path inside the run: 'logs/train.jsonl'."
        )
    chosen = [
        last if best is None else known.best(one, best)
        for one, last in zip(found, lasts, strict=True)
    ]
    manifests = _side_by_side(store, runs, chosen)
    compared: list[Compared] = []
    for one, summary, manifest in zip(found, chosen, manifests, strict=True):
        against = None
        if compared:
            key = chosen[0].id, runs[0].places, summary.id, one.run.places, tensors
            compare = partial(
                compare_contents,
                store,
                manifests[0],
                manifest,
                tensors=tensors,
                done=done,
                check=check,
            )
            against = known.courses.against(key, compare)
            if _are_side_by_side(runs):
                against = _by_own_paths(against, runs[0].places[0], one.run.places[0])
        step, epoch, metrics = known.at(one, summary)
        compared.append(Compared(summary, step, epoch, metrics, against))
    return RunComparison(found, Comparison(compared), _fields(found))


class _Known:
    """Reads what snapshots say about their step and their metrics."""

    def __init__(
        self, store: Store, courses: Courses, offsets: Offsets, check: Callable[[], None]
    ) -> None:
        self._store = store
        self._check = check
        self.courses = courses
        self._offsets = offsets

    def compared(self, run: Run, last: SnapshotSummary, logs: Sequence[bytes]) -> ComparedRun:
        course = self.courses.course(self._store, run, last, logs, check=self._check)
        steps = [curve[-1].step for curve in course.curves.values() if curve]
        return ComparedRun(run, course, max(steps, default=step_of(last)))

    def at(
        self, one: ComparedRun, summary: SnapshotSummary
    ) -> tuple[int | None, float | None, dict[str, float]]:
        """Return the step, the epoch and the metrics of a snapshot of a run."""
        if STATE_ROOT in summary.roots:
            state = self.courses.state(self._store, summary)
            if state is None:
                return step_of(summary), None, {}
            saved = step_of(summary) if state.step is None else state.step
            return saved, state.epoch, dict(state.metrics)
        step: int | None = None
        metrics: dict[str, float] = {}
        for log in one.course.logs:
            fields = list(one.course.curves)
            moment = self._offsets.end(self._store, summary, log, fields)
            if moment is not None:
                step = moment.step if step is None else step
                for name, value in zip(fields, moment.values, strict=True):
                    if value is not None:
                        metrics.setdefault(name, value)
        return step, metrics.pop("epoch", None), metrics

    def best(self, one: ComparedRun, best: Best) -> SnapshotSummary:
        """Return the snapshot of a run with the best value; the oldest of several."""
        sign = -1.0 if best.is_highest else 1.0
        ranked: list[tuple[float, int]] = []
        for age, summary in enumerate(reversed(one.run.snapshots)):
            self._check()
            value = self.at(one, summary)[2].get(best.field)
            if value is not None and math.isfinite(value):
                ranked.append((sign * value, age))
        if not ranked:
            has = ", ".join(one.course.curves) or "none"
            raise SnapshotNotFoundError(
                f"no snapshot of the run {one.run.name!r} has a value of {best.field!r}",
                hint=f"Its fields: {has}.",
            )
        return one.run.snapshots[-1 - min(ranked)[1]]


def _last(store: Store, run: Run) -> SnapshotSummary:
    """Return the newest snapshot that has the directory of a run."""
    for summary in run.snapshots:
        locator = Locator(store, store.manifest(summary.id))
        found = [locator.find(place) for place in run.places]
        if all(one is not None and one.entry.is_directory for one in found):
            return summary
    raise SnapshotNotFoundError(
        f"no snapshot has the directory {run.name!r}",
        hint="'ciuic ls' shows what a snapshot contains.",
    )


def _side_by_side(
    store: Store, runs: Sequence[Run], chosen: Sequence[SnapshotSummary]
) -> list[Manifest]:
    """Return the manifests, each with the one directory of its run as if it was the first run's."""
    manifests = [store.manifest(one.id) for one in chosen]
    if not _are_side_by_side(runs):
        return manifests
    first = runs[0].places[0]
    return [
        part_of(store, manifest, run.places[0], first)
        for run, manifest in zip(runs, manifests, strict=True)
    ]


def _are_side_by_side(runs: Sequence[Run]) -> bool:
    return all(len(run.places) == 1 for run in runs)


def _by_own_paths(against: Against, first: bytes, own: bytes) -> Against:
    """Name the files that the first run lacks by their paths in the run that has them.

    The run was compared as if its directory was that of the first one: there they do not exist.
    """
    configuration = [
        change._replace(path=os.path.join(own, os.path.relpath(change.path, first)))
        if change.is_new
        else change
        for change in against.configuration
    ]
    return against._replace(configuration=configuration)


def _not_finite_from(curve: Sequence[Point]) -> int | None:
    return next((point.step for point in curve if not math.isfinite(point.value)), None)


def _fields(runs: Sequence[ComparedRun]) -> list[str]:
    counts: dict[str, int] = {}
    for compared in runs:
        for field in compared.course.curves:
            counts[field] = counts.get(field, 0) + 1
    return sorted(counts, key=lambda field: -counts[field])
