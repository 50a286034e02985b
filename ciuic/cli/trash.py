"""``ciuic list --trash``: forgotten snapshots that can be brought back."""

import sys
from collections.abc import Mapping, Sequence
from typing import Final

import click

from ciuic.cli.error_output import advise
from ciuic.cli.opening import opened, shown_ids
from ciuic.cli.render import labels, print_json, printable
from ciuic.cli.session import Session
from ciuic.cli.table import Column, cut_end, cut_time, print_table
from ciuic.errors import DAMAGE
from ciuic.ids import SnapshotId
from ciuic.store.snapshots.trash import Forgotten
from ciuic.system.clock import local_time_text, rfc3339
from ciuic.units import format_bytes

__all__ = ["list_trash"]

_COLUMNS: Final = (
    Column("ID"),
    Column("TAKEN", drop=2, cut=cut_time, least=16),
    Column("FORGOTTEN", cut=cut_time, least=16),
    Column("SIZE", right=True, drop=1),
    Column("TAGS", drop=3, cut=cut_end, least=6),
)


def list_trash(session: Session, *, as_json: bool) -> None:
    """List the trash, newest first; end the command with the code for damage if any is damaged."""
    with opened(session) as store:
        found, damaged = store.trash.survey()
        short = shown_ids(store)
    found.reverse()
    if as_json:
        print_json(
            [
                {**item.manifest.summary.as_json(), "forgotten": rfc3339(item.forgotten_ns)}
                for item in found
            ]
        )
    elif found:
        _print(found, short)
    elif not damaged:
        click.echo("the trash is empty", err=True)
    for snapshot_id, error in damaged.items():
        click.echo(f"ciuic: {snapshot_id} cannot be read: {printable(error.message)}", err=True)
    if damaged:
        advise("       'ciuic repair --apply' repairs it or sets it aside.")
        sys.exit(DAMAGE)


def _print(found: Sequence[Forgotten], short: Mapping[SnapshotId, str]) -> None:
    rows = [
        (
            short.get(item.id, item.id),
            local_time_text(item.manifest.summary.taken_ns),
            local_time_text(item.forgotten_ns),
            format_bytes(item.manifest.summary.logical_bytes),
            labels(item.manifest.summary.tags, pinned=item.manifest.summary.pinned),
        )
        for item in found
    ]
    print_table(_COLUMNS, rows)
