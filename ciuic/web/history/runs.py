"""Runs beside each other, for the API and the page."""

import math
import os
import threading
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from ciuic.errors import UsageError
from ciuic.model import SnapshotSummary
from ciuic.store.store import Store
from ciuic.timeline.courses import Courses
from ciuic.timeline.placing import Offsets
from ciuic.timeline.run_compare import Metrics, compare_runs, parse_best
from ciuic.timeline.run_compare import RunComparison as Comparison
from ciuic.timeline.runs import find_run, known_runs
from ciuic.web.history.timelines import COMPARED_MAX, compared_answer, finite
from ciuic.web.history.turns import Turns, go_on
from ciuic.web.models import ComparedRun, RunComparison, RunList
from ciuic.web.reading import Reading
from ciuic.web.shown import meant, sent
from ciuic.web.snapshots import Listed

__all__ = ["RUNS_MIN", "Runs", "bests"]

RUNS_MIN: Final = 2
_NAMED_MAX: Final = 200


def bests(fields: Iterable[str]) -> list[str]:
    """Return what ``best`` can be: see ``parse_best``."""
    return [f"{which}{field}" for field in fields for which in ("", "max:")]


class Runs:
    """Answers questions about runs. Any thread may call it.

    Args:
        reading: Reads the store.

    Attributes:
        turns: Of the requests that compare runs.
    """

    def __init__(self, reading: Reading) -> None:
        self.turns = Turns()
        self._reading = reading
        self._courses = Courses()
        self._offsets = Offsets()
        self._lock = threading.Lock()
        self._named: set[str] = set()
        """Names of earlier requests, such as directories, which no list has."""

    def known(self) -> RunList:
        """Return the runs that the store knows."""
        with self._reading.opened() as store:
            return RunList(runs=known_runs(self._reading.listed(store).snapshots))

    def compare(
        self, names: Sequence[str], *, best: str = "", field: str = "", rows: int = 20
    ) -> RunComparison:
        """Compare runs, except for their tensors.

        Args:
            names: Names, tags or absolute paths.
            best: See ``parse_best``; empty: the last snapshots.
            field: The field to show; empty: the loss, or the first metric.
            rows: The most steps of the table.

        Raises:
            UsageError: There are too few or too many, or no run has the field.
        """
        if not RUNS_MIN <= len(names) <= COMPARED_MAX:
            raise UsageError(
                f"a comparison has {RUNS_MIN} to {COMPARED_MAX} runs, not {len(names)}",
                hint="Name them as run=NAME&run=NAME.",
            )
        with self._lock, self._reading.opened() as store:
            listed = self._reading.listed(store)
            found = self._compared(store, listed.snapshots, names, best)
        field = meant(field, found.fields)
        if field and field not in found.fields:
            raise UsageError(
                f"no run has the field {field!r}",
                hint=f"Their fields: {', '.join(found.fields) or 'none'}.",
            )
        shown = field or found.main_field
        table = None if shown is None else found.metrics(shown, rows)
        return RunComparison(
            runs=[_compared_run(found, at, shown, listed, table) for at in range(len(found.runs))],
            fields=[sent(name) for name in found.fields],
            field=None if shown is None else sent(shown),
            steps=[] if table is None else table.steps,
            values=[] if table is None else [list(map(finite, row)) for row in table.values],
        )

    def _compared(
        self,
        store: Store,
        snapshots: Sequence[SnapshotSummary],
        names: Sequence[str],
        best: str,
    ) -> Comparison:
        """Compare the runs that a request names, as it was typed or as a page shows it."""
        known = {os.fsdecode(run) for run in known_runs(snapshots)} | self._named
        compared = partial(
            compare_runs,
            store,
            [find_run(snapshots, meant(name, known)) for name in names],
            tensors=False,
            courses=self._courses,
            offsets=self._offsets,
            check=go_on,
        )
        if "\\" in best:
            best = meant(best, bests(compared().fields))
        found = compared(best=parse_best(best or None))
        if len(self._named) >= _NAMED_MAX:
            self._named.clear()
        self._named |= {one.run.name for one in found.runs}
        return found


def _compared_run(
    found: Comparison, at: int, field: str | None, listed: Listed, table: Metrics | None
) -> ComparedRun:
    one = found.runs[at]
    curve = [] if field is None else one.course.curves.get(field, [])
    return ComparedRun(
        run=os.fsencode(one.run.name),
        label=os.fsencode(found.names[at]),
        directories=list(one.run.places),
        snapshots=len(one.run.snapshots),
        first=one.run.snapshots[-1].as_json()["taken"],
        last=one.run.snapshots[0].as_json()["taken"],
        last_step=one.last_step,
        logs=one.course.logs,
        curve=[(point.step, point.value) for point in curve if math.isfinite(point.value)],
        not_finite_from=None if table is None else table.not_finite_from[at],
        chosen=compared_answer(listed, found.chosen.snapshots[at]),
    )
