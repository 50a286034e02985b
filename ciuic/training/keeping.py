"""Keep the newest snapshots of a channel, and remove the data of the others."""

from typing import Final

from ciuic.catalog import list_snapshots
from ciuic.ids import SnapshotId
from ciuic.maintain.prune.apply import apply_prune
from ciuic.maintain.prune.plan import plan_prune
from ciuic.model import Owner, SnapshotSummary, newest_first
from ciuic.snapshot.memory import STATE_ROOT
from ciuic.store.store import Store
from ciuic.system.clock import Clock
from ciuic.system.machine import this_machine
from ciuic.view.damage import DamageSurvey, known_lost

__all__ = ["Keeper"]

_TRASH_S: Final = 86_400.0
"""Snapshots that a user forgot by hand stay in the trash this long; a prune must not end it."""


def _of_channel(snapshots: list[SnapshotSummary], channel: str) -> list[SnapshotSummary]:
    """Return this machine's snapshots of one channel, newest first."""
    own = Owner(this_machine(), is_library=True)
    return [
        summary
        for summary in newest_first(snapshots)
        if STATE_ROOT in summary.roots and channel in summary.tags and summary.owner.is_same(own)
    ]


class Keeper:
    """Removes snapshots that exceed a channel's count.

    The data is removed by a prune, which reads the trees of the whole store. So it runs only after
    a fifth of the channel has been removed: at most that much more is on the disk.

    Args:
        clock: Gives the time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._removed_count = 0

    def keep(self, store: Store, channel: str, keep_count: int) -> None:
        """Remove all but the newest snapshots of a channel; pinned ones stay and don't count.

        Snapshots that other machines have saved to the same store stay as well.

        Nothing is removed if none of the snapshots that stay is sound.

        Raises:
            StoreError: The store failed; every listed snapshot is as it was.
        """
        found = _of_channel(list_snapshots(store), channel)
        counted = [summary for summary in found if not summary.pinned]
        kept, old = counted[:keep_count], counted[keep_count:]
        if old and self._has_sound(store, kept):
            self._remove(store, [summary.id for summary in reversed(old)])
        if self._removed_count > keep_count // 5:
            plan = plan_prune(store, trash_s=_TRASH_S, now_ns=self._clock.now_ns())
            apply_prune(store, plan, clock=self._clock)
            self._removed_count = 0

    def _remove(self, store: Store, snapshot_ids: list[SnapshotId]) -> None:
        store.trash.forget(snapshot_ids, self._clock.now_ns())
        # Not by the trash time: with a save a minute, a day of them would fill the disk.
        store.trash.empty(snapshot_ids)
        self._removed_count += len(snapshot_ids)

    @staticmethod
    def _has_sound(store: Store, kept: list[SnapshotSummary]) -> bool:
        survey = DamageSurvey(store, known_lost(store))
        return any(survey.is_sound(summary.id) for summary in kept)
