"""On which file systems a snapshot would freeze files, without a wait for one that hangs."""

import contextlib
import threading
from typing import Final

from ciuic.source.freeze.methods import choose
from ciuic.system.clock import Clock

__all__ = ["FreezingPlaces"]

_ANSWER_S: Final = 2.0
_LOOK_S: Final = 60.0
"""How long what was learned of a file system counts."""


class FreezingPlaces:
    """Asks the file systems, and remembers the answers for a minute.

    A network file system whose server is gone may never answer, so a thread asks it: one at a time
    for each set of directories. The main thread alone calls ``of``.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._questions: dict[tuple[bytes, ...], _Question] = {}

    def of(self, roots: tuple[bytes, ...]) -> frozenset[bytes] | None:
        """Return the directories whose areas of reflink copies a snapshot would use.

        Returns:
            None if a file system does not answer within two seconds, until it does.
        """
        now_s = self._clock.monotonic_s()
        self._questions = {
            asked: one for asked, one in self._questions.items() if not one.is_over(now_s)
        }
        if roots not in self._questions:
            self._questions[roots] = _Question(roots, now_s)
        return self._questions[roots].places


class _Question:
    """One look at the file systems of some directories.

    Attributes:
        places: The answer; None: there is none yet.
    """

    def __init__(self, roots: tuple[bytes, ...], now_s: float) -> None:
        self.places: frozenset[bytes] | None = None
        self._over_s = now_s + _LOOK_S
        # It holds no lock while it hangs, so the main thread may fork.
        self._thread = threading.Thread(target=self._ask, args=(roots,), daemon=True)
        with contextlib.suppress(RuntimeError):  # there can be no further thread
            self._thread.start()
            self._thread.join(_ANSWER_S)

    def is_over(self, now_s: float) -> bool:
        """Return whether to ask again."""
        return now_s >= self._over_s and not self._thread.is_alive()

    def _ask(self, roots: tuple[bytes, ...]) -> None:
        found = set()
        for root in roots:
            with contextlib.suppress(OSError):  # the directory goes at this moment
                found.add(choose(root).place)
        self.places = frozenset(place for place in found if place is not None)
