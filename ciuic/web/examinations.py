"""What ``doctor`` finds, kept for a while, and found again in a thread of its own.

On a large store or a busy machine, an examination takes longer than a click may. So a request waits
only a moment for a new one, and then gets the one before, with its age. But an old one says nothing
about now, nor does one that began before something changed: then a request waits.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Final, NamedTuple

from ciuic.report.doctor.examine import examine
from ciuic.report.doctor.findings import Finding, Subject
from ciuic.system.clock import Clock

__all__ = ["FRESH_S", "Examination", "Examinations"]

FRESH_S: Final = 10.0
"""The greatest age that needs no mention."""
_USABLE_S: Final = 60.0
_WAIT_S: Final = 0.15


class Examination(NamedTuple):
    """What was found, about what, and when on the monotonic clock; ``changes``: before it began."""

    subject: Subject
    findings: list[Finding]
    ended_s: float
    changes: int


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
        self._kept: Examination | None = None
        self._running: Future[Examination] | None = None
        self._changes = 0

    def begin(self) -> None:
        """Begin an examination, so that the first request need not wait for all of it."""
        with self._lock:
            if self._kept is None and self._running is None:
                self._start()

    def settle(self) -> None:
        """Return when no examination is under way, whatever came of it."""
        with self._lock:
            running = self._running
        if running is not None:
            wait([running])

    def changed(self) -> None:
        """Note that what was found before is no longer true, and begin to find it again."""
        with self._lock:
            self._changes += 1
            if self._running is None:
                self._start()

    def get(self) -> tuple[Examination, float]:
        """Return an examination and its age in seconds, with a new one if there is none to use."""
        with self._lock:
            least = self._changes
        while True:
            with self._lock:
                kept = self._kept
                age_s = 0.0 if kept is None else self._clock.monotonic_s() - kept.ended_s
                if kept is not None and (kept.changes < least or age_s > _USABLE_S):
                    kept = None
                if kept is not None and age_s <= FRESH_S:
                    return kept, age_s
                running = self._running or self._start()
            is_done = bool(wait([running], None if kept is None else _WAIT_S).done)
            found = running.result() if is_done or kept is None else kept
            # One that was under way at a change is followed by another one.
            if found.changes >= least:
                return found, self._clock.monotonic_s() - found.ended_s

    def _start(self) -> "Future[Examination]":
        running: Future[Examination] = Future()
        self._running = running
        # A daemon: an examination of a store that hangs must not keep the server from ending.
        threading.Thread(
            target=self._examine, args=(running, self._changes), daemon=True, name="doctor"
        ).start()
        return running

    def _examine(self, running: "Future[Examination]", changes: int) -> None:
        try:
            subject = self._subject()
            findings = list(examine(subject, clock=self._clock))
            found = Examination(subject, findings, self._clock.monotonic_s(), changes)
        except BaseException as error:  # noqa: BLE001 - the request that waits raises it
            with self._lock:
                self._running = None
            running.set_exception(error)
        else:
            with self._lock:
                self._kept, self._running = found, None
            running.set_result(found)
