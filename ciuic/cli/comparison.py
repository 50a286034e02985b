"""Prints snapshots beside each other, for ``ciuic compare``."""

import os
from collections.abc import Sequence
from typing import Final

import click

from ciuic.cli.chart import number_text
from ciuic.cli.render import brief, coloured, labels, printable
from ciuic.cli.table import Column, cut_end, cut_middle, cut_time, print_table, terminal_columns
from ciuic.documents import Document
from ciuic.model import path_text
from ciuic.system.clock import from_local_text, local_time_text
from ciuic.timeline.compare import Compared, Comparison
from ciuic.timeline.run_compare import Metrics, RunComparison
from ciuic.units import format_bytes

__all__ = [
    "Rows",
    "comparison_document",
    "print_comparison",
    "print_runs",
    "runs_document",
]

_COLOURS: Final = {"+": "green", "-": "red"}
_KEY_MIN: Final = 12
_VALUE_MIN: Final = 11
"""So that two columns and their keys fit a terminal of 40."""
_TIME_MIN: Final = len("2026-06-15 14:30")
Rows = Sequence[tuple[tuple[str, str], list[float | None]]]


def comparison_document(found: Comparison, rows: Rows) -> Document:
    """Return the document of ``ciuic compare --json``."""
    return {
        "snapshots": [_snapshot_json(compared) for compared in found.snapshots],
        "tensors": [
            {"path": path, "name": name, "relative_distances": distances}
            for (path, name), distances in rows
        ],
    }


def _snapshot_json(one: Compared) -> Document:
    document = {
        **one.snapshot.as_json(),
        "step": one.step,
        "epoch": _finite(one.epoch),
        "metrics": {name: _finite(value) for name, value in one.metrics.items()},
        "changed_files": None,
        "moves": None,
        "configuration": [],
    }
    against = one.against
    if against is not None:
        document["changed_files"] = {
            "added": against.files["+"],
            "removed": against.files["-"],
            "changed": against.files["M"] + against.files["T"],
            "metadata": against.files["m"],
        }
        document["moves"] = None if against.moves is None else against.moves.as_json()
        document["configuration"] = [
            {"path": path_text(file.path), "diff": file.lines, "what": file.what or None}
            for file in against.configuration
        ]
    return document


def _finite(value: float | None) -> float | None:
    """Return a value as JSON can hold it."""
    return value if value is not None and abs(value) < float("inf") else None


def print_comparison(
    found: Comparison, rows: Rows, names: Sequence[str], above: Sequence[list[str]] = ()
) -> None:
    """Print the tables and the configuration that differs.

    Args:
        found: The comparison.
        rows: The tensors to show.
        names: What each column is called.
        above: Rows to print above the others.
    """
    snapshots = found.snapshots
    columns = _columns(names)
    print_table([Column("", cut=cut_end), *columns], [*above, *_facts(snapshots)])
    if rows:
        click.echo("")
        head = [Column("TENSOR", cut=cut_middle), *columns[1:]]
        print_table(
            head,
            [
                [f"{os.path.basename(path)}:{name}", *[_distance(one) for one in distances[1:]]]
                for (path, name), distances in rows
            ],
        )
    for one, name in zip(snapshots, names, strict=True):
        for file in one.against.configuration if one.against is not None else ():
            click.echo(f"\n{printable(file.path)} in {name}")
            if file.what:
                click.echo(f"  no lines to show: {printable(file.what)}")
            for line in file.lines[2:]:
                click.echo(coloured(f"  {printable(line)}", _COLOURS.get(line[:1], "reset")))


