"""How fast the readers of a snapshot may read: slower while other programs wait more than usual.

Other programs wait without ciuic too, so a high pressure alone proves nothing. When it exceeds the
limit, the pacer stops all readers for a moment (a probe), and measures the pressure that remains:
ciuic does not cause that part. Only what the readers add to it counts. If they add more than the
limit, they may read half as fast as before; while they add less, their speed grows again.

There is a lowest speed, and the pacer probes at most every ``_PROBE_EVERY_S``. So every snapshot
ends, however busy the machine is.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from ciuic.system.clock import Clock

__all__ = ["Pacer", "Waits"]

_WINDOW_S: Final = 0.25
_PROBE_EVERY_S: Final = 4.0
_SETTLE_S: Final = 0.15
"""What was read before a probe is still being encoded and written for about this long."""
_BASELINE_S: Final = 15.0
_SLOWER: Final = 0.5
_FASTER: Final = 1.25
_FREE: Final = 4.0
"""A rate this many times what the readers reach no longer limits them."""
_NAP_S: Final = 0.05

Key = tuple[str, str]


class Waits(Protocol):
    """Measures how long others have waited: ``Pressure`` and ``DiskWaits``."""

    def waited_us(self) -> Mapping[Key, int]:
        """Return growing counters of microseconds, by resource and name."""
        ...


class Pacer:
    """Makes the readers of one snapshot wait. They may call ``pace`` from any thread.

    Args:
        waits: Measure how long others wait. Their keys differ.
        clock: Measures and sleeps.
        limit: How much of the time others may wait because of the readers, 0 to 1.
        minimum_rate_bytes: Bytes per second that the readers may always read.

    Attributes:
        pressure: What the readers added in the last window: a share of the time.
    """

    def __init__(
        self, waits: Sequence[Waits], clock: Clock, *, limit: float, minimum_rate_bytes: float
    ) -> None:
        self._waits = waits
        self._clock = clock
        self._limit = limit
        self._minimum = minimum_rate_bytes
        self._lock = threading.Lock()
        self._rate: float | None = None
        self._free_s = 0.0
        self._waiting = 0
        self._waited_s = 0.0
        self._held_since_s = 0.0
        self._probe_s: float | None = None
        self._probed_s: float | None = None
        self._baseline: dict[Key, float] = {}
        self._window_s: float | None = None
        self._window_us: Mapping[Key, int] = {}
        self._window_bytes = 0
        self.pressure = 0.0

    @property
    def rate_bytes(self) -> float | None:
        """Bytes per second that the readers may read now; None: no limit."""
        return self._rate

    @property
    def waited_s(self) -> float:
        """See ``ciuic.progress.Pace``."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            return self._waited_s + (now_s - self._held_since_s if self._waiting else 0.0)

    def pace(self, size_bytes: int, check_stopped: Callable[[], None]) -> None:
        """See ``ciuic.progress.Pace``."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            self._window_bytes += size_bytes
            self._look(now_s)
            until_s = now_s
            if self._rate is not None:
                until_s = self._free_s = max(self._free_s, now_s) + size_bytes / self._rate
            if not self._must_wait(now_s, until_s):
                return
            self._waiting += 1
            if self._waiting == 1:
                self._held_since_s = now_s
        try:
            self._wait(until_s, check_stopped)
        finally:
            with self._lock:
                self._waiting -= 1
                if not self._waiting:
                    self._waited_s += self._clock.monotonic_s() - self._held_since_s

    def _wait(self, until_s: float, check_stopped: Callable[[], None]) -> None:
        while True:
            check_stopped()
            with self._lock:
                now_s = self._clock.monotonic_s()
                self._look(now_s)
                if not self._must_wait(now_s, until_s):
                    return
            self._clock.sleep(min(_NAP_S, max(until_s - now_s, _NAP_S / 10)))

    def _must_wait(self, now_s: float, until_s: float) -> bool:
        return now_s < until_s or self._probe_s is not None

    def _look(self, now_s: float) -> None:
        """Measure, once a window has passed."""
        if self._probe_s is not None:
            self._look_in_probe(now_s, self._probe_s)
            return
        if self._window_s is None:
            self._begin_window(now_s)
            return
        lasted_s = now_s - self._window_s
        if lasted_s < _WINDOW_S:
            return
        shares = self._shares(lasted_s)
        # Less than the baseline: others wait less by now.
        for key, share in shares.items():
            self._baseline[key] = min(self._baseline.get(key, 0.0), share)
        added = [share - self._baseline[key] for key, share in shares.items()]
        self.pressure = max(added, default=0.0)
        rate = self._window_bytes / lasted_s
        self._begin_window(now_s)
        if self.pressure <= self._limit:
            self._go_faster(rate)
            if self._is_baseline_old(now_s):
                self._probe_s = now_s
        elif self._probed_s is None or now_s - self._probed_s >= _PROBE_EVERY_S:
            self._probe_s = now_s
        else:
            self._rate = max(self._minimum, _SLOWER * min(rate, self._rate or rate))

    def _look_in_probe(self, now_s: float, since_s: float) -> None:
        if now_s < since_s + _SETTLE_S:
            return
        if self._window_s is None or self._window_s < since_s + _SETTLE_S:
            self._begin_window(now_s)
        elif now_s - self._window_s >= _WINDOW_S:
            self._baseline = self._shares(now_s - self._window_s)
            self._probed_s, self._probe_s = now_s, None
            self._begin_window(now_s)

    def _is_baseline_old(self, now_s: float) -> bool:
        """Return whether others may wait less by now than they did without the readers."""
        if self._probed_s is None or now_s - self._probed_s < _BASELINE_S:
            return False
        return max(self._baseline.values(), default=0.0) > self._limit

    def _go_faster(self, rate: float) -> None:
        if self._rate is not None:
            self._rate *= _FASTER
            if self._rate > _FREE * max(rate, self._minimum):
                self._rate = None

    def _begin_window(self, now_s: float) -> None:
        self._window_s, self._window_us = now_s, self._waited_us()
        self._window_bytes = 0

    def _waited_us(self) -> dict[Key, int]:
        return {key: us for waits in self._waits for key, us in waits.waited_us().items()}

    def _shares(self, lasted_s: float) -> dict[Key, float]:
        """Return, for each counter, the share of the window in which something waited."""
        before = self._window_us
        return {
            key: min(1.0, max(0, waited_us - before[key]) / (lasted_s * 1e6))
            for key, waited_us in self._waited_us().items()
            if key in before
        }
