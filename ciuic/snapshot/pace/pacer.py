"""How fast the readers of a snapshot may read: slower while other programs wait more than usual.

Other programs wait without ciuic too, so a high pressure alone proves nothing. When it exceeds the
limit, the pacer stops all readers for a moment (a probe), and measures the pressure that remains:
ciuic does not cause that part. Only what the readers add to it counts. A program that began after
the probe counts from the next one. If the readers add more than the limit, they may read half as
fast as before; while they add less, their speed grows again.

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
            self._begin_window()
            return
        if now_s - self._window_s < _WINDOW_S:
            return
        shares, rate = self._end_window(self._window_s)
        # Less than the baseline: others wait less by now.
        for key in shares.keys() & self._baseline.keys():
            self._baseline[key] = min(self._baseline[key], shares[key])
        # What has no baseline may wait without the readers too: only a probe can tell.
        new = max((shares[key] for key in shares.keys() - self._baseline.keys()), default=0.0)
        known = shares.keys() & self._baseline.keys()
        self.pressure = max((shares[key] - self._baseline[key] for key in known), default=0.0)
        may_probe = self._probed_s is None or now_s - self._probed_s >= _PROBE_EVERY_S
        if max(self.pressure, new) > self._limit and may_probe:
            self._probe_s = now_s
        elif self.pressure > self._limit:
            self._rate = max(self._minimum, _SLOWER * min(rate, self._rate or rate))
        else:
            self._go_faster(rate)
            if self._is_baseline_old(now_s):
                self._probe_s = now_s

    def _look_in_probe(self, now_s: float, since_s: float) -> None:
        if now_s < since_s + _SETTLE_S:
            return
        if self._window_s is None or self._window_s < since_s + _SETTLE_S:
            self._begin_window()
        elif now_s - self._window_s >= _WINDOW_S:
            self._baseline, _ = self._end_window(self._window_s)
            self._probed_s, self._probe_s = now_s, None

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

    def _begin_window(self) -> float:
        # The time of the counters, and not of the call: it may take a while to get here.
        now_s = self._window_s = self._clock.monotonic_s()
        self._window_us = self._waited_us()
        self._window_bytes = 0
        return now_s

    def _end_window(self, since_s: float) -> tuple[dict[Key, float], float]:
        """Begin the next window; returns the shares of the last one, and its bytes per second.

        The share of a counter is the share of the window in which something waited.
        """
        before_us, size_bytes = self._window_us, self._window_bytes
        lasted_s = self._begin_window() - since_s
        shares = {
            key: min(1.0, max(0, waited_us - before_us[key]) / (lasted_s * 1e6))
            for key, waited_us in self._window_us.items()
            if key in before_us
        }
        return shares, size_bytes / lasted_s

    def _waited_us(self) -> dict[Key, int]:
        return {key: us for waits in self._waits for key, us in waits.waited_us().items()}
