"""``ciuic forget``."""

import contextlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import click

from ciuic.catalog import find_snapshot
from ciuic.catalog.whose import machines_called
from ciuic.cli.candidates import SNAPSHOT, known_tags, trashed_id
from ciuic.cli.forget_plan import print_plan
from ciuic.cli.interrupt import interruptible
from ciuic.cli.lists import hosts_instead
from ciuic.cli.opening import note_machine, opened, shown_ids, warn_damaged
from ciuic.cli.options import given, json_option, trash_option, wait_option
from ciuic.cli.pruning import print_prune_report, prune_store
from ciuic.cli.render import print_json, printable
from ciuic.cli.session import Session
from ciuic.documents import Document
from ciuic.errors import DAMAGE, CiuicError, UsageError
from ciuic.ids import matching_ids
from ciuic.maintain.forget import (
    ForgetPlan,
    Terms,
    apply_forget,
    bring_back,
    plan_forget,
    plan_forget_by_id,
)
from ciuic.maintain.prune.report import PruneReport
from ciuic.retention import Policy, parse_policy
from ciuic.store.store import Store
from ciuic.system.clock import SystemClock, local_time_text
from ciuic.units import counted, listed

__all__ = ["command"]


@click.command("forget")
@click.argument("snapshot_ids", metavar="[ID]...", nargs=-1, type=SNAPSHOT, callback=given)
@click.option("--dry-run", is_flag=True, help="Show what would be kept and forgotten, and why.")
@click.option(
    "--policy",
    metavar="P",
    callback=given,
    help="7d, last:3, hourly:24, daily:7, weekly:4, monthly:6, or several.  [default: as"
    " configured]",
)
@click.option(
    "--keep-tag",
    "keep_tags",
    metavar="T",
    multiple=True,
    callback=given,
    shell_complete=known_tags,
    help="Also keep the snapshots with this tag; may be repeated.",
)
@click.option(
    "--host",
    metavar="H",
    callback=given,
    help="Apply the policy to the snapshots of this other machine: its name, or as HOST of 'list'"
    " shows it.",
)
@click.option(
    "--last-whole",
    is_flag=True,
    help="Forget the named snapshots even if their directories have no other undamaged snapshot.",
)
@click.option(
    "--undo",
    metavar="ID",
    callback=given,
    shell_complete=trashed_id,
    help="Bring a forgotten snapshot back from the trash; more IDs may follow.",
)
@click.option("--prune", is_flag=True, help="Prune the store afterwards, as 'ciuic prune' does.")
@trash_option
@wait_option
@json_option
@click.pass_obj
def command(
    session: Session,
    *,
    snapshot_ids: tuple[str, ...],
    dry_run: bool,
    policy: str | None,
    keep_tags: tuple[str, ...],
    host: str | None,
    last_whole: bool,
    undo: str | None,
    prune: bool,
    trash_s: float | None,
    wait_s: float,
    as_json: bool,
) -> None:
    """Forget the named snapshots or, without an ID, those that the retention policy does not keep.

    A forgotten snapshot is no longer listed. It is in the trash, and can be brought back until
    'ciuic prune' removes its data. ciuic never forgets a pinned snapshot, the newest snapshot, or
    the newest undamaged snapshot. It also keeps the newest undamaged snapshot of each set of
    directories, unless you name that snapshot and use --last-whole. If a clock was wrong, the times
    of two snapshots may not say which is newer; ciuic then refuses to forget the snapshot between
    them that does. No policy forgets a snapshot that is dated in the future: some clock is or was
    wrong.

    The policy applies to the snapshots that the daemon and 'ciuic snapshot' took on this machine,
    or on the machine that --host names. Snapshots of other machines and of the Python library stay.
    Each schedule and each set of directories is counted separately, and by its own policy if the
    configuration has a [schedule NAME]. --policy applies to all.

    'ciuic prune' refuses to run while a snapshot's manifest is missing. Naming that snapshot by its
    full ID abandons it for good.
    """
    _refuse_combinations(
        names=bool(snapshot_ids) and undo is None,
        policy=policy is not None,
        undo=undo is not None,
        host=host is not None,
        keeps_tags=bool(keep_tags),
        last_whole=last_whole,
        changes=dry_run or prune,
        lacks_prune=trash_s is not None and not prune,
    )
    if undo:
        _bring_back(session, (undo, *snapshot_ids), wait_s, as_json=as_json)
        return
    run = _Run(
        session=session,
        rule=None if snapshot_ids else _policy(session, policy),
        schedules={} if policy is not None or snapshot_ids else session.store_settings().terms,
        host=host,
        keep_tags=keep_tags,
        snapshot_ids=snapshot_ids,
        last_whole=last_whole,
        dry_run=dry_run,
        prune=prune,
        # Mistakes in the configuration show before anything is forgotten.
        trash_s=session.trash_s() if trash_s is None else trash_s,
        parity=session.parity() if prune else 0.0,
        wait_s=wait_s,
        as_json=as_json,
    )
    with (
        interruptible() if prune else contextlib.nullcontext(_never) as cancelled,
        opened(
            session,
            write=prune or not dry_run,
            adds=prune,
            removes=prune,
            wait_s=wait_s,
            cancelled=cancelled,
        ) as store,
    ):
        plan = run.forget(store)
        report = run.prune_after(store, plan, cancelled) if prune else None
    run.print(plan, report)
    sys.exit(DAMAGE if report is not None and report.damaged else 0)


