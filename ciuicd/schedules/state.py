"""What the daemon knows of one schedule: when it is due, and how its last attempt went."""

import logging
import os
from collections import deque
from collections.abc import Callable
from typing import Final

from ciuic.catalog import list_snapshots
from ciuic.config.opening import open_configured
from ciuic.config.settings import Settings
from ciuic.control import Document
from ciuic.errors import CiuicError
from ciuic.model import EMERGENCY_TAG, Owner
from ciuic.retention import parse_policy
from ciuic.snapshot.report import TakeReport
from ciuic.system.clock import Clock, rfc3339
from ciuic.system.free_space import free_space
from ciuic.system.machine import this_machine
from ciuic.units import format_duration
from ciuicd.followup import FollowUps
from ciuicd.schedules.automatic import Choice, Facts, at_first, choose
from ciuicd.schedules.due import is_due, next_due_ns

__all__ = ["RETRY_S", "ScheduleState", "encoded_roots", "error_fields"]

_log = logging.getLogger(__name__)

_NS: Final = 1_000_000_000
_MEASURED: Final = 5
"""How many of the last incremental snapshots show what one costs."""
_OBSERVED_NS: Final = 30 * 86_400 * _NS
"""Failures before this time no longer count."""
RETRY_S: Final = 60.0
"""An attempt that has found the store in use is repeated after this time."""
_PAUSE_S_MIN: Final = 1.0
"""Requests come before the snapshot that is repeated."""


