"""How fast a store grows, and when its disk is full."""

from collections.abc import Sequence
from typing import Final

from ciuic.model import SnapshotSummary

__all__ = ["SOON_S", "full_in_s"]

SOON_S: Final = 7 * 86_400.0
"""A disk that is full within this time needs a person."""
_NS: Final = 1e9
_DAY_S: Final = 86_400.0
_GROWTH_DAYS: Final = 7.0


def full_in_s(
    snapshots: Sequence[SnapshotSummary], available_bytes: int, now_ns: int
) -> float | None:
    """Return in how many seconds the store's disk is full if it grows as in the last week.

    Nothing that is removed counts, so this is the earliest time. None: no growth is known. The
    first snapshot of all is left out: it stored what had gathered before.

    Args:
        snapshots: All of the store.
        available_bytes: The free space.
        now_ns: The time.
    """
    taken = sorted(snapshots, key=lambda one: one.taken_ns)[1:]
    now_s = now_ns / _NS
    recent = [one for one in taken if now_s - _GROWTH_DAYS * _DAY_S <= one.taken_ns / _NS <= now_s]
    added_bytes = sum(snapshot.stored_bytes for snapshot in recent)
    if not added_bytes:
        return None
    # A day at least, so that one hour does not speak for a year.
    lasted_s = max(now_s - recent[0].taken_ns / _NS, _DAY_S)
    return available_bytes / (added_bytes / lasted_s)
