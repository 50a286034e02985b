"""The table of ``ciuic list``."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import click

from ciuic.chains import SnapshotChain
from ciuic.cli.error_output import advise
from ciuic.cli.render import NO_SCHEDULE, brief, labels
from ciuic.cli.table import Column, cut_end, cut_middle, cut_time, print_table
from ciuic.ids import SnapshotId
from ciuic.model import SnapshotSummary, path_text
from ciuic.system.clock import local_time_text
from ciuic.system.machine import Machine, names_of
from ciuic.units import counted, format_bytes

__all__ = ["needless_columns", "print_list"]

_DAY_LENGTH: Final = len("2026-06-15")
_COLUMNS: Final = (
    Column("ID"),
    Column("TAKEN", cut=cut_time, least=16),
    Column("STATE"),
    Column("KIND", drop=7),
    Column("CHAIN", right=True, drop=9),
    Column("FILES", right=True, drop=11),
    Column("SIZE", right=True, drop=1),
    Column("NEW", right=True, drop=10),
    Column("STORED", right=True, drop=6),
    Column("TROUBLE", right=True, drop=2),
    Column("FLUX", right=True, drop=8),
    Column("HOST", drop=4, cut=cut_end, least=6),
    Column("ORIGIN", drop=12),
    Column("SCHEDULE", drop=13, cut=cut_end, least=6),
    Column("ROOTS", drop=5, cut=cut_middle),
    Column("TAGS", drop=3, cut=cut_end, least=6),
    Column("NOTE", drop=14, cut=cut_end, least=12),
)
_STATES: Final = {True: "damaged", False: "", None: "?"}


def print_list(
    snapshots: Sequence[SnapshotSummary],
    left_out: set[str],
    chains: Mapping[SnapshotId, SnapshotChain],
    short: Mapping[SnapshotId, str],
    damaged: Mapping[SnapshotId, bool | None],
    *,
    by_day: bool,
) -> None:
    """Print a table of snapshots, or one for each day, and how to learn more of damaged ones.

    Args:
        snapshots: The snapshots, in their order.
        left_out: The columns that are not shown.
        chains: The chains of the snapshots, by ID.
        short: The shown form of IDs; without one, the whole ID is shown.
        damaged: True for snapshots that are known to be damaged; None: it is not known.
        by_day: Print one table for each day.
    """
    for day, group in _days(snapshots) if by_day else [("", snapshots)]:
        if day:
            click.echo(day)
        _print_snapshots(group, chains, short, damaged, left_out=left_out)
    if any(damaged.values()):
        advise("ciuic: 'ciuic verify ID' names the damaged paths of a snapshot")


def _days(
    snapshots: Sequence[SnapshotSummary],
) -> Iterator[tuple[str, list[SnapshotSummary]]]:
    """Yield the local days of snapshots, in their order, each with a heading."""
    dated = itertools.groupby(
        snapshots, lambda snapshot: local_time_text(snapshot.taken_ns)[:_DAY_LENGTH]
    )
    for number, (day, group) in enumerate(dated):
        found = list(group)
        stored = format_bytes(sum(snapshot.stored_bytes for snapshot in found))
        gap = "\n" if number else ""
        yield f"{gap}{day}: {counted(len(found), 'snapshot')}, {stored} stored", found


def needless_columns(
    snapshots: Sequence[SnapshotSummary], damaged: Mapping[SnapshotId, bool | None]
) -> set[str]:
    """Return the columns that would say the same for every snapshot of the store."""
    hosts = {(summary.host, summary.machine) for summary in snapshots}
    origins = {summary.origin for summary in snapshots}
    schedules = {summary.schedule for summary in snapshots}
    roots = {frozenset(summary.roots) for summary in snapshots}
    counts = {
        "HOST": len(hosts),
        "ORIGIN": len(origins),
        "SCHEDULE": len(schedules),
        "ROOTS": len(roots),
        "STATE": 2 if any(damaged.values()) else 0,
        "NOTE": 2 if any(summary.note for summary in snapshots) else 0,
    }
    return {name for name, count in counts.items() if count <= 1}


def _print_snapshots(
    snapshots: Sequence[SnapshotSummary],
    chains: Mapping[SnapshotId, SnapshotChain],
    short: Mapping[SnapshotId, str],
    damaged: Mapping[SnapshotId, bool | None],
    *,
    left_out: set[str],
) -> None:
    names = names_of(found.owner.machine for found in snapshots)
    columns = [column for column in _COLUMNS if column.name not in left_out]
    rows = [
        {
            "ID": short.get(summary.id, summary.id),
            "STATE": _STATES[damaged.get(summary.id, False)],
            **_row(summary, chains[summary.id], names),
        }
        for summary in snapshots
    ]
    print_table(columns, [[row[column.name] for column in columns] for row in rows])


def _row(
    summary: SnapshotSummary, chain: SnapshotChain, names: Mapping[Machine, str]
) -> dict[str, str]:
    """Return a snapshot's cell for each column except the ID and the state."""
    return {
        "TAKEN": local_time_text(summary.taken_ns),
        "KIND": brief(summary.kind),
        "CHAIN": str(chain),
        "FILES": f"{summary.files:,}",
        "SIZE": format_bytes(summary.logical_bytes),
        "NEW": format_bytes(summary.new_bytes),
        "STORED": format_bytes(summary.stored_bytes),
        "TROUBLE": str(summary.trouble_count or ""),
        "FLUX": str(summary.flux_count or ""),
        "HOST": brief(names[summary.owner.machine]),
        "ORIGIN": brief(summary.origin),
        "SCHEDULE": brief(summary.schedule or NO_SCHEDULE),
        "ROOTS": ", ".join(map(path_text, summary.roots)),
        "TAGS": labels(summary.tags, pinned=summary.pinned),
        "NOTE": brief(summary.note),
    }
