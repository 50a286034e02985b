"""All rules over all lines of the logs: which rules fire, when, and which step to go back to.

A rule fires when its conditions begin to hold, and ends when they no longer hold: a fault that
lasts is one finding. After a rollback all windows are empty, and rules that had fired can fire
again.
"""

import operator
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Final

from ciuic.guard.logs.records import Columns, Decoder, Record, Run
from ciuic.guard.rules.conditions import Condition
from ciuic.guard.rules.language import Rule
from ciuic.guard.rules.quiet import last_needless
from ciuic.guard.rules.steps import Steps
from ciuic.units import format_duration

__all__ = ["Finding", "Watching"]

_SEEN_MAX: Final = 20_000
"""For how many of the last steps it is known when they were logged: twice the longest window."""
_TOGETHER_MAX: Final = 1 << 16
_TOGETHER_MIN: Final = 8
"""The fewest lines that are decoded together, in windows."""
_REST: Final = 64
"""If that fails, this many times as many lines after them are decoded one by one."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule fired, or its fault ended.

    Attributes:
        rule: The rule.
        step: The step at which it fired or ended; None: no step was logged yet.
        is_end: The fault ended; the fields below are empty.
        go_back_step: The last step before the fault; None: the fault began with the first step.
        what: What happened, as a sentence without a full stop.
        good_ns: A time when nothing of the fault had been logged; 0: not known.
    """

    rule: Rule
    step: int | None
    is_end: bool = False
    go_back_step: int | None = None
    what: str = ""
    good_ns: int = 0


class _State:
    """A rule, and the state of its conditions.

    Attributes:
        has_looked: A step had all fields of the rule.
        window: How many of the last steps its conditions remember.
    """

    def __init__(self, rule: Rule, columns: dict[str, int]) -> None:
        self.rule = rule
        self.window = max(make().window for make in rule.conditions)
        self.has_looked = False
        self._columns = columns
        self.restart()

    def restart(self) -> None:
        """Forget all steps."""
        self.conditions: list[Condition] = [make() for make in self.rule.conditions]
        self._looks = [(self._columns[one.field], one) for one in self.conditions]
        self._is_open = False
        self.is_firing = False

    def begin(self) -> None:
        """End the step before."""
        if self._is_open:
            for condition in self.conditions:
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

    def columns(
        self, values: Sequence[Sequence[float] | None]
    ) -> list[tuple[Condition, Sequence[float]]]:
        """Return each condition with the values of its field; nothing if one field is missing."""
        found = []
        for column, condition in self._looks:
            given = values[column]
            if given is None:
                return []
            found.append((condition, given))
        return found

    def rest(self, step: int, values: Sequence[float | None]) -> None:
        """Go on after a step that was not looked at, as none of those before it since ``begin``."""
        if None in [values[column] for column, _ in self._looks]:
            return
        self.has_looked = True
        for column, condition in self._looks:
            value = values[column]
            if value is not None:
                condition.rest(step, value)

    @property
    def go_back_step(self) -> int | None:
        found = [one.before for one in self.conditions]
        return None if None in found else min(one for one in found if one is not None)

    @property
    def what(self) -> str:
        return ", and ".join(map(str, self.conditions))


