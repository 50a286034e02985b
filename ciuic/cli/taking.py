"""``ciuic snapshot`` without a daemon: take the snapshot in this process, or preview it."""

import os
import sys
from typing import Final

import click

from ciuic.cli.expected import expect_like_last
from ciuic.cli.interrupt import interruptible
from ciuic.cli.lists import print_rest, shown_part
from ciuic.cli.opening import opened
from ciuic.cli.progress import progress
from ciuic.cli.render import print_json, printable
from ciuic.cli.session import Session
from ciuic.cli.table import print_pair
from ciuic.config.settings import Settings
from ciuic.documents import Document
from ciuic.errors import TROUBLE
from ciuic.model import EMERGENCY_TAG, ExcludeRules
from ciuic.report.entries import KINDS
from ciuic.snapshot.hooks import Hooks, take_with_hooks
from ciuic.snapshot.plan import TakeRequest
from ciuic.snapshot.preview import Preview, preview_snapshot
from ciuic.system.clock import SystemClock
from ciuic.system.priority import lower_priority
from ciuic.units import format_bytes, format_files

__all__ = ["preview", "take_here", "take_request"]

_SIGNS: Final = {"new": "+", "changed": "M", "gone": "-"}


def take_request(
    settings: Settings,
    roots: tuple[bytes, ...],
    exclude: ExcludeRules,
    *,
    base: bool,
    tags: tuple[str, ...],
    schedule: str,
) -> TakeRequest:
    """Return the request for a snapshot of some directories, by the settings."""
    return TakeRequest(
        roots=roots,
        exclude=exclude,
        base=base,
        base_interval_s=0.0 if EMERGENCY_TAG in tags else settings.base_interval_s,
        tags=tags,
        hot_snapshots=settings.hot_snapshots,
        hot_by_schedule=settings.hot_by_schedule,
        parity=settings.parity,
        chain_cost=settings.chain_cost,
        schedule=schedule,
        threads=settings.threads,
        memory_bytes=settings.buffer_memory_bytes * 2 // 3,
    )


def take_here(
    session: Session, settings: Settings, request: TakeRequest, *, wait_s: float
) -> Document:
    """Take a snapshot in this process, and return its report."""
    # If the priority can't be lowered, the snapshot is as good; doctor and the daemon's log say so.
    # After a failure there is no training to spare, and it waits for the snapshot.
    if EMERGENCY_TAG not in request.tags:
        lower_priority(settings.io_priority)
    with interruptible() as cancelled, progress("snapshot") as shown:
        expect_like_last(session, request.roots, shown)
        return take_with_hooks(
            lambda: opened(session, write=True, only_adds=True, wait_s=wait_s, cancelled=cancelled),
            request,
            Hooks(settings.before, settings.after, settings.hook_timeout_s),
            clock=SystemClock(),
            say=lambda line: click.echo(printable(line), err=True),
            cancelled=cancelled,
            progress=shown,
        ).as_json()


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
