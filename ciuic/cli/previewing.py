"""``ciuic snapshot --dry-run``: show what a snapshot would do."""

import os
import sys
from typing import Final

import click

from ciuic.cli.interrupt import interruptible
from ciuic.cli.lists import print_rest, shown_part
from ciuic.cli.opening import opened
from ciuic.cli.progress import progress
from ciuic.cli.render import print_json, printable
from ciuic.cli.session import Session
from ciuic.cli.table import print_pair
from ciuic.errors import TROUBLE
from ciuic.report.entries import KINDS
from ciuic.snapshot.plan import TakeRequest
from ciuic.snapshot.preview import Preview, preview_snapshot
from ciuic.system.clock import SystemClock
from ciuic.units import format_bytes, format_files

__all__ = ["preview"]

_SIGNS: Final = {"new": "+", "changed": "M", "gone": "-"}


def preview(session: Session, request: TakeRequest, *, as_json: bool) -> None:
    """Print what a snapshot would do; end the command with the code for warnings if it has any.

    It runs in this process even if a daemon runs: it locks nothing and runs no hooks.
    """
    with (
        interruptible() as cancelled,
        opened(session) as store,
        progress("snapshot") as shown,
    ):
        found = preview_snapshot(
            store, request, clock=SystemClock(), cancelled=cancelled, progress=shown
        )
    if as_json:
        print_json(found.as_json())
    else:
        _print_preview(found)
    sys.exit(TROUBLE if found.warning_count else 0)


def _print_preview(found: Preview) -> None:
    for path, what in shown_part(found.changes):
        click.echo(f"{_SIGNS[what]} {printable(os.fsdecode(path))}")
    changes = sum(found.counts.values()) - found.counts["unchanged"]
    print_rest(changes, len(found.changes), "change")
    for left in shown_part(found.excluded):
        path_text = printable(os.fsdecode(left.path))
        click.echo(f"left out: {path_text}: {printable(left.why)}")
    print_rest(found.excluded_count, len(found.excluded), "excluded path")
    kind = f"a {KINDS['base']}" if found.plan.is_full else f"an {KINDS['delta']}"
    print_pair(
        "",
        f"would take {kind} snapshot of {format_files(found.files)},"
        f" {format_bytes(found.logical_bytes)}, and read at most {format_bytes(found.read_bytes)}",
        0,
    )
    parts = [
        f"{count:,} {what} ({format_bytes(found.sizes[what])})"
        for what, count in found.counts.items()
    ]
    print_pair("", f"files: {', '.join(parts)}; left out: {found.excluded_count:,}", 0)
    for warning in shown_part(found.warnings, err=True):
        path_text = printable(os.fsdecode(warning.path))
        click.echo(f"{path_text}: {printable(warning.what)}", err=True)
    named = len(found.warnings)
    print_rest(max(named, found.warning_count), named, "warning", err=True)
