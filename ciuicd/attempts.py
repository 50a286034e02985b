"""Attempts at snapshots: scheduled, requested or as a follow-up.

An attempt takes the hold on the store, takes the snapshot, and records how it went: for the job
that waits, the schedule, the metrics, the log and the status. ``Service`` decides which is next,
and goes on with those under way, step by step: the child processes do the work.
"""

import contextlib
import logging
from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from ciuic.config.settings import Settings
from ciuic.errors import (
    BusyError,
    CancelledError,
    ChildDiedError,
    CiuicError,
    CommitUncertainError,
    OfflineError,
    ResourceError,
    UsageError,
)
from ciuic.model import DAEMON, EMERGENCY_TAG
from ciuic.snapshot.report import TakeReport
from ciuic.system.buffers import give_back_unused
from ciuic.system.clock import Clock
from ciuicd.attempt import attempt, failure, sentence
from ciuicd.followup import TAG
from ciuicd.hold import StoreHold
from ciuicd.jobs.at_once import Scope, may_be_taken_beside, scope_of
from ciuicd.jobs.job import Job
from ciuicd.jobs.steps import Steps, all_steps
from ciuicd.metrics.meter import Meter
from ciuicd.schedules.state import RETRY_S, ScheduleState
from ciuicd.schedules.turns import Turns
from ciuicd.taking import SnapshotTaker, newest_taken_ns
from ciuicd.upkeep.upkeep import Upkeep

__all__ = ["Attempt", "Attempts", "Daemon"]

_log = logging.getLogger(__name__)

_JOB_WAIT_S: Final = 2.0
_UPKEEP_WAITS_S: Final = 3600.0


class Daemon(Protocol):
    """What an attempt learns of the daemon, which a reload may change, and has it show."""

    @property
    def settings(self) -> Settings:
        """The configuration."""
        ...

    @property
    def metrics(self) -> Meter:
        """Counts what happens."""
        ...

    @property
    def is_stopping(self) -> bool:
        """Whether the daemon ends."""
        ...

    @property
    def is_replaced(self) -> bool:
        """Whether the daemon starts again, because its program was replaced on disk."""
        ...

    def write_metrics(self) -> None:
        """Show Prometheus what has changed."""
        ...

    def show_status(self) -> None:
        """Show systemd what has changed."""
        ...


class Attempt(NamedTuple):
    """An attempt that has not begun, or is under way.

    Attributes:
        job: What is taken.
        scope: What it needs for itself.
        steps: What is done; each step takes a moment.
    """

    job: Job
    scope: Scope
    steps: Steps[None]

    @property
    def is_own(self) -> bool:
        """Whether the daemon takes it on its own, and no user waits for it."""
        return self.job.origin == DAEMON


