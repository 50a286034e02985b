"""``ciuic forget``, ``tag`` and ``pin``: which snapshots stay, and what they are called."""

import contextlib
import sys
from collections.abc import Sized
from typing import Any

import click

from ciuic.cli.prune import run_prune, tell_pruned
from ciuic.cli.render import print_json, print_table, printable
from ciuic.cli.session import (
    DAMAGE,
    SNAPSHOT,
    Session,
    given,
    interruptible,
    json_option,
    trash_option,
    wait_option,
)
from ciuic.clock import local_time_text
from ciuic.errors import CiuicError, UsageError
from ciuic.units import format_bytes, format_duration

__all__ = ["forget", "pin", "tag"]


@click.command(short_help="Forget snapshots that the retention policy does not keep.")
@click.argument("snapshot_ids", metavar="[ID]...", nargs=-1, type=SNAPSHOT, callback=given)
@click.option("--dry-run", is_flag=True, help="Show what would be kept and forgotten, and why.")
@click.option(
    "--policy",
    metavar="P",
    callback=given,
    help="7d, last:3, hourly:24, daily:7, weekly:4, monthly:6, or some.  [default: as configured]",
)
@click.option(
    "--last-whole",
    is_flag=True,
    help="Forget those named even if no other snapshot of just these directories is whole.",
)
@click.option("--undo", metavar="ID", callback=given, help="Bring a forgotten snapshot back.")
@click.option("--prune", is_flag=True, help="Prune the store afterwards, as 'ciuic prune' does.")
@trash_option
@wait_option
@json_option
@click.pass_obj
def forget(
    session: Session,
    *,
    snapshot_ids: tuple[str, ...],
    dry_run: bool,
    policy: str | None,
    last_whole: bool,
    undo: str | None,
    prune: bool,
    trash_s: float | None,
    wait_s: float,
    as_json: bool,
) -> None:
    """Forget snapshots: those named, or without ID those that the retention policy does not keep.

    A forgotten snapshot is not listed any more. It lies in the trash and can be brought back until
    'ciuic prune' takes its data. What is pinned is never forgotten, nor the newest snapshot, nor
    the newest that is whole. Nor is the newest whole one of each set of directories, unless you
    say --last-whole. No policy takes what is dated in the future: the clock is or was wrong.

    A snapshot whose manifest is lost keeps 'ciuic prune' from its work; named by its whole ID it
    is given up, for good.
    """
    too_many = sum(map(bool, (snapshot_ids, policy, undo))) > 1
    if too_many or (undo and (dry_run or prune)) or (last_whole and not snapshot_ids):
        raise UsageError(
            "IDs, --policy and --undo exclude each other; --undo goes with neither --dry-run nor"
            " --prune, and --last-whole with IDs alone",
            hint="'ciuic forget --help' shows what goes together.",
        )
    if trash_s is not None and not prune:
        raise UsageError("--trash is for --prune", hint="Without it everything stays in the trash.")
    if undo:
        _bring_back(session, undo, wait_s, as_json=as_json)
        return
    from ciuic.clock import SystemClock
    from ciuic.verbs.forget import apply_forget, plan_forget, plan_forget_by_id

    rule = None if snapshot_ids else _policy(session, policy)
    # What is wrong with the configuration is told before anything is forgotten.
    trash_s = session.trash_s() if trash_s is None else trash_s
    parity = session.parity() if prune else 0.0
    now_ns = SystemClock().now_ns()
    report = None
    with (
        interruptible() if prune else contextlib.nullcontext(_never) as cancelled,
        session.opened(write=prune or not dry_run, wait_s=wait_s) as store,
    ):
        if rule is None:
            plan = plan_forget_by_id(store, snapshot_ids, now_ns, last_whole=last_whole)
        else:
            plan = plan_forget(store, rule, now_ns)
        if not dry_run:
            apply_forget(store, plan, now_ns)
        forgotten = {"dry_run": dry_run, **plan.as_json()}
        if not as_json:
            until_s = None if prune and not trash_s else trash_s
            _tell(plan, until_s, dry_run=dry_run, by_rule=rule is not None)
        if prune:
            leaving = [one.id for one, _ in plan.forgotten] if dry_run else []
            try:
                report = run_prune(
                    store,
                    cancelled,
                    trash_s=trash_s,
                    parity=parity,
                    dry_run=dry_run,
                    leaving=leaving,
                    given_up=plan.given_up,
                )
            except CiuicError as error:
                if (plan.forgotten or plan.given_up) and not dry_run:
                    count = _snapshots((*plan.forgotten, *plan.given_up))
                    error.message = f"forgot {count}, but the prune failed: {error.message}"
                    error.hint = f"{error.hint} 'ciuic prune' does the rest.".lstrip()
                    error.done = forgotten
                raise
    if as_json:
        pruned = {} if report is None else {"prune": report.as_json()}
        print_json({**forgotten, **pruned})
    elif report is not None:
        tell_pruned(report)
    sys.exit(DAMAGE if report is not None and report.damaged else 0)


def _never() -> bool:
    return False


def _tell(plan: Any, until_s: float | None, *, dry_run: bool, by_rule: bool) -> None:
    """What a plan does; ``until_s`` is how long it can be undone, None if it can't."""
    if dry_run or by_rule:
        _print_plan(plan)
    for name in plan.given_up:
        what = "would give up" if dry_run else "gave up"
        click.echo(f"{what} {name}, whose manifest is lost: it can't be brought back", err=True)
    if plan.given_up and not plan.forgotten:
        return
    count = _snapshots(plan.forgotten)
    if dry_run:
        click.echo(f"would forget {count} and keep {len(plan.kept)}", err=True)
    elif plan.forgotten:
        until = f"for {format_duration(until_s)}" if until_s else "until the next 'ciuic prune'"
        undo = "" if until_s is None else f"; 'ciuic forget --undo ID' brings one back {until}"
        click.echo(f"forgot {count}, kept {len(plan.kept)}{undo}", err=True)
    else:
        click.echo(f"nothing to forget; kept {len(plan.kept)}", err=True)


def _snapshots(found: Sized) -> str:
    return f"{len(found)} snapshot{'' if len(found) == 1 else 's'}"


@click.command(short_help="Show or change a snapshot's tags.")
@click.argument("snapshot_id", metavar="ID", type=SNAPSHOT, callback=given)
@click.option("--add", metavar="T", multiple=True, callback=given, help="Repeatable.")
@click.option("--remove", metavar="T", multiple=True, callback=given, help="Repeatable.")
@wait_option
@json_option
@click.pass_obj
def tag(
    session: Session,
    *,
    snapshot_id: str,
    add: tuple[str, ...],
    remove: tuple[str, ...],
    wait_s: float,
    as_json: bool,
) -> None:
    """Show a snapshot's tags, one a line, after adding and removing some."""
    from ciuic.catalog import find_snapshot
    from ciuic.verbs.label import change_tags

    changes = bool(add or remove)
    with session.opened(write=changes, wait_s=wait_s) as store:
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
@wait_option
@json_option
@click.pass_obj
def pin(session: Session, *, snapshot_id: str, remove: bool, wait_s: float, as_json: bool) -> None:
    """Keep a snapshot from being forgotten, by the retention policy or by name."""
    from ciuic.verbs.label import set_pinned

    with session.opened(write=True, wait_s=wait_s) as store:
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


def _bring_back(session: Session, name: str, wait_s: float, *, as_json: bool) -> None:
    from ciuic.verbs.forget import bring_back

    with session.opened(write=True, wait_s=wait_s) as store:
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
