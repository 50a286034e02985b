"""The daemon's main thread: takes snapshots when they are due or requested.

Only the main thread takes snapshots: one on its own at a time, and requested ones beside it where
``jobs.at_once`` allows that. The control socket's threads and the thread that waits for signals put
work into its queue and read its state; the watchdog's thread tells systemd that the main thread
makes progress.

Guarantees:
    - A failed snapshot never ends the daemon. It is one line in the log, and the next snapshot
      is taken on schedule.
    - ``stop`` cancels a snapshot that is being taken. Nothing of it is committed.
    - After an upgrade, no work begins that would mix modules of the old and the new program.
    - The daemon never makes a missing store again, and never serves another store at the same
      path: a store on the disk below a lost mount would look healthy. Once the store is back, the
      daemon serves it again.
"""

import contextlib
import logging
import os
import threading
from typing import Final

import ciuic
from ciuic.config.load import load_settings
from ciuic.config.settings import Settings
from ciuic.control import Document
from ciuic.errors import (
    CancelledError,
    CiuicError,
    ConfigError,
    StoreError,
)
from ciuic.model import ExcludeRules
from ciuic.snapshot.report import TakeReport
from ciuic.store.place.keys import is_url
from ciuic.system.buffers import give_back_unused
from ciuic.system.clock import Clock, local_time_text, rfc3339
from ciuic.system.priority import describe_schedulers, lower_priority
from ciuic.system.workers.asking import ask
from ciuicd.attempt import sentence
from ciuicd.attempts import Attempts
from ciuicd.hold import StoreHold
from ciuicd.jobs.inbox import Inbox
from ciuicd.jobs.job import Job
from ciuicd.metrics.meter import meter_of
from ciuicd.notify import Notifier, Watchdog
from ciuicd.program import Program, replaced
from ciuicd.schedules.order import Order
from ciuicd.schedules.state import error_fields
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
_UPGRADE_LOOK_S: Final = 5.0


