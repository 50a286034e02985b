"""The values of one field of a log over its steps, in bounded memory.

A log may have millions of lines, and no screen as many columns. A curve keeps groups of lines, and
the minimum and maximum of each group, so that a peak of one line stays visible.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

__all__ = ["GROUPS_MAX", "Curve", "Point"]

GROUPS_MAX: Final = 2048
"""The most groups of a curve; twice as many points."""


class Point(NamedTuple):
    """A value that was logged at a step."""

    step: int
    value: float


class _Group(NamedTuple):
    """The extremes of neighboring lines of one stretch."""

    stretch: int
    least: Point
    greatest: Point


class Curve:
    """Collects values in the order of the log.

    A stretch is a part of the log in which steps never go down: a training that was rolled back
    begins a new one.

    Attributes:
        count: How many finite values were added.
        not_finite: How many values were left out, because they are not finite.
        tail: The first and the last of the values after the last finite one; empty: it is the end.
        stretches: How many stretches there are.
    """

    def __init__(self) -> None:
        self.count = 0
        self.not_finite = 0
        self.tail: tuple[Point, ...] = ()
        self.stretches = 0
        self._groups: list[_Group] = []
        self._waiting: list[Point] = []
        self._together = 1
        self._last_step: int | None = None

    def add(self, step: int, value: float) -> None:
        """Add a value."""
        if not math.isfinite(value):
            self.not_finite += 1
            is_new = not self.tail or step < self.tail[-1].step
            self.tail = (Point(step, value) if is_new else self.tail[0], Point(step, value))
            return
        self.tail = ()
        if self._last_step is None or step < self._last_step:
            self._close()
            self.stretches += 1
        self._last_step = step
        self.count += 1
        self._waiting.append(Point(step, value))
        if len(self._waiting) >= self._together:
            self._close()

    def extend(self, steps: Sequence[int], values: Sequence[float]) -> None:
        """Add finite values in the order of steps that never go down."""
        self.add(steps[0], values[0])
        self._last_step = steps[-1]
        self.count += len(values) - 1
        at = 1
        while at < len(values):
            until = at + self._together - len(self._waiting)
            self._waiting += map(Point, steps[at:until], values[at:until])
            at = until
            if len(self._waiting) >= self._together:
                self._close()

    def points(self) -> list[list[Point]]:
        """Return the points of each stretch, in the order of the log."""
        self._close()
        found: list[list[Point]] = []
        stretch = -1
        for group in self._groups:
            if group.stretch != stretch:
                stretch = group.stretch
                found.append([])
            # A group of one line is one point.
            found[-1] += sorted({group.least, group.greatest})
        return found

    def _close(self) -> None:
        if self._waiting:
            by_value = sorted(self._waiting, key=lambda point: point.value)
            self._groups.append(_Group(self.stretches, by_value[0], by_value[-1]))
            self._waiting = []
            if len(self._groups) > GROUPS_MAX:
                self._thin()

    def _thin(self) -> None:
        """Join neighboring groups of one stretch in pairs."""
        joined: list[_Group] = []
        is_open = False
        for group in self._groups:
            if is_open and joined[-1].stretch == group.stretch:
                before = joined[-1]
                joined[-1] = _Group(
                    group.stretch,
                    min(before.least, group.least, key=lambda point: point.value),
                    max(before.greatest, group.greatest, key=lambda point: point.value),
                )
                is_open = False
            else:
                joined.append(group)
                is_open = True
        # A log that goes back at every line has as many stretches as lines: the oldest go.
        self._groups = joined[-GROUPS_MAX:]
        self._together *= 2
