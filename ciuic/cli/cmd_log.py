"""``ciuic log``."""

import sys
from collections.abc import Sequence

import click

from ciuic.catalog import list_snapshots
from ciuic.cli.candidates import stored_path
from ciuic.cli.histories import (
    change_json,
    print_changes,
    print_descent,
    print_tensor,
    snapshot_json,
    tensor_json,
)
from ciuic.cli.lists import matching, none_matches
from ciuic.cli.opening import shown_ids, warn_damaged
from ciuic.cli.options import absolute, copies_option, given, host_option, json_option
from ciuic.cli.read_copies import opened_with_copies
from ciuic.cli.render import print_json_array, printable
from ciuic.cli.session import Session
from ciuic.errors import DAMAGE, PathNotFoundError, UsageError
from ciuic.model import path_text
from ciuic.report.histories.changes import Change, descent, history
from ciuic.report.histories.tensor import TensorVersion, tensor_history
from ciuic.report.versions import DAMAGED

__all__ = ["command"]


@click.command("log")
@click.argument("path", required=False, callback=given, shell_complete=stored_path)
@click.option(
    "--graph", is_flag=True, help="Draw where a history branches: a restore, and what came after."
)
@click.option(
    "--tensor", metavar="NAME", callback=given, help="Only versions that changed this tensor."
)
@click.option("--tag", metavar="T", callback=given, help="Only snapshots with this tag.")
@host_option
@click.option("--root", metavar="P", callback=given, help="Only snapshots of this root.")
@copies_option
@json_option
@click.pass_obj
def command(
    session: Session,
    *,
    path: str | None,
    graph: bool,
    tensor: str | None,
    tag: str | None,
    host: str | None,
    root: str | None,
    as_json: bool,
) -> None:
    """Show the history of PATH: one line for each version of it, newest first.

    ID is the first snapshot that has the version, and SNAPSHOTS is the number of snapshots in a row
    that have it. CHANGE is added, changed, gone, left out or damaged. A file has a new version when
    its content changes; a change of times, owner or mode alone makes no new version. A directory
    has a new version when anything in it changes, including metadata.

    Without PATH, each snapshot has a line. FOLLOWS names the snapshot from which a restore had put
    content in place before a snapshot was taken. --graph draws that: a run that was rolled back and
    went on has two branches, which meet in the snapshot that was restored.

    With --tensor, ciuic compares the tensor in each version of the file with that in the version
    before it, and DISTANCE is how far it moved, as a share of its length (L2).
    """
    if path is None and tensor is not None:
        raise UsageError("--tensor requires PATH", hint="Name the file that has the tensor.")
    wanted = None if path is None else absolute(path)
    covered = None if root is None else absolute(root)
    with opened_with_copies(session) as store:
        listed = list_snapshots(store)
        snapshots = matching(listed, tag=tag, root=covered, host=host)
        warn_damaged(session, store)
        absence = "" if snapshots else none_matches(listed, tag=tag, root=root, host=host)
        if wanted is None:
            rows = descent(snapshots)
            if as_json:
                print_json_array(snapshot_json(row) for row in rows)
            else:
                print_descent(rows, shown_ids(store), graph=graph)
                if absence:
                    click.echo(absence, err=True)
            return
        found = history(store, snapshots, wanted)
        tensors = [] if tensor is None else tensor_history(store, found, wanted, tensor)
        if not session.damaged:  # a snapshot that cannot be read may have it
            if absence:
                raise PathNotFoundError(absence, hint="'ciuic list' shows the snapshots.")
            which = "" if len(snapshots) == len(listed) else " that matches the options"
            _refuse_absence(wanted, found, tensor, tensors, which)
        short = {} if as_json else shown_ids(store)
        if as_json and tensor is not None:
            print_json_array(tensor_json(one, wanted, tensor) for one in tensors)
        elif as_json:
            print_json_array(change_json(change, wanted) for change in found)
        elif tensor is not None:
            print_tensor(tensors, short, graph=graph)
        elif found:
            print_changes(found, short, graph=graph)
    _end(found, wanted, [one.why for one in tensors if one.why])


def _refuse_absence(
    path: bytes,
    found: Sequence[Change],
    tensor: str | None,
    tensors: Sequence[TensorVersion],
    which: str,
) -> None:
    """Refuse a path or a tensor that no snapshot has: a name with a mistake has no history.

    ``which`` says which snapshots were looked at; it is empty if all were.

    Raises:
        PathNotFoundError: No snapshot has it.
    """
    if not found:
        raise PathNotFoundError(
            f"no snapshot{which} holds {path_text(path)}",
            hint="'ciuic find NAME' looks for a name in all snapshots.",
        )
    if tensor is not None and not tensors:
        raise PathNotFoundError(
            f"no version of {path_text(path)} has the tensor {tensor!r}",
            hint="'ciuic diff --tensors A B' shows the names of tensors that changed.",
        )


def _end(found: list[Change], path: bytes, unread: list[str]) -> None:
    """Name what is damaged, and exit with the code for it."""
    for why in unread:
        click.echo(f"ciuic: {printable(path)}: {printable(why)}", err=True)
    for change in found:
        if change.what == DAMAGED and change.version is not None:
            what = printable(change.version.what)
            click.echo(f"ciuic: {printable(path)} in {change.first.id}: {what}", err=True)
    if unread or any(change.what == DAMAGED for change in found):
        sys.exit(DAMAGE)
