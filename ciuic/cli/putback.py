"""``ciuic restore``."""

import os
import sys

import click

from ciuic.cli.progress import progress
from ciuic.cli.render import print_json, printable
from ciuic.cli.session import (
    DAMAGE,
    NEWER,
    SNAPSHOT,
    TROUBLE,
    Session,
    absolute,
    given,
    interruptible,
    json_option,
)
from ciuic.model import RestoreReport, Trouble
from ciuic.units import format_bytes, format_duration, format_files

__all__ = ["restore"]


@click.command()
@click.option(
    "-s",
    "--snapshot",
    "snapshot_id",
    required=True,
    type=SNAPSHOT,
    metavar="ID",
    help="The snapshot: an ID or a part of one, 'latest', 'latest-valid', or a time.",
)
@click.option(
    "-p",
    "--path",
    "paths",
    multiple=True,
    required=True,
    metavar="PATH",
    callback=given,
    help="What to put back, as the snapshot has it; may be given several times.",
)
@click.option(
    "-d",
    "--destination",
    metavar="DIR",
    callback=given,
    help="Put PATH into DIR, under its last name; otherwise to its old place.",
)
@click.option("--overwrite", is_flag=True, help="Replace what differs at the target.")
@click.option("--delete", is_flag=True, help="Also remove what the snapshot does not have.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@click.option(
    "--fallback",
    is_flag=True,
    help="Take files that are damaged or were in flux from the newest older snapshot that has"
    " them whole.",
)
@click.option("--no-hot", is_flag=True, help="Read the store, even where a hot copy is at hand.")
@json_option
@click.pass_obj
def restore(
    session: Session,
    *,
    snapshot_id: str,
    paths: tuple[str, ...],
    destination: str | None,
    overwrite: bool,
    delete: bool,
    dry_run: bool,
    fallback: bool,
    no_hot: bool,
    as_json: bool,
) -> None:
    """Put files or directories of a snapshot back.

    Each file appears whole or not at all; files that are already right are left alone. A target
    that exists is refused unless --overwrite is given. An interrupted restore can be run again.
    Large files come from hot copies, in an instant, where the snapshot still has them.
    """
    from ciuic.catalog import LATEST, damaged_since, find_snapshot
    from ciuic.clock import SystemClock
    from ciuic.verbs.restore import RestoreRequest
    from ciuic.verbs.restore import restore as put_back

    request = RestoreRequest(
        paths=tuple(absolute(path) for path in paths),
        destination=None if destination is None else absolute(destination),
        overwrite=overwrite,
        delete=delete,
        dry_run=dry_run,
        fallback=fallback,
        hot=not no_hot,
    )
    with interruptible() as cancelled, session.opened() as store, progress("restore") as shown:
        chosen = find_snapshot(store, snapshot_id)
        newer = damaged_since(store, chosen) if snapshot_id == LATEST else {}
        manifest = store.manifest(chosen.id)
        report = put_back(
            store, manifest, request, clock=SystemClock(), cancelled=cancelled, progress=shown
        )
    if newer:
        # What was asked for is another one: what came is named, and that it is not all.
        report.damaged = True
        named = {os.fsencode(name): f"{NEWER}: {what}" for name, what in newer.items()}
        report.notes += [Trouble(name, what) for name, what in named.items()]
    if as_json:
        print_json(report.as_json())
    else:
        _summarise(manifest.summary.id, report)
    sys.exit(DAMAGE if report.damaged else TROUBLE if report.failed or report.flux else 0)


def _summarise(snapshot_id: str, report: RestoreReport) -> None:
    verb = "would write" if report.dry_run else "wrote"
    deleted = f", {report.deleted_files:,} deleted" if report.deleted_files else ""
    click.echo(
        f"{snapshot_id}: {verb} {format_files(report.written_files)}"
        f" ({format_bytes(report.written_bytes)}), kept {report.kept_files:,}{deleted},"
        f" {format_duration(report.total_s)}"
    )
    for note in report.notes:
        click.echo(f"{printable(note.path)}: {printable(note.what)}", err=True)
    for bad in report.failed:
        click.echo(f"not restored: {printable(bad.path)}: {printable(bad.what)}", err=True)
