"""What the daemon does for the store between two snapshots: forget, prune, scrub, drill.

    forget   after each snapshot, by the retention policy
    prune    when something in the trash has expired, a prune was interrupted, or many packs are
             small: once a day, or whenever space is short
    scrub    up to ``scrub_budget`` a day, including 'ciuic scrub'; each pack at most once a week
    drill    every ``drill_interval``

A prune of a bucket waits for no session: what a session may rely on stays until the next look, an
hour later. What a scrub of a bucket finds, this machine alone remembers.

All stop for a snapshot that is due or requested, and for the end of the daemon. Finished work
is kept, and the next run continues. Each prune plans from scratch. After three interrupted plans in
a row, the next one runs to its end and delays one snapshot; otherwise no prune would ever finish. A
failure is one line in the log, and never ends the daemon or costs a snapshot.
"""

import functools
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ciuic.catalog import damaged_manifests
from ciuic.config.opening import open_configured
from ciuic.config.settings import Settings
from ciuic.control import Document
from ciuic.errors import BusyError, CancelledError, CiuicError
from ciuic.maintain.forget import apply_forget, plan_forget
from ciuic.maintain.prune.apply import apply_prune
from ciuic.maintain.prune.plan import plan_prune
from ciuic.maintain.prune.report import PruneReport
from ciuic.maintain.scrub.budget import Budget
from ciuic.maintain.scrub.pack_health import read_since_s
from ciuic.maintain.scrub.scrub import scrub
from ciuic.retention import parse_policy
from ciuic.store.gc.merge import SMALL_PACK_BYTES
from ciuic.store.place.keys import is_url
from ciuic.store.records.layout import HEADER
from ciuic.store.store import Store
from ciuic.system.clock import Clock, rfc3339
from ciuic.system.free_space import PRUNE_RESERVE, is_short_of_space
from ciuic.system.priority import lower_priority
from ciuic.units import counted, format_bytes, format_duration
from ciuicd.attempt import attempt, sentence
from ciuicd.damage_log import REPAIR_HINT, DamageLog, first_few, subject_of
from ciuicd.practice import is_drill_due, practice

__all__ = ["Upkeep"]

_log = logging.getLogger(__name__)

_NS: Final = 1_000_000_000
_DAY_NS: Final = 86_400 * _NS
_NO_DAY: Final = -1
_LOOK_NS: Final = 3600 * _NS
"""How often to look for work at most, although a look costs little."""
_RETRY_S: Final = 300.0
_REST_S: Final = 7 * 86_400.0
_SMALL_PACKS_MAX: Final = 64
"""With this many small packs a prune merges them, even if nothing was forgotten."""
_DRILL_AGAIN_S: Final = 86_400.0
"""How long to wait after a drill that could not be done: a person may have to act first."""
_POLL_S: Final = 0.05
_INTERRUPTIONS_MAX: Final = 3
"""After this many interrupted plans in a row, a prune plans to the end."""
_LOCK_WAIT_S: Final = 2.0


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


