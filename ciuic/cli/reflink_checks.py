"""``ciuic verify --hot``: the reflink copies that a restore would use."""

import os

import click

from ciuic.catalog import LATEST, list_snapshots
from ciuic.cli.error_output import advise
from ciuic.cli.opening import find_snapshot, of_configuration, opened, warn_damaged
from ciuic.cli.render import print_json, printable
from ciuic.cli.session import Session
from ciuic.model import SnapshotSummary
from ciuic.store.store import Store
from ciuic.system.clock import SystemClock
from ciuic.units import counted, format_bytes, format_duration
from ciuic.verify.reflink_copies import ReflinkReport, verify_reflink_copies

__all__ = ["verify_hot"]


def verify_hot(
    session: Session, ids: tuple[str, ...], host: str | None, *, every: bool, as_json: bool
) -> bool:
    """Verify the reflink copies, print the report, and return whether all are sound."""
    with opened(session) as store:
        chosen = _chosen(session, store, ids, host, every=every)
        report = verify_reflink_copies(store, chosen, clock=SystemClock())
    if as_json:
        print_json({**report.as_json(), "damaged_snapshots": session.damaged_snapshots})
    else:
        _print_hot(report, only_newest=not ids and not every)
    return report.ok


def _chosen(
    session: Session, store: Store, ids: tuple[str, ...], host: str | None, *, every: bool
) -> list[SnapshotSummary]:
    """Return the snapshots to verify, each once."""
    if every:
        chosen = list_snapshots(store)
        warn_damaged(session, store)
        return chosen
    found = [find_snapshot(session, store, text, host=host) for text in ids]
    if not ids:
        listed = of_configuration(session, store, LATEST, host)
        found = [find_snapshot(session, store, LATEST, listed=listed, host=host)]
    return list({summary.id: summary for summary in found}.values())


def _print_hot(report: ReflinkReport, *, only_newest: bool) -> None:
    for snapshot in report.snapshots:
        state = "DAMAGED" if snapshot.damaged else "ok" if snapshot.copies else "no reflink copies"
        click.echo(f"{snapshot.id}: {state}")
        for bad in snapshot.damaged:
            click.echo(f"  {printable(os.fsdecode(bad.path))}: {printable(bad.what)}")
    if not report.ok:
        advise("give 'ciuic restore' --no-hot; 'ciuic snapshot --base' makes new copies")
    elif not report.copies:
        click.echo("there are no reflink copies to verify; restore reads the store", err=True)
    if only_newest:
        click.echo("only the newest; --all verifies every snapshot", err=True)
    click.echo(
        f"{counted(report.copies, 'reflink copy', 'reflink copies')},"
        f" {counted(report.chunks, 'chunk')},"
        f" {format_bytes(report.read_bytes)} read, {format_duration(report.total_s)}",
        err=True,
    )
