"""Forgets snapshots by the retention policy."""

import functools
import logging
import shlex

from ciuic.catalog import damaged_manifests
from ciuic.config.opening import open_configured
from ciuic.config.settings import Settings
from ciuic.ids import SnapshotId
from ciuic.maintain.forget import apply_forget, plan_forget
from ciuic.retention import parse_policy
from ciuic.store.place.keys import is_url
from ciuic.system.clock import Clock
from ciuic.units import counted, format_duration
from ciuicd.schedules.namesakes import snapshots_of_namesakes
from ciuicd.upkeep.damage_log import REPAIR_HINT, DamageLog, first_few
from ciuicd.upkeep.outcomes import Outcomes, refuse_other

__all__ = ["forget"]

_log = logging.getLogger(__name__)

_LOCK_WAIT_S = 2.0


def forget(
    settings: Settings,
    *,
    clock: Clock,
    outcomes: Outcomes,
    damage_log: DamageLog,
    store_id: str | None,
    copy: str,
) -> int:
    """Forget what the policy does not keep; returns how many snapshots that were.

    Args:
        settings: The daemon's configuration.
        clock: Tells the time.
        outcomes: Receives the outcome.
        damage_log: Remembers which damaged manifests were logged.
        store_id: The store to forget in; one with another ID is refused. None: any.
        copy: The name of the copy that the store is; empty: it is the configured store.

    Raises:
        CiuicError: The store failed.
    """
    plan_now = functools.partial(
        plan_forget,
        policy=parse_policy(settings.top_retention_policy),
        now_ns=clock.now_ns(),
        rules=settings.exclude_rules,
        schedules=settings.terms,
    )
    with open_configured(settings, patient=False) as store:
        plan = plan_now(store)
        left_out = damaged_manifests(store)
        own = [summary for summary, _ in (*plan.kept, *plan.forgotten)]
        foreign = snapshots_of_namesakes(store, own)
    if foreign and damage_log.is_news("namesake", foreign[0].host):
        _log.warning(
            "another machine has the name %s and the machine ID of this one, and took %s; or a"
            " daemon of this machine did that with another cache directory. Retention counts both"
            " as one machine: give one of them another host name, or both daemons one cache",
            foreign[0].host,
            foreign[0].id,
        )
    for name, what in left_out.items():
        if damage_log.is_news(name, what):
            _log.error("forget skipped %s: %s. %s", name, what, REPAIR_HINT)
    if plan.forgotten:
        # Plan again under the lock, where no other process can change the snapshots.
        # In a bucket, marks need no lock.
        write = not is_url(settings.snapshot_dir)
        with open_configured(settings, write=write, wait_s=_LOCK_WAIT_S, patient=False) as store:
            refuse_other(store, store_id)
            plan = plan_now(store)
            apply_forget(store, plan, clock.now_ns())
    forgotten = [summary.id for summary, _ in plan.forgotten]
    outcomes.note("forget", forgotten=forgotten, kept=len(plan.kept))
    if forgotten:
        _log_forgotten(settings, forgotten, copy)
    return len(forgotten)


def _log_forgotten(settings: Settings, forgotten: list[SnapshotId], copy: str) -> None:
    if copy:
        _log.info(
            "%s: forgot %s not kept by copy_retention %s: %s; for %s,"
            " 'ciuic --store %s forget --undo ID' can bring one back, and a pin there keeps it",
            copy,
            counted(len(forgotten), "snapshot"),
            settings.top_retention_policy,
            first_few(forgotten),
            format_duration(settings.trash_s),
            shlex.quote(settings.snapshot_dir),
        )
    else:
        _log.info(
            "forgot %s not kept by retention_policy %s: %s; 'ciuic forget --undo ID' can bring"
            " them back for %s",
            counted(len(forgotten), "snapshot"),
            "; ".join(dict.fromkeys(schedule.retention_policy for schedule in settings.schedules)),
            first_few(forgotten),
            format_duration(settings.trash_s),
        )
