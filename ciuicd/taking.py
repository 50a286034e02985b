"""Taking the daemon's snapshots, and what it remembers of them.

``SnapshotTaker`` knows the report of the last snapshot, and the error of the last attempt. The main
thread calls its methods; other threads may read its attributes.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final

from ciuic.catalog import list_snapshots
from ciuic.config.opening import open_configured
from ciuic.config.settings import Settings
from ciuic.control import Document
from ciuic.errors import ChildDiedError, CiuicError
from ciuic.model import DAEMON, Owner, SnapshotSummary, covers, path_text
from ciuic.snapshot.hooks import (
    HOOK_WARNING,
    Hooks,
    HookState,
    run_after_death,
)
from ciuic.snapshot.pace.disk_waits import DiskWaits
from ciuic.snapshot.pace.idling import patience_s
from ciuic.snapshot.pace.pacer import Waits
from ciuic.snapshot.pace.pressure import pressure_of_others
from ciuic.snapshot.plan import TakeRequest
from ciuic.snapshot.report import TakeReport
from ciuic.store.place.keys import is_url
from ciuic.store.store import Store
from ciuic.system.clock import Clock
from ciuic.system.machine import this_machine
from ciuic.units import counted, format_bytes, format_duration, format_files
from ciuicd.jobs.child import in_child
from ciuicd.jobs.job import Job
from ciuicd.jobs.snapshot import HOOK_ENDS_S, HOOKS, SnapshotWork, say_of_hook
from ciuicd.jobs.steps import Steps
from ciuicd.notify import Notifier
from ciuicd.processor_share import ProcessorShare
from ciuicd.schedules.namesakes import snapshots_of_namesakes
from ciuicd.schedules.state import encoded_roots, error_fields

__all__ = ["SnapshotTaker", "newest_taken_ns"]

_log = logging.getLogger(__name__)

_WAIT_SAID_S: Final = 0.1
_AFTER_DEATH: Final = b"after a death"
"""Stands for the run of a hook that this process runs itself."""


class SnapshotTaker:
    """Takes snapshots by the configuration.

    Args:
        clock: Tells the time.
        notifier: Receives the beginning of each snapshot.
        cancelled: Called often while a snapshot is taken, with its job; True cancels it.
        somebody_waits: Whether a request waits for the end of a snapshot of the schedule.
        watching: Surrounds each snapshot. What it yields is called often as long as that makes
            progress.
        is_ending: Whether the daemon ends, which never waits for long.
        store_id: The store to take snapshots into; one with another ID is refused.
        apart: Take each snapshot in a child process.

    Attributes:
        last_report: Of the snapshot of this daemon that ended last.
        last_error: Of the attempt that ended last, if it failed: kind, message, hint and time.
    """

    def __init__(
        self,
        clock: Clock,
        notifier: Notifier,
        cancelled: Callable[[Job], bool],
        watching: Callable[[], AbstractContextManager[Callable[[], None]]],
        *,
        somebody_waits: Callable[[], bool],
        is_ending: Callable[[], bool],
        store_id: str,
        apart: bool,
    ) -> None:
        self._clock = clock
        self._notifier = notifier
        self._cancelled = cancelled
        self._somebody_waits = somebody_waits
        self._is_ending = is_ending
        self._watching = watching
        self._store_id = store_id
        self._apart = apart
        self.last_report: TakeReport | None = None
        self.last_error: Document | None = None
        self._has_said_unpaced = False
        self._awaited_count = 0
        self._share = ProcessorShare(clock)
        self._share.repair()

    def take(
        self,
        settings: Settings,
        job: Job,
        *,
        interval_s: float,
        wait_s: float = 0.0,
        may_be_full: bool = True,
    ) -> Steps[TakeReport]:
        """Take the snapshot that ``job`` describes, with the hooks, and log its report.

        In a child process the steps only wait. Else there is no step: it is taken at once.

        Args:
            settings: The daemon's configuration, with the schedule that the snapshot is for.
            job: Kind, tags and scope. It receives the progress.
            interval_s: How often a snapshot of the schedule is due.
            wait_s: How long to wait for the store's lock.
            may_be_full: Whether the age of the last full snapshot may make this one full.

        Raises:
            CiuicError: No snapshot was taken.
        """
        work = self._work(settings, job, interval_s, wait_s, may_be_full=may_be_full)
        self._notifier.status("taking a snapshot")

        def is_cancelled_here() -> bool:
            note_progress()
            return self._is_cancelled(job)

        with (
            self._watching() as note_progress,
            self._lowered_share(work, is_awaited=job.origin != DAEMON),
        ):
            if self._apart:
                report = yield from self._take_apart(work, job, note_progress)
            else:
                report = work.take(job, is_cancelled_here, self._must_hurry, job)
        self.last_report = report
        self.last_error = None
        name = f"{settings.schedule}: " if job.names_schedule else ""
        level = logging.WARNING if report.trouble_count else logging.INFO
        fields = _fields(settings, report)
        _log.log(level, "%s%s", name, _describe(report), extra={"fields": fields})
        for note in report.notes:
            _log.warning("%s", note.what)
        return report

    def _work(
        self,
        settings: Settings,
        job: Job,
        interval_s: float,
        wait_s: float,
        *,
        may_be_full: bool,
    ) -> SnapshotWork:
        gives_way = job.origin == DAEMON and settings.io_priority == "idle"
        return SnapshotWork(
            settings,
            _request(settings, job, may_be_full=may_be_full),
            Hooks(settings.before, settings.after, settings.hook_timeout_s),
            self._store_id,
            wait_s,
            idles_s=patience_s(interval_s) if gives_way else None,
            waits=self._waits(settings, job),
            clock=self._clock,
        )

    def _take_apart(
        self, work: SnapshotWork, job: Job, note_progress: Callable[[], None]
    ) -> Steps[TakeReport]:
        """Take a snapshot in a child process; run the hook ``after`` if that is killed."""
        states: list[HookState] = []
        hook_time = _HookTime(self._notifier, self._is_ending, work.hooks.timeout_s)

        def is_ending() -> bool:
            for state in states:
                hook_time.ask(state.running)
            return self._is_ending()

        def waits() -> None:
            hook_time.ask(_AFTER_DEATH)
            note_progress()

        def told(document: Document) -> None:
            if (state := document.get(HOOKS)) is not None:
                states[:] = [state]
                job.has_store = True
            else:
                job.show(document)

        steps: Steps[TakeReport] = in_child(
            work.take_apart,
            clock=self._clock,
            is_cancelled=lambda: self._is_cancelled(job),
            is_ending=is_ending,
            must_hurry=self._must_hurry,
            note_progress=note_progress,
            told=told,
            # The threads of an object store's client do not survive a fork.
            starts=is_url(work.settings.snapshot_dir),
        )
        try:
            return (yield from steps)
        except ChildDiedError as error:
            # It may have died after the commit.
            more = "'ciuic list' shows whether the snapshot was committed."
            error.hint += f" {more}"
            error.add_note(more)
            for state in states:
                run_after_death(
                    state,
                    work.request,
                    work.hooks,
                    exit_status=error.exit_status,
                    clock=self._clock,
                    say=say_of_hook,
                    waits=waits,
                )
            raise

    @contextlib.contextmanager
    def _lowered_share(self, work: SnapshotWork, *, is_awaited: bool) -> Iterator[None]:
        """Leave the processors to others while work gives way, if nothing forbids it."""
        has_limits = bool(work.hooks.before or work.hooks.after)
        longest_s = work.idles_s or 0.0
        self._awaited_count += is_awaited
        try:
            # Snapshots that are taken at once have the same share.
            with self._share.lowered(0.0 if has_limits or self._awaited_count else longest_s):
                yield
        finally:
            self._awaited_count -= is_awaited

    def _waits(self, settings: Settings, job: Job) -> tuple[Waits, ...]:
        """Return what slows a snapshot of the schedule down. One that a user asked for has none.

        They are made here: a child process would take the daemon for another program.
        """
        if job.origin != DAEMON or not settings.pressure_limit:
            return ()
        all_waits = pressure_of_others(), DiskWaits(self._clock)
        waits = tuple(one for one in all_waits if one.is_known)
        if not waits:
            self._say_unpaced()
        return waits

    def _say_unpaced(self) -> None:
        if not self._has_said_unpaced:
            self._has_said_unpaced = True
            _log.warning(
                "snapshots do not slow down for other programs: this kernel does not measure for"
                " how long they wait. Boot it with psi=1, or set pressure_limit = 0"
            )

    def end(self) -> None:
        """Leave the machine as it was before the snapshots."""
        self._share.end()

    def remember(self, error: CiuicError) -> None:
        """Keep the error of an attempt for the daemon's status."""
        self.last_error = error_fields(error, self._clock)

    def _is_cancelled(self, job: Job) -> bool:
        must_stop = self._cancelled(job)
        if must_stop:
            self._share.set_back()
        return must_stop

    def _must_hurry(self) -> bool:
        must_hurry = self._somebody_waits()
        if must_hurry:
            self._share.set_back()
        return must_hurry

    @property
    def hook_warnings(self) -> list[str]:
        """What failed in the hooks of the last snapshot."""
        warnings = self.last_report.trouble if self.last_report is not None else ()
        return [warning.what for warning in warnings if warning.what.startswith(HOOK_WARNING)]

    @property
    def last_text(self) -> str:
        """How the last attempt ended, for ``systemctl status``."""
        if self.last_error is not None:
            return f"last attempt failed: {self.last_error['message']}"
        if self.last_report is not None:
            return f"last {_describe(self.last_report)}"
        return "none taken yet since the daemon started"


