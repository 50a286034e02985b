"""``ciuic note``."""

import click

from ciuic.cli.candidates import SNAPSHOT
from ciuic.cli.opening import find_snapshot, opened, warn_of_mark
from ciuic.cli.options import given, json_option, wait_option
from ciuic.cli.render import print_json, printable
from ciuic.cli.session import Session
from ciuic.errors import UsageError
from ciuic.maintain.label import set_note

__all__ = ["command"]


@click.command("note")
@click.argument("snapshot_id", metavar="ID", type=SNAPSHOT, callback=given)
@click.argument("text", required=False)
@click.option("--remove", is_flag=True, help="Remove the note.")
@wait_option
@json_option
@click.pass_obj
def command(
    session: Session,
    *,
    snapshot_id: str,
    text: str | None,
    remove: bool,
    wait_s: float,
    as_json: bool,
) -> None:
    """Write TEXT on a snapshot as its note, or show its note.

    A snapshot has one note of at most 4,096 characters. A new note replaces it. 'ciuic list' and
    'ciuic show' show it too.
    """
    if text is not None and remove:
        raise UsageError("--remove takes no text", hint="To replace a note, leave out --remove.")
    if text == "":
        raise UsageError("a note needs a text", hint="'--remove', without a text, removes a note.")
    changes = text is not None or remove
    with opened(session, write=changes, adds=False, wait_s=wait_s) as store:
        summary = find_snapshot(session, store, snapshot_id)
        warn_of_mark(summary)
        if changes:
            summary = set_note(store, summary.id, text or "")
    if as_json:
        print_json({"id": summary.id, "note": summary.note})
    elif summary.note:
        click.echo(printable(summary.note))
    else:
        click.echo(f"{summary.id} has no note", err=True)