class ScheduleState:
    """The state of one schedule. The main thread changes it; other threads may read it.

    Args:
        settings: What the schedule describes.
        clock: Tells the time.
        wake: See ``FollowUps``.

    Attributes:
        newest_ns: When the newest snapshot that serves the schedule began, if there is one.
        last_error: Of the last attempt, if it failed: kind, message, hint and time.
        follow_ups: The wait for files that its last snapshot found being written.
    """

    def __init__(self, settings: Settings, clock: Clock, wake: Callable[[], None]) -> None:
        self.settings = settings
        self._clock = clock
        self.newest_ns: int | None = None
        self.last_error: Document | None = None
        self.follow_ups = FollowUps(clock, wake)
        self._ended_ns: int | None = None
        self._ended_s = 0.0
        self._retry_at_s = 0.0
        self._repeated: list[int] | None = None
        self._measured: deque[TakeReport] = deque(maxlen=_MEASURED)
        self._choice: Choice | None = None

    @property
    def interval_s(self) -> float:
        """How often a snapshot is due; with ``snapshot_interval = auto``, as chosen last."""
        return self._chosen.interval_s

    @property
    def _chosen(self) -> Choice:
        bounds_s = self.settings.interval_bounds_s
        if bounds_s is None:
            return Choice(self.settings.snapshot_interval_s, "")
        choice = self._choice
        if choice is None or not bounds_s[0] <= choice.interval_s <= bounds_s[1]:
            return at_first(bounds_s)
        return choice

    def measure(self, report: TakeReport) -> None:
        """Learn from a snapshot; choose the interval again if it is ``auto``.

        Raises:
            CiuicError: The store cannot be read; the interval stays.
        """
        bounds_s = self.settings.interval_bounds_s
        if bounds_s is None:
            return
        # A full snapshot reads everything, and does not show what the next one will take.
        if report.kind != "base":
            self._measured.append(report)
        if not self._measured:
            return
        before = self._chosen
        self._choice = choose(self._facts(), bounds_s, before.interval_s)
        if self._choice.interval_s != before.interval_s:
            every = format_duration(self._choice.interval_s)
            _log.info("%s: now every %s, because %s", self.name, every, self._choice.why)

    def _facts(self) -> Facts:
        now_ns = self._clock.now_ns()
        # The main thread asks: others that are under way must not wait for a server that is away.
        with open_configured(self.settings, patient=False) as store:
            here = Owner(this_machine(), is_library=False)
            past = [
                snapshot
                for snapshot in list_snapshots(store)
                if now_ns - _OBSERVED_NS <= snapshot.taken_ns <= now_ns
                and snapshot.owner.is_same(here)
            ]
            is_bucket = store.bucket is not None
            free_bytes = free_space(store.path).available_bytes
        oldest_ns = min((snapshot.taken_ns for snapshot in past), default=now_ns)
        return Facts(
            costs_s=[one.total_s - one.waited_s for one in self._measured],
            stored_bytes=[one.stored_bytes for one in self._measured],
            failures=sum(EMERGENCY_TAG in snapshot.tags for snapshot in past),
            observed_s=(now_ns - oldest_ns) / _NS,
            # A bucket does not fill up.
            kept_s=None if is_bucket else parse_policy(self.settings.retention_policy).younger_s,
            free_bytes=free_bytes,
        )

    @property
    def name(self) -> str:
        """The name of the schedule."""
        return self.settings.schedule

    @property
    def plan(self) -> str:
        """Its directories, and how often a snapshot is due."""
        roots = ", ".join(self.settings.snapshot_paths)
        choice = " (auto)" if self.settings.interval_bounds_s is not None else ""
        return f"{roots} every {format_duration(self.interval_s)}{choice}"

    @property
    def roots(self) -> tuple[bytes, ...]:
        """Its directories, as ``TakeRequest`` wants them."""
        return encoded_roots(self.settings)

    @property
    def ended_s(self) -> float:
        """When its last scheduled attempt ended, on the monotonic clock; 0: there was none."""
        return self._ended_s

    @property
    def next_due_ns(self) -> int:
        """When its next snapshot is due; now, if it is due already."""
        return next_due_ns(self._clock.now_ns(), self._interval_ns, self._past_ns)

    @property
    def is_due(self) -> bool:
        """Whether a snapshot should be taken now."""
        if self._clock.monotonic_s() < self._retry_at_s:
            return False
        return is_due(self._clock.now_ns(), self._interval_ns, self._past_ns)

    @property
    def wait_s(self) -> float:
        """How long until ``is_due`` or the state of its follow-up may change."""
        due_s = (self.next_due_ns - self._clock.now_ns()) / _NS
        return max(due_s, self._retry_at_s - self._clock.monotonic_s())

    def attempt_ended(self) -> None:
        """Mark the slot as served, even after a failure, unless the attempt is repeated soon."""
        if self._retry_at_s <= self._clock.monotonic_s():
            self._ended_ns = self._clock.now_ns()
            self._ended_s = self._clock.monotonic_s()

    def try_again_soon(self, began_s: float | None = None) -> None:
        """Attempt the snapshot again before the next slot.

        Args:
            began_s: When the last attempt began, on the monotonic clock; None: now. An attempt that
                has waited as long as the pause is repeated at once.
        """
        now_s = self._clock.monotonic_s()
        began_s = now_s if began_s is None else began_s
        self._retry_at_s = max(began_s + RETRY_S, now_s + _PAUSE_S_MIN)

    def try_again_once(self) -> None:
        """Attempt the snapshot again before the next slot, unless this slot was repeated so."""
        # A slot ends with a snapshot or with its last attempt: then these moments change.
        if self._repeated != self._past_ns:
            self._repeated = self._past_ns
            self.try_again_soon()

    def remember(self, error: CiuicError) -> None:
        """Keep the error of an attempt."""
        self.last_error = error_fields(error, self._clock)

    def as_json(self) -> Document:
        """Return an element of ``schedules`` of the daemon's status."""
        return {
            "name": self.name,
            "snapshot_paths": list(self.settings.snapshot_paths),
            "snapshot_interval_s": self.interval_s,
            "interval_why": self._chosen.why or None,
            "retention_policy": self.settings.retention_policy,
            "next": rfc3339(self.next_due_ns),
            "newest": None if self.newest_ns is None else rfc3339(self.newest_ns),
            "last_error": self.last_error,
        }

    @property
    def _interval_ns(self) -> int:
        return round(self.interval_s * _NS)

    @property
    def _past_ns(self) -> list[int]:
        moments = (self.newest_ns, self._ended_ns)
        return [moment for moment in moments if moment is not None]


def encoded_roots(settings: Settings) -> tuple[bytes, ...]:
    """Return the directories of the settings' schedule as ``TakeRequest`` wants them."""
    return tuple(os.fsencode(path) for path in settings.snapshot_paths)


def error_fields(error: CiuicError, clock: Clock) -> Document:
    """Return an error as the daemon's status has it."""
    fields = {"kind": error.kind, "message": error.message, "hint": error.hint}
    return {**fields, "time": rfc3339(clock.now_ns())}
