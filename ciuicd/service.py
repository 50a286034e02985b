"""The daemon's main thread: takes snapshots when they are due or asked for, one at a time.

The main thread alone takes snapshots. The threads of the control socket and the one that waits
for signals only hand it things to do and read what it shows; one more keeps systemd's watchdog
quiet as long as the main thread moves.

Guarantees:
    - A failure of one snapshot never ends the daemon; it is one line in the log, and the next
      snapshot comes at its time.
    - ``stop`` ends a snapshot that is being taken; nothing of it is committed, and the store is
      as it was.
    - A store that has gone is never made anew, and another one in its place is not served: a store
      on the disk below a lost mount would look like all is well. Once it is back it is served
      again.
"""

import contextlib
import logging
import os
import queue
import threading
from collections.abc import Iterator
from typing import Any, Final

import ciuic
from ciuic.catalog import list_snapshots
from ciuic.clock import Clock, local_time_text, rfc3339
from ciuic.config import Settings, load_settings
from ciuic.errors import (
    BusyError,
    CancelledError,
    CiuicError,
    ConfigError,
    StoreError,
    UnreachableError,
    shortage,
)
from ciuic.model import TakeReport, path_text
from ciuic.priority import describe_schedulers, lower_priority
from ciuic.store import open_store
from ciuic.store.header import read_header
from ciuic.store.layout import DAEMON_LOCK, HEADER
from ciuic.store.lock import Lock
from ciuic.units import format_bytes, format_duration, format_files
from ciuic.verbs.take import TakeRequest, take_snapshot
from ciuicd.control import Job, Server
from ciuicd.followup import TAG, FollowUps
from ciuicd.known import KnownStores
from ciuicd.notify import Notifier
from ciuicd.schedule import covers, is_due, next_due_ns
from ciuicd.space import Space
from ciuicd.upkeep import Upkeep

__all__ = ["Service", "sentence"]

_log = logging.getLogger(__name__)

_NS: Final = 1_000_000_000
# The wall clock may be set, and the machine may sleep: look at it this often at least.
_LOOK_S: Final = 20.0
# Somebody else writes to the store: try again before the next slot.
_BUSY_RETRY_S: Final = 60.0
_JOB_WAIT_S: Final = 2.0
# An fsync of a large pack at idle priority may wait behind a checkpoint for minutes.
_STALLED_S: Final = 1800.0


