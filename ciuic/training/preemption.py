"""Notices that this program must end soon: counts SIGTERM and SIGUSR1."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from ciuic.errors import UsageError
from ciuic.system.clock import Clock

__all__ = ["Preemption"]

_SIGNALS: Final = (signal.SIGTERM, signal.SIGUSR1)


class Preemption:
    """Counts the signals that say that this program must end.

    A signal also calls the handler that the program had before. It does not end the program.

    Args:
        grace_s: Seconds from a signal until the program is killed.
        clock: Gives the time.

    Raises:
        UsageError: This is not the main thread, which alone can handle signals.
    """

    def __init__(self, grace_s: float, clock: Clock) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise UsageError(
                "only the main thread can handle SIGTERM and SIGUSR1",
                hint="Make the SnapshotManager in the main thread, or leave out preemption_grace.",
            )
        self._grace_s = grace_s
        self._clock = clock
        self._process_id = os.getpid()
        self._is_active = True
        self._count = 0
        self._saved_count = 0
        self._last_s = 0.0
        # Any: a handler, or one of the numbers SIG_DFL and SIG_IGN, or None.
        self._earlier: dict[int, Any] = {}
        # One object, so that ``close`` can tell whether it is still installed.
        self._handler: Callable[[int, FrameType | None], None] = self._received
        for number in _SIGNALS:
            self._earlier[number] = signal.getsignal(number)
            signal.signal(number, self._handler)

    @property
    def is_noticed(self) -> bool:
        """A signal has come."""
        return self._count > 0

    @property
    def noticed_count(self) -> int:
        """The number of signals that have come."""
        return self._count

    @property
    def needs_save(self) -> bool:
        """A signal has come after the last save."""
        return self._count > self._saved_count

    def remaining_s(self) -> float:
        """Return the seconds that are left until the program is killed; 0 if it is late."""
        return max(0.0, self._last_s + self._grace_s - self._clock.monotonic_s())

    def saved(self, noticed_count: int) -> None:
        """Note that a state was saved after this number of signals."""
        self._saved_count = noticed_count

    def close(self) -> None:
        """Put the earlier handlers back; harmless twice.

        A handler that was installed later stays, and may go on calling this one.
        """
        if not self._is_active:
            return
        self._is_active = False
        if threading.current_thread() is not threading.main_thread():
            return
        for number, earlier in self._earlier.items():
            # None: a handler that was not installed by Python, which cannot put it back.
            if signal.getsignal(number) is self._handler and earlier is not None:
                signal.signal(number, earlier)

    def _received(self, number: int, frame: FrameType | None) -> None:
        earlier = self._earlier[number]
        if self._is_active and os.getpid() == self._process_id:
            self._count += 1
            self._last_s = self._clock.monotonic_s()
        elif earlier == signal.SIG_DFL:
            # A worker that the program has forked inherits the handler, and must still end.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        if callable(earlier):
            earlier(number, frame)