def _columns(names: Sequence[str]) -> list[Column]:
    """Return a column for each snapshot or run; the first two are shown on every terminal.

    A long name or a long tag of one must not push the values of the other out of sight.
    """
    available, least = terminal_columns(), _TIME_MIN
    if available is not None:
        room = max(_VALUE_MIN, (available - _KEY_MIN) // 2 - 2)
        names = [cut_middle(name, room) for name in names]
        least = min(room, _TIME_MIN)
    return [
        Column(name, right=True, drop=0 if at < 2 else at, cut=_cut_value, least=least)
        for at, name in enumerate(names)
    ]


def _cut_value(text: str, width: int) -> str:
    """Shorten a cell: a time loses its seconds first."""
    return (cut_end if from_local_text(text) is None else cut_time)(text, width)


def _distance(value: float | None) -> str:
    return "" if value is None else number_text(value)


def _facts(snapshots: Sequence[Compared]) -> list[list[str]]:
    """Return the rows of the first table, without those that are empty for all snapshots."""
    metrics = dict.fromkeys(name for compared in snapshots for name in compared.metrics)
    rows = [
        ["taken", *[local_time_text(compared.snapshot.taken_ns) for compared in snapshots]],
        [
            "step",
            *["" if compared.step is None else f"{compared.step:,}" for compared in snapshots],
        ],
        [
            "epoch",
            *[
                "" if compared.epoch is None else number_text(compared.epoch)
                for compared in snapshots
            ],
        ],
        *[
            [brief(name), *[_distance(compared.metrics.get(name)) for compared in snapshots]]
            for name in metrics
        ],
        ["files", *[f"{compared.snapshot.files:,}" for compared in snapshots]],
        ["size", *[format_bytes(compared.snapshot.logical_bytes) for compared in snapshots]],
        ["stored", *[format_bytes(compared.snapshot.stored_bytes) for compared in snapshots]],
        [
            "tags",
            *[
                labels(compared.snapshot.tags, pinned=compared.snapshot.pinned)
                for compared in snapshots
            ],
        ],
        ["changed files", *[_files(compared) for compared in snapshots]],
        ["moved tensors", *[_moved(compared) for compared in snapshots]],
        ["distance", *[_moved_by(compared) for compared in snapshots]],
    ]
    return [row for row in rows if any(row[1:])]


def _files(one: Compared) -> str:
    if one.against is None:
        return ""
    counts = one.against.files
    shown = [f"{sign}{counts[sign]:,}" for sign in "+-MTmx?" if counts[sign]]
    return " ".join(shown) or "none"


def _moved(one: Compared) -> str:
    moves = None if one.against is None else one.against.moves
    if moves is None or not (moves.distances or moves.same):
        return ""
    return f"{len(moves.distances):,} of {len(moves.distances) + moves.same:,}"


def _moved_by(one: Compared) -> str:
    moves = None if one.against is None else one.against.moves
    return "" if moves is None else _distance(moves.distance)


def runs_document(found: RunComparison, metrics: Sequence[Metrics]) -> Document:
    """Return the members of ``ciuic compare --runs --json`` that snapshots alone don't have."""
    return {
        "runs": [
            {
                "run": compared.run.name,
                "directories": [path_text(place) for place in compared.run.places],
                "snapshots": len(compared.run.snapshots),
                "first": compared.run.snapshots[-1].as_json()["taken"],
                "last": compared.run.snapshots[0].as_json()["taken"],
                "last_step": compared.last_step,
                "logs": [path_text(log) for log in compared.course.logs],
            }
            for compared in found.runs
        ],
        "metrics": [
            {
                "field": metric.field,
                "steps": metric.steps,
                "values": [[_finite(value) for value in row] for row in metric.values],
                "not_finite_from": metric.not_finite_from,
            }
            for metric in metrics
        ],
    }


def print_runs(found: RunComparison, metrics: Sequence[Metrics]) -> None:
    """Print what each run has, and its metrics by step."""
    runs = found.runs
    columns = _columns([printable(name) for name in found.names])
    facts = [
        ["snapshots", *[f"{len(compared.run.snapshots):,}" for compared in runs]],
        ["first", *[local_time_text(compared.run.snapshots[-1].taken_ns) for compared in runs]],
        ["last", *[local_time_text(compared.run.snapshots[0].taken_ns) for compared in runs]],
        [
            "last step",
            *["" if compared.last_step is None else f"{compared.last_step:,}" for compared in runs],
        ],
    ]
    print_table([Column(""), *columns], [row for row in facts if any(row[1:])])
    for metric in metrics:
        if metric.steps:
            click.echo(f"\n{printable(brief(metric.field))}")
            print_table(
                [Column("STEP", right=True), *columns],
                [
                    [f"{step:,}", *[_distance(value) for value in row]]
                    for step, row in zip(metric.steps, metric.values, strict=True)
                ],
            )
