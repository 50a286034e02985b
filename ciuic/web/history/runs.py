"""Runs beside each other, for the API and the page."""

import os
import threading
from collections.abc import Sequence
from typing import Final

from ciuic.errors import UsageError
from ciuic.timeline.courses import Courses
from ciuic.timeline.placing import Offsets
from ciuic.timeline.run_compare import compare_runs, parse_best
from ciuic.timeline.runs import find_run, known_runs
from ciuic.web.history.timelines import COMPARED_MAX, compared_answer, field_text
from ciuic.web.models import ComparedRun, RunComparison, RunList
from ciuic.web.reading import Reading

__all__ = ["RUNS_MIN", "Runs"]

RUNS_MIN: Final = 2


class Runs:
    """Answers questions about runs. Any thread may call it.

    Args:
        reading: Reads the store.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._courses = Courses()
        self._offsets = Offsets()
        self._lock = threading.Lock()

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
        wanted = parse_best(best or None)
        with self._lock, self._reading.opened() as store:
            listed = self._reading.listed(store)
            found = compare_runs(
                store,
                [find_run(listed.snapshots, name) for name in names],
                best=wanted,
                tensors=False,
                courses=self._courses,
                offsets=self._offsets,
            )
        if field and field not in found.fields:
            raise UsageError(
                f"no run has the field {field!r}",
                hint=f"Their fields: {', '.join(found.fields) or 'none'}.",
            )
        shown = field or found.main_field
        table = None if shown is None else found.metrics(shown, rows)
        return RunComparison(
            runs=[
                ComparedRun(
                    run=os.fsencode(one.run.name),
                    label=os.fsencode(label),
                    directories=list(one.run.places),
                    snapshots=len(one.run.snapshots),
                    first=one.run.snapshots[-1].as_json()["taken"],
                    last=one.run.snapshots[0].as_json()["taken"],
                    last_step=one.last_step,
                    logs=one.course.logs,
                    curve=[(point.step, point.value) for point in one.course.curves.get(shown, [])]
                    if shown is not None
                    else [],
                    chosen=compared_answer(listed, compared),
                )
                for one, label, compared in zip(
                    found.runs, found.names, found.chosen.snapshots, strict=True
                )
            ],
            fields=[field_text(name) for name in found.fields],
            field=None if shown is None else field_text(shown),
            steps=[] if table is None else table.steps,
            values=[] if table is None else table.values,
        )
