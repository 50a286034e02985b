"""``Inbox``: the requests that wait for the daemon's main thread."""

import threading
from collections.abc import Callable

from ciuic.errors import CiuicError
from ciuic.model import EMERGENCY_TAG
from ciuicd.jobs.job import Job

__all__ = ["Inbox"]


class Inbox:
    """Requests for snapshots, and calls that only wake the main thread.

    Any thread may call ``put``, ``wake`` and ``refuse_all``; the main thread alone takes jobs out.
    The number of clients bounds the lists.
    """

    def __init__(self) -> None:
        self._jobs: list[Job] = []
        self._urgent: list[Job] = []
        self._changed = threading.Condition()
        self._is_woken = False

    def put(self, job: Job) -> None:
        """Add a request. The snapshot of a training that failed goes before all others."""
        with self._changed:
            (self._urgent if EMERGENCY_TAG in job.tags else self._jobs).append(job)
            self._wake()

    def wake(self) -> None:
        """Let the main thread look at everything again."""
        with self._changed:
            self._wake()

    def _wake(self) -> None:
        self._is_woken = True
        self._changed.notify_all()

    @property
    def is_quiet(self) -> bool:
        """No request waits that is not urgent, and no call of ``wake`` is unseen."""
        return not (self._jobs or self._is_woken)

    @property
    def has_urgent(self) -> bool:
        """A request waits that goes before all others."""
        return bool(self._urgent)

    @property
    def has_waiting(self) -> bool:
        """A request waits that is not urgent."""
        return bool(self._jobs)

    def first_urgent(self) -> Job | None:
        """Return the request that goes before all others; it stays. None if there is none."""
        with self._changed:
            return self._urgent[0] if self._urgent else None

    def first(self, fits: Callable[[Job], bool]) -> Job | None:
        """Return the request that has waited longest of those that fit, but no urgent one.

        It stays.
        """
        with self._changed:
            waiting = list(self._jobs)
        return next((job for job in waiting if fits(job)), None)

    def take_out(self, job: Job) -> None:
        """Take out a request that waits."""
        with self._changed:
            for jobs in (self._urgent, self._jobs):
                if job in jobs:
                    jobs.remove(job)

    def wait(self, timeout_s: float) -> None:
        """Wait for a request, or for ``wake``; if there was one since the last call, return."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_woken, timeout_s)
            self._is_woken = False

    def refuse_all(self, error: CiuicError) -> None:
        """End every request that waits with an error."""
        with self._changed:
            refused = [*self._jobs, *self._urgent]
            self._jobs.clear()
            self._urgent.clear()
        for job in refused:
            job.finish(error)
