"""All rules over all lines of the logs: which rules fire, when, and which step to go back to.

A rule fires when its conditions begin to hold, and ends when they no longer hold: a fault that
lasts is one finding. After a rollback all windows are empty, and rules that had fired can fire
again.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from operator import itemgetter
from typing import Final

from ciuic.guard.logs.records import Decoder, Lines, Record
from ciuic.guard.rules.language import Rule
from ciuic.guard.rules.rows import Rows
from ciuic.guard.rules.state import RuleState
from ciuic.guard.rules.steps import Steps
from ciuic.units import format_duration

__all__ = ["Finding", "Watching"]

_SEEN_MAX: Final = 20_000
"""For how many of the last steps it is known when they were logged: twice the longest window."""
_TOGETHER: Final = 1 << 12
"""How many lines are looked at together: where rows end often, the rest is read again and again."""
_TOGETHER_MIN: Final = 4
"""The fewest steps that are looked at together, in windows."""
_REST: Final = 64
"""If there are fewer, this many times as many lines after them are looked at one by one."""


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
        self._states = [RuleState(rule, columns) for rule in rules if rule.conditions]
        self._silences = [rule for rule in rules if rule.silence_s]
        window = 1 + max((one.window for one in self._states), default=0)
        self._together_min = _TOGETHER_MIN * window
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
        # The times of old lines tell how long no step came: each counts.
        is_each = not since_ns and bool(self._silences)
        count = max(_TOGETHER, 4 * self._together_min)
        for start in range(0, len(lines), count):
            some = lines[start : start + count]
            is_few = is_each or len(some) < self._together_min
            together = None if is_few else self.decoder.lines(some)
            if together is not None:
                found += self._together(file, together, since_ns, monotonic_s)
                continue
            for line in some:
                record = self.decoder.decode(line)
                if record is not None:
                    found += self.record(file, record, since_ns=since_ns, monotonic_s=monotonic_s)
        return found

    def _together(
        self, file: int, lines: Lines, since_ns: int, monotonic_s: float
    ) -> list[Finding]:
        """Add decoded lines: as many steps as possible at once, the others one by one."""
        found: list[Finding] = []
        at, until, count = 0, 1, len(lines.steps)
        while at < count:
            # Also the lines that add fields to the newest step: the next one begins a step.
            while at < count and (at < until or lines.steps[at] == self.steps.step):
                record = lines.record(at)
                found += self.record(file, record, since_ns=since_ns, monotonic_s=monotonic_s)
                at += 1
            rows = self.steps.rows(file, lines, at)
            if rows is not None and len(rows.steps) >= self._together_min:
                found += self._steps_at_once(rows, since_ns, monotonic_s)
                at, until = rows.end, rows.end + 1
            else:
                # The next lines are probably alike: do not try.
                until = at + _REST * self._together_min
        return found

    def _steps_at_once(self, rows: Rows, since_ns: int, monotonic_s: float) -> list[Finding]:
        """Add steps that follow the newest one."""
        steps = rows.steps
        heard = self._heard(steps[0], monotonic_s) if self._silences else []
        found = [
            (place, self._changed(state, steps[place], rows, since_ns))
            for state in self._states
            for place in state.look_at_all(steps, rows.values)
        ]
        self.steps.take_over(rows)
        self.count += len(steps)
        self._seen.extend(zip(steps[-_SEEN_MAX:], repeat(since_ns), strict=False))
        return heard + [finding for _, finding in sorted(found, key=itemgetter(0))]

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
                found.append(self._changed(state, step, None, since_ns))
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
            found += self._heard(record.step, moment_s)
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

    def _heard(self, step: int, moment_s: float) -> list[Finding]:
        """Return the rules about silence that a step ends."""
        self._last_s = moment_s
        return [Finding(rule, step, True) for rule in self._silences if self._ended(rule)]

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

    def _changed(self, state: RuleState, step: int, rows: Rows | None, since_ns: int) -> Finding:
        """Return what a rule found, right after its look at a step.

        Args:
            state: The rule.
            step: The step.
            rows: If the step is one of these, ``_seen`` does not have them yet.
            since_ns: A time before those were logged.
        """
        if not state.is_firing:
            return Finding(state.rule, step, True)
        back = state.go_back_step
        if rows is not None and back is not None and back >= rows.steps[0]:
            good_ns = since_ns
        else:
            count = 0 if rows is None else bisect_right(rows.steps, step)
            good_ns = self._seen_ns(back, count, since_ns)
        return Finding(state.rule, step, False, back, state.what, good_ns)

    def _seen_ns(self, step: int | None, count: int, since_ns: int) -> int:
        """Return a time before a step was logged; before the oldest one if it is not known.

        Args:
            step: The step.
            count: How many steps came since; they drive others out.
            since_ns: A time before those were logged.
        """
        kept = len(self._seen) - max(len(self._seen) + count - _SEEN_MAX, 0)
        if kept <= 0:
            return since_ns
        # From the newest: the step is a few steps ago.
        newest = islice(reversed(self._seen), kept)
        seen = (seen_ns for number, seen_ns in newest if number == step)
        return next(seen, self._seen[-kept][1])
