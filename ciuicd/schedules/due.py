"""When a snapshot is due. Arithmetic only: no clock, no thread, no sleep.

Time is divided into slots of one interval each, counted from 1970-01-01 UTC. The first snapshot of
the configured roots that begins in a slot serves it, even if a user took it. So a restart of the
daemon shifts nothing, a machine that slept through twenty slots takes one snapshot, and a snapshot
that takes longer than its slot delays the next one instead of running beside it.

A moment later than now was recorded before the clock was set back, and is ignored. Otherwise a
clock that was once wrong by a year would stop the snapshots for a year.
"""

from collections.abc import Iterable

__all__ = ["is_due", "next_due_ns"]


def is_due(now_ns: int, interval_ns: int, past_ns: Iterable[int]) -> bool:
    """Return whether the slot of ``now_ns`` still needs a snapshot.

    Args:
        now_ns: The wall clock.
        interval_ns: Length of a slot.
        past_ns: When earlier snapshots began, and when the last attempt ended, in any order.
    """
    served = max((moment for moment in past_ns if moment <= now_ns), default=None)
    return served is None or served // interval_ns < now_ns // interval_ns


def next_due_ns(now_ns: int, interval_ns: int, past_ns: Iterable[int]) -> int:
    """Return when the next snapshot is due: ``now_ns`` itself if it is due already."""
    if is_due(now_ns, interval_ns, past_ns):
        return now_ns
    return (now_ns // interval_ns + 1) * interval_ns
