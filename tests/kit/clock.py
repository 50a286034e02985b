"""A clock that a test sets."""

import time

__all__ = ["ManualClock"]

_NS = 1_000_000_000


class ManualClock:
    """A ``Clock`` that moves only when told; sleeping moves it without waiting."""

    def __init__(self, now_ns: int | None = None) -> None:
        self._now_ns = time.time_ns() if now_ns is None else now_ns
        self._monotonic_s = 1000.0

    def now_ns(self) -> int:
        """See ``ciuic.system.clock.Clock``."""
        return self._now_ns

    def monotonic_s(self) -> float:
        """See ``ciuic.system.clock.Clock``."""
        return self._monotonic_s

    def sleep(self, duration_s: float) -> None:
        """See ``ciuic.system.clock.Clock``."""
        self.advance(duration_s)

    def advance(self, duration_s: float) -> None:
        """Let time pass on both clocks."""
        self._now_ns += int(duration_s * _NS)
        self._monotonic_s += max(0.0, duration_s)

    def set_back(self, duration_s: float) -> None:
        """Set the wall clock back; the monotonic clock continues."""
        self._now_ns -= int(duration_s * _NS)
