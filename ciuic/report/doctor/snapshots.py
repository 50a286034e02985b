"""Checks the manifests of snapshots, their age, their damage, their warnings and their roots."""

from collections.abc import Collection, Iterator

from ciuic.catalog import HOW_TO_TAKE, damaged_manifests, known_lost
from ciuic.model import Owner, SnapshotSummary, covers, newest_first, path_text
from ciuic.report.doctor.findings import (
    NOTE,
    NS,
    OK,
    PROBLEM,
    WARNING,
    Finding,
    Plan,
    Schedule,
    join,
)
from ciuic.store.store import Store
from ciuic.system.clock import is_future, local_time_text
from ciuic.system.machine import this_machine
from ciuic.units import counted, format_duration
from ciuic.view.damage import DamageSurvey

__all__ = ["examine_snapshots"]

_HOW_WITHOUT_CONFIGURATION = "Take one with 'ciuic --store DIR snapshot PATH'."


def examine_snapshots(
    store: Store, snapshots: list[SnapshotSummary], plan: Plan | None, now_ns: int
) -> Iterator[Finding]:
    """Check manifests and times, and the newest snapshot: damage, warnings, roots that it lacks.

    Damage is what ``latest-valid`` passes over: what shows without reading content.
    """
    for snapshot_id, what in sorted(damaged_manifests(store).items()):
        advice = (
            "Run 'ciuic repair --apply': it takes the manifest from its copy, if there is one."
            " 'ciuic repair --apply --from COPY' takes it from a copy of the store. If neither has"
            f" it, 'ciuic forget {snapshot_id}' abandons the snapshot."
        )
        yield Finding(
            PROBLEM, "snapshots", f"the manifest of {snapshot_id} is damaged: {what}", advice
        )
    for summary in snapshots:
        if summary.mark_problem:
            what = f"{summary.id} counts as pinned: {summary.mark_problem}"
            yield Finding(PROBLEM, "snapshots", what, "Run 'ciuic repair --apply'.")
    future = [summary for summary in snapshots if is_future(summary.taken_ns, now_ns)]
    yield _clock(future)
    here = Owner(this_machine(), is_library=False)
    own = [summary for summary in snapshots if summary.owner.is_same(here)]
    if not own:
        what = "there is no snapshot of this machine yet" if snapshots else "there is none yet"
        advice = HOW_TO_TAKE if plan is not None else _HOW_WITHOUT_CONFIGURATION
        yield Finding(WARNING, "snapshots", what, advice)
        return
    past = [summary for summary in own if not is_future(summary.taken_ns, now_ns)]
    newest = newest_first(own)[0]
    survey = DamageSurvey(store, known_lost(store))
    if plan is None:
        yield from _ages("", past, None, now_ns)
        yield from _state(store, newest, survey)
        return
    is_only = len(plan.schedules) == 1
    names = {schedule.name for schedule in plan.schedules}
    for schedule in plan.schedules:
        members = [summary for summary in own if _serves(summary, schedule, names)]
        if not members:
            whose = "configured directories" if is_only else f"schedule {schedule.name}"
            what = f"there is no snapshot of the {whose} yet"
            yield Finding(WARNING, "snapshots", what, HOW_TO_TAKE)
            continue
        its_past = [member for member in members if not is_future(member.taken_ns, now_ns)]
        which = "" if is_only else f"{schedule.name}: "
        yield from _ages(which, its_past, schedule, now_ns)
        its_newest = newest_first(members)[0]
        yield from _state(store, its_newest, survey)
        yield from _missing_roots(its_newest, schedule)


def _serves(summary: SnapshotSummary, schedule: Schedule, names: Collection[str]) -> bool:
    """Return whether a snapshot counts for a schedule: it belongs to it, or holds all of it.

    A snapshot of other directories, which a user took, tells nothing about the configured ones.

    Args:
        summary: The snapshot.
        schedule: The schedule.
        names: The names of all schedules. A snapshot of one that was renamed or removed counts as
            one of no schedule.
    """
    if summary.schedule in names:
        return summary.schedule == schedule.name
    return covers(summary.roots, schedule.roots)