class Attempts:
    """Takes snapshots and records how that went. The main thread alone calls its methods.

    Args:
        daemon: See ``Daemon``.
        clock: Tells the time.
        turns: The schedules.
        taker: Takes the snapshots.
        hold: The hold on the store.
        upkeep: Forgets after each snapshot, if no other is being taken.

    Attributes:
        under_way: What is being taken; what began first comes first. Other threads may read it.
    """

    def __init__(
        self,
        daemon: Daemon,
        clock: Clock,
        turns: Turns,
        *,
        taker: SnapshotTaker,
        hold: StoreHold,
        upkeep: Upkeep,
    ) -> None:
        self._daemon = daemon
        self._clock = clock
        self._turns = turns
        self._taker = taker
        self._hold = hold
        self._upkeep = upkeep
        self._forgets_since_s: float | None = None
        self._older: tuple[Attempt, ...] = ()
        self.under_way: tuple[Attempt, ...] = ()

    @property
    def has_own(self) -> bool:
        """Whether a snapshot is being taken that the daemon takes on its own."""
        return any(one.is_own for one in self.under_way)

    @property
    def have_store(self) -> bool:
        """Whether each process under way has opened the store."""
        return all(one.job.has_store for one in self.under_way)

    @property
    def must_end(self) -> bool:
        """Whether upkeep has waited for an hour for snapshots that overlap without a gap.

        One that was under way when upkeep became due is no reason: it may take a day, and no user
        should wait for that.
        """
        since_s = self._forgets_since_s
        if since_s is None or any(one in self._older for one in self.under_way):
            return False
        return self._clock.monotonic_s() - since_s >= _UPKEEP_WAITS_S

    def fits(self, wanted: Attempt, *others: Attempt) -> bool:
        """Return whether an attempt may begin beside those under way, and beside others."""
        # Of two that open the store at once, one would be refused.
        if not self.have_store:
            return False
        scopes = [one.scope for one in (*self.under_way, *others)]
        return may_be_taken_beside(wanted.scope, scopes)

    def begin(self, planned: Attempt) -> None:
        """Begin an attempt, and do its first step."""
        self.under_way = (*self.under_way, planned)
        self._daemon.write_metrics()
        self._go_on(planned)

    def step(self) -> None:
        """Go on with each attempt for a moment."""
        for one in self.under_way:
            self._go_on(one)

    def _go_on(self, one: Attempt) -> None:
        try:
            next(one.steps)
        except StopIteration:
            self._leave(one)

    def _leave(self, one: Attempt) -> None:
        is_last = len(self.under_way) == 1
        if self._forgets_since_s is not None and is_last and not self._daemon.is_stopping:
            self._forgets_since_s = None
            self._upkeep.after_snapshot(self._daemon.settings)
        self.under_way = tuple(other for other in self.under_way if other is not one)
        if not self.under_way:
            self._daemon.show_status()
        self._daemon.write_metrics()
        give_back_unused()

    def close(self) -> None:
        """Give up what is under way: its processes are killed."""
        for one in self.under_way:
            one.steps.close()
        self.under_way = ()

    def take_each_due(self) -> tuple[list[TakeReport], list[CiuicError]]:
        """Take a snapshot of each schedule that is due, or of the first one if none is."""
        states = list(self._turns)
        if len(states) > 1:
            for state in states:
                state.newest_ns = newest_taken_ns(state.settings, self._clock, by_daemon=True)
            states = [state for state in states if state.is_due] or states[:1]
        reports: list[TakeReport] = []
        failures: list[CiuicError] = []
        for state in states:
            try:
                job, interval_s = self._job_for(state), state.interval_s
                steps = self._taker.take(state.settings, job, interval_s=interval_s)
                reports.append(all_steps(steps))
            except CiuicError as error:
                self._daemon.metrics.note_failure(error, is_snapshot=True)
                if self._daemon.is_stopping:
                    raise
                if failures:  # the caller reports the first one
                    _log.error("%s: snapshot failed: %s", state.name, sentence(error))
                failures.append(error)
            else:
                self._daemon.metrics.note_snapshot(reports[-1])
        return reports, failures

    def _job_for(self, state: ScheduleState) -> Job:
        job = Job(schedule=state.name)
        job.names_schedule = bool(self._daemon.settings.others)
        return job

    def scheduled(self, state: ScheduleState) -> Attempt:
        """Return the attempt that takes the snapshot of a schedule."""
        job = self._job_for(state)
        return self._planned(job, state, self._take_scheduled(job, state))

    def _take_scheduled(self, job: Job, state: ScheduleState) -> Steps[None]:
        """Take the snapshot of a schedule, unless a user has just taken one."""
        with self._attempt(job, state, scheduled=True):
            self._hold.take(self._daemon.settings)
            # A user may have taken a snapshot since the last look. The wait for a server that is
            # away is for the child process: here, those under way and a stop would wait too.
            with contextlib.suppress(OfflineError):
                state.newest_ns = newest_taken_ns(
                    state.settings, self._clock, by_daemon=True, patient=False
                )
            if state.is_due:
                report = yield from self._taker.take(
                    state.settings,
                    job,
                    interval_s=state.interval_s,
                    # A prune may hold the store for long, and again whenever this looks.
                    wait_s=RETRY_S,
                )
                self._finish(job, state, report)

    def requested(self, job: Job) -> Attempt:
        """Return the attempt that takes the snapshot that a client asked for.

        Raises:
            UsageError: The job's schedule is no longer in the configuration.
        """
        state = self._turns.first if job.schedule is None else self._turns.find(job.schedule)
        if state is None:
            what = f"the schedule {job.schedule} is no longer in the configuration"
            raise UsageError(what, hint="'ciuic status' shows the daemon's schedules.")
        job.names_schedule = job.scope is None and bool(self._daemon.settings.others)
        return self._planned(job, state, self._take_for(job, state))

    def _take_for(self, job: Job, state: ScheduleState) -> Steps[None]:
        with self._attempt(job, state, scheduled=False):
            self._hold.take(self._daemon.settings)
            # A failed job must not wait for a full snapshot either.
            may_be_full = EMERGENCY_TAG not in job.tags
            report = yield from self._taker.take(
                state.settings,
                job,
                interval_s=state.interval_s,
                wait_s=_JOB_WAIT_S,
                may_be_full=may_be_full,
            )
            self._finish(job, state, report)

    def follow_up(self, state: ScheduleState) -> Attempt:
        """Return the attempt that takes the follow-up of a snapshot of a schedule."""
        job = Job(tags=(TAG,), scope=state.follow_ups.scope)
        job.names_schedule = job.scope is None and bool(self._daemon.settings.others)
        return self._planned(job, state, self._take_follow_up(job, state))

    def _take_follow_up(self, job: Job, state: ScheduleState) -> Steps[None]:
        report = None
        with self._attempt(job, state, scheduled=False):
            self._hold.take(self._daemon.settings)
            # A file that was closed is not a reason to read all other files again.
            report = yield from self._taker.take(
                state.settings,
                job,
                interval_s=state.interval_s,
                wait_s=_JOB_WAIT_S,
                may_be_full=False,
            )
        if report is None:
            state.follow_ups.drop()
        else:
            self._note_taken(job, state, report)
            state.follow_ups.taken(report)

    def _planned(self, job: Job, state: ScheduleState, steps: Steps[None]) -> Attempt:
        return Attempt(job, scope_of(job, state.settings, state.roots), steps)

    def _finish(self, job: Job, state: ScheduleState, report: TakeReport) -> None:
        job.finish(report)
        self._note_taken(job, state, report)
        roots = job.scope[0] if job.scope is not None else state.roots
        interval_s = state.interval_s
        state.follow_ups.consider(report, job.scope, roots, interval_s=interval_s)

    def _note_taken(self, job: Job, state: ScheduleState, report: TakeReport) -> None:
        self._daemon.metrics.note_snapshot(report)
        if self._forgets_since_s is None:
            self._forgets_since_s = self._clock.monotonic_s()
            self._older = self.under_way
        if job.scope is None:
            state.newest_ns = report.taken_ns
            state.last_error = None
            with attempt(lambda error: _log.warning("%s: %s", state.name, sentence(error))):
                state.measure(report)

    @contextlib.contextmanager
    def _attempt(self, job: Job, state: ScheduleState, *, scheduled: bool) -> Iterator[None]:
        """Turn a failure of the block into the job's outcome and a line in the log."""
        began_s = self._clock.monotonic_s() if scheduled else None
        with attempt(lambda error: self._failed(job, state, error, began_s)):
            yield
        # A snapshot that was cancelled for an emergency snapshot is due again, unless the emergency
        # snapshot serves its schedule.
        if scheduled and not isinstance(job.wait(0), CancelledError):
            state.attempt_ended()

    def _failed(
        self, job: Job, state: ScheduleState, error: CiuicError, began_s: float | None
    ) -> None:
        """Record a failure; one of a scheduled snapshot has the moment when the attempt began."""
        if isinstance(error, CancelledError):
            if self._daemon.is_stopping:
                why = "the daemon is stopping"
            elif self._daemon.is_replaced:
                why = "ciuic was replaced on disk"
            else:
                why = "an emergency snapshot goes first"
            _log.info("a snapshot was cancelled because %s", why)
            job.finish(error)
            return
        scheduled = began_s is not None
        if isinstance(error, BusyError) and scheduled:
            state.try_again_soon(began_s)
        elif isinstance(error, (ChildDiedError, ResourceError)) and scheduled:
            # Memory may be free again. If not, the next slot is soon enough.
            state.try_again_once()
        if job.is_finished:
            _log.error("the snapshot was taken, but a later step failed: %s", sentence(error))
        elif isinstance(error, CommitUncertainError):
            _log.error("%s", sentence(error))
        else:
            name = f"{state.name}: " if job.names_schedule else ""
            extra = failure(self._daemon.settings.snapshot_dir, job, error)
            _log.error("%ssnapshot failed: %s", name, sentence(error), extra=extra)
        self._taker.remember(error)
        if job.scope is None:
            state.remember(error)
        self._daemon.metrics.note_failure(error, is_snapshot=not job.is_finished)
        job.finish(error)
