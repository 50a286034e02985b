"""Scrubs up to ``scrub_budget`` a day, and logs the damage that it finds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ciuic.config.opening import open_configured
from ciuic.config.settings import Settings
from ciuic.errors import StoreError
from ciuic.maintain.scrub.budget import Budget
from ciuic.maintain.scrub.pack_health import read_since_s
from ciuic.maintain.scrub.scrub import scrub
from ciuic.system.clock import Clock
from ciuicd.upkeep.damage_log import DamageLog, subject_of
from ciuicd.upkeep.outcomes import Outcomes, refuse_other

__all__ = ["Scrubbing"]

_DAY_NS: Final = 86_400 * 1_000_000_000
_NO_DAY: Final = -1
_REST_S: Final = 7 * 86_400.0
"""How long a pack that was read is not read again."""


@dataclass(slots=True)
class _Day:
    """What scrub did on a day.

    Attributes:
        number: Days since 1970-01-01 UTC.
        spent_s: Time that scrub ran.
        has_read_manifests: Scrub read every manifest.
    """

    number: int
    spent_s: float = 0.0
    has_read_manifests: bool = False


class Scrubbing:
    """Scrubs within the budget of the day.

    Args:
        clock: Tells the time.
        outcomes: Receives the outcome.
        damage_log: Logs damage.
        store_id: The store to scrub; one with another ID is refused. None: any.
    """

    def __init__(
        self, clock: Clock, outcomes: Outcomes, damage_log: DamageLog, store_id: str | None
    ) -> None:
        self._clock = clock
        self._outcomes = outcomes
        self._damage_log = damage_log
        self._store_id = store_id
        self._day = _Day(_NO_DAY)

    @property
    def spent_s(self) -> float:
        """The time that scrub ran today."""
        return self._day.spent_s

    def is_due(self, settings: Settings) -> bool:
        """Return whether the day has budget left, or affected files are still to be found.

        Raises:
            CiuicError: The store failed.
        """
        has_budget = self._left_today_s(settings) > 0
        self._damage_log.recall(settings)
        return has_budget or bool(self._damage_log.pending)

    def run(self, settings: Settings, should_stop: Callable[[], bool]) -> None:
        """Scrub, and then search for the files that found damage affects.

        Raises:
            CancelledError: ``should_stop`` turned true.
            CiuicError: The store failed.
        """
        # First: the search for affected files could leave no time to find further damage.
        left_s = self._left_today_s(settings)
        if left_s > 0:
            self._scrub(settings, left_s, should_stop)
        self._damage_log.log_pending(settings, should_stop)

    def _left_today_s(self, settings: Settings) -> float:
        if not settings.scrub_budget_s:
            return 0.0
        today = self._clock.now_ns() // _DAY_NS
        if self._day.number != today:
            # The store has a record of what an earlier daemon read today.
            with open_configured(settings, patient=False) as store:
                refuse_other(store, self._store_id)
                self._day = _Day(today, read_since_s(store, today * _DAY_NS))
        return settings.scrub_budget_s - self._day.spent_s

    def _scrub(self, settings: Settings, left_s: float, should_stop: Callable[[], bool]) -> None:
        began_s = self._clock.monotonic_s()
        try:
            subject = subject_of(settings)
            if self._store_id not in {None, subject.store_id}:
                # Of a bucket, the daemon's hold is on this machine, and stays.
                raise StoreError(
                    f"a different store is now at {settings.snapshot_dir}",
                    hint="Restart ciuicd, if it is to serve that store.",
                )
            report = scrub(
                subject,
                clock=self._clock,
                budget=Budget(duration_s=left_s),
                rest_s=_REST_S,
                manifests=not self._day.has_read_manifests,
                cancelled=should_stop,
                found=self._damage_log.log_pack,
            )
        finally:
            # A failed scrub counts too: it is tried again, and the day has one budget.
            self._day.spent_s += self._clock.monotonic_s() - began_s
        self._day.has_read_manifests = True
        if report.read_packs or not report.ok or "scrub" not in self._outcomes:
            self._outcomes.note(
                "scrub", packs=report.read_packs, bytes=report.read_bytes, ok=report.ok
            )
        self._damage_log.log_report(report)
