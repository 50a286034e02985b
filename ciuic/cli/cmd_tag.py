"""``ciuic tag``."""

import click

from ciuic.catalog import means_otherwise
from ciuic.cli.candidates import SNAPSHOT, known_tags
from ciuic.cli.opening import find_snapshot, opened, warn_of_mark
from ciuic.cli.options import given, json_option, wait_option
from ciuic.cli.render import brief, print_json, printable
from ciuic.cli.session import Session
from ciuic.ids import SnapshotId
from ciuic.maintain.label import change_tags, move_tags

__all__ = ["command"]


@click.command("tag")
@click.argument("snapshot_id", metavar="ID", type=SNAPSHOT, callback=given)
@click.option(
    "--add",
    metavar="T",
    multiple=True,
    callback=given,
    shell_complete=known_tags,
    help="Add this tag; may be repeated.",
)
@click.option(
    "--remove",
    metavar="T",
    multiple=True,
    callback=given,
    shell_complete=known_tags,
    help="Remove this tag; may be repeated.",
)
@click.option(
    "--move",
    metavar="T",
    multiple=True,
    callback=given,
    shell_complete=known_tags,
    help="Add this tag, and remove it from all other snapshots; may be repeated.",
)
@wait_option
@json_option
@click.pass_obj
def command(
    session: Session,
    *,
    snapshot_id: str,
    add: tuple[str, ...],
    remove: tuple[str, ...],
    move: tuple[str, ...],
    wait_s: float,
    as_json: bool,
) -> None:
    """Add and remove tags of a snapshot, then show its tags, one per line.

    If the snapshot does not have a tag that you remove, ciuic says so on stderr and exits with 0.
    """
    changes = bool(add or remove or move)
    moved_from: list[SnapshotId] = []
    with opened(session, write=changes, adds=False, wait_s=wait_s) as store:
        before = summary = find_snapshot(session, store, snapshot_id)
        warn_of_mark(before)
        if changes:
            summary = change_tags(store, before.id, add=add, remove=remove)
        if move:
            summary, moved_from = move_tags(store, before.id, move)
    for text in filter(means_otherwise, dict.fromkeys([*add, *move])):
        name = printable(text)
        click.echo(
            f"ciuic: '{name}' in place of an ID means something else: use this tag with --tag only",
            err=True,
        )
    for text in dict.fromkeys(remove):
        if text not in before.tags and text not in {*add, *move}:
            click.echo(f"ciuic: {before.id} had no tag '{printable(text)}'", err=True)
    if as_json:
        moved = {"moved_from": moved_from} if move else {}
        print_json({"id": summary.id, "tags": list(summary.tags), **moved})
        return
    if not summary.tags:
        click.echo(f"{summary.id} has no tags", err=True)
    for text in summary.tags:
        click.echo(printable(brief(text)))
