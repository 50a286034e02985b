"""Taking the daemon's snapshots, and what it remembers of them.

``SnapshotTaker`` knows the newest snapshot of the configured roots, the report of the last
snapshot, and the error of the last attempt. The main thread calls its methods; other threads may
read its attributes.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator

from ciuic.catalog import list_snapshots
from ciuic.config import Settings
from ciuic.control import Document
from ciuic.errors import CiuicError, UnreachableError
from ciuic.model import Owner, SnapshotSummary, path_text
from ciuic.snapshot.hooks import HOOK_WARNING, Hooks, take_with_hooks
from ciuic.snapshot.plan import TakeRequest
from ciuic.snapshot.report import TakeReport
from ciuic.store.directory.leftovers import IS_DIRECTORY
from ciuic.store.store import Store, open_store
from ciuic.system.clock import Clock, rfc3339
from ciuic.system.machine import this_machine
from ciuic.units import counted, format_bytes, format_duration, format_files
from ciuicd.control import Job
from ciuicd.notify import Notifier
from ciuicd.schedule import covers

__all__ = ["SnapshotTaker", "encoded_roots"]

_log = logging.getLogger(__name__)


class SnapshotTaker:
    """Takes snapshots by the configuration.

    Args:
        clock: Tells the time.
        notifier: Is told when a snapshot begins.
        cancelled: Called often while a snapshot is taken; True cancels it.

    Attributes:
        newest_ns: When the newest snapshot of the configured roots began, if there is one.
        last_report: Of the last snapshot that this daemon took.
        last_error: Of the last attempt, if it failed: kind, message, hint and time.
    """

    def __init__(self, clock: Clock, notifier: Notifier, cancelled: Callable[[], bool]) -> None:
        self._clock = clock
        self._notifier = notifier
        self._cancelled = cancelled
        self.newest_ns: int | None = None
        self.last_report: TakeReport | None = None
        self.last_error: Document | None = None

    def take(
        self, settings: Settings, job: Job, *, wait_s: float = 0.0, may_be_full: bool = True
    ) -> TakeReport:
        """Take the snapshot that ``job`` describes, with the hooks, and log its report.

        Args:
            settings: The daemon's configuration.
            job: Kind, tags and scope; it is told the progress.
            wait_s: How long to wait for the store's lock.
            may_be_full: Whether the age of the last full snapshot may make this one full.

        Raises:
            CiuicError: No snapshot was taken.
        """
        request = _request(settings, job, may_be_full=may_be_full)
        self._notifier.status("taking a snapshot")
        report = take_with_hooks(
            lambda: _opened(settings, wait_s),
            request,
            Hooks(settings.before, settings.after, settings.hook_timeout_s),
            clock=self._clock,
            say=lambda line: _log.info("hook %s", line),
            cancelled=self._cancelled,
            progress=job,
        )
        _log.log(logging.WARNING if report.trouble_count else logging.INFO, _describe(report))
        for note in report.notes:
            _log.warning("%s", note.what)
        if job.scope is None:
            self.newest_ns = report.taken_ns
        self.last_report = report
        self.last_error = None
        return report

    def learn_newest(self, settings: Settings) -> None:
        """Look in the store for the newest snapshot of the configured roots.

        A snapshot that a user took counts too, unless it left out more than the daemon would. One
        of another machine does not.

        Raises:
            CiuicError: The store can't be read.
        """
        with open_store(settings.snapshot_dir) as store:
            now_ns, wanted = self._clock.now_ns(), encoded_roots(settings)
            own = Owner(this_machine(), is_library=False)
            self.newest_ns = next(
                (
                    summary.taken_ns
                    for summary in list_snapshots(store)
                    if summary.taken_ns <= now_ns
                    and summary.owner.is_same(own)
                    and covers(summary.roots, wanted)
                    and _excludes_no_more(store, summary, settings)
                ),
                None,
            )

    def remember(self, error: CiuicError) -> None:
        """Keep the error of an attempt for the daemon's status."""
        fields = {"kind": error.kind, "message": error.message, "hint": error.hint}
        self.last_error = {**fields, "time": rfc3339(self._clock.now_ns())}

    @property
    def hook_warnings(self) -> list[str]:
        """What the hooks of the last snapshot failed at."""
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


def encoded_roots(settings: Settings) -> tuple[bytes, ...]:
    """Return the configured roots as ``TakeRequest`` wants them."""
    return tuple(os.fsencode(path) for path in settings.snapshot_paths)


def _request(settings: Settings, job: Job, *, may_be_full: bool) -> TakeRequest:
    roots, exclude = job.scope or (encoded_roots(settings), settings.exclude_rules)
    return TakeRequest(
        roots=roots,
        exclude=exclude,
        base=job.base,
        base_interval_s=settings.base_interval_s if may_be_full else 0.0,
        tags=job.tags,
        hot_snapshots=settings.hot_snapshots,
        parity=settings.parity,
        chain_cost=settings.chain_cost,
        origin=job.origin,
        schedule=settings.schedule_of(roots, exclude),
    )


@contextlib.contextmanager
def _opened(settings: Settings, wait_s: float) -> Iterator[Store]:
    with open_store(
        settings.snapshot_dir, write=True, wait_s=wait_s, owner=settings.store_owner
    ) as store:
        for what in store.stuck.values():
            hint = "" if what.endswith(IS_DIRECTORY) else f". {UnreachableError.default_hint}"
            _log.warning("%s; it stays%s", what, hint)
        yield store


def _excludes_no_more(store: Store, summary: SnapshotSummary, settings: Settings) -> bool:
    try:
        rules = store.manifest(summary.id).exclude
    except CiuicError:
        return False
    return rules.is_within(settings.exclude_rules)


def _describe(report: TakeReport) -> str:
    text = (
        f"snapshot {report.id} ({report.kind}): {format_files(report.files)}, "
        f"{format_bytes(report.logical_bytes)}, {format_bytes(report.stored_bytes)} stored, "
        f"{format_duration(report.total_s)}, "
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
