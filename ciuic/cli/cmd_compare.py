"""``ciuic compare``."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import click

from ciuic.cli.candidates import SNAPSHOT
from ciuic.cli.chart import number_text
from ciuic.cli.opening import find_snapshot, opened, shown_ids
from ciuic.cli.options import absolute, given, json_option, local_file
from ciuic.cli.progress import progress
from ciuic.cli.render import brief, coloured, labels, print_json, printable
from ciuic.cli.session import Session
from ciuic.cli.table import Column, cut_end, cut_middle, print_table
from ciuic.documents import Document
from ciuic.errors import DAMAGE, UsageError
from ciuic.guard.logs.paths import log_files
from ciuic.ids import SnapshotId
from ciuic.model import path_text
from ciuic.system.clock import local_time_text
from ciuic.timeline.compare import Compared, Comparison, compare
from ciuic.units import format_bytes

__all__ = ["command"]

_TOP: Final = 10
_COLOURS: Final = {"+": "green", "-": "red"}


@click.command("compare")
@click.argument("first", type=SNAPSHOT, metavar="A")
@click.argument("others", type=SNAPSHOT, metavar="B [C...]", nargs=-1, required=True)
@click.option(
    "--log",
    "logs",
    metavar="FILE",
    multiple=True,
    callback=given,
    shell_complete=local_file,
    help="A log with a JSON object in each line, or a pattern that names several; may be repeated.",
)
@click.option("--quick", is_flag=True, help="Don't compare tensors, which reads files that differ.")
@click.option(
    "--top",
    type=click.IntRange(0),
    metavar="N",
    help="Show the N tensors that moved farthest.  [default: 10]",
)
@json_option
@click.pass_obj
def command(
    session: Session,
    *,
    first: str,
    others: tuple[str, ...],
    logs: tuple[str, ...],
    quick: bool,
    top: int | None,
    as_json: bool,
) -> None:
    """Show snapshots beside each other: what they logged, their sizes, and what changed since A.

    Metrics are what snapshots of the library hold, and the last values in the logs before each
    snapshot; 'ciuic timeline' describes how ciuic finds its step. Files are counted as 'ciuic diff'
    shows them: + added, - removed, M content changed. Tensors are compared with those of A: a
    distance is a share of the tensor's length (L2). The last part shows how configuration files
    differ: .json, .yaml, .toml, .ini, .cfg, .conf and .env of at most 64 KiB.
    """
    paths = log_files([absolute(log) for log in logs])
    if logs and not paths:
        raise UsageError(
            f"no log matches {', '.join(map(repr, logs))}",
            hint="Name a file with a JSON object in each line.",
        )
    with opened(session) as store:
        chosen = [find_snapshot(session, store, name) for name in (first, *others)]
        with progress("compare", quiet=as_json) as shown:
            found = compare(store, chosen, paths, tensors=not quick, done=shown.fraction)
        short = {} if as_json else shown_ids(store)
    rows = found.tensors()[: top if top is not None or as_json else _TOP]
    if as_json:
        print_json(_document(found, rows))
    else:
        _print(found, rows, short)
    if any(
        one.against is not None and one.against.moves is not None and one.against.moves.unread
        for one in found.snapshots
    ):
        click.echo("ciuic: some tensors can't be read: see 'ciuic verify'", err=True)
        sys.exit(DAMAGE)


_Rows = Sequence[tuple[tuple[str, str], list[float | None]]]


def _document(found: Comparison, rows: _Rows) -> Document:
    return {
        "snapshots": [_snapshot_json(one) for one in found.snapshots],
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


def _print(found: Comparison, rows: _Rows, short: Mapping[SnapshotId, str]) -> None:
    snapshots = found.snapshots
    names = [short.get(one.snapshot.id, one.snapshot.id) for one in snapshots]
    columns = [Column(name, right=True, drop=0 if at < 2 else at) for at, name in enumerate(names)]
    print_table([Column("", cut=cut_end), *columns], _facts(snapshots))
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


def _distance(value: float | None) -> str:
    return "" if value is None else number_text(value)


def _facts(snapshots: Sequence[Compared]) -> list[list[str]]:
    """Return the rows of the first table, without those that are empty for all snapshots."""
    metrics = dict.fromkeys(name for one in snapshots for name in one.metrics)
    rows = [
        ["taken", *[local_time_text(one.snapshot.taken_ns) for one in snapshots]],
        ["step", *["" if one.step is None else f"{one.step:,}" for one in snapshots]],
        ["epoch", *["" if one.epoch is None else number_text(one.epoch) for one in snapshots]],
        *[
            [brief(name), *[_distance(one.metrics.get(name)) for one in snapshots]]
            for name in metrics
        ],
        ["files", *[f"{one.snapshot.files:,}" for one in snapshots]],
        ["size", *[format_bytes(one.snapshot.logical_bytes) for one in snapshots]],
        ["stored", *[format_bytes(one.snapshot.stored_bytes) for one in snapshots]],
        ["tags", *[labels(one.snapshot.tags, pinned=one.snapshot.pinned) for one in snapshots]],
        ["changed files", *[_files(one) for one in snapshots]],
        ["moved tensors", *[_moved(one) for one in snapshots]],
        ["distance", *[_moved_by(one) for one in snapshots]],
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
