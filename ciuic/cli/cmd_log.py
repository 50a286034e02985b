"""``ciuic log``."""

import sys
from collections.abc import Mapping, Sequence
from typing import Final

import click

from ciuic.catalog import list_snapshots
from ciuic.cli.candidates import stored_path
from ciuic.cli.opening import opened, shown_ids, warn_damaged
from ciuic.cli.options import absolute, given, json_option
from ciuic.cli.render import labels, print_json_array, printable
from ciuic.cli.session import Session
from ciuic.cli.table import Column, cut_end, cut_time, print_table
from ciuic.documents import Document
from ciuic.errors import DAMAGE
from ciuic.ids import SnapshotId
from ciuic.model import Entry, SnapshotSummary, path_text
from ciuic.report.history import Change, history
from ciuic.report.versions import DAMAGED
from ciuic.system.clock import local_time_text, rfc3339
from ciuic.units import format_bytes

__all__ = ["command"]

_COLUMNS: Final = (
    Column("ID"),
    Column("TAKEN", cut=cut_time, least=16),
    Column("CHANGE"),
    Column("SIZE", right=True, drop=2),
    Column("MODIFIED", drop=4),
    Column("SNAPSHOTS", right=True, drop=1),
    Column("TAGS", drop=3, cut=cut_end, least=6),
)


@click.command("log")
@click.argument("path", callback=given, shell_complete=stored_path)
@json_option
@click.pass_obj
def command(session: Session, *, path: str, as_json: bool) -> None:
    """Show the history of PATH: one line for each version of it, newest first.

    ID is the first snapshot that has the version, and SNAPSHOTS is the number of snapshots in a row
    that have it. CHANGE is added, changed, gone, left out or damaged. A file has a new version when
    its content changes; a change of times, owner or mode alone makes no new version. A directory
    has a new version when anything in it changes, including metadata.
    """
    wanted = absolute(path)
    with opened(session) as store:
        snapshots = list_snapshots(store)
        warn_damaged(session, store)
        found = history(store, snapshots, wanted)
        if as_json:
            print_json_array(_json(change, wanted) for change in found)
        elif found:
            _print(found, shown_ids(store))
    if not found:
        click.echo(f"no snapshot holds {printable(wanted)}", err=True)
    for change in found:
        if change.what == DAMAGED and change.version is not None:
            what = printable(change.version.what)
            click.echo(f"ciuic: {printable(wanted)} in {change.first.id}: {what}", err=True)
    if any(change.what == DAMAGED for change in found):
        sys.exit(DAMAGE)


def _entry(change: Change) -> Entry | None:
    return None if change.version is None else change.version.entry


def _size_bytes(change: Change) -> int | None:
    """Return the size of a file; None for a directory, because no snapshot records its size."""
    entry = _entry(change)
    return None if entry is None or entry.is_directory else entry.size_bytes


def _json(change: Change, path: bytes) -> Document:
    entry = _entry(change)
    return {
        "path": path_text(path),
        "change": change.what,
        "state": None if change.version is None else change.version.state,
        "what": (change.version.what or None) if change.version else None,
        "size_bytes": _size_bytes(change),
        "mtime": None if entry is None else rfc3339(entry.mtime_ns),
        "first": _snapshot_json(change.first),
        "last": _snapshot_json(change.last),
        "snapshots": change.snapshots,
    }


def _snapshot_json(summary: SnapshotSummary) -> Document:
    return {"id": summary.id, "taken": rfc3339(summary.taken_ns), "tags": list(summary.tags)}


def _print(found: Sequence[Change], short: Mapping[SnapshotId, str]) -> None:
    print_table(_COLUMNS, [_row(change, short) for change in found])


def _row(change: Change, short: Mapping[SnapshotId, str]) -> list[str]:
    entry, first, size_bytes = _entry(change), change.first, _size_bytes(change)
    return [
        short.get(first.id, first.id),
        local_time_text(first.taken_ns),
        change.what,
        "" if size_bytes is None else format_bytes(size_bytes),
        "" if entry is None else local_time_text(entry.mtime_ns),
        f"{change.snapshots:,}",
        labels(first.tags, pinned=first.pinned),
    ]
