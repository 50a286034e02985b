"""When a snapshot is due. Arithmetic only: no clock, no thread, no sleep.

Time is cut into slots of one interval each, counted from 1970-01-01 UTC, and a slot is served by
the first snapshot of the configured roots that begins in it, whoever took it. So restarts of the
daemon shift nothing, a machine that slept through twenty slots takes one snapshot and not twenty,
and a snapshot that takes longer than its slot makes snapshots rarer, never two at a time.

A moment that lies after now was noted before the clock was set back: it says nothing about the
present and is passed over. Otherwise a clock that was wrong by a year, once, would stop the
snapshots for a year.
"""

from collections.abc import Iterable

__all__ = ["covers", "is_due", "next_due_ns"]


def is_due(now_ns: int, interval_ns: int, past_ns: Iterable[int]) -> bool:
    """Whether the slot of ``now_ns`` still has to be served.

    Args:
        now_ns: Wall clock.
        interval_ns: Length of a slot.
        past_ns: When earlier snapshots began, and when the last attempt ended, in any order.
    """
    served = max((moment for moment in past_ns if moment <= now_ns), default=None)
    return served is None or served // interval_ns < now_ns // interval_ns


def next_due_ns(now_ns: int, interval_ns: int, past_ns: Iterable[int]) -> int:
    """The moment from which a snapshot is due: ``now_ns`` itself if one is due already."""
    if is_due(now_ns, interval_ns, past_ns):
        return now_ns
    return (now_ns // interval_ns + 1) * interval_ns


def covers(roots: Iterable[bytes], wanted: Iterable[bytes]) -> bool:
    """Whether a snapshot of ``roots`` is one of ``wanted`` too; all are absolute and normalised.

    A snapshot that somebody took of another directory must not make the daemon skip its own.
    """
    taken = [root.rstrip(b"/") + b"/" for root in roots]
    return all(any((path + b"/").startswith(root) for root in taken) for path in wanted)
