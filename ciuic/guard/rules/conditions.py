"""Conditions: each looks at one field, step by step, and remembers as little as it needs.

A step can be evaluated several times, because its fields may come in several lines: ``look`` is
called for each, and always starts from the state before the step. ``commit`` ends the step.

Every call takes constant time, except for the median of a window, and for ``may_hold``. With that,
the calls for many steps at once can be left out: see ``ciuic.guard.rules.quiet``.
"""

import math
import operator
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise, repeat
from typing import Final, Protocol, runtime_checkable

__all__ = ["Above", "Compared", "Condition", "Exact", "Moves", "NotFinite"]

_SIGNS: Final[dict[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_ROUNDING: Final = 1 + 1e-9
"""1.15 * 1.15 is below 1.3225 in floating point: an increase of exactly 15 % is not more."""


class Condition(Protocol):
    """A condition of a rule.

    Attributes:
        field: The field that it looks at.
        steps: At how many steps in a row something must be the case.
        window: After this many steps, nothing of what was before counts.
        has_row: ``before`` is the step before a row that may be longer than the window.
    """

    field: str
    steps: int
    window: int
    has_row: bool

    @property
    def before(self) -> int | None:
        """The last step before the fault, while it holds; None: the fault began with the first."""
        ...

    def look(self, step: int, value: float) -> bool:
        """Return whether the condition holds at a step; the last call for a step counts."""
        ...

    def commit(self) -> None:
        """End the step that ``look`` was called for."""
        ...

    def may_hold(self, values: Sequence[float]) -> bytes:
        """Return, for each step of a row of them, 1 if it may count for the condition.

        The first of them is compared with nothing.
        """
        ...

    def rest(self, step: int, value: float) -> None:
        """Go on after a step that did not count, whatever was before it."""
        ...

    def __str__(self) -> str:
        """Return what the condition found, as a clause for a message."""
        ...


@runtime_checkable
class Exact(Condition, Protocol):
    """A condition that goes on to hold wherever a step may count for it."""

    def go_on(self, steps: Sequence[int], values: Sequence[float]) -> None:
        """Add steps that count to those at which it holds."""
        ...


class _Streak:
    """Counts the steps in a row at which something is the case.

    Attributes:
        length: With the current step.
        before: The last step before the row; None: the row began with the first step.
    """

    __slots__ = ("_before", "_last_length", "_last_step", "_step", "before", "length")

    def __init__(self) -> None:
        self.length = 0
        self.before: int | None = None
        self._last_length = 0
        self._before: int | None = None
        self._last_step: int | None = None
        self._step = 0

    def look(self, step: int, *, holds: bool) -> int:
        self._step = step
        self.length = self._last_length + 1 if holds else 0
        self.before = self._before if self._last_length and holds else self._last_step
        return self.length

    def commit(self) -> None:
        self._last_length = self.length
        self._before = self.before
        self._last_step = self._step

    def rest(self, step: int) -> None:
        self.look(step, holds=False)
        self.commit()

    def go_on(self, steps: Sequence[int]) -> None:
        self._last_length += len(steps)
        self._last_step = steps[-1]


class Moves:
    """A field rises, or falls, by more than a share at each of the last steps.

    Args:
        field: The field.
        share: The share of the value of the step before, 0.15 for 15 %; negative: it falls.
        steps: How many times in a row; one more step is compared.
        rises: Which way, since a share may be 0.
    """

    def __init__(self, field: str, share: float, steps: int, *, rises: bool) -> None:
        self.field = field
        self.steps = steps
        self.window = steps + 1
        self.has_row = True
        self._share = abs(share) * _ROUNDING
        self._rises = rises
        self._streak = _Streak()
        self._previous = math.nan
        self._value = math.nan
        # One more than the steps, but a message does not grow with them.
        self._values: deque[float] = deque(maxlen=min(steps + 1, 8))

    @property
    def before(self) -> int | None:
        """See ``Condition``."""
        return self._streak.before

    def look(self, step: int, value: float) -> bool:
        """See ``Condition``."""
        self._value = value
        change = value - self._previous if self._rises else self._previous - value
        # False if either is not a number.
        moved = change > abs(self._previous) * self._share and change < math.inf
        return self._streak.look(step, holds=moved) >= self.steps

    def commit(self) -> None:
        """See ``Condition``."""
        self._streak.commit()
        self._previous = self._value
        self._values.append(self._value)

    def may_hold(self, values: Sequence[float]) -> bytes:
        """See ``Condition``."""
        share = self._share
        pairs = pairwise(values)
        if self._rises:
            moved = [new - old > abs(old) * share for old, new in pairs]
        else:
            moved = [old - new > abs(old) * share for old, new in pairs]
        return bytes([True, *moved])

    def rest(self, step: int, value: float) -> None:
        """See ``Condition``."""
        self._streak.rest(step)
        self._previous = self._value = value
        self._values.append(value)

    def __str__(self) -> str:
        shown = [*self._values, self._value][-min(self.steps + 1, 8) :]
        way = "rose" if self._rises else "fell"
        return f"{self.field} {way} {' → '.join(map(_text, shown))}"


class Compared:
    """A field is on one side of a number at each of the last steps."""

    def __init__(self, field: str, sign: str, number: float, steps: int) -> None:
        self.field = field
        self.steps = steps
        self.window = steps
        self.has_row = False
        self._holds = _SIGNS[sign]
        self._number = number
        self._length = self._last_length = 0
        self._step = 0
        self._earlier: deque[int] = deque(maxlen=steps)
        self._value = math.nan
        self._values: deque[float] = deque(maxlen=min(steps, 8))

    @property
    def before(self) -> int | None:
        """See ``Condition``.

        Only the last steps count, although it may have held before: the GPU of a small training is
        always idle.
        """
        return self._earlier[0] if len(self._earlier) >= self.steps else None

    def look(self, step: int, value: float) -> bool:
        """See ``Condition``."""
        self._value, self._step = value, step
        self._length = self._last_length + 1 if self._holds(value, self._number) else 0
        return self._length >= self.steps

    def commit(self) -> None:
        """See ``Condition``."""
        self._last_length = self._length
        self._earlier.append(self._step)
        self._values.append(self._value)

    def may_hold(self, values: Sequence[float]) -> bytes:
        """See ``Condition``."""
        return bytes(map(self._holds, values, repeat(self._number)))

    def rest(self, step: int, value: float) -> None:
        """See ``Condition``."""
        self._last_length = 0  # of the steps before, none may be known
        self.look(step, value)
        self.commit()

    def go_on(self, steps: Sequence[int], values: Sequence[float]) -> None:
        """See ``Exact``."""
        self._last_length += len(steps)
        self._earlier.extend(steps)
        self._values.extend(values)

    def __str__(self) -> str:
        shown = [*self._values, self._value][-min(self.steps, 8) :]
        return f"{self.field} was {', '.join(map(_text, shown))}"


class NotFinite:
    """A field is NaN or infinite."""

    def __init__(self, field: str) -> None:
        self.field = field
        self.steps = self.window = 1
        self.has_row = True
        self._streak = _Streak()
        self._value = 0.0

    @property
    def before(self) -> int | None:
        """See ``Condition``."""
        return self._streak.before

    def look(self, step: int, value: float) -> bool:
        """See ``Condition``."""
        self._value = value
        return self._streak.look(step, holds=not math.isfinite(value)) > 0

    def commit(self) -> None:
        """See ``Condition``."""
        self._streak.commit()

    def may_hold(self, values: Sequence[float]) -> bytes:
        """See ``Condition``."""
        return bytes([not is_finite for is_finite in map(math.isfinite, values)])

    def rest(self, step: int, value: float) -> None:
        """See ``Condition``."""
        self._streak.rest(step)
        self._value = value

    def go_on(self, steps: Sequence[int], values: Sequence[float]) -> None:
        """See ``Exact``."""
        self._value = values[-1]
        self._streak.go_on(steps)

    def __str__(self) -> str:
        return f"{self.field} was {_text(self._value)}"


class Above:
    """A field is above a multiple of the median of the last steps.

    The current step is not part of the window. Until the window is full, the condition does not
    hold: the first steps of a training are high.
    """

    def __init__(self, field: str, factor: float, steps: int) -> None:
        self.field = field
        self.steps = 1
        self.window = steps
        self.has_row = True
        self._factor = factor
        self._streak = _Streak()
        self._value = math.nan
        self._window: deque[float] = deque()
        self._sorted: list[float] = []

    @property
    def before(self) -> int | None:
        """See ``Condition``."""
        return self._streak.before

    def look(self, step: int, value: float) -> bool:
        """See ``Condition``."""
        self._value = value
        full = len(self._window) >= self.window
        holds = full and value > self._median() * self._factor
        return self._streak.look(step, holds=holds) > 0

    def may_hold(self, values: Sequence[float]) -> bytes:
        """See ``Condition``."""
        if not all(map(math.isfinite, values)):
            return b"\1" * len(values)  # these do not enter the window
        # No median is below the least of all values.
        limit = min([min(values), *self._sorted[:1]]) * self._factor
        return bytes([value > limit for value in values])

    def rest(self, step: int, value: float) -> None:
        """See ``Condition``."""
        self._value = value
        self._streak.rest(step)
        self._remember()

    def commit(self) -> None:
        """See ``Condition``."""
        self._streak.commit()
        self._remember()

    def _remember(self) -> None:
        if not math.isfinite(self._value):
            return
        if len(self._window) >= self.window:
            del self._sorted[bisect_left(self._sorted, self._window.popleft())]
        self._window.append(self._value)
        insort(self._sorted, self._value)

    def _median(self) -> float:
        middle = len(self._sorted) // 2
        if len(self._sorted) % 2:
            return self._sorted[middle]
        # Halved first: the sum of two large numbers may be infinite.
        return self._sorted[middle - 1] / 2 + self._sorted[middle] / 2

    def __str__(self) -> str:
        median = _text(self._median()) if self._sorted else "unknown"
        return f"{self.field} was {_text(self._value)}, and its median was {median}"


def _text(value: float) -> str:
    return f"{value:.6g}"
