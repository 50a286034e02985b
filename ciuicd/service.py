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
import queue
import threading
from collections.abc import Iterator
from typing import Final

import ciuic
from ciuic.config import Settings, load_settings
from ciuic.control import Document
from ciuic.errors import (
    BusyError,
    CancelledError,
    CiuicError,
    CommitUncertainError,
    ConfigError,
)
from ciuic.snapshot.report import TakeReport
from ciuic.system.clock import Clock, local_time_text, rfc3339
from ciuic.system.priority import describe_schedulers, lower_priority
from ciuic.units import format_duration
from ciuicd.attempt import attempt, sentence
from ciuicd.control import Job
from ciuicd.followup import TAG, FollowUps
from ciuicd.hold import StoreHold
from ciuicd.known import KnownStores
from ciuicd.notify import Notifier, Watchdog
from ciuicd.schedule import is_due, next_due_ns
from ciuicd.space import Space
from ciuicd.taking import SnapshotTaker, encoded_roots
from ciuicd.upkeep import Upkeep

__all__ = ["Service"]

_log = logging.getLogger(__name__)

_NS: Final = 1_000_000_000
# The wall clock may be set, and the machine may sleep: look at the clock at least this often.
_LOOK_S: Final = 20.0
# Another process writes to the store: try again before the next slot.
_BUSY_RETRY_S: Final = 60.0
_JOB_WAIT_S: Final = 2.0


