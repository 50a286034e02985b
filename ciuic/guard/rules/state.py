"""A rule, and the state of its conditions: step by step, or over many steps at once."""

from collections.abc import Iterator, Sequence
from itertools import compress

from ciuic.guard.rules.conditions import Condition, Exact
from ciuic.guard.rules.language import Rule
from ciuic.guard.rules.quiet import first_chance, last_break

__all__ = ["RuleState"]


class RuleState:
    """A rule, and the state of its conditions.

    Args:
        rule: The rule.
        columns: The place of each field among the values of a step.

    Attributes:
        rule: The rule.
        window: How many of the last steps its conditions remember.
        has_looked: A step had all fields of the rule.
        is_firing: The rule holds.
    """

    def __init__(self, rule: Rule, columns: dict[str, int]) -> None:
        self.rule = rule
        self.window = max(make().window for make in rule.conditions)
        self.has_looked = False
        self._columns = columns
        self.restart()

    def restart(self) -> None:
        """Forget all steps."""
        self._conditions: list[Condition] = [make() for make in self.rule.conditions]
        self._looks = [(self._columns[one.field], one) for one in self._conditions]
        exact = [one for one in self._conditions if isinstance(one, Exact)]
        self._exact = exact if len(exact) == len(self._conditions) else []
        self._is_open = False
        self.is_firing = False

    def begin(self) -> None:
        """End the step before."""
        if self._is_open:
            for condition in self._conditions:
                condition.commit()
            self._is_open = False
            self.has_looked = True

    def look(self, step: int, values: Sequence[float | None]) -> bool:
        """Return whether the rule began, or ceased, to hold with these fields of the step."""
        holds = True
        for column, condition in self._looks:
            value = values[column]
            if value is None:
                return False
            holds = condition.look(step, value) and holds
        self._is_open = True
        changed, self.is_firing = holds != self.is_firing, holds
        return changed

    def look_at_all(
        self, steps: Sequence[int], values: Sequence[Sequence[float | None]]
    ) -> Iterator[int]:
        """Look at many steps, each in full, as ``begin`` and ``look`` for each of them would.

        Args:
            steps: Their numbers.
            values: For each field, its value at each step.

        Yields:
            The place of each step at which the rule began, or ceased, to hold, right after a look
            at it.
        """
        numbers: Sequence[int] = steps
        columns = [values[column] for column, _ in self._looks]
        places: Sequence[int] = range(len(steps))
        if any(None in column for column in columns):
            is_whole = [None not in row for row in zip(*columns, strict=True)]
            numbers = list(compress(steps, is_whole))
            columns = [list(compress(column, is_whole)) for column in columns]
            places = list(compress(places, is_whole))
        looks: list[tuple[Condition, Sequence[float]]] = [
            (condition, [value for value in column if value is not None])
            for condition, column in zip(self._conditions, columns, strict=True)
        ]
        if places:
            for number in self._changes(numbers, looks):
                yield places[number]
        if not places or places[-1] < len(steps) - 1:
            self.begin()

    def _changes(
        self, steps: Sequence[int], looks: Sequence[tuple[Condition, Sequence[float]]]
    ) -> Iterator[int]:
        """Look at steps that have all fields, except where the rule cannot fire."""
        marks = [(one.may_hold(given), b"\1" * one.steps) for one, given in looks]
        rows = [marked for (one, _), (marked, _) in zip(looks, marks, strict=True) if one.has_row]
        count, at = len(steps), 0
        # The first steps may go on with what was before.
        until = min(self.window, count)
        while at < count:
            while at < until or (self.is_firing and at < count):
                if self.is_firing and self._exact:
                    at = self._go_on(steps, looks, marks, at)
                if self._look_once(steps[at], looks, at):
                    yield at
                at += 1
            chance = first_chance(marks, at) if at < count else None
            end = count if chance is None else chance
            place = last_break(rows, at, end - 1 - self.window)
            if place is not None:
                self._rest(steps[place], looks, place)
                at = place + 1
            until = min(end + 1 + self.window, count)

    def _go_on(
        self,
        steps: Sequence[int],
        looks: Sequence[tuple[Condition, Sequence[float]]],
        marks: Sequence[tuple[bytes, bytes]],
        at: int,
    ) -> int:
        """Go on firing without a look, from a place to the last step at which nothing ends it.

        Returns:
            The place of that step, or of the first one: the next to look at.
        """
        ends = [marked.find(0, at) for marked, _ in marks]
        last = min(len(steps) if end < 0 else end for end in ends) - 1
        if last <= at:
            return at
        self.begin()
        for condition, (_, given) in zip(self._exact, looks, strict=True):
            condition.go_on(steps[at:last], given[at:last])
        return last

    def _look_once(
        self, step: int, looks: Sequence[tuple[Condition, Sequence[float]]], at: int
    ) -> bool:
        self.begin()
        holds = True
        for condition, given in looks:
            holds = condition.look(step, given[at]) and holds
        self._is_open = True
        changed, self.is_firing = holds != self.is_firing, holds
        return changed

    def _rest(self, step: int, looks: Sequence[tuple[Condition, Sequence[float]]], at: int) -> None:
        """Go on after a step, without a look at it or at those before."""
        self.begin()
        self.has_looked = True
        for condition, given in looks:
            condition.rest(step, given[at])

    @property
    def go_back_step(self) -> int | None:
        """The last step before the fault, while the rule holds; None: the first step had it."""
        found = [one.before for one in self._conditions]
        return None if None in found else min(one for one in found if one is not None)

    @property
    def what(self) -> str:
        """What the conditions found, as a sentence without a full stop."""
        return ", and ".join(map(str, self._conditions))