def _never() -> bool:
    return False


def _refuse_combinations(
    *,
    names: bool,
    policy: bool,
    undo: bool,
    host: bool,
    keeps_tags: bool,
    last_whole: bool,
    changes: bool,
    lacks_prune: bool,
) -> None:
    """Refuse options that cannot be combined.

    ``changes`` is ``--dry-run`` or ``--prune``; ``lacks_prune`` is ``--trash`` without ``--prune``.

    Raises:
        UsageError: They cannot be combined.
    """
    if sum((names, policy, undo)) > 1:
        raise UsageError(
            "IDs, --policy and --undo cannot be combined",
            hint="Use one of them: IDs and --policy say what to forget, --undo what to bring back.",
        )
    if undo and changes:
        raise UsageError(
            "--undo cannot be combined with --dry-run or --prune", hint="Leave those out."
        )
    if host and (names or undo):
        raise UsageError(
            "--host cannot be combined with IDs or --undo",
            hint="The policy applies to the snapshots of the machine that --host names.",
        )
    if keeps_tags and (names or undo):
        raise UsageError(
            "--keep-tag cannot be combined with IDs or --undo",
            hint="It adds to what the retention policy keeps.",
        )
    if last_whole and not names:
        raise UsageError(
            "--last-whole requires the IDs of snapshots", hint="Name the snapshots to forget."
        )
    if lacks_prune:
        raise UsageError(
            "--trash requires --prune", hint="Without --prune, everything stays in the trash."
        )


