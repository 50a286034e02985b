"""``ciuic prune``."""

import sys
from typing import Any

import click

from ciuic.cli.progress import progress
from ciuic.cli.render import print_json
from ciuic.cli.session import DAMAGE, Session, given, interruptible, json_option
from ciuic.units import format_bytes, format_duration, parse_duration_s

__all__ = ["prune"]

_SHOWN_MAX = 20


def _duration(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
    if value is None:
        return None
    try:
        return parse_duration_s(given(context, parameter, value))
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from error


@click.command(short_help="Give back the room of what no snapshot needs.")
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
@click.option(
    "--trash",
    "trash_s",
    callback=_duration,
    metavar="TIME",
    help="How long forgotten snapshots can be brought back; 0: not at all.  [default: as"
    " configured]",
)
@click.option(
    "--wait",
    "wait_s",
    default="10s",
    callback=_duration,
    metavar="TIME",
    show_default=True,
    help="How long to wait for another process that is writing to the store.",
)
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
    from dataclasses import replace

    from ciuic.clock import SystemClock
    from ciuic.verbs.prune import apply_prune, foresee_prune, plan_prune

    clock = SystemClock()
    began_s = clock.monotonic_s()
    with (
        interruptible() as cancelled,
        session.opened(write=True, wait_s=wait_s) as store,
        progress("prune") as shown,
    ):
        plan = plan_prune(
            store,
            trash_s=session.trash_s() if trash_s is None else trash_s,
            now_ns=clock.now_ns(),
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
                parity=session.parity(),
                clock=clock,
                cancelled=cancelled,
                progress=shown.stage,
            )
    report = replace(report, total_s=clock.monotonic_s() - began_s)
    if as_json:
        print_json(report.as_json())
    else:
        _summarise(report)
    sys.exit(DAMAGE if report.damaged else 0)


def _summarise(report: Any) -> None:
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
