"""``ciuic compare``."""

import os
import sys
from collections.abc import Sequence
from typing import Final

import click

from ciuic.catalog import list_snapshots
from ciuic.cli.candidates import SNAPSHOT
from ciuic.cli.comparison import (
    comparison_document,
    print_comparison,
    print_runs,
    runs_document,
)
from ciuic.cli.error_output import advise
from ciuic.cli.opening import find_snapshot, shown_ids, warn_damaged
from ciuic.cli.options import WholeNumber, absolute, copies_option, given, json_option, logs_option
from ciuic.cli.progress import progress
from ciuic.cli.read_copies import opened_with_copies
from ciuic.cli.render import print_json, printable
from ciuic.cli.session import Session
from ciuic.errors import DAMAGE, UsageError
from ciuic.guard.logs.paths import log_files
from ciuic.model import path_text
from ciuic.timeline.compare import Comparison, compare
from ciuic.timeline.run_compare import compare_runs, parse_best
from ciuic.timeline.runs import find_run

__all__ = ["command"]

_TOP: Final = 10
_STEPS: Final = 10


@click.command("compare")
@click.argument("first", type=SNAPSHOT, metavar="A")
@click.argument("others", type=SNAPSHOT, metavar="B [C...]", nargs=-1, required=True)
@click.option("--runs", is_flag=True, help="A, B, ... are runs: names, tags or directories.")
@click.option(
    "--best",
    metavar="FIELD",
    callback=given,
    help="With --runs: compare the snapshots with the lowest FIELD; max:FIELD: the highest."
    "  [default: the last ones]",
)
@click.option(
    "--field",
    "fields",
    metavar="NAME",
    multiple=True,
    callback=given,
    help="With --runs: show this metric by step; may be repeated.  [default: loss, or the first"
    " metric; JSON: all]",
)
@click.option(
    "--steps",
    type=WholeNumber(1, 10_000),
    metavar="N",
    help="With --runs: show metrics at N steps.  [default: 10]",
)
@logs_option(
    "A log with a JSON object in each line, or a pattern that names several; with --runs, a"
    " path inside each run. May be repeated."
)
@click.option("--quick", is_flag=True, help="Don't compare tensors, which reads files that differ.")
@click.option(
    "--top",
    type=WholeNumber(0),
    metavar="N",
    help="Show the N tensors that moved farthest.  [default: 10]",
)
@copies_option
@json_option
@click.pass_obj
def command(
    session: Session,
    *,
    first: str,
    others: tuple[str, ...],
    runs: bool,
    best: str | None,
    fields: tuple[str, ...],
    steps: int | None,
    logs: tuple[str, ...],
    quick: bool,
    top: int | None,
    as_json: bool,
) -> None:
    """Show snapshots or runs beside each other: what they logged, their sizes, and what changed.

    Metrics are what snapshots of the library hold, and the last values in the logs before each
    snapshot; 'ciuic timeline' describes how ciuic finds its step. Files are counted as 'ciuic diff'
    shows them: + added, - removed, M content changed. Tensors are compared with those of A: a
    distance is a share of the tensor's length (L2). The last part shows how configuration files
    differ: .json, .yaml, .toml, .ini, .cfg, .conf and .env of at most 64 KiB; of the library, its
    settings in state.json.

    With --runs, the metrics of each run are shown by step, and the last snapshot of each run is
    compared with that of A. A run is the name that a SnapshotManager got, another tag, or a
    directory that snapshots hold, which has a slash in it: ./run-a. Files are compared by their
    place in the directory. The logs are those in the last snapshot of each run: files that end in
    .jsonl or .ndjson, or --log.
    """
    names = (first, *others)
    if not runs and (best is not None or fields or steps is not None):
        raise UsageError("--best, --field and --steps need --runs", hint="Add --runs.")
    if runs:
        found = _compare_runs(
            session,
            names,
            best=best,
            fields=fields,
            steps=steps,
            logs=logs,
            quick=quick,
            top=top,
            as_json=as_json,
        )
    else:
        found = _compare(session, names, logs=logs, quick=quick, top=top, as_json=as_json)
    if any(
        compared.against is not None
        and compared.against.moves is not None
        and compared.against.moves.unread
        for compared in found.snapshots
    ):
        advise("ciuic: some tensors cannot be read: see 'ciuic verify'")
        sys.exit(DAMAGE)


def _compare(
    session: Session,
    names: Sequence[str],
    *,
    logs: Sequence[str],
    quick: bool,
    top: int | None,
    as_json: bool,
) -> Comparison:
    paths = log_files([absolute(log) for log in logs])
    if logs and not paths:
        raise UsageError(
            f"no log matches {', '.join(map(repr, logs))}",
            hint="Name a file with a JSON object in each line.",
        )
    with opened_with_copies(session) as store:
        chosen = [find_snapshot(session, store, name) for name in names]
        with progress("compare", quiet=as_json) as shown:
            found = compare(store, chosen, paths, tensors=not quick, done=shown.fraction)
        short = {} if as_json else shown_ids(store)
    rows = found.tensors()[: _shown(top, as_json=as_json)]
    if as_json:
        print_json(comparison_document(found, rows))
    else:
        heads = [
            short.get(compared.snapshot.id, compared.snapshot.id) for compared in found.snapshots
        ]
        print_comparison(found, rows, heads)
    return found


def _compare_runs(
    session: Session,
    names: Sequence[str],
    *,
    best: str | None,
    fields: Sequence[str],
    steps: int | None,
    logs: Sequence[str],
    quick: bool,
    top: int | None,
    as_json: bool,
) -> Comparison:
    wanted = parse_best(best)
    with opened_with_copies(session) as store:
        listed = list_snapshots(store)
        warn_damaged(session, store)
        runs = [
            find_run(listed, path_text(absolute(name)) if "/" in name else name) for name in names
        ]
        with progress("compare", quiet=as_json) as shown:
            found = compare_runs(
                store,
                runs,
                best=wanted,
                logs=[os.fsencode(log) for log in logs],
                tensors=not quick,
                done=shown.fraction,
            )
        short = {} if as_json else shown_ids(store)
    main = found.main_field
    chosen = fields or (found.fields if as_json else [main] if main is not None else [])
    unknown = [field for field in fields if field not in found.fields]
    if unknown:
        has = ", ".join(found.fields) or "none"
        raise UsageError(f"no run has the field {unknown[0]!r}", hint=f"Their fields: {has}.")
    metrics = [found.metrics(field, _STEPS if steps is None else steps) for field in chosen]
    rows = found.chosen.tensors()[: _shown(top, as_json=as_json)]
    if as_json:
        document = comparison_document(found.chosen, rows)
        print_json({**runs_document(found, metrics), **document})
    else:
        print_runs(found, metrics)
        ids = [
            short.get(compared.snapshot.id, compared.snapshot.id)
            for compared in found.chosen.snapshots
        ]
        click.echo(f"\nThe {'last' if wanted is None else 'best'} snapshot of each")
        names = [printable(name) for name in found.names]
        print_comparison(found.chosen, rows, names, [["snapshot", *ids]])
    return found.chosen


def _shown(top: int | None, *, as_json: bool) -> int | None:
    return top if top is not None or as_json else _TOP
