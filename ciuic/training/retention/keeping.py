"""Keep the newest snapshots of a channel, and remove the data of the others."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from ciuic.catalog import known_lost, list_snapshots
from ciuic.errors import BusyError, CiuicError, CorruptionError, UnknownFormatError
from ciuic.ids import SnapshotId
from ciuic.maintain.prune.apply import apply_prune
from ciuic.maintain.prune.plan import plan_prune
from ciuic.model import SnapshotSummary, complete_ones, newest_first
from ciuic.store.store import Store
from ciuic.system.clock import Clock
from ciuic.training.retention.planning import (
    RetentionPlan,
    Rules,
    of_channel,
    plan_retention,
)
from ciuic.training.retention.replacing import commit_weights
from ciuic.view.damage import DamageSurvey

__all__ = ["Keeper"]

_TRASH_S: Final = 86_400.0
"""Snapshots that a user forgot stay in the trash this long: a prune here spares them."""
_WAIT_S: Final = 2.0
"""How long another session waits for a writer of this machine: the next save tries again."""


class Keeper:
    """Removes snapshots that exceed a channel's count, and optimizers that exceed theirs.

    A prune removes the data. It reads the trees of the whole store, so the keeper prunes only after
    it has removed more than a fifth of the channel: at most that much more is on the disk.

    In a bucket, the keeper forgets snapshots, and their data stays.

    Args:
        clock: Gives the time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._removed_count = 0

    def overdue(
        self, store: Store, channel: str, rules: Rules, run: str | None = None
    ) -> int | None:
        """Return how many snapshots exceed a channel's count; None: ``keep`` has nothing to do.

        Incomplete ones are not counted: their data is in the complete ones as well.
        """
        snapshots = newest_first(list_snapshots(store))
        begun = of_channel(snapshots, channel, run, is_complete=False)
        plan = self._plan(snapshots, channel, rules, run)
        count = len(plan.reduced) + len(plan.removed)
        return count if count or any(not one.pinned for one in begun) else None

    def keep(
        self,
        store: Store,
        channel: str,
        rules: Rules,
        run: str | None = None,
        *,
        begin_next: Callable[[float], Store] | None = None,
    ) -> None:
        """Remove old snapshots of a channel; pinned ones stay and don't count.

        The incomplete ones of the channel go, because a complete one was just committed.

        Snapshots that other machines or runs have saved to the same store stay as well. If a full
        state keeps only its weights, the new snapshot is durable before the full one goes. A full
        state that is known to be damaged stays as it is, and so does one that cannot be read.

        If all snapshots that the plan keeps are damaged, no complete one is removed or reduced.

        If another writer of this machine takes the store between two commits, what is not reduced
        by then is left to the next save.

        Args:
            store: The store, open for writing.
            channel: The channel.
            rules: What stays of it.
            run: The run that saved them; None: the one without a name.
            begin_next: Returns the store for another commit, as ``Sessions.begin_next`` does, and
                may close the one before. None: all commits are in ``store``.

        Raises:
            CorruptionError: A full state could not be read, and stays complete. The others were
                removed or reduced.
            UnknownFormatError: A later version of ciuic wrote it; the same holds.
            StoreError: The store failed; every listed snapshot is as it was.
        """
        snapshots = newest_first(list_snapshots(store))
        begun = of_channel(snapshots, channel, run, is_complete=False)
        found = of_channel(snapshots, channel, run)
        self._remove_begun(store, begun, found[0].taken_ns if found else 0)
        plan = self._plan(snapshots, channel, rules, run)

        def open_for(full: SnapshotSummary) -> tuple[Store, SnapshotSummary | None]:
            if begin_next is None:
                return store, full
            opened = begin_next(_WAIT_S)
            # Another process may have reduced, pinned or tagged it between the two sessions.
            now = self._plan(newest_first(list_snapshots(opened)), channel, rules, run)
            return opened, next((one for one in now.reduced if one.id == full.id), None)

        failure = None
        if plan.reduced or plan.removed:
            failure = self._carry_out(store, plan, open_for)
        if store.bucket is None and self._removed_count > rules.keep_count // 5:
            self._prune(store)
        if failure is not None:
            raise failure

    def make_room(self, store: Store, channel: str, rules: Rules, run: str | None = None) -> bool:
        """Free as much of a full disk as possible, for one more snapshot of a channel.

        Removes the oldest snapshot now if the next save would exceed the count. The last undamaged
        snapshot always stays. No full state is reduced, because that needs space first.

        Returns:
            Whether data of a snapshot was removed.

        Raises:
            StoreError: The store failed; every listed snapshot is as it was.
        """
        if store.bucket is not None:
            return False
        fewer = Rules(max(1, rules.keep_count - 1), rules.policies)
        snapshots = newest_first(list_snapshots(store))
        found = of_channel(snapshots, channel, run)
        begun = of_channel(snapshots, channel, run, is_complete=False)
        # The durable layers of the newest save stay: no more of that save may ever be durable.
        self._remove_begun(store, begun, begun[0].taken_ns if begun else 0, but_last=True)
        plan = plan_retention(found, fewer, self._clock.now_ns(), complete_ones(snapshots))
        if plan.removed:
            self._carry_out(store, plan, lambda full: (store, full))
        has_removed = self._removed_count > 0
        # Prune in any case: the save that found the disk full has left packs that nothing needs.
        self._prune(store)
        return has_removed

    def _remove_begun(
        self,
        store: Store,
        begun: Iterable[SnapshotSummary],
        last_ns: int,
        *,
        but_last: bool = False,
    ) -> None:
        """Remove incomplete snapshots; with ``but_last``, those taken at ``last_ns`` stay."""
        wanted = [
            one for one in begun if not one.pinned and not (but_last and one.taken_ns == last_ns)
        ]
        if wanted:
            self._remove(store, [one.id for one in wanted])
            # The complete snapshot of a save needs what its incomplete ones have.
            self._removed_count -= sum(one.taken_ns == last_ns for one in wanted)

    def _plan(
        self, snapshots: Sequence[SnapshotSummary], channel: str, rules: Rules, run: str | None
    ) -> RetentionPlan:
        """Decide what becomes of a channel, by all snapshots of the store, newest first."""
        found = of_channel(snapshots, channel, run)
        return plan_retention(found, rules, self._clock.now_ns(), complete_ones(snapshots))

    def _carry_out(
        self,
        store: Store,
        plan: RetentionPlan,
        open_for: Callable[[SnapshotSummary], tuple[Store, SnapshotSummary | None]],
    ) -> CiuicError | None:
        """Carry out a plan; returns why a full state could not be reduced.

        Args:
            store: The store, until ``open_for`` is called.
            plan: The plan.
            open_for: Returns the store for the commit that reduces a full state, and from then on;
                and that state as it is by now. None: it must stay so.
        """
        survey = DamageSurvey(store, known_lost(store))
        if not any(survey.is_sound(summary.id) for summary in plan.kept):
            return None
        wanted = [full for full in reversed(plan.reduced) if survey.is_sound(full.id)]
        # Before any other session is opened: that may fail.
        if plan.removed:
            self._remove(store, [summary.id for summary in reversed(plan.removed)])
        failure = None
        for planned in wanted:
            try:
                store, full = open_for(planned)
            except BusyError:
                break
            if full is None:
                continue
            try:
                commit_weights(store, full, self._clock)
            except (CorruptionError, UnknownFormatError) as error:
                failure = error  # the others must not stay for it: they would fill the disk
                continue
            self._remove(store, [full.id])
        return failure

    def _prune(self, store: Store) -> None:
        plan = plan_prune(store, trash_s=_TRASH_S, now_ns=self._clock.now_ns())
        apply_prune(store, plan, clock=self._clock)
        self._removed_count = 0

    def _remove(self, store: Store, snapshot_ids: list[SnapshotId]) -> None:
        store.trash.forget(snapshot_ids, self._clock.now_ns())
        if store.bucket is not None:
            return
        # Without the trash time: with a save a minute, a day of snapshots would fill the disk.
        store.trash.empty(snapshot_ids)
        self._removed_count += len(snapshot_ids)
