"""What the daemon does for the store between two snapshots: forget, prune, scrub.

    forget   after each snapshot of the configured roots, by the retention policy
    prune    when something in the trash has expired, or a prune was cut short: once a day, or
             whenever space is short
    scrub    up to ``scrub_budget`` a day, whoever has read; each pack at most once a week

All of it gives way: to a snapshot that is due or asked for, and to the end of the daemon. What was
done until then stays done, and the next run goes on. A prune plans anew each time; one that did
not even get to the end of that a few times in a row keeps a snapshot waiting for once, or it would
never be done. A failure is one line in the log, and never ends the daemon or costs a snapshot.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ciuic.clock import Clock, rfc3339
from ciuic.config import Settings
from ciuic.errors import BusyError, CancelledError, CiuicError, shortage
from ciuic.model import path_text
from ciuic.priority import lower_priority
from ciuic.retention import parse_policy
from ciuic.store import open_store
from ciuic.store.layout import HEADER
from ciuic.units import format_bytes, format_duration
from ciuic.verbs.forget import apply_forget, plan_forget
from ciuic.verbs.prune import apply_prune, plan_prune
from ciuic.verbs.scrub import (
    Budget,
    Costs,
    DamagedFile,
    DamagedPack,
    ScrubReport,
    lost_before,
    read_since_s,
    scrub,
)

__all__ = ["Upkeep"]

_log = logging.getLogger(__name__)

_NS: Final = 1_000_000_000
_DAY_NS: Final = 86_400 * _NS
_NO_DAY: Final = -1
_LOOK_NS: Final = 3600 * _NS
"""Looking whether there is something to do costs little, and is not done more often than this."""
_RETRY_S: Final = 300.0
_REST_S: Final = 7 * 86_400.0
_SHORT_FRACTION: Final = 0.05
_NAMED_MAX: Final = 5
_GIVE_WAY_S: Final = 0.05
_GIVES_WAY_MAX: Final = 3
"""So many times in a row a prune gives way before it knows what to do."""
_LOCK_WAIT_S: Final = 2.0
_REPAIR: Final = "'ciuic repair' shows what can be mended"
_TOLD_LATER: Final = "what that costs is told when it is known"


@dataclass(slots=True)
class _Day:
    """What was done on a day, counted in UTC."""

    number: int
    spent_s: float = 0.0
    has_read_manifests: bool = False


class Upkeep:
    """All methods are called from the main thread, ``shown`` from any.

    Args:
        clock: Tells the time.
        moved: Called about ten times a second while something is being done.
    """

    def __init__(self, clock: Clock, moved: Callable[[], None]) -> None:
        self._clock = clock
        self._moved = moved
        self._look_ns = clock.now_ns()
        self._retry_at_s = 0.0
        self._pruned_ns: int | None = None
        self._gave_way = 0
        self._day = _Day(_NO_DAY)
        self._untold: list[Costs] = []
        self._told: set[tuple[str, str]] = set()
        self._recalled = False
        self._doing: str | None = None
        self._last: dict[str, dict[str, Any]] = {}

    @property
    def shown(self) -> dict[str, Any]:
        """The field ``upkeep`` of the daemon's status."""
        return {
            "doing": self._doing,
            "scrubbed_today_s": round(self._day.spent_s, 3),
            "forget": self._last.get("forget"),
            "prune": self._last.get("prune"),
            "scrub": self._last.get("scrub"),
        }

    def after_snapshot(self, settings: Settings) -> None:
        """Forget what the policy does not keep, and look soon for what else there is to do."""
        self._look_ns = self._clock.now_ns()
        self._retry_at_s = 0.0  # whoever held the store does so no more
        with self._attempt("forget"):
            policy = parse_policy(settings.retention_policy)
            now_ns = self._clock.now_ns()
            with open_store(settings.snapshot_dir) as store:
                plan = plan_forget(store, policy, now_ns)
            if plan.forgotten:
                # Decided once more where nobody else can change it.
                with open_store(settings.snapshot_dir, write=True, wait_s=_LOCK_WAIT_S) as store:
                    plan = plan_forget(store, policy, now_ns)
                    apply_forget(store, plan, now_ns)
            names = [one.id for one, _ in plan.forgotten]
            self._note("forget", forgotten=names, kept=len(plan.kept))
            if names:
                _log.info(
                    "forgot %s that retention_policy %s does not keep: %s; for %s"
                    " 'ciuic forget --undo' brings them back",
                    _counted(len(names), "snapshot"),
                    policy.text,
                    _listed(names),
                    format_duration(settings.trash_s),
                )

    def is_due(self, settings: Settings) -> bool:
        """It is time to look whether something is to be done, and may be."""
        now_ns = self._clock.now_ns()
        if self._look_ns > now_ns + _LOOK_NS:
            self._look_ns = now_ns  # the clock was set back
        if self._clock.monotonic_s() < self._retry_at_s or now_ns < self._look_ns:
            return False
        return os.path.lexists(os.path.join(settings.snapshot_dir, HEADER))

    def run(
        self,
        settings: Settings,
        gives_way: Callable[[], bool],
        ends: Callable[[], bool] = lambda: False,
    ) -> None:
        """Do what is to be done, until it is done or ``gives_way`` turns true.

        Args:
            settings: Of the daemon.
            gives_way: There is something better to do.
            ends: The daemon ends, for which nothing ever waits; asked from another thread, too.
        """
        self._look_ns = self._clock.now_ns() + _LOOK_NS
        with self._attempt("prune"):
            if self._should_prune(settings):
                self._pruned_ns = self._clock.now_ns()
                self._in_background(
                    "prune", gives_way, lambda stop: self._prune(settings, stop, ends)
                )
        with self._attempt("scrub"):
            left_s = self._left_today_s(settings)
            self._recall(settings)
            if (left_s > 0 or self._untold) and not gives_way():
                self._in_background(
                    "scrub", gives_way, lambda stop: self._scrub(settings, left_s, stop)
                )

    def _in_background(
        self, what: str, gives_way: Callable[[], bool], work: Callable[[Callable[[], bool]], None]
    ) -> None:
        """Work on a thread at idle priority, which the main thread could never leave again."""
        stop = threading.Event()
        failure: list[BaseException] = []

        def run() -> None:
            try:
                lower_priority("idle")
                work(stop.is_set)
            except BaseException as error:  # noqa: BLE001 - raised again by the main thread
                failure.append(error)

        thread = threading.Thread(target=run, name=what)
        self._doing = what
        try:
            thread.start()
            while thread.is_alive():
                self._moved()
                if gives_way():
                    stop.set()
                    self._look_ns = self._clock.now_ns()
                thread.join(_GIVE_WAY_S)
        finally:
            self._doing = None
        if failure:
            raise failure[0]

    def _should_prune(self, settings: Settings) -> bool:
        now_ns = self._clock.now_ns()
        lately = self._pruned_ns is not None and 0 <= now_ns - self._pruned_ns < _DAY_NS
        if lately and not _is_short_of_space(settings.snapshot_dir):
            return False
        with open_store(settings.snapshot_dir) as store:
            if store.is_half_pruned:
                return True  # what had expired is out of the trash by now, and its packs not gone
            limit_ns = now_ns - round(settings.trash_s * _NS)
            return any(one.forgotten_ns <= limit_ns for one in store.trash())

    def _prune(
        self, settings: Settings, stop: Callable[[], bool], ends: Callable[[], bool]
    ) -> None:
        is_patient = self._gave_way < _GIVES_WAY_MAX
        if not is_patient:
            _log.info("prune gave way %d times, and is planned to the end now", self._gave_way)
        with open_store(settings.snapshot_dir, write=True) as store:
            began_s = self._clock.monotonic_s()
            plan = plan_prune(
                store,
                trash_s=settings.trash_s,
                now_ns=self._clock.now_ns(),
                cancelled=stop if is_patient else ends,
            )
            self._gave_way = 0
            until_s = planned_s = self._clock.monotonic_s()
            if not is_patient:
                # It was kept waiting for anyway: what took so long to find out is worth as much.
                until_s += planned_s - began_s

            def stops() -> bool:
                return ends() or (stop() and self._clock.monotonic_s() >= until_s)

            report = apply_prune(
                store, plan, parity=settings.parity, clock=self._clock, cancelled=stops
            )
        self._note("prune", **report.as_json())
        _log.info(
            "pruned: %s gone for good, %s freed, %s removed, %s rewritten, %s",
            _counted(len(report.expired), "snapshot"),
            format_bytes(report.freed_bytes),
            _counted(report.removed.packs, "pack"),
            report.rewritten.packs,
            format_duration(report.total_s),
        )

    def _left_today_s(self, settings: Settings) -> float:
        if self._day.number != self._today:
            # The catalog knows what was read by a daemon before this one.
            with open_store(settings.snapshot_dir) as store:
                self._day = _Day(self._today, read_since_s(store, self._today * _DAY_NS))
        return settings.scrub_budget_s - self._day.spent_s

    def _scrub(self, settings: Settings, left_s: float, stop: Callable[[], bool]) -> None:
        # First, or looking for what is known to be damaged could leave no time to find the rest.
        if left_s > 0:
            self._scrub_some(settings, left_s, stop)
        self._tell_rest(settings, stop)

    def _scrub_some(self, settings: Settings, left_s: float, stop: Callable[[], bool]) -> None:
        began_s = self._clock.monotonic_s()
        try:
            report = scrub(
                settings.snapshot_dir,
                clock=self._clock,
                budget=Budget(duration_s=left_s),
                rest_s=_REST_S,
                manifests=not self._day.has_read_manifests,
                cancelled=stop,
                found=self._tell_found,
            )
        finally:
            # Also of one that failed: it is tried again, and the day has one budget.
            self._day.spent_s += self._clock.monotonic_s() - began_s
        self._day.has_read_manifests = True
        if report.read_packs or "scrub" not in self._last:
            self._note("scrub", packs=report.read_packs, bytes=report.read_bytes, ok=report.ok)
        self._tell(report)
        if report.damaged and report.costs is not None and not report.is_complete:
            self._untold.append(report.costs)
        else:
            self._tell_cost(report)

    def _recall(self, settings: Settings) -> None:
        """What is known to be lost is told once again: a daemon may have ended before it did."""
        if self._recalled or not settings.scrub_budget_s:
            return
        with open_store(settings.snapshot_dir) as store:
            report = lost_before(store)
        self._recalled = True
        if report is not None:
            self._untold.append(Costs(report))

    def _tell_rest(self, settings: Settings, stop: Callable[[], bool]) -> None:
        """Damage whose cost was not known yet when a scrub gave way."""
        while self._untold and self._untold[0].find(settings.snapshot_dir, stop):
            self._tell_cost(self._untold.pop(0).report)

    def _tell_found(self, pack: DamagedPack) -> None:
        """Damage, as soon as it is found: what it costs may take days to find out."""
        name, what = pack.check.pack.hex(), pack.check.what
        if pack.is_new and self._is_news(name, what):
            _log.error("damage: pack %s: %s; %s. %s", name[:12], what, _loss(pack), _REPAIR)

    def _tell_cost(self, report: ScrubReport) -> None:
        """What damage costs that has been told."""
        if report.lost and report.missing:
            count = _counted(len(report.lost), "chunk")
            _log.error("%s lost, as was found before: %s", count, _cost(report.missing))
        elif report.missing and self._is_news("", cost := _cost(report.missing)):
            _log.error("damage: chunks are in no pack; %s", cost)
        for pack in report.damaged:
            name, cost = pack.check.pack.hex(), _cost(pack.files)
            if pack.is_new and pack.lost and self._is_news(name, cost):
                _log.error("pack %s, which is damaged: %s", name[:12], cost)

    def _tell(self, report: ScrubReport) -> None:
        """What was done, and what was found besides packs; nothing is told twice."""
        if report.read_packs:
            unchecked = report.health.unchecked
            _log.info(
                "scrub: %s read, %s, %s: %s%s",
                _counted(report.read_packs, "pack"),
                format_bytes(report.read_bytes),
                format_duration(report.total_s),
                "no damage" if report.ok else "there is damage",
                f"; {unchecked:,} were never read" if unchecked else "",
            )
        for one in (*report.manifests, *report.unreachable):
            if self._is_news(os.fsdecode(one.path), one.what):
                _log.error("damage: %s: %s. %s", os.fsdecode(one.path), one.what, _REPAIR)
        if report.not_remembered:
            _log.warning("what the scrub found is not remembered: %s", report.not_remembered)

    def _is_news(self, where: str, what: str) -> bool:
        known = (where, what) in self._told
        self._told.add((where, what))
        return not known

    @contextlib.contextmanager
    def _attempt(self, what: str) -> Iterator[None]:
        """Whatever happens inside becomes a line in the log, and ends there."""
        try:
            yield
        except CancelledError:
            self._postpone(what)
            if what == "prune":
                self._gave_way += 1
            _log.info("%s gave way; it goes on later", what)
        except BusyError as error:
            self._retry_at_s = self._clock.monotonic_s() + _RETRY_S
            self._postpone(what)
            _log.info("%s waits: %s", what, error.message)
        except CiuicError as error:
            self._fail(what, f"{error.message}. {error.hint}" if error.hint else error.message)
        except OSError as error:
            self._fail(what, f"{type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 - the loop's edge: a bug must not end the daemon
            short = shortage(error)
            if short is None:
                _log.exception("this should not have happened; please report it")
            self._fail(what, f"{short.message}. {short.hint}" if short else repr(error))

    def _postpone(self, what: str) -> None:
        """It is not done yet, and due again as soon as there is time."""
        self._look_ns = self._clock.now_ns()
        if what == "prune":
            self._pruned_ns = None

    def _fail(self, what: str, why: str) -> None:
        if what == "prune":
            self._gave_way = 0
        _log.error("no %s: %s", what, why)
        self._note(what, error=why)

    def _note(self, what: str, **fields: Any) -> None:
        self._last[what] = {"time": rfc3339(self._clock.now_ns()), **fields}

    @property
    def _today(self) -> int:
        return self._clock.now_ns() // _DAY_NS


def _is_short_of_space(store_path: str) -> bool:
    space = os.statvfs(store_path)
    return space.f_bavail < _SHORT_FRACTION * space.f_blocks


def _loss(pack: DamagedPack) -> str:
    if pack.lost:
        return f"{_counted(len(pack.lost), 'chunk')} lost; {_TOLD_LATER}"
    if not pack.check.read_bytes:
        return _TOLD_LATER
    return "every chunk of it can be had all the same"


def _cost(files: Sequence[DamagedFile]) -> str:
    if not files:
        return f"it costs no further file. {_REPAIR}"
    first = files[0]
    count = _counted(len(files), "file")
    return (
        f"it costs {count}, first {path_text(first.path)} in {_listed(first.snapshots)}. {_REPAIR}"
    )


def _listed(names: Sequence[str]) -> str:
    some = ", ".join(names[:_NAMED_MAX])
    more = len(names) - _NAMED_MAX
    return f"{some} and {more} more" if more > 0 else some


def _counted(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"