class _HookTime:
    """Has systemd wait for a hook that runs while the daemon ends: asks once for each run."""

    def __init__(
        self, notifier: Notifier, is_ending: Callable[[], bool], hook_timeout_s: float
    ) -> None:
        self._notifier = notifier
        self._is_ending = is_ending
        self._hook_timeout_s = hook_timeout_s
        self._asked = b""

    def ask(self, run: bytes) -> None:
        """Ask for the time of a run, if the daemon ends; an empty name is none."""
        if run not in {b"", self._asked} and self._is_ending():
            self._asked = run
            self._notifier.extend(self._hook_timeout_s + HOOK_ENDS_S)


def newest_taken_ns(
    settings: Settings, clock: Clock, *, by_daemon: bool = False, patient: bool = True
) -> int | None:
    """Return when the newest snapshot that serves the settings' schedule began.

    A snapshot without a schedule, which a user took, counts if it covers the directories and leaves
    out no more than the daemon would. A snapshot of another schedule does not count, because it may
    be forgotten sooner. A snapshot of another machine does not count either.

    Args:
        settings: The configuration, with the schedule.
        clock: Tells the time.
        by_daemon: The caller is the daemon. So snapshots by another machine with the same name and
            machine ID are known, and don't count.
        patient: See ``open_configured``.

    Raises:
        CiuicError: The store cannot be read.
    """
    with open_configured(settings, patient=patient) as store:
        now_ns, wanted = clock.now_ns(), encoded_roots(settings)
        own = Owner(this_machine(), is_library=False)
        snapshots = list_snapshots(store)
        namesakes = snapshots_of_namesakes(store, snapshots) if by_daemon else []
        foreign = {one.id for one in namesakes}
        return next(
            (
                summary.taken_ns
                for summary in snapshots
                if summary.taken_ns <= now_ns
                and summary.id not in foreign
                and summary.schedule in {settings.schedule, ""}
                and summary.owner.is_same(own)
                and covers(summary.roots, wanted)
                and _excludes_no_more(store, summary, settings)
            ),
            None,
        )


