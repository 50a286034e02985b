"""``ciuic pin``."""

import click

from ciuic.cli.candidates import SNAPSHOT
from ciuic.cli.opening import find_snapshot, opened, warn_of_mark
from ciuic.cli.options import (
    given,
    json_option,
    wait_option,
)
from ciuic.cli.render import print_json
from ciuic.cli.session import Session
from ciuic.maintain.label import set_pinned

__all__ = ["command"]


@click.command("pin")
@click.argument("snapshot_id", metavar="ID", type=SNAPSHOT, callback=given)
@click.option("--remove", is_flag=True, help="Remove the pin.")
@wait_option
@json_option
@click.pass_obj
def command(
    session: Session, *, snapshot_id: str, remove: bool, wait_s: float, as_json: bool
) -> None:
    """Keep a snapshot from being forgotten, by the retention policy or by name."""
    with opened(session, write=True, adds=False, wait_s=wait_s) as store:
        found = find_snapshot(session, store, snapshot_id)
        warn_of_mark(found)
        summary = set_pinned(store, found.id, pinned=not remove)
    if as_json:
        print_json({"id": summary.id, "pinned": summary.pinned})
    else:
        click.echo(f"{summary.id} is {'pinned' if summary.pinned else 'not pinned'}")
