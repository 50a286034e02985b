"""Taking a snapshot only while no other program wants the processors, for a limited time.

At SCHED_IDLE, a thread of a training that wakes up takes the processor at once. At nice 19, it
waits until the snapshot's thread has used its slice. A busy machine may leave an idle thread next
to nothing. So after some time, and as soon as the snapshot is to stop or somebody waits for its
end, its threads get back the priority that they had before.
"""

import threading
from collections.abc import Callable
from typing import Final

from ciuic.system.clock import Clock
from ciuic.system.priority import idle_thread, stop_idling

__all__ = ["Idling", "patience_s"]

_SHARE: Final = 0.25
_LONGEST_S: Final = 900.0


def patience_s(interval_s: float) -> float:
    """Return for how long a snapshot may give way, by the time from one to the next."""
    return min(_SHARE * interval_s, _LONGEST_S)


class Idling:
    """The block in which a snapshot is taken: its threads give way.

    Args:
        clock: Tells the time.
        longest_s: For how long.
        must_hurry: Whether somebody waits for the end of the snapshot; asked often.
    """

    def __init__(
        self, clock: Clock, longest_s: float, must_hurry: Callable[[], bool] = lambda: False
    ) -> None:
        self._clock = clock
        self._longest_s = longest_s
        self._must_hurry = must_hurry
        self._lock = threading.Lock()
        self._until_s: float | None = None

    def __enter__(self) -> None:
        """Lower the priority of the calling thread, which starts the others."""
        if idle_thread():
            self._until_s = self._clock.monotonic_s() + self._longest_s

    def __exit__(self, *_: object) -> None:
        """Raise it again: hooks that run afterwards have time limits."""
        self._end()

    def watching(self, cancelled: Callable[[], bool]) -> Callable[[], bool]:
        """Return ``cancelled``; each call of it also looks whether to give way any longer."""

        def is_cancelled() -> bool:
            must_stop = cancelled()
            if self._until_s is not None and (must_stop or self._is_over(self._until_s)):
                self._end()
            return must_stop

        return is_cancelled

    def _is_over(self, until_s: float) -> bool:
        return self._clock.monotonic_s() >= until_s or self._must_hurry()

    def _end(self) -> None:
        with self._lock:
            if self._until_s is not None:
                # Within the lock: a second thread returns only when none is idle any more.
                stop_idling()
                self._until_s = None