class Service:
    """Everything that the daemon is, around one store.

    ``stop``, ``reload_soon`` and everything that ``Services`` names may be called from any
    thread, ``run_once`` and ``serve`` from the main thread only.
    """

    def __init__(
        self, settings: Settings, *, clock: Clock, notifier: Notifier, known: KnownStores
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._notifier = notifier
        self._known = known
        self._store_id = ""
        # None only wakes the main thread. Bounded by how many clients the server has.
        self._inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._stopping = False
        self._reload_wanted = False
        self._paused = False
        self._paths_changed = False
        self._reloading = threading.Lock()
        self._lock: Lock | None = None
        self._server: Server | None = None
        self._job: Job | None = None
        self._newest_ns: int | None = None
        self._attempt_ended_ns: int | None = None
        self._retry_at_s = 0.0
        self._last_report: TakeReport | None = None
        self._last_error: dict[str, Any] | None = None
        self._follow_ups = FollowUps(clock, lambda: self._inbox.put(None))
        self._space = Space(clock)
        self._upkeep = Upkeep(clock, self._moved)
        self._moved_s = clock.monotonic_s()

    def stop(self) -> None:
        """End as soon as possible, also in the middle of a snapshot."""
        self._stopping = True
        self._inbox.put(None)

    def reload_soon(self) -> None:
        """Read the configuration again when no snapshot is being taken."""
        self._reload_wanted = True
        self._inbox.put(None)

    def run_once(self) -> TakeReport:
        """Take one snapshot now, beside a daemon that is idle; forget as the daemon would.

        Raises:
            CiuicError: No snapshot was taken.
        """
        self._known.prepare(self._settings.snapshot_dir, self._clock)
        self._lower_priority()
        report = self._take(Job())
        self._upkeep.after_snapshot(self._settings)
        return report

    def serve(self) -> None:
        """Take snapshots until ``stop``.

        Raises:
            BusyError: Another daemon serves the store.
            StoreError: There is no store, and none can be made, or another one is missing.
        """
        self._store_id = self._known.prepare(self._settings.snapshot_dir, self._clock)
        with self._watchdog():
            try:
                self._occupy()
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
                self._vacate()

    def status(self) -> dict[str, Any]:
        """See ``Services``; the document of ``ciuic status --json``."""
        settings, job, report = self._settings, self._job, self._last_report
        due_ns = next_due_ns(self._clock.now_ns(), self._interval_ns, self._past_ns)
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
            "next": None if self._paused else rfc3339(due_ns),
            "newest": None if self._newest_ns is None else rfc3339(self._newest_ns),
            "progress": None if job is None else job.progress,
            "follow_up": self._follow_ups.shown,
            "upkeep": self._upkeep.shown,
            "last_report": None if report is None else report.as_json(),
            "last_error": self._last_error,
        }

    def pause(self) -> None:
        """See ``Services``."""
        self._paused = True
        _log.info("paused: no snapshots by schedule until 'resume'")
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

    def reload(self) -> None:
        """See ``Services``. A snapshot that is being taken goes on as it began."""
        with self._reloading:
            self._notifier.reloading(self._clock.monotonic_s())
            try:
                self._replace_settings(load_settings(self._settings.path))
            except CiuicError as error:
                _log.error("the configuration stays as it was: %s", sentence(error))
                raise
            finally:
                self._notifier.ready()
        _log.info("read %s again: %s", self._settings.path, self._plan())
        self._inbox.put(None)

    def _replace_settings(self, new: Settings) -> None:
        old = self._settings
        if new.snapshot_dir != old.snapshot_dir:
            raise ConfigError(
                f"{new.path}: snapshot_dir can't change from {old.snapshot_dir} to "
                f"{new.snapshot_dir} while the daemon runs",
                hint="Restart the daemon: systemctl restart ciuicd.",
            )
        if new.io_priority != old.io_priority:
            _log.warning("io_priority changes when the daemon is started again")
        self._settings = new
        self._paths_changed |= new.snapshot_paths != old.snapshot_paths

    def _turn(self) -> None:
        """One round of the loop: reload, take what is due, or wait for something to do."""
        self._moved()
        self._space.make_room(self._settings.snapshot_dir, _roots_of(self._settings))
        if self._reload_wanted:
            self._reload_wanted = False
            with contextlib.suppress(CiuicError):
                self.reload()
        if self._paths_changed:
            # What was taken until now may not hold the new ones: look again.
            self._paths_changed = False
            self._newest_ns = self._attempt_ended_ns = None
        if self._paused:
            self._follow_ups.drop()
        elif self._is_due():
            self._take_scheduled()
            return
        elif self._follow_ups.is_due():
            self._take_follow_up()
            return
        elif self._inbox.empty() and self._upkeep.is_due(self._settings) and self._is_there():
            self._upkeep.run(self._settings, self._has_better_to_do, lambda: self._stopping)
            self._show_status()
            return
        job = self._next_job()
        if job is not None:
            self._take_for(job)

    def _has_better_to_do(self) -> bool:
        return (
            self._stopping
            or self._reload_wanted
            or not self._inbox.empty()
            or self._is_due()
            or self._follow_ups.is_due()
        )

    def _next_job(self) -> Job | None:
        due_ns = next_due_ns(self._clock.now_ns(), self._interval_ns, self._past_ns)
        due_s = (due_ns - self._clock.now_ns()) / _NS
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
        moments = (self._newest_ns, self._attempt_ended_ns)
        return [moment for moment in moments if moment is not None]

    def _is_due(self) -> bool:
        if self._clock.monotonic_s() < self._retry_at_s:
            return False
        return is_due(self._clock.now_ns(), self._interval_ns, self._past_ns)

    def _take_scheduled(self) -> None:
        job = Job()
        with self._attempt(job, scheduled=True):
            self._occupy()
            # Somebody may have taken one by hand since we last looked.
            self._learn_newest()
            if self._is_due():
                self._finish(job, self._take(job))

    def _take_for(self, job: Job) -> None:
        with self._attempt(job, scheduled=False):
            self._occupy()
            self._finish(job, self._take(job, wait_s=_JOB_WAIT_S))

    def _take_follow_up(self) -> None:
        job = Job(tags=(TAG,), scope=self._follow_ups.scope)
        report = None
        with self._attempt(job, scheduled=False):
            self._occupy()
            # That one file is closed now is no reason to read all the others again.
            report = self._take(job, wait_s=_JOB_WAIT_S, may_be_base=False)
        if report is None:
            self._follow_ups.drop()
        else:
            self._follow_ups.taken(report)
            self._upkeep.after_snapshot(self._settings)

    def _finish(self, job: Job, report: TakeReport) -> None:
        job.finish(report)
        roots = job.scope[0] if job.scope is not None else _roots_of(self._settings)
        self._follow_ups.consider(
            report, job.scope, roots, interval_s=self._settings.snapshot_interval_s
        )
        self._upkeep.after_snapshot(self._settings)

    @contextlib.contextmanager
    def _attempt(self, job: Job, *, scheduled: bool) -> Iterator[None]:
        """Whatever happens inside becomes the job's outcome and a line in the log."""
        self._job = job
        try:
            yield
        except CancelledError as error:
            _log.info("a snapshot was broken off because the daemon stops")
            job.finish(error)
        except BusyError as error:
            if scheduled:
                self._retry_at_s = self._clock.monotonic_s() + _BUSY_RETRY_S
            self._failed(job, error)
        except CiuicError as error:
            self._failed(job, error)
        except OSError as error:
            self._failed(job, StoreError(f"{type(error).__name__}: {error}"))
        except Exception as error:  # noqa: BLE001 - the loop's edge: a bug must not end the daemon
            short = shortage(error)
            if short is None:
                _log.exception("this should not have happened; please report it")
            self._failed(job, short or StoreError(f"{type(error).__name__}: {error}", hint=""))
        finally:
            self._job = None
            if scheduled and self._retry_at_s <= self._clock.monotonic_s():
                self._attempt_ended_ns = self._clock.now_ns()
            self._show_status()

    def _failed(self, job: Job, error: CiuicError) -> None:
        _log.error("no snapshot: %s", sentence(error))
        now = rfc3339(self._clock.now_ns())
        self._last_error = {**_error_fields(error), "time": now}
        job.finish(error)

    def _take(self, job: Job, *, wait_s: float = 0.0, may_be_base: bool = True) -> TakeReport:
        settings = self._settings
        roots, exclude = job.scope or (_roots_of(settings), settings.exclude_patterns)
        request = TakeRequest(
            roots=roots,
            exclude=exclude,
            base=job.base,
            base_interval_s=settings.base_interval_s if may_be_base else 0.0,
            tags=job.tags,
            hot_snapshots=settings.hot_snapshots,
            parity=settings.parity,
            chain_cost=settings.chain_cost,
        )
        self._notifier.status("taking a snapshot")
        with open_store(settings.snapshot_dir, write=True, wait_s=wait_s) as store:
            for what in store.stuck.values():
                _log.warning("%s; it stays. %s", what, UnreachableError.default_hint)
            report = take_snapshot(
                store, request, clock=self._clock, cancelled=self._cancelled, progress=job
            )
        _log.log(logging.WARNING if report.trouble_count else logging.INFO, _describe(report))
        if job.scope is None:
            self._newest_ns = report.taken_ns
        self._last_report = report
        self._last_error = None
        return report

    def _cancelled(self) -> bool:
        self._moved()
        return self._stopping

    def _learn_newest(self) -> None:
        with open_store(self._settings.snapshot_dir) as store:
            now_ns, wanted = self._clock.now_ns(), _roots_of(self._settings)
            self._newest_ns = next(
                (
                    one.taken_ns
                    for one in list_snapshots(store)
                    if one.taken_ns <= now_ns and covers(one.roots, wanted)
                ),
                None,
            )

    def _occupy(self) -> None:
        """Hold the daemon's lock on the store and listen in it; also again after it was gone.

        Raises:
            BusyError: Another daemon does.
            StoreError: There is no store, or another one.
        """
        if self._server is not None and self._server.intact:
            return
        self._vacate()
        path = self._settings.snapshot_dir
        if not os.path.lexists(os.path.join(path, HEADER)):
            raise StoreError(
                f"the store {path} has gone",
                hint="Mount its file system again; or start the daemon again to make a new store.",
            )
        if read_header(path).store_id != self._store_id:
            raise StoreError(
                f"there is another store at {path} by now",
                hint="Mount the file system of the first one again; or start the daemon again.",
            )
        lock = Lock(os.path.join(path, DAEMON_LOCK))
        try:
            lock.take_alone()
        except BusyError as error:
            raise BusyError(
                f"{error.message}: another ciuicd serves it",
                hint="Stop that one first, or give this one a snapshot_dir of its own.",
            ) from error
        self._lock = lock
        self._server = Server(path, self, self._clock)

    def _is_there(self) -> bool:
        """It is the store that was served: no other is to be pruned."""
        with contextlib.suppress(CiuicError):
            self._occupy()
            return True
        return False

    def _vacate(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _refuse_jobs(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                job = self._inbox.get_nowait()
                if job is not None:
                    job.finish(CancelledError("the daemon stops"))

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
            self._learn_newest()
        settings = self._settings
        _log.info("ciuicd %s serves %s: %s", ciuic.__version__, settings.snapshot_dir, self._plan())
        self._show_status()

    def _plan(self) -> str:
        settings = self._settings
        roots = ", ".join(settings.snapshot_paths)
        return f"{roots} every {format_duration(settings.snapshot_interval_s)}"

    def _show_status(self) -> None:
        if self._last_report is not None:
            last = f"last {_describe(self._last_report)}"
        else:
            last = "none taken yet since the daemon was started"
        if self._last_error is not None:
            last = f"last try failed: {self._last_error['message']}"
        due_ns = next_due_ns(self._clock.now_ns(), self._interval_ns, self._past_ns)
        when = "paused" if self._paused else f"next {local_time_text(due_ns)}"
        self._notifier.status(f"{when}; {last}")

    def _moved(self) -> None:
        self._moved_s = self._clock.monotonic_s()

    @contextlib.contextmanager
    def _watchdog(self) -> Iterator[None]:
        """Keep systemd's watchdog quiet inside, as long as the main thread moves."""
        interval_s = self._notifier.watchdog_s
        if interval_s is None:
            yield
            return
        ended = threading.Event()

        def keep_quiet() -> None:
            while not ended.wait(interval_s / 2):
                if self._clock.monotonic_s() - self._moved_s < _STALLED_S:
                    self._notifier.alive()

        thread = threading.Thread(target=keep_quiet, name="watchdog", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _roots_of(settings: Settings) -> tuple[bytes, ...]:
    return tuple(os.fsencode(path) for path in settings.snapshot_paths)


def sentence(error: CiuicError) -> str:
    """An error and its remedy on one line."""
    return f"{error.message}. {error.hint}" if error.hint else error.message


def _error_fields(error: CiuicError) -> dict[str, str]:
    return {"kind": error.kind, "message": error.message, "hint": error.hint}


def _describe(report: TakeReport) -> str:
    text = (
        f"snapshot {report.id} ({report.kind}): {format_files(report.files)}, "
        f"{format_bytes(report.logical_bytes)}, {format_bytes(report.stored_bytes)} stored, "
        f"{format_duration(report.total_s)}, "
    )
    if not report.trouble_count:
        return text + "no trouble"
    paths = "1 path" if report.trouble_count == 1 else f"{report.trouble_count} paths"
    first = next((one for one in report.trouble if not one.harmless), None)
    example = f", first {path_text(first.path)}: {first.what}" if first is not None else ""
    return f"{text}{paths} in trouble{example}"
