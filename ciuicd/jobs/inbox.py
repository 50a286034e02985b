"""``Inbox``: the requests that wait for the daemon's main thread."""

import contextlib
import queue
import threading

from ciuic.errors import CiuicError
from ciuic.model import EMERGENCY_TAG
from ciuicd.jobs.job import Job

__all__ = ["Inbox"]


class Inbox:
    """Requests for snapshots, and calls that only wake the main thread.

    Any thread may call ``put``, ``wake`` and ``refuse_all``; the main thread alone takes jobs out.
    The number of clients bounds the queues.
    """

    def __init__(self) -> None:
        # None only wakes the main thread.
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._urgent: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting_count = 0

    def put(self, job: Job) -> None:
        """Add a request. The snapshot of a training that failed goes before all others."""
        if EMERGENCY_TAG in job.tags:
            self._urgent.put(job)
            self.wake()
        else:
            self._count(1)
            self._jobs.put(job)

    def wake(self) -> None:
        """Let the main thread look at everything again."""
        self._jobs.put(None)

    @property
    def is_quiet(self) -> bool:
        """No request waits, and no call of ``wake`` is unseen."""
        return self._jobs.empty()

    @property
    def has_urgent(self) -> bool:
        """A request waits that goes before all others."""
        return not self._urgent.empty()

    @property
    def has_waiting(self) -> bool:
        """A request waits that is not urgent."""
        return self._waiting_count > 0

    def urgent(self) -> Job | None:
        """Take out a request that goes before all others; None if there is none."""
        with contextlib.suppress(queue.Empty):
            return self._urgent.get_nowait()
        return None

    def waiting(self) -> Job | None:
        """Take out the request that has waited longest, but no urgent one; None without one."""
        job = None
        with contextlib.suppress(queue.Empty):
            while (job := self._jobs.get_nowait()) is None:
                pass
        return self._taken(job)

    def wait(self, timeout_s: float) -> Job | None:
        """Wait for a request that is not urgent; None after ``wake``, or when the time is over."""
        job = None
        with contextlib.suppress(queue.Empty):
            job = self._jobs.get(timeout=timeout_s)
        return self._taken(job)

    def _taken(self, job: Job | None) -> Job | None:
        if job is not None:
            self._count(-1)
        return job

    def _count(self, more: int) -> None:
        with self._lock:
            self._waiting_count += more

    def refuse_all(self, error: CiuicError) -> None:
        """End every request that waits with an error."""
        while (job := self.waiting() or self.urgent()) is not None:
            job.finish(error)
