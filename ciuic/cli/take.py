"""``ciuic snapshot``."""

import os
import sys
from typing import Any

import click

from ciuic.cli.progress import progress
from ciuic.cli.render import print_json, printable
from ciuic.cli.session import TROUBLE, Session, interruptible, json_option, wait_option
from ciuic.units import format_bytes, format_duration, format_files

__all__ = ["snapshot"]

_SHOWN_MAX = 20


@click.command(short_help="Take a snapshot now.")
@click.option(
    "--base", is_flag=True, help="Read every file again, whatever the last snapshot says."
)
@click.option("--tag", "tags", multiple=True, metavar="T", help="Mark the snapshot with a word.")
@wait_option
@json_option
@click.pass_obj
def snapshot(
    session: Session, *, base: bool, tags: tuple[str, ...], wait_s: float, as_json: bool
) -> None:
    """Take a snapshot now; through the daemon if it runs. Prints the snapshot's ID."""
    from ciuic.control import request_snapshot
    from ciuic.store.header import read_header

    settings = session.settings()
    store_path = session.store_path()
    read_header(store_path)  # who can't reach the store can't reach its daemon either
    report = request_snapshot(
        store_path,
        base=base,
        tags=tags,
        roots=tuple(os.fsencode(path) for path in settings.snapshot_paths),
        exclude=settings.exclude_patterns,
    )
    if report is None:
        report = _take_here(settings, session, base=base, tags=tags, wait_s=wait_s)
    if as_json:
        print_json(report)
    else:
        click.echo(report["id"])
        _summarise(report)
    sys.exit(TROUBLE if report["trouble_count"] else 0)


def _take_here(
    settings: Any, session: Session, *, base: bool, tags: tuple[str, ...], wait_s: float
) -> dict[str, Any]:
    from ciuic.clock import SystemClock
    from ciuic.priority import lower_priority
    from ciuic.verbs.take import TakeRequest, take_snapshot

    request = TakeRequest(
        roots=tuple(os.fsencode(path) for path in settings.snapshot_paths),
        exclude=settings.exclude_patterns,
        base=base,
        base_interval_s=settings.base_interval_s,
        tags=tags,
        hot_snapshots=settings.hot_snapshots,
        parity=settings.parity,
        chain_cost=settings.chain_cost,
    )
    # Where it can't be lowered the snapshot is as good; the daemon's log and doctor tell of it.
    lower_priority(settings.io_priority)
    with (
        interruptible() as cancelled,
        session.opened(write=True, wait_s=wait_s) as store,
        progress("snapshot") as shown,
    ):
        return take_snapshot(
            store, request, clock=SystemClock(), cancelled=cancelled, progress=shown
        ).as_json()


def _summarise(report: dict[str, Any]) -> None:
    """What a person wants to know, on stderr: stdout has the ID and nothing else."""
    click.echo(
        f"{report['kind']} snapshot of {format_files(report['files'])},"
        f" {format_bytes(report['logical_bytes'])}:"
        f" {format_bytes(report['read_bytes'])} read,"
        f" {format_bytes(report['new_bytes'])} new,"
        f" {format_bytes(report['stored_bytes'])} stored,"
        f" {format_duration(report['total_s'])}",
        err=True,
    )
    for one in report["trouble"][:_SHOWN_MAX]:
        click.echo(f"{printable(one['path'])}: {printable(one['what'])}", err=True)
    more = len(report["trouble"]) - _SHOWN_MAX
    if more > 0:
        click.echo(f"... and {more} more; 'ciuic show {report['id']}' names them", err=True)
