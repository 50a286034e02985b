"""Prunes once a day, or when many snapshots expire; at last even if snapshots interrupt every plan.

Each prune plans from scratch. After three interrupted plans in a row, the next one runs to its end
and delays one snapshot; otherwise no prune would ever finish.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ciuic.catalog import all_snapshots
from ciuic.config.opening import open_configured
from ciuic.config.settings import Settings
from ciuic.maintain.prune.apply import apply_prune
from ciuic.maintain.prune.plan import plan_prune
from ciuic.maintain.prune.report import PruneReport
from ciuic.store.gc.merge import SMALL_PACK_BYTES
from ciuic.store.place.keys import is_url
from ciuic.store.store import Store
from ciuic.system.clock import Clock
from ciuic.system.free_space import PRUNE_RESERVE, is_short_of_space
from ciuic.units import counted, format_duration, freed_in_words
from ciuicd.upkeep.damage_log import first_few
from ciuicd.upkeep.outcomes import Outcomes, refuse_other

__all__ = ["Pruning", "PruningState"]

_log = logging.getLogger(__name__)

_NS: Final = 1_000_000_000
_DAY_NS: Final = 86_400 * _NS
_SMALL_PACKS_MAX: Final = 64
"""With this many small packs a prune merges them, even if nothing was forgotten."""
_EXPIRED_MANY: Final = 500
"""With this many expired snapshots a prune runs again on the same day: until then, each list of the
store reads their manifests too, 2 KB of the daemon's memory for each."""
_INTERRUPTIONS_MAX: Final = 3
"""After this many interrupted plans in a row, a prune plans to the end."""


@dataclass(slots=True)
class PruningState:
    """What a prune leaves for the next one.

    Attributes:
        pruned_ns: When the last prune began; None: a prune is due.
        interruptions: How many plans of a prune were interrupted in a row.
        forgotten: How many snapshots were forgotten since it began, or since the last look at them.
    """

    pruned_ns: int | None = None
    interruptions: int = 0
    forgotten: int = 0