class Service:
    """The daemon of one store.

    ``stop``, ``reload_soon`` and the methods of ``Services`` may be called from any thread;
    ``run_once`` and ``serve`` from the main thread only.
    """

    def __init__(
        self, settings: Settings, *, clock: Clock, notifier: Notifier, known: KnownStores
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._notifier = notifier
        self._known = known
        # None only wakes the main thread. The number of clients bounds the queue.
        self._inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._stopping = False
        self._reload_wanted = False
        self._paused = False
        self._paths_changed = False
        self._reloading = threading.Lock()
        self._job: Job | None = None
        self._attempt_ended_ns: int | None = None
        self._retry_at_s = 0.0
        self._watchdog = Watchdog(notifier, clock)
        self._hold = StoreHold(self, clock)
        self._taker = SnapshotTaker(clock, notifier, self._is_cancelled)
        self._follow_ups = FollowUps(clock, lambda: self._inbox.put(None))
        self._space = Space(clock)
        self._upkeep = Upkeep(clock, self._watchdog.note_progress)

    def run_once(self) -> TakeReport:
        """Take one snapshot now, also beside an idle daemon; forget as the daemon would.

        Raises:
            CiuicError: No snapshot was taken.
        """
        self._prepare_store()
        self._lower_priority()
        report = self._taker.take(self._settings, Job())
        self._upkeep.after_snapshot(self._settings)
        return report

    def serve(self) -> None:
        """Take snapshots until ``stop``.

        Raises:
            BusyError: Another daemon serves the store.
            StoreError: The store is missing, can't be made, or is not the expected one.
        """
        self._hold.store_id = self._prepare_store()
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
                self._refuse_jobs()
                self._follow_ups.drop()
                self._hold.release()

    def stop(self) -> None:
        """End as soon as possible, even in the middle of a snapshot."""
        self._stopping = True
        self._inbox.put(None)

    def _prepare_store(self) -> str:
        settings = self._settings
        return self._known.prepare(settings.snapshot_dir, self._clock, owner=settings.store_owner)

    def _lower_priority(self) -> None:
        settings = self._settings
        problem = lower_priority(settings.io_priority)
        if problem is not None:
            _log.warning(problem)
        elif settings.io_priority != "none":
            places = [*settings.snapshot_paths, settings.snapshot_dir]
            _log.info("I/O priority %s: %s", settings.io_priority, describe_schedulers(places))

    def _introduce(self) -> None:
        with contextlib.suppress(CiuicError):
            self._taker.learn_newest(self._settings)
        store_path = self._settings.snapshot_dir
        _log.info("ciuicd %s serves %s: %s", ciuic.__version__, store_path, self._plan())
        self._show_status()

    def _plan(self) -> str:
        roots = ", ".join(self._settings.snapshot_paths)
        return f"{roots} every {format_duration(self._settings.snapshot_interval_s)}"

    def status(self) -> Document:
        """See ``Services``; the document of ``ciuic status --json``."""
        settings, job, report = self._settings, self._job, self._taker.last_report
        newest_ns = self._taker.newest_ns
        state = "taking" if job is not None else "paused" if self._paused else "idle"
        return {
            "state": state,
            "paused": self._paused,
            "pid": os.getpid(),
            "version": ciuic.__version__,
            "config": settings.path,
            "store": settings.snapshot_dir,
            "snapshot_paths": list(settings.snapshot_paths),
            "snapshot_interval_s": settings.snapshot_interval_s,
            "next": None if self._paused else rfc3339(self._next_due_ns()),
            "newest": None if newest_ns is None else rfc3339(newest_ns),
            "progress": None if job is None else job.progress,
            "follow_up": self._follow_ups.shown,
            "upkeep": self._upkeep.shown,
            "last_report": None if report is None else report.as_json(),
            "last_error": self._taker.last_error,
            "hook_trouble": self._taker.hook_warnings,
        }

    def pause(self) -> None:
        """See ``Services``."""
        self._paused = True
        _log.info("paused: no scheduled snapshots until 'resume'")
        self._inbox.put(None)

    def resume(self) -> None:
        """See ``Services``."""
        self._paused = False
        _log.info("resumed")
        self._inbox.put(None)

    def submit(self, job: Job) -> None:
        """See ``Services``."""
        self._inbox.put(job)
        if self._stopping:
            self._refuse_jobs()

    def _refuse_jobs(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                job = self._inbox.get_nowait()
                if job is not None:
                    job.finish(CancelledError("the daemon is stopping"))

    def reload_soon(self) -> None:
        """Read the configuration again as soon as no snapshot is being taken."""
        self._reload_wanted = True
        self._inbox.put(None)

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
        _log.info("reloaded %s: %s", self._settings.path, self._plan())
        self._inbox.put(None)

    def _replace_settings(self, new: Settings) -> None:
        old = self._settings
        if new.snapshot_dir != old.snapshot_dir:
            raise ConfigError(
                f"{new.path}: snapshot_dir can't change from {old.snapshot_dir} to "
                f"{new.snapshot_dir} while the daemon is running",
                hint="Restart the daemon: systemctl restart ciuicd.",
            )
        if new.io_priority != old.io_priority:
            _log.warning("the new io_priority takes effect when the daemon is restarted")
        self._settings = new
        self._paths_changed |= new.snapshot_paths != old.snapshot_paths

    def _turn(self) -> None:
        """Run one round of the loop: reload, take what is due, or wait for work."""
        self._watchdog.note_progress()
        self._space.free_space(self._settings.snapshot_dir, encoded_roots(self._settings))
        if self._reload_wanted:
            self._reload_wanted = False
            with contextlib.suppress(CiuicError):
                self.reload()
        if self._paths_changed:
            # The newest snapshot may lack the new roots: look again.
            self._paths_changed = False
            self._taker.newest_ns = self._attempt_ended_ns = None
        if self._paused:
            self._follow_ups.drop()
        elif self._is_due():
            self._take_scheduled()
            return
        elif self._follow_ups.is_due():
            self._take_follow_up()
            return
        elif self._can_do_upkeep():
            self._upkeep.run(self._settings, self._has_better_to_do, lambda: self._stopping)
            self._show_status()
            return
        job = self._next_job()
        if job is not None:
            self._take_for(job)

    def _can_do_upkeep(self) -> bool:
        return (
            self._inbox.empty()
            and self._upkeep.is_due(self._settings)
            and self._hold.can_take(self._settings)  # no prune of another store at this path
        )

    def _has_better_to_do(self) -> bool:
        return (
            self._stopping
            or self._reload_wanted
            or not self._inbox.empty()
            or self._is_due()
            or self._follow_ups.is_due()
        )

    def _next_job(self) -> Job | None:
        due_s = (self._next_due_ns() - self._clock.now_ns()) / _NS
        retry_s = self._retry_at_s - self._clock.monotonic_s()
        wait_s = _LOOK_S if self._paused else min(_LOOK_S, max(due_s, retry_s))
        if self._follow_ups.next_look_s is not None:
            wait_s = min(wait_s, self._follow_ups.next_look_s - self._clock.monotonic_s())
        try:
            return self._inbox.get(timeout=max(wait_s, 0.001))
        except queue.Empty:
            return None

    @property
    def _interval_ns(self) -> int:
        return round(self._settings.snapshot_interval_s * _NS)

    @property
    def _past_ns(self) -> list[int]:
        moments = (self._taker.newest_ns, self._attempt_ended_ns)
        return [moment for moment in moments if moment is not None]

    def _next_due_ns(self) -> int:
        return next_due_ns(self._clock.now_ns(), self._interval_ns, self._past_ns)

    def _is_due(self) -> bool:
        if self._clock.monotonic_s() < self._retry_at_s:
            return False
        return is_due(self._clock.now_ns(), self._interval_ns, self._past_ns)

    def _take_scheduled(self) -> None:
        job = Job()
        with self._attempt(job, scheduled=True):
            self._hold.take(self._settings)
            # A user may have taken a snapshot since the last look.
            self._taker.learn_newest(self._settings)
            if self._is_due():
                self._finish(job, self._taker.take(self._settings, job))

    def _take_for(self, job: Job) -> None:
        with self._attempt(job, scheduled=False):
            self._hold.take(self._settings)
            self._finish(job, self._taker.take(self._settings, job, wait_s=_JOB_WAIT_S))

    def _take_follow_up(self) -> None:
        job = Job(tags=(TAG,), scope=self._follow_ups.scope)
        report = None
        with self._attempt(job, scheduled=False):
            self._hold.take(self._settings)
            # A closed file is no reason to read all other files again.
            report = self._taker.take(self._settings, job, wait_s=_JOB_WAIT_S, may_be_full=False)
        if report is None:
            self._follow_ups.drop()
        else:
            self._follow_ups.taken(report)
            self._upkeep.after_snapshot(self._settings)

    def _finish(self, job: Job, report: TakeReport) -> None:
        job.finish(report)
        settings = self._settings
        roots = job.scope[0] if job.scope is not None else encoded_roots(settings)
        self._follow_ups.consider(report, job.scope, roots, interval_s=settings.snapshot_interval_s)
        self._upkeep.after_snapshot(settings)

    @contextlib.contextmanager
    def _attempt(self, job: Job, *, scheduled: bool) -> Iterator[None]:
        """Make every failure of the block the job's outcome and a line in the log."""
        self._job = job
        try:
            with attempt(lambda error: self._failed(job, error, scheduled=scheduled)):
                yield
        finally:
            self._job = None
            if scheduled and self._retry_at_s <= self._clock.monotonic_s():
                self._attempt_ended_ns = self._clock.now_ns()
            self._show_status()

    def _failed(self, job: Job, error: CiuicError, *, scheduled: bool) -> None:
        if isinstance(error, CancelledError):
            _log.info("a snapshot was cancelled because the daemon is stopping")
            job.finish(error)
            return
        if isinstance(error, BusyError) and scheduled:
            self._retry_at_s = self._clock.monotonic_s() + _BUSY_RETRY_S
        if job.is_finished:
            _log.error("the snapshot was taken, but a later step failed: %s", sentence(error))
        elif isinstance(error, CommitUncertainError):
            _log.error("%s", sentence(error))
        else:
            _log.error("snapshot failed: %s", sentence(error))
        self._taker.remember(error)
        job.finish(error)

    def _is_cancelled(self) -> bool:
        self._watchdog.note_progress()
        return self._stopping

    def _show_status(self) -> None:
        when = "paused" if self._paused else f"next {local_time_text(self._next_due_ns())}"
        self._notifier.status(f"{when}; {self._taker.last_text}")
