"""The plan of ``ciuic forget`` as a table, with one line about it."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

import click

from ciuic.cli.error_output import advise
from ciuic.cli.render import brief, labels, printable
from ciuic.cli.table import Column, cut_end, cut_time, print_pair, print_table
from ciuic.ids import SnapshotId
from ciuic.maintain.forget import ForgetPlan
from ciuic.model import path_text
from ciuic.system.clock import local_time_text
from ciuic.system.machine import names_of
from ciuic.units import counted, format_bytes, format_duration

__all__ = ["print_plan"]

_COLUMNS: Final = (
    Column("ID"),
    Column("TAKEN", drop=1, cut=cut_time, least=16),
    Column(""),
    Column("SIZE", right=True, drop=2),
    Column("TAGS", drop=3, cut=cut_end, least=6),
    Column("WHY", wrap=True, least=32),
)


def print_plan(
    plan: ForgetPlan,
    short: Mapping[SnapshotId, str],
    until_s: float | None,
    *,
    dry_run: bool,
    by_rule: bool,
) -> None:
    """Print a plan, or what it did.

    Args:
        plan: The plan.
        short: The short form of each ID.
        until_s: How long it can be undone; None: not at all.
        dry_run: It was not applied.
        by_rule: The retention policy made it, so the reasons are of interest.
    """
    if dry_run or by_rule:
        _print_table(plan, short)
    for snapshot_id in plan.given_up:
        what = "would abandon" if dry_run else "abandoned"
        click.echo(
            f"{what} {snapshot_id}, whose manifest is lost or damaged: it cannot be brought back",
            err=True,
        )
    if plan.given_up and not plan.forgotten:
        return
    if by_rule and (dry_run or not plan.kept):
        _print_groups(plan)
    count = counted(len(plan.forgotten), "snapshot")
    if dry_run:
        click.echo(f"would forget {count} and keep {len(plan.kept)}", err=True)
    elif plan.forgotten:
        until = f"for {format_duration(until_s)}" if until_s else "until the next 'ciuic prune'"
        undo = "" if until_s is None else f"; 'ciuic forget --undo ID' brings one back {until}"
        advise(f"forgot {count}, kept {len(plan.kept)}{undo}")
    else:
        click.echo(f"nothing to forget; kept {len(plan.kept)}", err=True)


def _print_groups(plan: ForgetPlan) -> None:
    """Name on stderr the groups that are counted separately, and whose snapshots are left alone.

    A single group goes without saying.
    """
    decided = [snapshot for snapshot, _ in (*plan.kept, *plan.forgotten)]
    groups = Counter((found.schedule, found.roots) for found in decided)
    for (schedule, roots), count in sorted(
        groups.items() if len(groups) > 1 or plan.others else ()
    ):
        series = f"schedule {schedule}" if schedule else "no schedule"
        where = printable(", ".join(map(path_text, roots)))
        print_pair("", f"looked at {counted(count, 'snapshot')} of {where} ({series})", 0, err=True)
    names = names_of(found.owner.machine for found in (*decided, *plan.others))
    owners = Counter((found.owner.is_library, names[found.owner.machine]) for found in plan.others)
    for (is_library, host), count in sorted(owners.items()):
        whose = f"the library on {brief(host)}" if is_library else brief(host)
        print_pair("", f"left alone {counted(count, 'snapshot')} of {whose}", 0, err=True)


def _print_table(plan: ForgetPlan, short: Mapping[SnapshotId, str]) -> None:
    decided = [("keep", *kept) for kept in plan.kept]
    decided += [("forget", *forgotten) for forgotten in plan.forgotten]
    decided.sort(key=lambda item: (item[1].taken_ns, item[1].id), reverse=True)
    rows = [
        (
            short.get(summary.id, summary.id),
            local_time_text(summary.taken_ns),
            what,
            format_bytes(summary.logical_bytes),
            labels(summary.tags, pinned=False),
            why,
        )
        for what, summary, why in decided
    ]
    if rows:
        print_table(_COLUMNS, rows)