class Service:
    """The daemon of one store.

    ``stop``, ``reload_soon`` and the methods of ``Services`` may be called from any thread;
    ``run_once`` and ``serve`` from the main thread only.

    Attributes:
        settings: The configuration.
        metrics: Counts what happens.
        is_stopping: The daemon ends.
        is_paused: No scheduled snapshots are taken.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock,
        notifier: Notifier,
        served_stores: ServedStores,
        is_paused: bool = False,
    ) -> None:
        self.settings = settings
        self._clock = clock
        self._notifier = notifier
        self._served_stores = served_stores
        self._inbox = Inbox()
        self.is_stopping = False
        self._reload_wanted = False
        self._keeps_waiting = False
        self.is_paused = is_paused
        self._program = Program(clock)
        self._blocked: Document | None = None
        self._refusal: CiuicError = CancelledError("the daemon is stopping")
        self._reloading = threading.Lock()
        self._watchdog = Watchdog(notifier, clock)
        self._turns = Turns(settings, clock, self._inbox.wake)
        self._space = Space(clock)
        self.metrics = meter_of(settings, clock)
        # Made by ``_prepare_store``, which learns the ID that they insist on.
        self._hold: StoreHold
        self._taker: SnapshotTaker
        self._upkeep: Upkeep
        self._attempts: Attempts
        self._order: Order

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
            reports, failures = self._attempts.take_each_due()
            if reports:
                self._upkeep.after_snapshot(self.settings)
            if failures:
                raise failures[0]
        finally:
            self._taker.end()
            self.write_metrics()
        return reports

    def serve(self) -> bool:
        """Take snapshots until ``stop``.

        Returns:
            Whether the program on disk is to be started instead, because it was replaced.

        Raises:
            BusyError: Another daemon serves the store.
            StoreError: The store is missing, cannot be made, or is not the expected one.
        """
        self._prepare_store(serves=True)
        starts_again = False
        with self._watchdog.running():
            try:
                self._hold.take(self.settings)
                self._lower_priority()
                self._introduce()
                self._notifier.ready()
                while self._attempts.under_way or not (self.is_stopping or starts_again):
                    if self._attempts.under_way:
                        self._go_on()
                    elif self._program.is_replaced():
                        starts_again = self._can_start_again()
                    else:
                        self._unblock()
                        self._turn()
            finally:
                # A manager would wait for the end of a process that says it is stopping.
                if starts_again:
                    self._notifier.reloading(self._clock.monotonic_s())
                else:
                    self._notifier.stopping()
                self.is_stopping = True
                self._attempts.close()
                self._inbox.refuse_all(self._refusal)
                self._turns.drop_follow_ups()
                self._hold.release()
                self._taker.end()
        return starts_again

    def _can_start_again(self) -> bool:
        """Return whether to leave for the program on disk; wait a moment if it does not start."""
        self._watchdog.note_progress()
        if self._program.can_start(lambda: self.is_stopping):
            _log.warning("ciuic was replaced on disk by another version: ciuicd starts again")
            self._refusal = replaced()
            return True
        if self.is_stopping:  # the trial was given up
            return False
        error = self._why_not_started()
        self._block(error)
        self._inbox.refuse_all(error)
        self._inbox.wait(_UPGRADE_LOOK_S)
        self._inbox.refuse_all(error)
        if self._notifier.has_manager and self._program.is_stuck():
            raise StoreError(
                "ciuic was changed on disk and has not started for five minutes, so this ciuicd"
                " ends",
                hint="The service manager starts the ciuicd of the unit; its log says what fails.",
            )
        return False

    def _block(self, error: CiuicError) -> None:
        """Show that no snapshots are taken; say it once."""
        before, fields = self._blocked, error_fields(error, self._clock)
        self._blocked = fields if before is None else {**fields, "time": before["time"]}
        if before is None or before["message"] != error.message:
            _log.error("%s", sentence(error))
            self.show_status()

    def _unblock(self) -> None:
        """Go on: the files of the program are again as they were."""
        if self._blocked is not None:
            self._blocked = None
            self.show_status()

    def _why_not_started(self) -> CiuicError:
        said = f" ({self._program.said})" if self._program.said else ""
        if self._program.is_config_refused:
            return ConfigError(
                "ciuic was changed on disk and cannot use the configuration, so no snapshots are"
                f" taken{said}",
                hint="Correct what 'ciuicd --check' names: the daemon then starts again by itself.",
            )
        return StoreError(
            f"ciuic was changed on disk and does not start, so no snapshots are taken{said}",
            hint="Install ciuic again: the daemon then starts again by itself. If ciuic is"
            " elsewhere now, restart the daemon from there.",
        )

    def stop(self) -> None:
        """End as soon as possible, even in the middle of a snapshot."""
        self.is_stopping = True
        self._inbox.wake()

    def _prepare_store(self, *, serves: bool) -> None:
        """Make or find the store, and make the helpers that serve this store alone.

        Args:
            serves: This process will wait between its snapshots, and should stay small.
        """
        settings, clock = self.settings, self._clock
        path, owner = settings.snapshot_dir, settings.store_owner
        if is_url(path):
            store_id = self._served_stores.prepare_bucket(settings, clock, waits=not serves)
        else:
            store_id = self._served_stores.prepare(path, clock, owner=owner)
        self._hold = StoreHold(self, clock, store_id)
        self._taker = SnapshotTaker(
            clock,
            self._notifier,
            self._is_cancelled,
            self._watchdog.watching,
            somebody_waits=self._somebody_waits,
            is_ending=lambda: self.is_stopping,
            store_id=store_id,
            apart=serves,
        )
        self._upkeep = Upkeep(clock, self._watchdog.note_progress, store_id=store_id, apart=serves)
        self._attempts = Attempts(
            self, clock, self._turns, taker=self._taker, hold=self._hold, upkeep=self._upkeep
        )
        self._order = Order(
            self._attempts,
            self._turns,
            self._inbox,
            is_paused=lambda: self.is_paused,
            is_replaced=self._program.is_replaced,
        )

    def _lower_priority(self) -> None:
        settings = self.settings
        problem = lower_priority(settings.io_priority)
        if problem is not None:
            _log.warning(problem)
        elif settings.io_priority != "none":
            places = [*settings.all_paths]
            if not is_url(settings.snapshot_dir):
                places.append(settings.snapshot_dir)
            text = f"I/O priority {settings.io_priority}"
            ask(lambda: _log.info("%s: %s", text, describe_schedulers(places)))

    def _introduce(self) -> None:
        with contextlib.suppress(CiuicError):
            for state in self._turns:
                # A unit that starts has less time than a patient look may take.
                state.newest_ns = newest_taken_ns(
                    state.settings, self._clock, by_daemon=True, patient=False
                )
        store_path = self.settings.snapshot_dir
        _log.info("ciuicd %s serves %s: %s", ciuic.__version__, store_path, self._turns.plan)
        if self.is_paused:
            _log.info("still paused: no scheduled snapshots until 'ciuic resume'")
        self.show_status()

    def status(self) -> Document:
        """See ``Services``; the document of ``ciuic status --json``."""
        settings, report = self.settings, self._taker.last_report
        job = next((one.job for one in self._attempts.under_way), None)
        newest_ns = max((state.newest_ns or 0 for state in self._turns), default=0)
        awaited = [state.follow_ups.shown for state in self._turns]
        blocked, is_replaced = self._blocked, self._program.was_replaced()
        if is_replaced and blocked is None and self._inbox.is_quiet:
            self._inbox.wake()  # to try the new program now, and not at the next look
        return {
            "state": self._state,
            "paused": self.is_paused,
            "replaced": is_replaced,
            "blocked": blocked,
            "pid": os.getpid(),
            "version": ciuic.__version__,
            "config": settings.path,
            "store": settings.snapshot_dir,
            "snapshot_paths": list(settings.all_paths),
            "snapshot_interval_s": self._turns.first.interval_s,
            "next": None if self.is_paused or blocked else rfc3339(self._turns.next_due_ns),
            "newest": rfc3339(newest_ns) if newest_ns else None,
            "schedules": [state.as_json() for state in self._turns],
            "progress": None if job is None else job.progress,
            "follow_up": next(filter(None, awaited), None),
            "upkeep": self._upkeep.shown,
            "stalled_s": self._watchdog.stalled_s,
            "last_report": None if report is None else report.as_json(),
            "last_error": self._taker.last_error,
            "hook_trouble": self._taker.hook_warnings,
        }

    @property
    def _state(self) -> str:
        """The state in a word, as ``ciuic status`` shows it."""
        if self._attempts.under_way:
            return "taking"
        if self._blocked is not None:
            return "blocked"
        return "paused" if self.is_paused else "idle"

    def pause(self) -> None:
        """See ``Services``."""
        self.is_paused = True
        _log.info("paused: no scheduled snapshots until 'ciuic resume'")
        self._inbox.wake()

    def resume(self) -> None:
        """See ``Services``."""
        self.is_paused = False
        _log.info("resumed")
        self._inbox.wake()

    def submit(self, job: Job) -> None:
        """See ``Services``."""
        self._inbox.put(job)
        # ``serve`` may have refused all jobs just before.
        if self.is_stopping:
            self._inbox.refuse_all(self._refusal)

    def control_group(self) -> int | None:
        """See ``Services``."""
        return self.settings.control_group

    def schedule_of(self, scope: tuple[tuple[bytes, ...], ExcludeRules]) -> str:
        """See ``Services``."""
        return self.settings.schedule_of(*scope)

    def schedule_names(self) -> tuple[str, ...]:
        """See ``Services``."""
        return tuple(state.name for state in self._turns)

    def reload_soon(self) -> None:
        """Read the configuration again."""
        self._reload_wanted = True
        self._inbox.wake()

    def reload(self) -> None:
        """See ``Services``. A snapshot that is being taken keeps its settings."""
        with self._reloading:
            self._notifier.reloading(self._clock.monotonic_s())
            try:
                self._replace_settings(load_settings(self.settings.path))
            except CiuicError as error:
                _log.error("the old configuration stays in effect: %s", sentence(error))
                raise
            finally:
                self._notifier.ready()
        _log.info("reloaded %s: %s", self.settings.path, self._turns.plan)
        self._inbox.wake()

    def _replace_settings(self, new: Settings) -> None:
        old = self.settings
        if new.snapshot_dir != old.snapshot_dir:
            raise ConfigError(
                f"{new.path}: snapshot_dir cannot change from {old.snapshot_dir} to "
                f"{new.snapshot_dir} while the daemon is running",
                hint="Restart the daemon: systemctl restart ciuicd.",
            )
        if new.io_priority != old.io_priority:
            _log.warning("the new io_priority takes effect when the daemon is restarted")
        if bool(new.metrics_file) != bool(old.metrics_file):
            self.metrics = meter_of(new, self._clock)
        self.settings = new
        self._turns.replace(new)
        self._hold.admit_group()

    def _turn(self) -> None:
        """Run one round of the loop: reload, take what is due, or wait for work."""
        self._watchdog.note_progress()
        self._keeps_waiting = False  # nothing is under way
        settings = self.settings
        bucket_id = self._hold.store_id if is_url(settings.snapshot_dir) else ""
        self._space.free_space(settings.snapshot_dir, self._all_roots, bucket_id=bucket_id)
        self._reload_if_wanted()
        self._turns.drop_gone()
        if self._order.begin_next():
            return
        if not self.is_paused and self._can_do_upkeep():
            self._upkeep.run(self.settings, self._has_better_to_do, lambda: self.is_stopping)
            self.show_status()
            self.write_metrics()
            give_back_unused()
            return
        if self.metrics.is_due():
            self.write_metrics()
        self._wait()

    def _go_on(self) -> None:
        """Go on with the snapshots that are being taken, and begin another one beside them."""
        self._attempts.step()
        if self._attempts.under_way and not (self.is_stopping or self._program.was_replaced()):
            self._reload_if_wanted()
            may_begin = not self._attempts.must_end or self._inbox.has_urgent
            has_begun = may_begin and self._order.begin_next()
            # Beside a snapshot that opens the store, a request only waits for a moment.
            must_wait = self._inbox.has_waiting and not has_begun
            self._keeps_waiting = must_wait and self._attempts.have_store

    def _reload_if_wanted(self) -> None:
        if self._reload_wanted:
            self._reload_wanted = False
            with contextlib.suppress(CiuicError):
                self.reload()

    def _can_do_upkeep(self) -> bool:
        return (
            self._inbox.is_quiet
            and self._upkeep.is_due(self.settings)
            and self._hold.can_take(self.settings)  # no prune of another store at this path
        )

    def _has_better_to_do(self) -> bool:
        return (
            self.is_stopping
            or self._program.was_replaced()
            or self._reload_wanted
            or not self._inbox.is_quiet
            or bool(self._turns.due())
            or self._turns.follow_up_due() is not None
        )

    def _wait(self) -> None:
        wait_s = _LOOK_S if self.is_paused else min(_LOOK_S, self._turns.wait_s)
        look_s = self._turns.next_look_s
        if look_s is not None:
            wait_s = min(wait_s, look_s - self._clock.monotonic_s())
        self._inbox.wait(max(wait_s, 0.001))

    @property
    def _all_roots(self) -> tuple[bytes, ...]:
        return tuple(os.fsencode(path) for path in self.settings.all_paths)

    def _somebody_waits(self) -> bool:
        """Return whether a request waits that cannot begin beside what is under way."""
        return self._keeps_waiting

    def _is_cancelled(self, job: Job) -> bool:
        # With --once, a user waits.
        is_own = any(one.job is job and one.is_own for one in self._attempts.under_way)
        # The next daemon takes its own snapshots again, but not one that a user asked for.
        goes_first = is_own and (self._inbox.has_urgent or self._program.was_replaced())
        return self.is_stopping or goes_first

    def write_metrics(self) -> None:
        """See ``Daemon``."""
        next_due_ns = None if self.is_paused else self._turns.next_due_ns
        self.metrics.write(
            self.settings, next_due_ns=next_due_ns, is_taking=bool(self._attempts.under_way)
        )

    @property
    def is_replaced(self) -> bool:
        """See ``Daemon``."""
        return self._program.was_replaced()

    def show_status(self) -> None:
        """See ``Daemon``."""
        if self._blocked is not None:
            self._notifier.status(f"blocked: {self._blocked['message']}")
            return
        when = "paused" if self.is_paused else f"next {local_time_text(self._turns.next_due_ns)}"
        self._notifier.status(f"{when}; {self._taker.last_text}")