def _request(settings: Settings, job: Job, *, may_be_full: bool) -> TakeRequest:
    roots, exclude = job.scope or (encoded_roots(settings), settings.exclude_rules)
    return TakeRequest(
        roots=roots,
        exclude=exclude,
        base=job.base,
        base_interval_s=settings.base_interval_s if may_be_full else 0.0,
        tags=job.tags,
        hot_snapshots=settings.hot_snapshots,
        hot_by_schedule=settings.hot_by_schedule,
        parity=settings.parity,
        chain_cost=settings.chain_cost,
        origin=job.origin,
        schedule=settings.schedule if job.scope is None else job.schedule or "",
        threads=settings.threads,
        memory_bytes=settings.buffer_memory_bytes * 2 // 3,
    )


def _excludes_no_more(store: Store, summary: SnapshotSummary, settings: Settings) -> bool:
    try:
        rules = store.manifest(summary.id).exclude
    except CiuicError:
        return False
    return rules.is_within(settings.exclude_rules)


def _fields(settings: Settings, report: TakeReport) -> Document:
    """Return what a program reads of a snapshot in the log: JSON, or an entry of the journal."""
    names = ("id", "kind", "files", "logical_bytes", "new_bytes", "stored_bytes", "total_s")
    document = report.as_json()
    return {
        "event": "snapshot",
        "store": settings.snapshot_dir,
        "schedule": settings.schedule,
        **{name: document[name] for name in (*names, "scanned", "waited_s", "trouble_count")},
    }


def _time_text(report: TakeReport) -> str:
    text = format_duration(report.total_s)
    if report.waited_s < _WAIT_SAID_S:
        return text
    return f"{text} ({format_duration(report.waited_s)} of it waiting for other programs)"


def _describe(report: TakeReport) -> str:
    text = (
        f"snapshot {report.id} ({report.kind}): {format_files(report.files)}, "
        f"{format_bytes(report.logical_bytes)}, {format_bytes(report.stored_bytes)} stored, "
        f"{_time_text(report)}, {'nothing had changed, ' if report.unscanned_why else ''}"
    )
    if not report.trouble_count:
        return text + "no warnings"
    warnings = counted(report.trouble_count, "warning")
    first = next((warning for warning in report.trouble if not warning.harmless), None)
    if first is None:
        return f"{text}{warnings}"
    # A failed hook has the path of the first root, which is not at fault.
    where = "" if first.what.startswith(HOOK_WARNING) else f"{path_text(first.path)}: "
    return f"{text}{warnings}, first {where}{first.what}"
