"""The daemon's main thread: takes snapshots when they are due or requested, one at a time.

Only the main thread takes snapshots. The control socket's threads and the thread that waits for
signals put work into its queue and read its state; the watchdog's thread tells systemd that the
main thread makes progress.

Guarantees:
    - A failed snapshot never ends the daemon. It is one line in the log, and the next snapshot
      is taken on schedule.
    - ``stop`` cancels a snapshot that is being taken. Nothing of it is committed.
    - The daemon never makes a missing store again, and never serves another store at the same
      path: a store on the disk below a lost mount would look healthy. Once the store is back, the
      daemon serves it again.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from typing import Final

import ciuic
from ciuic.config.load import load_settings
from ciuic.config.settings import Settings
from ciuic.control import Document
from ciuic.errors import (
    BusyError,
    CancelledError,
    ChildDiedError,
    CiuicError,
    CommitUncertainError,
    ConfigError,
    UsageError,
)
from ciuic.model import DAEMON, EMERGENCY_TAG, ExcludeRules
from ciuic.snapshot.report import TakeReport
from ciuic.store.place.keys import is_url
from ciuic.system.buffers import give_back_unused
from ciuic.system.clock import Clock, local_time_text, rfc3339
from ciuic.system.priority import describe_schedulers, lower_priority
from ciuicd.attempt import attempt, failure, sentence
from ciuicd.followup import TAG
from ciuicd.hold import StoreHold
from ciuicd.jobs.inbox import Inbox
from ciuicd.jobs.job import Job
from ciuicd.metrics.meter import meter_of
from ciuicd.notify import Notifier, Watchdog
from ciuicd.schedules.state import ScheduleState
from ciuicd.schedules.turns import Turns
from ciuicd.served_stores import ServedStores
from ciuicd.space import Space
from ciuicd.taking import SnapshotTaker, newest_taken_ns
from ciuicd.upkeep.upkeep import Upkeep

__all__ = ["Service"]

_log = logging.getLogger(__name__)

_NS: Final = 1_000_000_000
# The wall clock may be set, and the machine may sleep: look at the clock at least this often.
_LOOK_S: Final = 20.0
_JOB_WAIT_S: Final = 2.0


class Service:
    """The daemon of one store.

    ``stop``, ``reload_soon`` and the methods of ``Services`` may be called from any thread;
    ``run_once`` and ``serve`` from the main thread only.
    """

    def __init__(
        self, settings: Settings, *, clock: Clock, notifier: Notifier, served_stores: ServedStores
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._notifier = notifier
        self._served_stores = served_stores
        self._inbox = Inbox()
        self._stopping = False
        self._reload_wanted = False
        self._paused = False
        self._was_scheduled = False
        self._reloading = threading.Lock()
        self._job: Job | None = None
        self._watchdog = Watchdog(notifier, clock)
        self._turns = Turns(settings, clock, self._inbox.wake)
        self._space = Space(clock)
        self._metrics = meter_of(settings, clock)
        # Made by ``_prepare_store``, which learns the ID that they insist on.
        self._hold: StoreHold
        self._taker: SnapshotTaker
        self._upkeep: Upkeep

    def run_once(self) -> list[TakeReport]:
        """Take one snapshot now, even while a daemon runs; then forget as the daemon would.

        With several schedules, take one of each that is due; of the first one if none is.

        Returns:
            The report of each snapshot.

        Raises:
            CiuicError: A snapshot was not taken; those of the other schedules were, if possible.
        """
        self._prepare_store(serves=False)
        self._lower_priority()
        try:
            reports, failures = self._take_each_due()
            if reports:
                self._upkeep.after_snapshot(self._settings)
            if failures:
                raise failures[0]
        finally:
            self._write_metrics()
        return reports

    def _take_each_due(self) -> tuple[list[TakeReport], list[CiuicError]]:
        states = list(self._turns)
        if len(states) > 1:
            for state in states:
                state.newest_ns = newest_taken_ns(state.settings, self._clock, by_daemon=True)
            states = [state for state in states if state.is_due] or states[:1]
        reports: list[TakeReport] = []
        failures: list[CiuicError] = []
        for state in states:
            try:
                reports.append(self._taker.take(state.settings, self._job_for(state)))
            except CiuicError as error:
                self._metrics.note_failure(error, is_snapshot=True)
                if self._stopping:
                    raise
                if failures:  # the caller reports the first one
                    _log.error("%s: snapshot failed: %s", state.name, sentence(error))
                failures.append(error)
            else:
                self._metrics.note_snapshot(reports[-1])
        return reports, failures

    def serve(self) -> None:
        """Take snapshots until ``stop``.

        Raises:
            BusyError: Another daemon serves the store.
            StoreError: The store is missing, cannot be made, or is not the expected one.
        """
        self._prepare_store(serves=True)
        with self._watchdog.running():
            try:
                self._hold.take(self._settings)
                self._lower_priority()
                self._introduce()
                self._notifier.ready()
                while not self._stopping:
                    self._turn()
            finally:
                self._notifier.stopping()
                self._stopping = True
                self._inbox.refuse_all(_stopping_error())
                self._turns.drop_follow_ups()
                self._hold.release()

    def stop(self) -> None:
        """End as soon as possible, even in the middle of a snapshot."""
        self._stopping = True
        self._inbox.wake()

    def _prepare_store(self, *, serves: bool) -> None:
        """Make or find the store, and make the helpers that serve this store alone.

        Args:
            serves: This process will wait between its snapshots, and should stay small.
        """
        settings, clock = self._settings, self._clock
        path, owner = settings.snapshot_dir, settings.store_owner
        if is_url(path):
            store_id = self._served_stores.prepare_bucket(settings, clock)
        else:
            store_id = self._served_stores.prepare(path, clock, owner=owner)
        self._hold = StoreHold(self, clock, store_id)
        self._taker = SnapshotTaker(
            clock,
            self._notifier,
            self._is_cancelled,
            self._watchdog.note_progress,
            store_id=store_id,
            apart=serves,
        )
        self._upkeep = Upkeep(clock, self._watchdog.note_progress, store_id=store_id, apart=serves)

    def _lower_priority(self) -> None:
        settings = self._settings
        problem = lower_priority(settings.io_priority)
        if problem is not None:
            _log.warning(problem)
        elif settings.io_priority != "none":
            places = [*settings.all_paths]
            if not is_url(settings.snapshot_dir):
                places.append(settings.snapshot_dir)
            _log.info("I/O priority %s: %s", settings.io_priority, describe_schedulers(places))

    def _introduce(self) -> None:
        with contextlib.suppress(CiuicError):
            for state in self._turns:
                state.newest_ns = newest_taken_ns(state.settings, self._clock, by_daemon=True)
        store_path = self._settings.snapshot_dir
        _log.info("ciuicd %s serves %s: %s", ciuic.__version__, store_path, self._turns.plan)
        self._show_status()

    def status(self) -> Document:
        """See ``Services``; the document of ``ciuic status --json``."""
        settings, job, report = self._settings, self._job, self._taker.last_report
        newest_ns = max((state.newest_ns or 0 for state in self._turns), default=0)
        awaited = [state.follow_ups.shown for state in self._turns]
        state = "taking" if job is not None else "paused" if self._paused else "idle"
        return {
            "state": state,
            "paused": self._paused,
            "pid": os.getpid(),
            "version": ciuic.__version__,
            "config": settings.path,
            "store": settings.snapshot_dir,
            "snapshot_paths": list(settings.all_paths),
            "snapshot_interval_s": self._turns.first.interval_s,
            "next": None if self._paused else rfc3339(self._turns.next_due_ns),
            "newest": rfc3339(newest_ns) if newest_ns else None,
            "schedules": [state.as_json() for state in self._turns],
            "progress": None if job is None else job.progress,
            "follow_up": next(filter(None, awaited), None),
            "upkeep": self._upkeep.shown,
            "last_report": None if report is None else report.as_json(),
            "last_error": self._taker.last_error,
            "hook_trouble": self._taker.hook_warnings,
        }

    def pause(self) -> None:
        """See ``Services``."""
        self._paused = True
        _log.info("paused: no scheduled snapshots until 'resume'")
        self._inbox.wake()

    def resume(self) -> None:
        """See ``Services``."""
        self._paused = False
        _log.info("resumed")
        self._inbox.wake()

    def submit(self, job: Job) -> None:
        """See ``Services``."""
        self._inbox.put(job)
        # ``serve`` may have refused all jobs just before.
        if self._stopping:
            self._inbox.refuse_all(_stopping_error())

    def control_group(self) -> int | None:
        """See ``Services``."""
        return self._settings.control_group

    def schedule_of(self, scope: tuple[tuple[bytes, ...], ExcludeRules]) -> str:
        """See ``Services``."""
        return self._settings.schedule_of(*scope)

    def schedule_names(self) -> tuple[str, ...]:
        """See ``Services``."""
        return tuple(state.name for state in self._turns)

    def reload_soon(self) -> None:
        """Read the configuration again as soon as no snapshot is being taken."""
        self._reload_wanted = True
        self._inbox.wake()

    def reload(self) -> None:
        """See ``Services``. A snapshot that is being taken keeps its settings."""
        with self._reloading:
            self._notifier.reloading(self._clock.monotonic_s())
            try:
                self._replace_settings(load_settings(self._settings.path))
            except CiuicError as error:
                _log.error("the old configuration stays in effect: %s", sentence(error))
                raise
            finally:
                self._notifier.ready()
        _log.info("reloaded %s: %s", self._settings.path, self._turns.plan)
        self._inbox.wake()

    def _replace_settings(self, new: Settings) -> None:
        old = self._settings
        if new.snapshot_dir != old.snapshot_dir:
            raise ConfigError(
                f"{new.path}: snapshot_dir cannot change from {old.snapshot_dir} to "
                f"{new.snapshot_dir} while the daemon is running",
                hint="Restart the daemon: systemctl restart ciuicd.",
            )
        if new.io_priority != old.io_priority:
            _log.warning("the new io_priority takes effect when the daemon is restarted")
        if bool(new.metrics_file) != bool(old.metrics_file):
            self._metrics = meter_of(new, self._clock)
        self._settings = new
        self._turns.replace(new)
        self._hold.admit_group()

    def _turn(self) -> None:
        """Run one round of the loop: reload, take what is due, or wait for work."""
        self._watchdog.note_progress()
        settings = self._settings
        bucket_id = self._hold.store_id if is_url(settings.snapshot_dir) else ""
        self._space.free_space(settings.snapshot_dir, self._all_roots, bucket_id=bucket_id)
        if self._reload_wanted:
            self._reload_wanted = False
            with contextlib.suppress(CiuicError):
                self.reload()
        self._turns.drop_gone()
        urgent = self._inbox.urgent()
        if urgent is not None:
            self._take_for(urgent)
            return
        if self._paused:
            self._turns.drop_follow_ups()
        elif (state := self._turns.due()) is not None:
            # Several schedules may be due all the time: a request has every second turn.
            job = self._inbox.waiting() if self._was_scheduled else None
            self._was_scheduled = job is None
            if job is None:
                self._take_scheduled(state)
            else:
                self._take_for(job)
            return
        elif (state := self._turns.follow_up_due()) is not None:
            self._take_follow_up(state)
            return
        elif self._can_do_upkeep():
            self._upkeep.run(self._settings, self._has_better_to_do, lambda: self._stopping)
            self._show_status()
            self._write_metrics()
            give_back_unused()
            return
        if self._metrics.is_due():
            self._write_metrics()
        job = self._next_job()
        if job is not None:
            self._take_for(job)

    def _can_do_upkeep(self) -> bool:
        return (
            self._inbox.is_quiet
            and self._upkeep.is_due(self._settings)
            and self._hold.can_take(self._settings)  # no prune of another store at this path
        )

    def _has_better_to_do(self) -> bool:
        return (
            self._stopping
            or self._reload_wanted
            or not self._inbox.is_quiet
            or self._turns.due() is not None
            or self._turns.follow_up_due() is not None
        )

    def _next_job(self) -> Job | None:
        wait_s = _LOOK_S if self._paused else min(_LOOK_S, self._turns.wait_s)
        look_s = self._turns.next_look_s
        if look_s is not None:
            wait_s = min(wait_s, look_s - self._clock.monotonic_s())
        return self._inbox.wait(max(wait_s, 0.001))

    @property
    def _all_roots(self) -> tuple[bytes, ...]:
        return tuple(os.fsencode(path) for path in self._settings.all_paths)

    def _job_for(self, state: ScheduleState) -> Job:
        job = Job(schedule=state.name)
        job.names_schedule = bool(self._settings.others)
        return job

    def _take_scheduled(self, state: ScheduleState) -> None:
        job = self._job_for(state)
        with self._attempt(job, state, scheduled=True):
            self._hold.take(self._settings)
            # A user may have taken a snapshot since the last look.
            state.newest_ns = newest_taken_ns(state.settings, self._clock, by_daemon=True)
            if state.is_due:
                self._finish(job, state, self._taker.take(state.settings, job))

    def _take_for(self, job: Job) -> None:
        state = self._turns.first if job.schedule is None else self._turns.find(job.schedule)
        if state is None:
            what = f"the schedule {job.schedule} is no longer in the configuration"
            job.finish(UsageError(what, hint="'ciuic status' shows the daemon's schedules."))
            return
        job.names_schedule = job.scope is None and bool(self._settings.others)
        with self._attempt(job, state, scheduled=False):
            self._hold.take(self._settings)
            # A failed job must not wait for a full snapshot either.
            may_be_full = EMERGENCY_TAG not in job.tags
            report = self._taker.take(
                state.settings, job, wait_s=_JOB_WAIT_S, may_be_full=may_be_full
            )
            self._finish(job, state, report)

    def _take_follow_up(self, state: ScheduleState) -> None:
        job = Job(tags=(TAG,), scope=state.follow_ups.scope)
        job.names_schedule = job.scope is None and bool(self._settings.others)
        report = None
        with self._attempt(job, state, scheduled=False):
            self._hold.take(self._settings)
            # A file that was closed is not a reason to read all other files again.
            report = self._taker.take(state.settings, job, wait_s=_JOB_WAIT_S, may_be_full=False)
        if report is None:
            state.follow_ups.drop()
        else:
            self._note_taken(job, state, report)
            state.follow_ups.taken(report)
            self._upkeep.after_snapshot(self._settings)

    def _finish(self, job: Job, state: ScheduleState, report: TakeReport) -> None:
        job.finish(report)
        self._note_taken(job, state, report)
        roots = job.scope[0] if job.scope is not None else state.roots
        interval_s = state.interval_s
        state.follow_ups.consider(report, job.scope, roots, interval_s=interval_s)
        self._upkeep.after_snapshot(self._settings)

    def _note_taken(self, job: Job, state: ScheduleState, report: TakeReport) -> None:
        self._metrics.note_snapshot(report)
        if job.scope is None:
            state.newest_ns = report.taken_ns
            state.last_error = None
            with attempt(lambda error: _log.warning("%s: %s", state.name, sentence(error))):
                state.measure(report)

    @contextlib.contextmanager
    def _attempt(self, job: Job, state: ScheduleState, *, scheduled: bool) -> Iterator[None]:
        """Turn a failure of the block into the job's outcome and a line in the log."""
        self._job = job
        self._write_metrics()
        try:
            with attempt(lambda error: self._failed(job, state, error, scheduled=scheduled)):
                yield
        finally:
            self._job = None
            # A snapshot that was cancelled for an emergency snapshot is due again, unless the
            # emergency snapshot serves its schedule.
            if scheduled and not isinstance(job.wait(0), CancelledError):
                state.attempt_ended()
            self._show_status()
            self._write_metrics()
            give_back_unused()

    def _failed(
        self, job: Job, state: ScheduleState, error: CiuicError, *, scheduled: bool
    ) -> None:
        if isinstance(error, CancelledError):
            why = "the daemon is stopping" if self._stopping else "an emergency snapshot goes first"
            _log.info("a snapshot was cancelled because %s", why)
            job.finish(error)
            return
        if isinstance(error, BusyError) and scheduled:
            state.try_again_soon()
        elif isinstance(error, ChildDiedError) and scheduled:
            # Memory may be free again. If not, the next slot is soon enough.
            state.try_again_once()
        if job.is_finished:
            _log.error("the snapshot was taken, but a later step failed: %s", sentence(error))
        elif isinstance(error, CommitUncertainError):
            _log.error("%s", sentence(error))
        else:
            name = f"{state.name}: " if job.names_schedule else ""
            extra = failure(self._settings.snapshot_dir, job, error)
            _log.error("%ssnapshot failed: %s", name, sentence(error), extra=extra)
        self._taker.remember(error)
        if job.scope is None:
            state.remember(error)
        self._metrics.note_failure(error, is_snapshot=not job.is_finished)
        job.finish(error)

    def _is_cancelled(self) -> bool:
        job = self._job
        is_own = job is not None and job.origin == DAEMON
        return self._stopping or (is_own and self._inbox.has_urgent)

    def _write_metrics(self) -> None:
        next_due_ns = None if self._paused else self._turns.next_due_ns
        self._metrics.write(self._settings, next_due_ns=next_due_ns, is_taking=bool(self._job))

    def _show_status(self) -> None:
        when = "paused" if self._paused else f"next {local_time_text(self._turns.next_due_ns)}"
        self._notifier.status(f"{when}; {self._taker.last_text}")


def _stopping_error() -> CiuicError:
    return CancelledError("the daemon is stopping")
