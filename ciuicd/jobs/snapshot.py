"""The work of one snapshot: values that can be pickled, for a process that is started."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from ciuic.config.opening import open_configured
from ciuic.config.settings import Settings
from ciuic.errors import UnreachableError
from ciuic.progress import Progress
from ciuic.snapshot.hooks import Hooks, HookState, take_with_hooks
from ciuic.snapshot.pace.idling import Idling
from ciuic.snapshot.pace.pacer import Pacer, Waits
from ciuic.snapshot.plan import TakeRequest
from ciuic.snapshot.report import TakeReport
from ciuic.store.directory.leftovers import IS_DIRECTORY
from ciuic.store.store import Store
from ciuic.system.clock import Clock
from ciuicd.jobs.child import Child
from ciuicd.jobs.job import Job

__all__ = ["HOOKS", "HOOK_ENDS_S", "SnapshotWork", "say_of_hook"]

_log = logging.getLogger(__name__)

_TELL_S: Final = 0.25
HOOKS: Final = "hooks"
"""The key of the document that tells how far the hooks are."""
HOOK_ENDS_S: Final = 5.0
"""What a hook may need beyond its time limit, to be killed."""


class SnapshotWork(NamedTuple):
    """Takes one snapshot: ``take_apart`` in a child process, or ``take`` in this one.

    Attributes:
        settings: The daemon's configuration, with the schedule that the snapshot is for.
        request: What to take.
        hooks: The commands around it.
        store_id: The store to take it into; one with another ID is refused.
        wait_s: How long to wait for the store's lock.
        idles_s: For how long it gives way to all other programs; None: not at all.
        waits: Measure how long other programs wait because of it; empty: it does not slow down.
        clock: Tells the time.
    """

    settings: Settings
    request: TakeRequest
    hooks: Hooks
    store_id: str
    wait_s: float
    idles_s: float | None
    waits: tuple[Waits, ...]
    clock: Clock

    def take_apart(self, child: Child) -> TakeReport:
        """Take the snapshot, and tell the parent of it."""
        job = Job()
        told = _Told(job, child, self.clock, self.hooks.timeout_s)
        return self.take(job, child.is_cancelled, child.must_hurry, told, told.note_hooks)

    def take(
        self,
        job: Job,
        cancelled: Callable[[], bool],
        must_hurry: Callable[[], bool],
        progress: Progress,
        note: Callable[[HookState], None] = lambda _state: None,
    ) -> TakeReport:
        """Take the snapshot, with the hooks.

        Args:
            job: Learns what slows the readers down.
            cancelled: Called often; True cancels it.
            must_hurry: Whether somebody waits for its end.
            progress: See ``take_with_hooks``.
            note: See ``take_with_hooks``.

        Raises:
            CiuicError: No snapshot was taken.
        """
        job.pacer = self._pacer()
        idles_s = self.idles_s
        return take_with_hooks(
            lambda: self._opened(cancelled),
            self.request,
            self.hooks,
            clock=self.clock,
            say=say_of_hook,
            cancelled=cancelled,
            progress=progress,
            pacer=job.pacer,
            note=note,
            idling=None if idles_s is None else Idling(self.clock, idles_s, must_hurry),
        )

    def _pacer(self) -> Pacer | None:
        if not self.waits:
            return None
        return Pacer(
            self.waits,
            self.clock,
            limit=self.settings.pressure_limit,
            minimum_rate_bytes=self.settings.minimum_rate_bytes,
        )

    @contextlib.contextmanager
    def _opened(self, cancelled: Callable[[], bool]) -> Iterator[Store]:
        with open_configured(
            self.settings, write=True, only_adds=True, wait_s=self.wait_s, cancelled=cancelled
        ) as store:
            store.refuse_other(self.store_id)
            for what in store.stuck.values():
                hint = "" if what.endswith(IS_DIRECTORY) else f". {UnreachableError.default_hint}"
                _log.warning("%s; it stays%s", what, hint)
            yield store


class _Told:
    """Tells the parent the progress of a job, a few times a second; the child's ``Progress``."""

    def __init__(self, job: Job, child: Child, clock: Clock, hook_timeout_s: float) -> None:
        self._job = job
        self._child = child
        self._clock = clock
        self._hook_timeout_s = hook_timeout_s
        self._next_s = 0.0

    def note_hooks(self, state: HookState) -> None:
        """Tell how far the hooks are. One that runs has its time, even if the daemon ends."""
        self._child.tell({HOOKS: state})
        self._child.needs(self._hook_timeout_s + HOOK_ENDS_S if state.running else 0.0)

    def update(self, files: int, size_bytes: int, path: bytes) -> None:
        """See ``ciuic.progress.Progress``."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._next_s:
            self._next_s = now_s + _TELL_S
            self._job.update(files, size_bytes, path)
            self._child.tell(self._job.progress)


def say_of_hook(line: str) -> None:
    """Log what a hook says."""
    _log.info("hook %s", line)
