"""When forget, prune, scrub and drill run between two snapshots, and what stops them.

    forget   after each snapshot, by the retention policy
    prune    when something in the trash has expired, a prune was interrupted, or many packs are
             small: once a day, or whenever space is short
    scrub    up to ``scrub_budget`` a day, including 'ciuic scrub'; each pack at most once a week
    drill    every ``drill_interval``

A prune of a bucket waits for no session: what a session may rely on stays until the next look, an
hour later. What a scrub of a bucket finds, this machine alone remembers.

All stop for a snapshot that is due or requested, and for the end of the daemon. Finished work
is kept, and the next run continues. A failure is one line in the log, and never ends the daemon or
costs a snapshot. The main thread forgets and looks for work: it does not wait for the server of a
bucket that is away, because a stop would wait too, and asks again later.
"""

import functools
import logging
import os
from collections.abc import Callable
from typing import Final, NamedTuple

from ciuic.config.settings import Settings
from ciuic.control import Document
from ciuic.errors import BusyError, CancelledError, CiuicError
from ciuic.store.place.keys import is_url
from ciuic.store.records.layout import HEADER
from ciuic.system.clock import Clock
from ciuicd.attempt import attempt, sentence
from ciuicd.jobs.background import Work, in_background
from ciuicd.upkeep.damage_log import DamageLog
from ciuicd.upkeep.forgetting import forget
from ciuicd.upkeep.outcomes import Outcomes
from ciuicd.upkeep.practice import Drills
from ciuicd.upkeep.pruning import Pruning, PruningState
from ciuicd.upkeep.scrubbing import Scrubbing

__all__ = ["Upkeep"]

_log = logging.getLogger(__name__)

_LOOK_NS: Final = 3600 * 1_000_000_000
"""How often to look for work at most, although a look costs little."""
_RETRY_S: Final = 300.0


class _Left(NamedTuple):
    """What a task leaves for the next one: a child process returns it.

    Attributes:
        pruning: See ``Pruning``.
        outcomes: See ``Outcomes``.
        failure: Why the task failed; None: it did not.
    """

    pruning: PruningState
    outcomes: dict[str, Document]
    failure: CiuicError | None


class Upkeep:
    """Runs forget, prune, scrub and drill. Other threads than the main one may only read ``shown``.

    Args:
        clock: Tells the time.
        note_progress: Called about twenty times a second while something runs.
        store_id: The store to care for; one with another ID is refused. None: any.
        copy: The name of the copy that the store is; empty: it is the configured store.
        apart: Prune and drill in child processes, so that this process stays small. A bucket
            has threads instead: those of an object store's client do not survive a fork.
    """

    def __init__(
        self,
        clock: Clock,
        note_progress: Callable[[], None],
        *,
        store_id: str | None,
        copy: str = "",
        apart: bool = False,
    ) -> None:
        self._clock = clock
        self._apart = apart
        self._note_progress = note_progress
        self._store_id = store_id
        self._copy = copy
        self._look_ns = clock.now_ns()
        self._retry_at_s = 0.0
        self._doing: str | None = None
        self._outcomes = Outcomes(clock)
        self._damage_log = DamageLog()
        self._pruning = Pruning(clock, self._outcomes, store_id)
        self._scrubbing = Scrubbing(clock, self._outcomes, self._damage_log, store_id)
        self._drills = Drills(clock, self._outcomes, os.environ, store_id)

    @property
    def shown(self) -> Document:
        """The field ``upkeep`` of the daemon's status."""
        return {
            "doing": self._doing,
            "scrubbed_today_s": round(self._scrubbing.spent_s, 3),
            **{task: self._outcomes.of(task) for task in ("forget", "prune", "scrub", "drill")},
        }

    def after_snapshot(self, settings: Settings) -> None:
        """Forget what the policy does not keep; look for other work soon."""
        self._look_ns = self._clock.now_ns()
        self._retry_at_s = 0.0  # the snapshot had the store's lock, so no other process has it
        with attempt(functools.partial(self._failed, "forget")):
            count = forget(
                settings,
                clock=self._clock,
                outcomes=self._outcomes,
                damage_log=self._damage_log,
                store_id=self._store_id,
                copy=self._copy,
            )
            self._pruning.note_forgotten(count)

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
        apart = self._apart and not is_url(settings.snapshot_dir)

        def begin(task: str, work: Work[None], *, apart: bool = apart) -> None:
            self._in_background(task, is_needed_elsewhere, is_ending, work, apart=apart)

        with attempt(functools.partial(self._failed, "prune")):
            if self._pruning.is_due(settings):
                self._pruning.begin()
                begin("prune", lambda stop, ends: self._pruning.run(settings, stop, ends))
        with attempt(functools.partial(self._failed, "scrub")):
            if not is_needed_elsewhere() and self._scrubbing.is_due(settings):
                # A search for affected files goes on at the next scrub, from where it was.
                begin("scrub", lambda stop, _: self._scrubbing.run(settings, stop), apart=False)
        with attempt(functools.partial(self._failed, "drill")):
            if not is_needed_elsewhere() and self._drills.is_due(settings):
                self._drills.begin()
                begin("drill", lambda stop, _: self._drills.run(settings, stop))

    def _in_background(
        self,
        task: str,
        is_needed_elsewhere: Callable[[], bool],
        is_ending: Callable[[], bool],
        work: Work[None],
        *,
        apart: bool,
    ) -> None:
        def do(stop: Callable[[], bool], ends: Callable[[], bool]) -> _Left:
            failure = None
            try:
                work(stop, ends)
            except CiuicError as error:
                failure = error
            return _Left(self._pruning.state, self._outcomes.last, failure)

        def must_stop() -> bool:
            if not is_needed_elsewhere():
                return False
            self._look_ns = self._clock.now_ns()
            return True

        self._doing = task
        try:
            left = in_background(
                task,
                do,
                apart=apart,
                clock=self._clock,
                must_stop=must_stop,
                is_ending=is_ending,
                note_progress=self._note_progress,
            )
        finally:
            self._doing = None
        self._pruning.state, self._outcomes.last = left.pruning, left.outcomes
        if left.failure is not None:
            raise left.failure

    def _failed(self, task: str, error: CiuicError) -> None:
        if isinstance(error, CancelledError):
            self._postpone(task)
            if task == "prune":
                self._pruning.note_interruption()
            _log.info("%s was interrupted; it continues later", task)
        elif isinstance(error, BusyError):
            self._retry_at_s = self._clock.monotonic_s() + _RETRY_S
            self._postpone(task)
            _log.info("%s was postponed: %s", task, error.message)
        else:
            if task == "prune":
                self._pruning.note_failure()
            _log.error("%s failed: %s", task, sentence(error))
            self._outcomes.note(task, error=sentence(error))

    def _postpone(self, task: str) -> None:
        """Make the work due again as soon as there is time."""
        self._look_ns = self._clock.now_ns()
        if task == "prune":
            self._pruning.postpone()
        elif task == "drill":
            self._drills.postpone()
