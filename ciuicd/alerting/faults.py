"""What is wrong with the snapshots of a configuration, as the store and the machine show it."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from ciuic.catalog import list_snapshots
from ciuic.config.opening import configured_control_directory, open_configured
from ciuic.config.settings import Settings
from ciuic.control import Document, request_status
from ciuic.copy.record import standings
from ciuic.drill.drill import last_drill, practiced_ns
from ciuic.errors import CiuicError
from ciuic.maintain.scrub.pack_health import health
from ciuic.report.growth import SOON_S, full_in_s
from ciuic.store.store import Store
from ciuic.system.clock import Clock, from_local_text
from ciuic.system.free_space import SNAPSHOT_RESERVE, free_space
from ciuic.units import format_bytes, format_duration
from ciuicd.taking import newest_taken_ns

__all__ = ["Fault", "find_faults"]

_NS: Final = 1e9
_LATE: Final = 2.0
"""After this many intervals without success, something is wrong."""
_GRACE_S: Final = 900.0
_UPGRADE_S: Final = 60.0
"""An upgrade under way takes less: it replaces one file after the other."""
_SNAPSHOT: Final = "snapshot"


@dataclass(frozen=True, slots=True)
class Fault:
    """Something wrong that a person must learn of.

    Attributes:
        key: The same as long as the fault lasts: store, daemon, snapshot, damage, drill, space, or
            "copy NAME". With several schedules, "snapshot NAME".
        severity: How urgent it is.
        text: A sentence without a period.
    """

    key: str
    severity: Literal["warning", "critical"]
    text: str


def find_faults(settings: Settings, clock: Clock) -> Iterator[Fault]:
    """Yield every fault, at most one of each key."""
    try:
        with open_configured(settings) as store:
            yield from _of_store(store, settings, clock)
    except CiuicError as error:
        yield Fault("store", "critical", error.message)
    except OSError as error:
        what = f"the store {settings.snapshot_dir} cannot be read: {os.strerror(error.errno or 0)}"
        yield Fault("store", "critical", what)


def _of_store(store: Store, settings: Settings, clock: Clock) -> Iterator[Fault]:
    now_s = clock.now_ns() / _NS
    yield from _of_daemon(settings, now_s)
    for schedule in settings.schedules:
        key = f"{_SNAPSHOT} {schedule.schedule}" if settings.others else _SNAPSHOT
        yield from _of_snapshots(key, schedule, newest_taken_ns(schedule, clock), now_s)
    every_s = max(schedule.snapshot_interval_s for schedule in settings.schedules)
    for copy in standings(store, settings.copy_addresses, clock.now_ns()):
        if copy.late_s > _LATE * every_s + _GRACE_S:
            what = f"the copy {copy.name} {copy.sentence()}; 'ciuic doctor' says what helps"
            yield Fault(f"copy {copy.name}", "warning", what)
    found = health(store, is_asked=False)
    if found.is_damaged:
        what = f"the store {store.name} has damage: {found.damage}; 'ciuic repair' shows what helps"
        yield Fault("damage", "critical", what)
    if settings.drill_interval_s:
        yield from _of_drills(store, _LATE * settings.drill_interval_s, now_s)
    if store.bucket is not None:
        return
    space = free_space(store.path)
    if space.is_below(SNAPSHOT_RESERVE):
        free = format_bytes(space.available_bytes)
        yield Fault("space", "warning", f"the disk of the store {store.path} has only {free} free")
        return
    left_s = full_in_s(list_snapshots(store), space.available_bytes, clock.now_ns())
    if left_s is not None and left_s < SOON_S:
        what = f"the disk of the store {store.path} is full in {format_duration(left_s)}"
        yield Fault("space", "warning", f"{what}, if the store grows as in the last week")


def _of_snapshots(
    key: str, settings: Settings, newest_ns: int | None, now_s: float
) -> Iterator[Fault]:
    limit_s = _LATE * settings.snapshot_interval_s + _GRACE_S
    if newest_ns is not None and now_s - newest_ns / _NS <= limit_s:
        return
    roots = ", ".join(settings.snapshot_paths)
    which = f" by the schedule {settings.schedule}" if key != _SNAPSHOT else ""
    if newest_ns is None:
        if not _is_taking(settings):
            yield Fault(key, "critical", f"there is no snapshot of {roots}{which}")
        return
    age = format_duration(now_s - newest_ns / _NS)
    every = format_duration(settings.snapshot_interval_s)
    what = f"the newest snapshot of {roots}{which} is {age} old; one is due every {every}"
    yield Fault(key, "critical", what)


def _of_daemon(settings: Settings, now_s: float) -> Iterator[Fault]:
    """Look whether the daemon can take no snapshots, because it cannot start again."""
    blocked = _status(settings).get("blocked")
    if not isinstance(blocked, dict):
        return
    since_ns = from_local_text(str(blocked.get("time")))
    if since_ns is not None and now_s - since_ns / _NS >= _UPGRADE_S:
        what = f"{blocked.get('message')}; 'ciuic doctor' says what helps"
        yield Fault("daemon", "critical", what)


def _is_taking(settings: Settings) -> bool:
    """Return whether the daemon takes a snapshot, and makes progress: the first may take hours."""
    status = _status(settings)
    return status.get("stalled_s") is None and status.get("state") == "taking"


def _status(settings: Settings) -> Document:
    """Return the daemon's status; empty if there is none."""
    try:
        control = configured_control_directory(settings)
        return (None if control is None else request_status(control)) or {}
    except CiuicError:
        return {}


def _of_drills(store: Store, limit_s: float, now_s: float) -> Iterator[Fault]:
    last = last_drill(store)
    if last is not None and last.outcome:
        what = f"the last drill failed: {last.outcome} in {last.snapshot}"
        yield Fault("drill", "critical", what)
        return
    since_ns = practiced_ns(store)
    if since_ns is not None and now_s - since_ns / _NS > limit_s:
        age = format_duration(now_s - since_ns / _NS)
        what = f"no drill in {age}, so nothing shows that a restore works; run 'ciuic drill'"
        yield Fault("drill", "warning", what)
