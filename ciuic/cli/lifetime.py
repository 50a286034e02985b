"""``ciuic forget``, ``tag`` and ``pin``: which snapshots stay, and what they are called."""

from typing import Any

import click

from ciuic.cli.render import print_json, print_table, printable
from ciuic.cli.session import SNAPSHOT, Session, given, json_option
from ciuic.clock import local_time_text
from ciuic.errors import UsageError
from ciuic.units import format_bytes, format_duration

__all__ = ["forget", "pin", "tag"]

_WAIT_S = 10.0
"""How long to wait for another process that is writing to the store."""


@click.command(short_help="Forget snapshots that the retention policy does not keep.")
@click.argument("snapshot_ids", metavar="[ID]...", nargs=-1, type=SNAPSHOT, callback=given)
@click.option("--dry-run", is_flag=True, help="Show what would be kept and forgotten, and why.")
@click.option(
    "--policy",
    metavar="P",
    callback=given,
    help="7d, or last:3, hourly:24, daily:7, weekly:4, monthly:6.  [default: as configured]",
)
@click.option("--undo", metavar="ID", callback=given, help="Bring a forgotten snapshot back.")
@json_option
@click.pass_obj
def forget(
    session: Session,
    *,
    snapshot_ids: tuple[str, ...],
    dry_run: bool,
    policy: str | None,
    undo: str | None,
    as_json: bool,
) -> None:
    """Forget snapshots: those named, or without ID those that the retention policy does not keep.

    A forgotten snapshot is not listed any more. It lies in the trash and can be brought back until
    'ciuic prune' takes its data. What is pinned is never forgotten, nor the newest snapshot, nor
    the newest that is whole.
    """
    if sum(map(bool, (snapshot_ids, policy, undo))) > 1 or (undo and dry_run):
        raise UsageError(
            "IDs, --policy and --undo exclude each other, and so do --undo and --dry-run",
            hint="'ciuic forget --help' shows what goes together.",
        )
    if undo:
        _bring_back(session, undo, as_json=as_json)
        return
    from ciuic.clock import SystemClock
    from ciuic.verbs.forget import apply_forget, plan_forget, plan_forget_by_id

    rule = None if snapshot_ids else _policy(session, policy)
    now_ns = SystemClock().now_ns()
    with session.opened(write=not dry_run, wait_s=_WAIT_S) as store:
        if rule is None:
            plan = plan_forget_by_id(store, snapshot_ids)
        else:
            plan = plan_forget(store, rule, now_ns)
        if not dry_run:
            apply_forget(store, plan, now_ns)
    if as_json:
        print_json({"dry_run": dry_run, **plan.as_json()})
        return
    if dry_run or rule is not None:
        _print_plan(plan)
    count = f"{len(plan.forgotten)} snapshot{'' if len(plan.forgotten) == 1 else 's'}"
    if dry_run:
        click.echo(f"would forget {count} and keep {len(plan.kept)}", err=True)
    elif plan.forgotten:
        trash_s = session.trash_s()
        until = f"for {format_duration(trash_s)}" if trash_s else "until the next 'ciuic prune'"
        click.echo(
            f"forgot {count}, kept {len(plan.kept)}; 'ciuic forget --undo ID' brings one back"
            f" {until}",
            err=True,
        )
    else:
        click.echo(f"nothing to forget; kept {len(plan.kept)}", err=True)


@click.command(short_help="Show or change a snapshot's tags.")
@click.argument("snapshot_id", metavar="ID", type=SNAPSHOT, callback=given)
@click.option("--add", metavar="T", multiple=True, callback=given, help="Repeatable.")
@click.option("--remove", metavar="T", multiple=True, callback=given, help="Repeatable.")
@json_option
@click.pass_obj
def tag(
    session: Session,
    *,
    snapshot_id: str,
    add: tuple[str, ...],
    remove: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show a snapshot's tags, one a line, after adding and removing some."""
    from ciuic.catalog import find_snapshot
    from ciuic.verbs.label import change_tags

    changes = bool(add or remove)
    with session.opened(write=changes, wait_s=_WAIT_S) as store:
        if changes:
            summary = change_tags(store, snapshot_id, add=add, remove=remove)
        else:
            summary = find_snapshot(store, snapshot_id)
    if as_json:
        print_json({"id": summary.id, "tags": list(summary.tags)})
        return
    for one in summary.tags:
        click.echo(printable(one))


@click.command(short_help="Keep a snapshot from being forgotten.")
@click.argument("snapshot_id", metavar="ID", type=SNAPSHOT, callback=given)
@click.option("--remove", is_flag=True, help="Let it go again.")
@json_option
@click.pass_obj
def pin(session: Session, *, snapshot_id: str, remove: bool, as_json: bool) -> None:
    """Keep a snapshot from being forgotten, by the retention policy or by name."""
    from ciuic.verbs.label import set_pinned

    with session.opened(write=True, wait_s=_WAIT_S) as store:
        summary = set_pinned(store, snapshot_id, pinned=not remove)
    if as_json:
        print_json({"id": summary.id, "pinned": summary.pinned})
    else:
        click.echo(f"{summary.id} is {'pinned' if summary.pinned else 'not pinned'}")


def _policy(session: Session, text: str | None) -> Any:
    from ciuic.retention import parse_policy

    if text is None:
        return parse_policy(session.retention_policy())
    try:
        return parse_policy(text)
    except ValueError as error:
        raise UsageError(
            f"--policy: {error}", hint="Nothing was forgotten; 'ciuic forget --help' has examples."
        ) from error


def _bring_back(session: Session, name: str, *, as_json: bool) -> None:
    from ciuic.verbs.forget import bring_back

    with session.opened(write=True, wait_s=_WAIT_S) as store:
        summary = bring_back(store, name)
    if as_json:
        print_json(summary.as_json())
    else:
        click.echo(f"{summary.id} of {local_time_text(summary.taken_ns)} is back")


def _print_plan(plan: Any) -> None:
    rows = [
        (one.taken_ns, one.id, "keep", format_bytes(one.logical_bytes), ",".join(one.tags), why)
        for one, why in plan.kept
    ]
    rows += [
        (one.taken_ns, one.id, "forget", format_bytes(one.logical_bytes), ",".join(one.tags), why)
        for one, why in plan.forgotten
    ]
    rows.sort(reverse=True)
    if rows:
        print_table(
            ("ID", "TAKEN", "", "SIZE", "TAGS", "WHY"),
            [
                (name, local_time_text(taken_ns), what, size, tags, why)
                for taken_ns, name, what, size, tags, why in rows
            ],
            right=frozenset({3}),
        )
