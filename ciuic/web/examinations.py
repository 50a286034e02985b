"""What ``doctor`` finds, kept for a while, and found again in a thread of its own.

On a large store or a busy machine, an examination takes longer than a click may. So a request waits
only a moment for a new one, and then gets the one before, with its age.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final, NamedTuple

from ciuic.report.doctor.examine import examine
from ciuic.report.doctor.findings import Finding, Subject
from ciuic.system.clock import Clock

__all__ = ["Examination", "Examinations"]

_FRESH_S: Final = 10.0
_WAIT_S: Final = 0.15


class Examination(NamedTuple):
    """What was found, about what, and when on the monotonic clock."""

    subject: Subject
    findings: list[Finding]
    ended_s: float


class Examinations:
    """Examines one store and machine, at most one time at once. Any thread may call it.

    Args:
        subject: Returns what to examine.
        clock: Tells the time.
    """

    def __init__(self, subject: Callable[[], Subject], clock: Clock) -> None:
        self._subject = subject
        self._clock = clock
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1)
        self._kept: Examination | None = None
        self._running: Future[Examination] | None = None

    def begin(self) -> None:
        """Begin an examination, so that the first request need not wait for all of it."""
        with self._lock:
            if self._kept is None and self._running is None:
                self._start()

    def get(self, *, anew: bool = False) -> tuple[Examination, float]:
        """Return an examination and its age in seconds; the first one is waited for.

        Args:
            anew: Wait for one that begins now: the store has gone away, say.
        """
        earlier = self._running if anew else None
        if earlier is not None:
            wait([earlier])
        with self._lock:
            kept = None if anew else self._kept
            if kept is not None and self._clock.monotonic_s() - kept.ended_s <= _FRESH_S:
                return self._aged(kept)
            running = self._running or self._start()
        is_done = bool(wait([running], None if kept is None else _WAIT_S).done)
        return self._aged(running.result() if is_done or kept is None else kept)

    def _aged(self, found: Examination) -> tuple[Examination, float]:
        return found, self._clock.monotonic_s() - found.ended_s

    def _start(self) -> "Future[Examination]":
        self._running = self._thread.submit(self._examine)
        return self._running

    def _examine(self) -> Examination:
        try:
            subject = self._subject()
            findings = list(examine(subject, clock=self._clock))
            found = Examination(subject, findings, self._clock.monotonic_s())
            with self._lock:
                self._kept = found
        finally:
            with self._lock:
                self._running = None
        return found