def _missing_roots(newest: SnapshotSummary, schedule: Schedule) -> Iterator[Finding]:
    missing = [path_text(root) for root in schedule.roots if not covers(newest.roots, [root])]
    if missing:
        what = f"{newest.id} does not hold {join(missing)}"
        yield Finding(PROBLEM, "snapshots", what, "Run 'ciuic snapshot', then doctor again.")


def _clock(future: list[SnapshotSummary]) -> Finding:
    if not future:
        return Finding(OK, "clock", "no snapshot is dated in the future")
    when = local_time_text(future[0].taken_ns)
    what = f"{len(future)} dated in the future, the newest {when}: the clock is or was wrong"
    advice = (
        "Set the clock and keep it synchronized (chronyd). No policy forgets these snapshots before"
        " their time; 'ciuic forget ID' does."
    )
    return Finding(WARNING, "clock", what, advice)


def _state(store: Store, newest: SnapshotSummary, survey: DamageSurvey) -> Iterator[Finding]:
    damaged = next(survey.damage(newest.id), None)
    if damaged is not None:
        what = f"{newest.id} is damaged, first {path_text(damaged.path)}: {damaged.what}"
        advice = (
            "'ciuic repair' shows what can be repaired. Until then, restore from 'latest-valid'."
        )
        yield Finding(PROBLEM, "snapshots", what, advice)
    if newest.trouble_count:
        yield _warnings(store, newest)
    elif damaged is None:
        yield Finding(OK, "snapshots", f"{newest.id} has every path as it should be")


def _warnings(store: Store, newest: SnapshotSummary) -> Finding:
    # A log file is always open for writing, which is no reason to warn every day.
    only_being_written = newest.flux_count == newest.trouble_count
    warnings = store.manifest(newest.id).trouble
    bad = next((warning for warning in warnings if not warning.harmless), None)
    count = counted(newest.trouble_count, "path")
    what = f"{newest.id} has {count} {'in flux' if only_being_written else 'with warnings'}"
    if bad is not None:
        how = bad.what.removeprefix("in flux: ") if only_being_written else bad.what
        what += f", first {path_text(bad.path)}: {how}"
    level = NOTE if only_being_written else WARNING
    return Finding(level, "snapshots", what, f"See them all: 'ciuic show {newest.id}'.")


def _ages(
    which: str, snapshots: list[SnapshotSummary], plan: Schedule | None, now_ns: int
) -> Iterator[Finding]:
    if not snapshots:
        return
    age_s = max(0, now_ns - snapshots[0].taken_ns) / NS
    what = f"{which}the newest is {format_duration(age_s)} old"
    full = next((summary for summary in snapshots if summary.kind == "base"), None)
    full_age_s = max(0, now_ns - full.taken_ns) / NS if full is not None else None
    if full_age_s is not None:
        what += f", the newest full snapshot {format_duration(full_age_s)}"
    if plan is None:
        yield Finding(OK, "snapshots", what)
        return
    # A snapshot that is being taken is listed only when it is complete.
    if age_s > 2 * plan.interval_s + 60:
        what += f"; the configuration asks for a snapshot every {format_duration(plan.interval_s)}"
        advice = (
            "Read the daemon's log (under systemd, with 'journalctl -u ciuicd'), or run 'ciuic"
            " snapshot'."
        )
        yield Finding(PROBLEM, "snapshots", what, advice)
    else:
        yield Finding(OK, "snapshots", what)
    late_s = 2 * plan.base_interval_s + plan.interval_s
    if plan.base_interval_s and (full_age_s is None or full_age_s > late_s):
        every = format_duration(plan.base_interval_s)
        what = f"{which}the configuration asks for a full snapshot every {every}"
        yield Finding(WARNING, "snapshots", what, "Run 'ciuic snapshot --base'.")
