"""Repeats requests that an object store has not answered, for a bounded time.

The pauses grow exponentially and have full jitter: many clients that the server refuses at one
moment do not come back at one moment.
"""

import random
from collections.abc import Callable
from typing import Final, TypeVar

from ciuic.errors import OfflineError
from ciuic.system.clock import Clock

__all__ = ["PATIENCE_S", "Retries", "TransientError"]

T = TypeVar("T")

PATIENCE_S: Final = 90.0
"""No attempt begins later than this after the first one has failed: an upload may take longer."""
_FIRST_PAUSE_S: Final = 0.1
_PAUSE_S_MAX: Final = 10.0
_QUIET_S: Final = 3.0
"""After this time without an answer, the log says what ciuic waits for, once."""


class TransientError(Exception):
    """A request failed in a way that the next attempt may not.

    Attributes:
        reason: What happened, for the end of a sentence.
        is_answer: The server has answered, if only that it cannot do it now.
    """

    def __init__(self, reason: str, *, is_answer: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_answer = is_answer


class Retries:
    """Calls functions again as long as they raise ``TransientError``.

    Args:
        clock: Measures and makes the pauses between attempts.
        patience_s: No attempt begins later than this after the first one has failed.
        name: The place, for the log.
    """

    def __init__(self, clock: Clock, patience_s: float = PATIENCE_S, name: str = "") -> None:
        self._clock = clock
        self._patience_s = patience_s
        self._name = name
        self._has_told = False
        self._has_given_up = False
        self._random = random.SystemRandom()

    def run(self, doing: str, target: str, act: Callable[[], T]) -> T:
        """Return the result of the first attempt that succeeds.

        After a request that was given up, each has one attempt until one succeeds: a command sends
        a few at its end, and must not wait for each of them that long.

        Args:
            doing: The action, as in "cannot <doing> <target>".
            target: The URL of the object or place.
            act: One attempt.

        Raises:
            OfflineError: No attempt has succeeded in time.
        """
        begin_s = self._clock.monotonic_s()
        failed_s: float | None = None
        patience_s = 0.0 if self._has_given_up else self._patience_s
        attempts = 0
        while True:
            attempts += 1
            try:
                result = act()
                self._has_told = self._has_given_up = False
                return result
            except TransientError as error:
                reason = error.reason
            pause_s = self._random.uniform(0, _ceiling_s(attempts))
            now_s = self._clock.monotonic_s()
            spent_s = now_s - begin_s
            failed_s = now_s if failed_s is None else failed_s
            if now_s - failed_s + pause_s > patience_s:
                self._has_given_up = True
                tried = f"{attempts} attempts" if attempts > 1 else "1 attempt"
                raise OfflineError(
                    f"cannot {doing} {target}: {reason} ({tried} in {spent_s:.0f} s)"
                )
            if spent_s >= _QUIET_S and not self._has_told:
                # Several threads may get here at once: a second line does no harm.
                self._has_told = True
                self._tell(reason)
            self._clock.sleep(pause_s)

    def _tell(self, reason: str) -> None:
        # Most commands never wait, and importing logging takes longer than they do.
        import logging

        said = "%s: %s; trying again for up to %.0f s"
        logging.getLogger(__name__).warning(said, self._name, reason, self._patience_s)


def _ceiling_s(attempts: int) -> float:
    # The exponent is bounded: 2.0 ** 2000 is an error.
    return min(_PAUSE_S_MAX, _FIRST_PAUSE_S * 2.0 ** min(attempts - 1, 16))
