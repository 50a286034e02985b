"""``ciuic verify``."""

import os
import sys
from typing import NoReturn

import click

from ciuic.cli.progress import progress
from ciuic.cli.render import print_json, printable
from ciuic.cli.session import DAMAGE, SNAPSHOT, Session, json_option
from ciuic.errors import UsageError
from ciuic.units import format_bytes, format_duration

__all__ = ["verify"]


@click.command(short_help="Prove that snapshots can be restored.")
@click.argument("ids", nargs=-1, type=SNAPSHOT, metavar="[ID]...")
@click.option("--all", "every", is_flag=True, help="Verify every snapshot of the store.")
@click.option("--checksum", is_flag=True, help="Read, decode and hash every chunk as well.")
@click.option("--hot", is_flag=True, help="Read every hot copy instead, and compare it.")
@json_option
@click.pass_obj
def verify(
    session: Session,
    *,
    ids: tuple[str, ...],
    every: bool,
    checksum: bool,
    hot: bool,
    as_json: bool,
) -> None:
    """Prove that snapshots can be restored: the newest one, those named, or --all.

    Without --checksum the manifest and the trees are read, and every chunk must be indexed and
    lie in a pack that is long enough. With it every chunk is read, decoded and hashed. With --hot
    the copy-on-write copies that restore takes first are read and compared with the store.
    """
    from ciuic.catalog import find_snapshot
    from ciuic.clock import SystemClock
    from ciuic.verbs.verify import verify_all, verify_snapshots

    if ids and every:
        raise UsageError("--all and an ID say different things", hint="Give one of them.")
    if hot and checksum:
        raise UsageError(
            "--hot and --checksum read different things", hint="Verify with one, then the other."
        )
    if hot:
        _verify_hot(session, ids, every=every, as_json=as_json)
    with session.opened() as store, progress("verify") as shown:
        if every:
            report = verify_all(
                store, checksum=checksum, clock=SystemClock(), progress=shown.fraction
            )
        else:
            chosen = {
                one.id: one for one in (find_snapshot(store, text) for text in ids or ["latest"])
            }
            report = verify_snapshots(
                store,
                chosen.values(),
                checksum=checksum,
                clock=SystemClock(),
                progress=shown.fraction,
            )
    if as_json:
        print_json(report.as_json())
    else:
        for one in report.snapshots:
            click.echo(f"{one.id}: {'ok' if one.ok else 'DAMAGED'}")
            for bad in one.damaged:
                click.echo(f"  {printable(os.fsdecode(bad.path))}: {printable(bad.what)}")
        read = f", {format_bytes(report.read_bytes)} read" if checksum else ""
        if not ids and not every:
            click.echo("only the newest; --all verifies every snapshot", err=True)
        click.echo(
            f"{len(report.snapshots)} verified, {report.chunks:,} chunks{read},"
            f" {format_duration(report.total_s)}",
            err=True,
        )
    sys.exit(0 if report.ok else DAMAGE)


def _verify_hot(session: Session, ids: tuple[str, ...], *, every: bool, as_json: bool) -> NoReturn:
    """``ciuic verify --hot``; ends the command."""
    from ciuic.catalog import find_snapshot, list_snapshots
    from ciuic.clock import SystemClock
    from ciuic.verbs.hot import verify_hot

    with session.opened() as store:
        if every:
            chosen = list_snapshots(store)
        else:
            found = [find_snapshot(store, text) for text in ids or ["latest"]]
            chosen = list({one.id: one for one in found}.values())
        report = verify_hot(store, chosen, clock=SystemClock())
    if as_json:
        print_json(report.as_json())
    else:
        for one in report.snapshots:
            state = "DAMAGED" if one.damaged else "ok" if one.copies else "no hot copies"
            click.echo(f"{one.id}: {state}")
            for bad in one.damaged:
                click.echo(f"  {printable(os.fsdecode(bad.path))}: {printable(bad.what)}")
        if not report.ok:
            click.echo("restore with --no-hot; 'ciuic snapshot --base' makes new copies", err=True)
        elif not report.copies:
            click.echo("there are no hot copies to verify: restore takes the store's", err=True)
        if not ids and not every:
            click.echo("only the newest; --all verifies every snapshot", err=True)
        click.echo(
            f"{report.copies:,} hot copies, {report.chunks:,} chunks,"
            f" {format_bytes(report.read_bytes)} read, {format_duration(report.total_s)}",
            err=True,
        )
    sys.exit(0 if report.ok else DAMAGE)