class Upkeep:
    """Runs forget, prune, scrub and drill. Other threads than the main one may only read ``shown``.

    Args:
        clock: Tells the time.
        note_progress: Called about twenty times a second while something runs.
        store_id: The store to forget and prune in; one with another ID is refused. None: any.
        copy: The name of the copy that the store is; empty: it is the configured store.
    """

    def __init__(
        self,
        clock: Clock,
        note_progress: Callable[[], None],
        *,
        store_id: str | None,
        copy: str = "",
    ) -> None:
        self._clock = clock
        self._copy = copy
        self._note_progress = note_progress
        self._store_id = store_id
        self._look_ns = clock.now_ns()
        self._retry_at_s = 0.0
        self._pruned_ns: int | None = None
        self._drill_tried_s: float | None = None
        self._interruptions = 0
        self._day = _Day(_NO_DAY)
        self._damage_log = DamageLog()
        self._doing: str | None = None
        self._last: dict[str, Document] = {}

    @property
    def shown(self) -> Document:
        """The field ``upkeep`` of the daemon's status."""
        return {
            "doing": self._doing,
            "scrubbed_today_s": round(self._day.spent_s, 3),
            "forget": self._last.get("forget"),
            "prune": self._last.get("prune"),
            "scrub": self._last.get("scrub"),
            "drill": self._last.get("drill"),
        }

    def after_snapshot(self, settings: Settings) -> None:
        """Forget what the policy does not keep; look for other work soon."""
        self._look_ns = self._clock.now_ns()
        self._retry_at_s = 0.0  # the snapshot had the store's lock, so no other process has it
        with attempt(functools.partial(self._failed, "forget")):
            self._forget(settings)

    def _forget(self, settings: Settings) -> None:
        plan_now = functools.partial(
            plan_forget,
            policy=parse_policy(settings.top_retention_policy),
            now_ns=self._clock.now_ns(),
            rules=settings.exclude_rules,
            schedules=settings.terms,
        )
        with open_configured(settings) as store:
            plan = plan_now(store)
            left_out = damaged_manifests(store)
        for name, what in left_out.items():
            if self._damage_log.is_news(name, what):
                _log.error("forget skipped %s: %s. %s", name, what, REPAIR_HINT)
        if plan.forgotten:
            # Plan again under the lock, where no other process can change the snapshots.
            # In a bucket, marks need no lock.
            write = not is_url(settings.snapshot_dir)
            with open_configured(settings, write=write, wait_s=_LOCK_WAIT_S) as store:
                self._refuse_other(store)
                plan = plan_now(store)
                apply_forget(store, plan, self._clock.now_ns())
        names = [summary.id for summary, _ in plan.forgotten]
        self._note("forget", forgotten=names, kept=len(plan.kept))
        if names and self._copy:
            _log.info(
                "%s: forgot %s not kept by copy_retention %s: %s; for %s,"
                " 'ciuic --store %s forget --undo ID' can bring one back, and a pin there keeps it",
                self._copy,
                counted(len(names), "snapshot"),
                settings.top_retention_policy,
                first_few(names),
                format_duration(settings.trash_s),
                settings.snapshot_dir,
            )
        elif names:
            _log.info(
                "forgot %s not kept by retention_policy %s: %s; 'ciuic forget --undo ID' can bring"
                " them back for %s",
                counted(len(names), "snapshot"),
                "; ".join(dict.fromkeys(one.retention_policy for one in settings.schedules)),
                first_few(names),
                format_duration(settings.trash_s),
            )

    def is_due(self, settings: Settings) -> bool:
        """Return whether it is time to look for work, and the store is there."""
        now_ns = self._clock.now_ns()
        if self._look_ns > now_ns + _LOOK_NS:
            self._look_ns = now_ns  # the clock was set back
        if self._clock.monotonic_s() < self._retry_at_s or now_ns < self._look_ns:
            return False
        if is_url(settings.snapshot_dir):
            return True
        return os.path.lexists(os.path.join(settings.snapshot_dir, HEADER))

    def run(
        self,
        settings: Settings,
        is_needed_elsewhere: Callable[[], bool],
        is_ending: Callable[[], bool] = lambda: False,
    ) -> None:
        """Prune, scrub and drill until done, or until ``is_needed_elsewhere`` becomes true.

        Args:
            settings: The daemon's configuration.
            is_needed_elsewhere: Whether the main thread has more urgent work; asked often.
            is_ending: Whether the daemon ends, which never waits; asked from another thread too.
        """
        self._look_ns = self._clock.now_ns() + _LOOK_NS
        with attempt(functools.partial(self._failed, "prune")):
            if self._should_prune(settings):
                self._pruned_ns = self._clock.now_ns()
                self._in_background(
                    "prune",
                    is_needed_elsewhere,
                    lambda stop: self._prune(settings, stop, is_ending),
                )
        with attempt(functools.partial(self._failed, "scrub")):
            left_s = self._left_today_s(settings)
            self._damage_log.recall(settings)
            if (left_s > 0 or self._damage_log.pending) and not is_needed_elsewhere():
                self._in_background(
                    "scrub",
                    is_needed_elsewhere,
                    lambda stop: self._scrub(settings, left_s, stop),
                )

        with attempt(functools.partial(self._failed, "drill")):
            if not is_needed_elsewhere() and self._should_drill(settings):
                self._drill_tried_s = self._clock.monotonic_s()
                self._in_background(
                    "drill", is_needed_elsewhere, lambda stop: self._drill(settings, stop)
                )

    def _in_background(
        self,
        what: str,
        is_needed_elsewhere: Callable[[], bool],
        work: Callable[[Callable[[], bool]], None],
    ) -> None:
        """Work on a thread at idle priority: the main thread could not raise its own again."""
        stop = threading.Event()
        failure: list[BaseException] = []

        def run() -> None:
            try:
                problem = lower_priority("idle")
                if problem is not None:
                    _log.warning("%s: %s", what, problem)
                work(stop.is_set)
            except BaseException as error:  # noqa: BLE001 - raised again by the main thread
                failure.append(error)

        thread = threading.Thread(target=run, name=what)
        self._doing = what
        try:
            thread.start()
            while thread.is_alive():
                self._note_progress()
                if is_needed_elsewhere():
                    stop.set()
                    self._look_ns = self._clock.now_ns()
                thread.join(_POLL_S)
        finally:
            self._doing = None
        if failure:
            raise failure[0]

    def _should_prune(self, settings: Settings) -> bool:
        now_ns = self._clock.now_ns()
        is_recent = self._pruned_ns is not None and 0 <= now_ns - self._pruned_ns < _DAY_NS
        if is_recent and (
            is_url(settings.snapshot_dir)
            or not is_short_of_space(settings.snapshot_dir, PRUNE_RESERVE)
        ):
            return False
        with open_configured(settings) as store:
            # An interrupted prune emptied the trash, and did not remove all its packs.
            if store.prune_mark.is_set:
                return True
            if store.bucket is not None:
                from ciuic.maintain.prune.bucket.prune import is_unfinished

                if is_unfinished(store):
                    return True
            limit_ns = now_ns - round(settings.trash_s * _NS)
            if any(entry.forgotten_ns <= limit_ns for entry in store.trash.read()):
                return True
            sizes = store.pack_files().values()
            return sum([size < SMALL_PACK_BYTES for size in sizes]) >= _SMALL_PACKS_MAX

    def _prune(
        self, settings: Settings, stop: Callable[[], bool], is_ending: Callable[[], bool]
    ) -> None:
        may_stop = self._interruptions < _INTERRUPTIONS_MAX
        if not may_stop:
            _log.info(
                "prune was interrupted %d times; it now plans to the end", self._interruptions
            )
        with open_configured(settings, write=True, removes=True) as store:
            self._refuse_other(store)
            if store.bucket is None:
                report = self._prune_directory(settings, store, stop, is_ending)
            else:
                # Imported here because the clients of object stores are heavy.
                from ciuic.maintain.prune.bucket.prune import prune_bucket

                report = prune_bucket(
                    store,
                    trash_s=settings.trash_s,
                    now_ns=self._clock.now_ns(),
                    clock=self._clock,
                    cancelled=stop if may_stop else is_ending,
                )
                self._interruptions = 0
        self._note("prune", **report.as_json())
        _log.info(
            "pruned: %s removed for good, %s freed, %s removed, %s rewritten, %s",
            counted(len(report.expired), "snapshot"),
            format_bytes(report.freed_bytes),
            counted(report.removed.packs, "pack"),
            report.rewritten.packs,
            format_duration(report.total_s),
        )
        if report.waiting_for:
            self._pruned_ns = None
            _log.info(
                "%s can be removed when these sessions have ended: %s",
                counted(report.condemned.packs, "more pack"),
                first_few(list(report.waiting_for)),
            )

    def _prune_directory(
        self,
        settings: Settings,
        store: Store,
        stop: Callable[[], bool],
        is_ending: Callable[[], bool],
    ) -> PruneReport:
        may_stop = self._interruptions < _INTERRUPTIONS_MAX
        began_s = self._clock.monotonic_s()
        plan = plan_prune(
            store,
            trash_s=settings.trash_s,
            now_ns=self._clock.now_ns(),
            cancelled=stop if may_stop else is_ending,
        )
        self._interruptions = 0
        until_s = planned_s = self._clock.monotonic_s()
        if not may_stop:
            # A snapshot waited for this plan: use it for as long as planning took.
            until_s += planned_s - began_s

        def must_stop() -> bool:
            return is_ending() or (stop() and self._clock.monotonic_s() >= until_s)

        return apply_prune(
            store, plan, parity=settings.parity, clock=self._clock, cancelled=must_stop
        )

    def _refuse_other(self, store: Store) -> None:
        """Refuse another store that was mounted here in between: it is not the configured one."""
        if self._store_id is not None:
            store.refuse_other(self._store_id)

    def _should_drill(self, settings: Settings) -> bool:
        tried_s = self._drill_tried_s
        if not settings.drill_interval_s:
            return False
        if tried_s is not None and self._clock.monotonic_s() - tried_s < _DRILL_AGAIN_S:
            return False
        with open_configured(settings) as store:
            return is_drill_due(store, settings.drill_interval_s, self._clock.now_ns())

    def _drill(self, settings: Settings, stop: Callable[[], bool]) -> None:
        report = practice(settings, clock=self._clock, environ=os.environ, cancelled=stop)
        if report is not None:
            outcome = report.outcome or None
            self._note("drill", ok=report.ok, snapshot=report.snapshot_id, outcome=outcome)

    def _left_today_s(self, settings: Settings) -> float:
        if not settings.scrub_budget_s:
            return 0.0
        if self._day.number != self._today:
            # The store has a record of what an earlier daemon read today.
            with open_configured(settings) as store:
                self._day = _Day(self._today, read_since_s(store, self._today * _DAY_NS))
        return settings.scrub_budget_s - self._day.spent_s

    def _scrub(self, settings: Settings, left_s: float, stop: Callable[[], bool]) -> None:
        # First: the search for affected files could leave no time to find further damage.
        if left_s > 0:
            self._scrub_some(settings, left_s, stop)
        self._damage_log.log_pending(settings, stop)

    def _scrub_some(self, settings: Settings, left_s: float, stop: Callable[[], bool]) -> None:
        began_s = self._clock.monotonic_s()
        try:
            report = scrub(
                subject_of(settings),
                clock=self._clock,
                budget=Budget(duration_s=left_s),
                rest_s=_REST_S,
                manifests=not self._day.has_read_manifests,
                cancelled=stop,
                found=self._damage_log.log_pack,
            )
        finally:
            # A failed scrub counts too: it is tried again, and the day has one budget.
            self._day.spent_s += self._clock.monotonic_s() - began_s
        self._day.has_read_manifests = True
        if report.read_packs or "scrub" not in self._last:
            self._note("scrub", packs=report.read_packs, bytes=report.read_bytes, ok=report.ok)
        self._damage_log.log_report(report)

    def _failed(self, what: str, error: CiuicError) -> None:
        if isinstance(error, CancelledError):
            self._postpone(what)
            if what == "prune":
                self._interruptions += 1
            _log.info("%s was interrupted; it continues later", what)
        elif isinstance(error, BusyError):
            self._retry_at_s = self._clock.monotonic_s() + _RETRY_S
            self._postpone(what)
            _log.info("%s was postponed: %s", what, error.message)
        else:
            if what == "prune":
                self._interruptions = 0
            _log.error("%s failed: %s", what, sentence(error))
            self._note(what, error=sentence(error))

    def _postpone(self, what: str) -> None:
        """Make the work due again as soon as there is time."""
        self._look_ns = self._clock.now_ns()
        if what == "prune":
            self._pruned_ns = None
        elif what == "drill":
            self._drill_tried_s = None

    def _note(self, what: str, **fields: Any) -> None:  # Any: values of every JSON type
        self._last[what] = {"time": rfc3339(self._clock.now_ns()), **fields}

    @property
    def _today(self) -> int:
        return self._clock.now_ns() // _DAY_NS