class _Run(NamedTuple):
    """What one ``ciuic forget`` was asked to do.

    Attributes:
        session: Names the store.
        rule: The policy; None: forget ``snapshot_ids``.
        schedules: The policies of schedules, which ``--policy`` overrides.
        host: The machine that the policy is about; None: this one.
        keep_tags: Tags whose snapshots stay under the policy.
        snapshot_ids: The snapshots to forget by name.
        last_whole: Forget by name even the last undamaged snapshot of its directories.
        dry_run: Change nothing.
        prune: Prune afterwards.
        trash_s: How long forgotten snapshots stay in the trash.
        parity: Parity's share of each pack that the prune writes, 0 to 1.
        wait_s: How long to wait for other writers.
        as_json: Print one document instead of text.
    """

    session: Session
    rule: Policy | None
    schedules: Mapping[str, Terms]
    host: str | None
    keep_tags: tuple[str, ...]
    snapshot_ids: tuple[str, ...]
    last_whole: bool
    dry_run: bool
    prune: bool
    trash_s: float
    parity: float
    wait_s: float
    as_json: bool

    def forget(self, store: Store) -> ForgetPlan:
        """Plan, apply unless it is a dry run, and print the plan unless JSON is wanted."""
        now_ns = SystemClock().now_ns()
        if self.rule is None:
            plan = plan_forget_by_id(store, self.snapshot_ids, now_ns, last_whole=self.last_whole)
        else:
            rules = self.session.exclude_rules()
            plan = plan_forget(
                store,
                self.rule,
                now_ns,
                host=self.host,
                rules=rules,
                schedules=self.schedules,
                keep_tags=self.keep_tags,
            )
        warn_damaged(self.session, store, except_for=plan.given_up)
        tags = {tag for snapshot, _ in (*plan.kept, *plan.forgotten) for tag in snapshot.tags}
        for tag in self.keep_tags:
            if tag not in tags:  # perhaps mistyped
                click.echo(f"ciuic: no snapshot has the tag '{printable(tag)}'", err=True)
        if self.host is not None and not plan.kept and not plan.forgotten:  # the same
            what = f"no snapshot was taken on the host '{printable(self.host)}'"
            click.echo(f"ciuic: {what}{hosts_instead(self.host, plan.others)}", err=True)
        self._name_machines(store, plan)
        short = shown_ids(store)
        if not self.dry_run:
            apply_forget(store, plan, now_ns)
        if not self.as_json:
            until_s = None if self.prune and not self.trash_s else self.trash_s
            print_plan(plan, short, until_s, dry_run=self.dry_run, by_rule=self.rule is not None)
        return plan

    def _name_machines(self, store: Store, plan: ForgetPlan) -> None:
        """Say on stderr if a time means another machine's snapshot, or ``--host`` several ones."""
        found = [*(one for one, _ in (*plan.kept, *plan.forgotten)), *plan.others]
        for text in self.snapshot_ids:
            if not matching_ids(text, [one.id for one in found] + list(plan.given_up)):
                note_machine(store, text, find_snapshot(store, text))
        named = [] if self.host is None else machines_called(found, self.host)
        if len(named) > 1:
            names = listed(named, len(named))
            what = f"'{printable(self.host or '')}' is the name of {len(named)} machines: {names}"
            click.echo(f"ciuic: {printable(what)}; the policy is applied to each", err=True)

    def prune_after(
        self, store: Store, plan: ForgetPlan, cancelled: Callable[[], bool]
    ) -> PruneReport:
        """Prune; an error that stops it also says what was forgotten before."""
        try:
            return prune_store(
                store,
                cancelled,
                trash_s=self.trash_s,
                parity=self.parity,
                dry_run=self.dry_run,
                leaving=[summary.id for summary, _ in plan.forgotten] if self.dry_run else [],
                given_up=plan.given_up,
                wait_s=self.wait_s,
            )
        except CiuicError as error:
            count = len(plan.forgotten) + len(plan.given_up)
            if not count or self.dry_run:
                raise
            raise error.after(
                f"forgot {counted(count, 'snapshot')}, but the prune failed",
                hint="Then run 'ciuic prune' to do the rest.",
                done=self._document(plan),
            ) from error

    def print(self, plan: ForgetPlan, report: PruneReport | None) -> None:
        """Print the JSON document, or for a person what the prune did."""
        if self.as_json:
            pruned = {} if report is None else {"prune": report.as_json()}
            print_json(self._document(plan) | pruned)
        elif report is not None:
            print_prune_report(report)

    def _document(self, plan: ForgetPlan) -> Document:
        return {
            "dry_run": self.dry_run,
            **plan.as_json(),
            "damaged_snapshots": self.session.damaged_snapshots,
        }


def _policy(session: Session, text: str | None) -> Policy:
    if text is None:
        return parse_policy(session.retention_policy())
    try:
        return parse_policy(text)
    except ValueError as error:
        raise UsageError(
            f"--policy: {error}", hint="Nothing was forgotten; 'ciuic forget --help' has examples."
        ) from error


def _bring_back(
    session: Session, snapshot_ids: Iterable[str], wait_s: float, *, as_json: bool
) -> None:
    documents = []
    with opened(session, write=True, adds=False, wait_s=wait_s) as store:
        for snapshot_id in dict.fromkeys(snapshot_ids):
            summary = bring_back(store, snapshot_id)
            documents.append(summary.as_json())
            if not as_json:
                when = local_time_text(summary.taken_ns)
                click.echo(f"{summary.id}, taken {when}, was brought back from the trash")
    if as_json:
        print_json(documents[0] if len(documents) == 1 else documents)
