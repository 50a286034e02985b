"""``snapshot_interval = auto``: the interval for which snapshots and failures together cost least.

A snapshot that takes C seconds, every T seconds, costs the share C / T of the time. A failure loses
T / 2 on average, so failures every M seconds cost the share T / 2M. The sum is least for T =
sqrt(2 C M) (Young 1974, Daly 2006). C is measured, without waits for other programs: it is an upper
bound, since the training goes on meanwhile. M comes from the emergency snapshots in the store, and
one failure more, so that a training that never failed has an M of all the time that was observed.

What changes fast fills the store: the interval is so long that the snapshots which the retention
policy keeps by age need at most half of the free space.

Nothing here opens a store or asks for the time.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Final, NamedTuple

from ciuic.units import counted, format_bytes, format_duration

__all__ = ["Choice", "Facts", "at_first", "choose"]

_RUNGS_S: Final = tuple(
    60.0 * minutes
    for minutes in (1, 2, 3, 5, 10, 15, 20, 30, 60, 120, 180, 240, 360, 480, 720, 1440)
)
"""Intervals that divide a day: slots begin at the same times every day."""
_FIRST_S: Final = 3600.0
_STAY: Final = 1.6
"""An interval that is wrong by less stays: the slots shift with each change."""
_SPACE_SHARE: Final = 0.5
_COST_S_MIN: Final = 0.05
_OBSERVED_S_MIN: Final = 86_400.0
"""An hour without a failure says little about the next one."""


class Choice(NamedTuple):
    """An interval, and a clause that says why."""

    interval_s: float
    why: str


class Facts(NamedTuple):
    """What was measured.

    Attributes:
        costs_s: How long each of the last incremental snapshots worked; not empty.
        stored_bytes: What each of them added to the store.
        failures: How many emergency snapshots were taken in ``observed_s``.
        observed_s: The time from the oldest snapshot to now.
        kept_s: How long the retention policy keeps every snapshot; None: it counts them.
        free_bytes: Free space of the store's disk.
    """

    costs_s: Sequence[float]
    stored_bytes: Sequence[int]
    failures: int
    observed_s: float
    kept_s: float | None
    free_bytes: int


def at_first(bounds_s: tuple[float, float]) -> Choice:
    """Return the interval while nothing is measured."""
    return Choice(_nearest(_FIRST_S, bounds_s), "no incremental snapshot was measured yet")


def choose(facts: Facts, bounds_s: tuple[float, float], present_s: float) -> Choice:
    """Return the interval that costs least, within the bounds.

    Args:
        facts: What was measured.
        bounds_s: The shortest and the longest interval.
        present_s: The interval of now, which stays if it is about right.
    """
    cost_s = max(statistics.median(facts.costs_s), _COST_S_MIN)
    between_s = max(facts.observed_s, _OBSERVED_S_MIN) / (facts.failures + 1)
    wanted_s = math.sqrt(2 * cost_s * between_s)
    why = (
        f"a snapshot takes {format_duration(cost_s)}, and there"
        f" {'was' if facts.failures == 1 else 'were'} {counted(facts.failures, 'failure')} in"
        f" {format_duration(facts.observed_s)}"
    )
    room_bytes = facts.free_bytes * _SPACE_SHARE
    each_bytes = statistics.median(facts.stored_bytes)
    if facts.kept_s is not None and room_bytes > 0:
        needed_s = each_bytes * facts.kept_s / room_bytes
        if needed_s > wanted_s:
            wanted_s = needed_s
            why = (
                f"a snapshot adds {format_bytes(round(each_bytes))}, which stays for"
                f" {format_duration(facts.kept_s)}, and {format_bytes(facts.free_bytes)} are free"
            )
    is_allowed = bounds_s[0] <= present_s <= bounds_s[1]
    is_about_right = present_s / _STAY <= wanted_s <= present_s * _STAY
    is_beyond = wanted_s != min(max(wanted_s, bounds_s[0]), bounds_s[1])
    if is_allowed and is_about_right and not is_beyond:
        return Choice(present_s, why)
    if is_beyond:
        which = "minimum" if wanted_s < bounds_s[0] else "maximum"
        why += f"; {format_duration(wanted_s)} is beyond the {which}"
    return Choice(_nearest(wanted_s, bounds_s), why)


def _nearest(wanted_s: float, bounds_s: tuple[float, float]) -> float:
    low_s, high_s = bounds_s
    allowed = {low_s, high_s, *(rung for rung in _RUNGS_S if low_s <= rung <= high_s)}
    wanted_s = min(max(wanted_s, low_s), high_s)
    return min(sorted(allowed), key=lambda one: abs(math.log(one / wanted_s)))