class Watching:
    """Rules over the logs of one job.

    Args:
        rules: The rules.

    Attributes:
        decoder: Counts the lines that could not be used.
        steps: The newest step.
        count: How many steps came.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        fields = tuple(dict.fromkeys(field for rule in rules for field in rule.fields))
        columns = {field: number for number, field in enumerate(fields)}
        self._fields = fields
        self.decoder = Decoder(fields)
        self.steps = Steps()
        self.count = 0
        self._states = [_State(rule, columns) for rule in rules if rule.conditions]
        self._silences = [rule for rule in rules if rule.silence_s]
        self._window = 1 + max((one.window for one in self._states), default=0)
        self._together = _TOGETHER_MAX
        self._silent: set[str] = set()
        self._last_s: float | None = None
        self._seen: deque[tuple[int, int]] = deque(maxlen=_SEEN_MAX)

    def lines(
        self, file: int, lines: Sequence[bytes], *, since_ns: int = 0, monotonic_s: float = 0.0
    ) -> list[Finding]:
        """Add lines of a file; returns the rules that fired or whose fault ended.

        Args:
            file: The number of the file.
            lines: The lines.
            since_ns: A time of the wall clock; the lines were logged later. 0: they are old.
            monotonic_s: The monotonic clock, for rules about steps that do not come.
        """
        found: list[Finding] = []
        decode, add = self.decoder.decode, self.record

        def look(some: Sequence[bytes]) -> None:
            for line in some:
                record = decode(line)
                if record is not None:
                    found.extend(add(file, record, since_ns=since_ns, monotonic_s=monotonic_s))

        # The times of old lines tell how long no step came: each counts.
        if not since_ns and self._silences:
            look(lines)
            return found
        start, least = 0, _TOGETHER_MIN * self._window
        while start < len(lines):
            part = lines[start : start + self._together]
            runs = self.decoder.runs(part, least // 2) if len(part) >= least // 2 else None
            if runs is None and len(part) > least:
                # One broken line may be the reason: in smaller parts, the others stay quick.
                self._together = max(len(part) // 2, least)
                continue
            is_quick, begin = False, 0
            for end, columns in runs or [Run(len(part), None)]:
                some = part[begin:end]
                if columns is None:
                    look(some)
                elif self._pass_quickly(file, some, columns, look, since_ns):
                    is_quick = True
                else:
                    look(some[self._window :])
                begin = end
            start += len(part)
            together = 2 * self._together if is_quick else max(len(part) // 2, least)
            self._together = min(together, _TOGETHER_MAX)
            if runs and not any(columns for _, columns in runs):
                # Several ranks may log in turn. The next lines are probably alike: do not try.
                rest = lines[start : start + _REST * least]
                look(rest)
                start += len(rest)
        return found

    def _pass_quickly(
        self,
        file: int,
        lines: Sequence[bytes],
        columns: Columns,
        look: Callable[[Sequence[bytes]], None],
        since_ns: int,
    ) -> bool:
        """Look at only some of the lines, if the rules need no others.

        Returns:
            False if they need the others; the first lines, as many as the window, are done.
        """
        before, head = self.count, self._window
        look(lines[:head])
        # The first line may belong to the step before. If more begin no step, then another source
        # led, and the conditions have not seen what these lines say.
        is_seen = self.count - before >= head - 1
        place = self._last_needless(file, columns) if is_seen else None
        if place is None:
            return False
        self._pass_over(columns, place, since_ns)
        look(lines[place + 1 :])
        return True

    def _last_needless(self, file: int, columns: Columns) -> int | None:
        """Return the last of some lines that need no look; the first of them were looked at."""
        steps, window = columns.steps, self._window
        is_row = self.steps.is_led_by(file, columns.rank) and self.steps.step == steps[window - 1]
        if (
            not is_row
            or any(state.is_firing for state in self._states)
            or not all(map(operator.lt, steps, steps[1:]))
        ):
            return None
        rules = [state.columns(columns.values) for state in self._states]
        return last_needless([rule for rule in rules if rule], len(steps), window)

    def _pass_over(self, columns: Columns, place: int, since_ns: int) -> None:
        """Take over the steps up to a line, without those that were looked at."""
        step = columns.steps[place]
        values = [None if column is None else column[place] for column in columns.values]
        for state in self._states:
            state.begin()
            state.rest(step, values)
        self.steps.pass_over(step, tuple(values))
        passed = columns.steps[self._window : place + 1]
        self.count += len(passed)
        self._seen.extend(zip(passed[-_SEEN_MAX:], repeat(since_ns), strict=False))

    def record(
        self, file: int, record: Record, *, since_ns: int = 0, monotonic_s: float = 0.0
    ) -> Sequence[Finding]:
        """Add a decoded line; see ``lines``."""
        steps = self.steps
        rollbacks = steps.rollbacks
        is_new = steps.add(file, record)
        if is_new is None:
            return ()
        found = self._begin(record, rollbacks, since_ns, monotonic_s) if is_new else []
        step, values = record.step, steps.values
        for state in self._states:
            if state.look(step, values):
                found.append(self._changed(state, step))
        return found

    def blind(self) -> list[tuple[Rule, list[str]]]:
        """Return each rule that saw no step with all of its fields, and what the last one lacks."""
        there = dict(zip(self._fields, self.steps.values, strict=False))
        return [
            (one.rule, [field for field in one.rule.fields if there.get(field) is None])
            for one in self._states
            if not one.has_looked
        ]

    def time_passed(self, monotonic_s: float, *, is_paused: bool = False) -> list[Finding]:
        """Return the rules that fire because no new step came.

        The time counts from the first call of this method, the last new step, or the end of a
        pause.
        """
        if self._last_s is None or is_paused:
            self._last_s = monotonic_s
        return self._silence(monotonic_s, self._last_s, self.steps.step)

    def _begin(
        self, record: Record, rollbacks: int, since_ns: int, monotonic_s: float
    ) -> list[Finding]:
        """Begin a step."""
        found: list[Finding] = []
        moment_s = monotonic_s if since_ns else record.time_s
        if self._silences and moment_s is not None:
            if self._last_s is not None and not since_ns:
                found += self._silence(moment_s, self._last_s, self._last_step())
            self._last_s = moment_s
            found += [
                Finding(rule, record.step, True) for rule in self._silences if self._ended(rule)
            ]
        if self.steps.rollbacks > rollbacks:
            for state in self._states:
                if state.is_firing:
                    found.append(Finding(state.rule, record.step, True))
                state.restart()
            self._seen.clear()
        else:
            for state in self._states:
                state.begin()
        self.count += 1
        self._seen.append((record.step, since_ns))
        return found

    def _ended(self, rule: Rule) -> bool:
        was_silent = rule.name in self._silent
        self._silent.discard(rule.name)
        return was_silent

    def _silence(self, moment_s: float, last_s: float, step: int | None) -> list[Finding]:
        found = []
        for rule in self._silences:
            if moment_s - last_s < rule.silence_s or rule.name in self._silent:
                continue
            self._silent.add(rule.name)
            what = f"no new step came for {format_duration(moment_s - last_s)}"
            good_ns = self._seen[-1][1] if self._seen else 0
            found.append(Finding(rule, step, False, step, what, good_ns))
        return found

    def _last_step(self) -> int | None:
        return self._seen[-1][0] if self._seen else None

    def _changed(self, state: _State, step: int) -> Finding:
        if not state.is_firing:
            return Finding(state.rule, step, True)
        back = state.go_back_step
        # From the newest: the step is a few steps ago. If the fault began with the first step, then
        # the time before that one.
        seen = (seen_ns for number, seen_ns in reversed(self._seen) if number == back)
        return Finding(state.rule, step, False, back, state.what, next(seen, self._seen[0][1]))
