"""``ciuic find``."""

import os
import sys
from collections.abc import Iterator, Mapping
from typing import Final

import click

from ciuic.cli.candidates import SNAPSHOT
from ciuic.cli.named_damage import NamedDamage
from ciuic.cli.opening import chosen_snapshots, shown_ids
from ciuic.cli.options import ShortOptionsCommand, copies_option, given, host_option, json_option
from ciuic.cli.read_copies import opened_with_copies
from ciuic.cli.render import print_json_array, printable
from ciuic.cli.session import Session
from ciuic.cli.table import echo_path, print_pair, terminal_columns
from ciuic.errors import UsageError
from ciuic.ids import SnapshotId
from ciuic.report.entries import entry_json, mark
from ciuic.system.clock import local_time_text
from ciuic.units import counted
from ciuic.view.listing import find as find_paths
from ciuic.view.located import Located

__all__ = ["command"]

_TIME_FROM: Final = 80
"""A terminal with fewer columns than this shows no times."""
_TIME_WIDTH: Final = len("2026-06-15 14:30:00  ")


@click.command("find", cls=ShortOptionsCommand)
@click.argument("pattern", callback=given)
@click.option("-s", "--snapshot", "snapshot_id", type=SNAPSHOT, help="Search only this snapshot.")
@host_option
@copies_option
@json_option
@click.pass_obj
def command(
    session: Session, *, pattern: str, snapshot_id: str | None, host: str | None, as_json: bool
) -> None:
    """Find paths by a glob in all snapshots, newest first.

    A PATTERN without '/' is matched against names, any other against full paths, which begin with
    '/'. [abc] is a set. Unlike in exclude_patterns, * and ? also match '/': '*/run7/*' finds
    everything below each run7, and 'run7/*' finds nothing. A path that is the same in several
    snapshots is shown for the newest of them, with the time at which it was modified; on a terminal
    the columns have headings. If nothing matches, a message on stderr says so, and
    the exit code is 0.
    """
    _refuse_open_set(pattern)
    with opened_with_copies(session) as store:
        chosen = chosen_snapshots(session, store, snapshot_id, host)
        damage = NamedDamage()
        found = damage.after(find_paths(store, chosen, os.fsencode(pattern), damage))
        count = _print_json(found) if as_json else _print(found, shown_ids(store))
    if not count and chosen:
        where = chosen[0].id if snapshot_id is not None else counted(len(chosen), "snapshot")
        click.echo(f"no path in {where} matches '{printable(pattern)}'", err=True)


def _refuse_open_set(pattern: str) -> None:
    """Refuse a pattern with a '[' that no ']' closes: it would match only itself.

    Raises:
        UsageError: The pattern has one.
    """
    at = pattern.find("[")
    while at >= 0:
        members = at + 2 if pattern.startswith("[!", at) else at + 1
        end = pattern.find("]", members + 1)  # a ']' that comes first is a member
        if end < 0:
            raise UsageError(
                f"the '[' in the pattern '{pattern}' is not closed",
                hint="Write '[[]' to find the character itself.",
            )
        at = pattern.find("[", end + 1)


def _print_json(found: Iterator[tuple[SnapshotId, Located]]) -> int:
    """Print what was found as one document; return the number of paths."""
    return print_json_array(
        {"snapshot": snapshot_id, **entry_json(located.path, located.entry)}
        for snapshot_id, located in found
    )


def _print(found: Iterator[tuple[SnapshotId, Located]], short: Mapping[SnapshotId, str]) -> int:
    """Print each path as it is found; return the number of paths."""
    count = 0
    available = terminal_columns()
    has_time = available is None or available >= _TIME_FROM
    for snapshot_id, located in found:
        if not count and available is not None:
            first = "SNAPSHOT".ljust(len(short.get(snapshot_id, snapshot_id)))
            click.echo(f"{first}  {'MODIFIED'.ljust(_TIME_WIDTH) if has_time else ''}PATH")
        when = f"{local_time_text(located.entry.mtime_ns)}  " if has_time else ""
        echo_path(
            f"{short.get(snapshot_id, snapshot_id)}  {when}", located.path, mark(located.entry)
        )
        count += 1
    if count and not has_time and sys.stderr.isatty():
        print_pair("", "too narrow for the time of modification; --json has all", 0, err=True)
    return count
