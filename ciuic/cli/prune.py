"""``ciuic prune``."""

import sys
from collections.abc import Callable, Collection
from typing import Any

import click

from ciuic.cli.progress import progress
from ciuic.cli.render import print_json
from ciuic.cli.session import (
    DAMAGE,
    Session,
    interruptible,
    json_option,
    trash_option,
    wait_option,
)
from ciuic.units import format_bytes, format_duration

__all__ = ["prune", "run_prune", "tell_pruned"]

_SHOWN_MAX = 20


@click.command(short_help="Give back the room of what no snapshot needs.")
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
@trash_option
@wait_option
@json_option
@click.pass_obj
def prune(
    session: Session, *, dry_run: bool, trash_s: float | None, wait_s: float, as_json: bool
) -> None:
    """Give back the room of what no snapshot needs any more.

    Forgotten snapshots go for good when their time in the trash is over. Packs that hold nothing
    that is needed are removed; of those that are mostly garbage, the rest moves to new packs.
    Snapshots can be restored meanwhile. May be stopped at any moment, and run again.
    """
    trash_s = session.trash_s() if trash_s is None else trash_s
    parity = session.parity()
    with (
        interruptible() as cancelled,
        session.opened(write=True, wait_s=wait_s) as store,
    ):
        report = run_prune(store, cancelled, trash_s=trash_s, parity=parity, dry_run=dry_run)
    if as_json:
        print_json(report.as_json())
    else:
        tell_pruned(report)
    sys.exit(DAMAGE if report.damaged else 0)


def run_prune(
    store: Any,
    cancelled: Callable[[], bool],
    *,
    trash_s: float,
    parity: float,
    dry_run: bool,
    leaving: Collection[str] = (),
    given_up: Collection[str] = (),
) -> Any:
    """Prune an open store; ``leaving`` and ``given_up`` are snapshots that count as that now."""
    from dataclasses import replace

    from ciuic.clock import SystemClock
    from ciuic.verbs.prune import apply_prune, foresee_prune, plan_prune

    clock = SystemClock()
    began_s = clock.monotonic_s()
    with progress("prune") as shown:
        plan = plan_prune(
            store,
            trash_s=trash_s,
            now_ns=clock.now_ns(),
            leaving=leaving,
            given_up=given_up,
            cancelled=cancelled,
            progress=shown.stage,
        )
        if dry_run:
            report = foresee_prune(
                store, plan, clock=clock, cancelled=cancelled, progress=shown.stage
            )
        else:
            report = apply_prune(
                store,
                plan,
                parity=parity,
                clock=clock,
                cancelled=cancelled,
                progress=shown.stage,
            )
    return replace(report, total_s=clock.monotonic_s() - began_s)


def tell_pruned(report: Any) -> None:
    """Say what a prune has done, or would do."""
    would = "would be " if report.dry_run else ""
    if report.expired:
        click.echo(f"{_snapshots(len(report.expired))} {would}gone for good")
    click.echo(f"{would}freed: {format_bytes(report.freed_bytes)}")
    rows = (
        ("removed", report.removed, ""),
        ("rewritten", report.rewritten, f" into {_packs(report.written)}"),
        ("kept", report.kept, ""),
    )
    for what, counts, more in rows:
        click.echo(f"  {what + ':':10} {_packs(counts)}{more if counts.packs else ''}")
    click.echo(
        f"{report.needed_chunks:,} chunks are needed, {report.dead_chunks:,} were not,"
        f" {format_duration(report.total_s)}",
        err=True,
    )
    if report.in_trash:
        click.echo(
            f"{_snapshots(report.in_trash)} in the trash, with the data; --trash 0 gives that up",
            err=True,
        )
    for pack in report.damaged[:_SHOWN_MAX]:
        click.echo(f"pack {pack.hex()[:12]} is damaged and was left alone", err=True)
    if report.damaged:
        click.echo("run 'ciuic repair' to see what can be mended", err=True)


def _snapshots(count: int) -> str:
    return f"{count:,} forgotten snapshot{'' if count == 1 else 's'}"


def _packs(counts: Any) -> str:
    plural = "" if counts.packs == 1 else "s"
    return f"{counts.packs:,} pack{plural}, {format_bytes(counts.size_bytes)}"
