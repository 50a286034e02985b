"""A limit on the bytes that are sent in a second."""

from collections.abc import Callable
from typing import Final

from ciuic.system.clock import Clock

__all__ = ["BandwidthLimit"]

_NAP_S: Final = 0.1
"""How often a wait looks whether to end."""


class BandwidthLimit:
    """Delays the sender, so that on average no more bytes are sent than allowed.

    Args:
        bytes_per_s: The limit; 0: none.
        clock: Measures, and waits.
        check: Called often; raises to end the work.
    """

    def __init__(self, bytes_per_s: int, clock: Clock, check: Callable[[], None]) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._check = check
        self._free_s = clock.monotonic_s()

    def spend(self, size_bytes: int) -> None:
        """Wait until the limit allows what was sent before, then count these bytes."""
        self._check()
        if not self._bytes_per_s:
            return
        while (left_s := self._free_s - self._clock.monotonic_s()) > 0:
            self._clock.sleep(min(_NAP_S, left_s))
            self._check()
        now_s = self._clock.monotonic_s()
        # Time in which nothing was sent does not add up.
        self._free_s = max(self._free_s, now_s - _NAP_S) + size_bytes / self._bytes_per_s
