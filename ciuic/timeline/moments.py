"""Moments to find in a log while it is read: by offset, by time and by step."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

__all__ = ["Moment", "Moments", "Nearest", "Passed"]


class Moment(NamedTuple):
    """What the log had said at a moment.

    Attributes:
        step: The last step.
        values: The last value of each field; None: it had not been logged.
    """

    step: int
    values: tuple[float | None, ...]


class Moments(NamedTuple):
    """Moments to find in a log.

    Attributes:
        times_ns: The last line that was logged at or before these times.
        offsets_bytes: The last line that ended at or before these offsets of the file. An offset
            after its end has none.
        steps: The line with this step, or else with the greatest step before it.
    """

    times_ns: Collection[int] = ()
    offsets_bytes: Collection[int] = ()
    steps: Collection[int] = ()


class Passed:
    """Keys that grow, and the last moment before each of them was passed."""

    def __init__(self, keys: Collection[int]) -> None:
        self._keys = sorted(set(keys))
        self._at = 0
        self._found: dict[int, Moment] = {}

    def reach(self, key: int, before: Moment | None) -> None:
        """Give all keys up to this one the moment before it."""
        while self._at < len(self._keys) and self._keys[self._at] <= key:
            if before is not None:
                self._found[self._keys[self._at]] = before
            self._at += 1

    def reach_all(self, marks: Sequence[int], before: Callable[[int], Moment | None]) -> None:
        """Like ``reach`` for each of many keys, which never go down.

        Args:
            marks: The keys.
            before: Returns the moment before the key of a number.
        """
        last = marks[-1]
        while self._at < len(self._keys) and self._keys[self._at] <= last:
            key = self._keys[self._at]
            self.reach(key, before(bisect_left(marks, key)))

    def found(self, last: Moment | None, end: int | None = None) -> dict[int, Moment]:
        """Return the moments; keys after the last line, and not after the end, have its moment."""
        if self._keys:
            self.reach(self._keys[-1] if end is None else end, last)
        return self._found


class Nearest:
    """Steps, and for each the line with the greatest step that is not after it."""

    def __init__(self, steps: Collection[int]) -> None:
        self._steps = sorted(set(steps))
        self._best: list[Moment | None] = [None] * len(self._steps)

    def add(self, moment: Moment) -> None:
        """Add a line. Of two lines of one step the later one counts."""
        at = bisect_left(self._steps, moment.step)
        if at < len(self._steps):
            best = self._best[at]
            if best is None or moment.step >= best.step:
                self._best[at] = moment

    def add_all(self, steps: Sequence[int], moment: Callable[[int], Moment]) -> None:
        """Add lines whose steps never go down; ``moment`` returns that of the line of a number."""
        for at in range(bisect_left(self._steps, steps[0]), len(self._steps)):
            number = bisect_right(steps, self._steps[at]) - 1
            least = self._steps[at - 1] if at else -math.inf
            if number >= 0 and steps[number] > least:
                self.add(moment(number))
            if self._steps[at] >= steps[-1]:
                return

    def found(self) -> dict[int, Moment]:
        """Return the moments."""
        found: dict[int, Moment] = {}
        last: Moment | None = None
        for step, best in zip(self._steps, self._best, strict=True):
            last = best or last
            if last is not None:
                found[step] = last
        return found