class Pruning:
    """Decides when to prune, and does it.

    Args:
        clock: Tells the time.
        outcomes: Receives the outcome.
        store_id: The store to prune; one with another ID is refused. None: any.

    Attributes:
        state: What the last prune left. A caller that prunes in a child process takes it over.
    """

    def __init__(self, clock: Clock, outcomes: Outcomes, store_id: str | None) -> None:
        self._clock = clock
        self._outcomes = outcomes
        self._store_id = store_id
        self.state = PruningState()

    def is_due(self, settings: Settings) -> bool:
        """Return whether a prune has something to remove or merge, and none ran in the last day.

        If space is short, or many snapshots have expired, it may run again sooner.

        Raises:
            CiuicError: The store failed.
        """
        now_ns = self._clock.now_ns()
        limit_ns = now_ns - round(settings.trash_s * _NS)
        is_recent = (
            self.state.pruned_ns is not None and 0 <= now_ns - self.state.pruned_ns < _DAY_NS
        )
        if is_recent and (
            is_url(settings.snapshot_dir)
            or not is_short_of_space(settings.snapshot_dir, PRUNE_RESERVE)
        ):
            return not is_url(settings.snapshot_dir) and self._is_crowded(settings, limit_ns)
        with open_configured(settings, patient=False) as store:
            # An interrupted prune emptied the trash, and did not remove all its packs.
            if store.prune_mark.is_set:
                return True
            if store.bucket is not None:
                from ciuic.maintain.prune.bucket.prune import is_unfinished

                if is_unfinished(store):
                    return True
            if any(entry.forgotten_ns <= limit_ns for entry in store.trash.read()):
                return True
            sizes = store.pack_files().values()
            return sum([size < SMALL_PACK_BYTES for size in sizes]) >= _SMALL_PACKS_MAX

    def _is_crowded(self, settings: Settings, limit_ns: int) -> bool:
        """Return whether many of the snapshots that were forgotten since the last prune expired."""
        if self.state.forgotten < _EXPIRED_MANY:
            return False
        self.state.forgotten = 0  # each look takes as long as a list of all snapshots
        with open_configured(settings) as store:
            times_ns = [one.forgotten_ns for one in all_snapshots(store)]
        expired = sum(one is not None and one <= limit_ns for one in times_ns)
        return expired >= _EXPIRED_MANY

    def note_forgotten(self, count: int) -> None:
        """Count snapshots that were forgotten now."""
        self.state.forgotten += count

    def begin(self) -> None:
        """Count the day's prune as done, even if it fails."""
        self.state.pruned_ns = self._clock.now_ns()
        self.state.forgotten = 0

    def postpone(self) -> None:
        """Make a prune due again."""
        self.state.pruned_ns = None

    def note_interruption(self) -> None:
        """Count an interrupted prune."""
        self.state.interruptions += 1

    def note_failure(self) -> None:
        """Count interruptions from 0 again: the prune failed by itself."""
        self.state.interruptions = 0

    def run(
        self, settings: Settings, should_stop: Callable[[], bool], is_ending: Callable[[], bool]
    ) -> None:
        """Prune.

        Raises:
            CancelledError: ``should_stop`` turned true, or ``is_ending``.
            CiuicError: The store failed.
        """
        if not self._may_stop:
            _log.info(
                "prune was interrupted %d times; it now plans to the end", self.state.interruptions
            )
        with open_configured(settings, write=True, removes=True) as store:
            refuse_other(store, self._store_id)
            if store.bucket is None:
                report = self._prune_directory(settings, store, should_stop, is_ending)
            else:
                # Imported here because the clients of object stores are heavy.
                from ciuic.maintain.prune.bucket.prune import prune_bucket

                report = prune_bucket(
                    store,
                    trash_s=settings.trash_s,
                    now_ns=self._clock.now_ns(),
                    clock=self._clock,
                    cancelled=should_stop if self._may_stop else is_ending,
                )
                self.state.interruptions = 0
        self._outcomes.note("prune", **report.as_json())
        _log_report(report)
        if report.waiting_for:
            self.postpone()

    @property
    def _may_stop(self) -> bool:
        return self.state.interruptions < _INTERRUPTIONS_MAX

    def _prune_directory(
        self,
        settings: Settings,
        store: Store,
        should_stop: Callable[[], bool],
        is_ending: Callable[[], bool],
    ) -> PruneReport:
        may_stop = self._may_stop
        began_s = self._clock.monotonic_s()
        plan = plan_prune(
            store,
            trash_s=settings.trash_s,
            now_ns=self._clock.now_ns(),
            cancelled=should_stop if may_stop else is_ending,
        )
        self.state.interruptions = 0
        until_s = planned_s = self._clock.monotonic_s()
        if not may_stop:
            # A snapshot waited for this plan: use it for as long as planning took.
            until_s += planned_s - began_s

        def must_stop() -> bool:
            return is_ending() or (should_stop() and self._clock.monotonic_s() >= until_s)

        return apply_prune(
            store, plan, parity=settings.parity, clock=self._clock, cancelled=must_stop
        )


def _log_report(report: PruneReport) -> None:
    _log.info(
        "pruned: %s removed for good, %s, %s removed, %s rewritten, %s",
        counted(len(report.expired), "snapshot"),
        freed_in_words(report.freed_bytes),
        counted(report.removed.packs, "pack"),
        report.rewritten.packs,
        format_duration(report.total_s),
    )
    if report.waiting_for:
        own = report.condemned.packs
        _log.info(
            "%s can be removed when these sessions have ended: %s",
            counted(own, "more pack") if own else "packs of earlier prunes",
            first_few(list(report.waiting_for)),
        )
        # Imported here because most stores are directories.
        from ciuic.store.place.sessions.leases import hint_about

        for hint in filter(None, map(hint_about, report.waiting_for)):
            _log.warning("%s", hint)
