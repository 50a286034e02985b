"""The logs of a job while they grow, with rules over them."""

import os
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from ciuic.guard.logs.paths import log_files
from ciuic.guard.logs.tail import Tail
from ciuic.guard.rules.language import Rule
from ciuic.guard.rules.watching import Finding, Watching
from ciuic.system.clock import Clock
from ciuic.units import format_duration, listed

__all__ = ["JobLogs"]

_LOOK_S: Final = 5.0
"""How often patterns are looked up again: a rank may open its log late."""
_ABSENT_S: Final = 120.0
_LINES: Final = 100
"""After this time without a log, or this many lines or steps, a mistake is likely."""


class JobLogs:
    """The logs that patterns name; lines that they have at the start are left out.

    Args:
        patterns: Absolute paths, or patterns of them.
        rules: The rules.
        clock: For rules about steps that do not come.

    Attributes:
        lines: How many lines came.
    """

    def __init__(self, patterns: Sequence[bytes], rules: Sequence[Rule], clock: Clock) -> None:
        self.watching = Watching(rules)
        self.lines = 0
        self._patterns = patterns
        self._clock = clock
        self._looked_ns = clock.now_ns()
        self._tails = {path: Tail(path, from_end=True) for path in log_files(patterns)}
        self._read_ns = dict.fromkeys(self._tails, self._looked_ns)
        self._absent = list(dict.fromkeys(patterns))
        self._next_look_s = clock.monotonic_s() + _LOOK_S
        self._absent_s: float | None = clock.monotonic_s() + _ABSENT_S if patterns else None
        self._lines_due = _LINES
        self._steps_due = _LINES

    @property
    def last_step(self) -> int | None:
        """The newest step; None: no step was logged yet."""
        return self.watching.steps.step

    def poll(self, *, is_paused: bool = False, is_last: bool = False) -> list[Finding]:
        """Read what was added; returns the rules that fired or whose fault ended.

        Args:
            is_paused: No step can come.
            is_last: The job has ended: new logs are looked for now, and a last line counts without
                its line end.
        """
        now_s = self._clock.monotonic_s()
        if is_last or now_s >= self._next_look_s:
            self._next_look_s = now_s + _LOOK_S
            self._look()
        found: list[Finding] = []
        for number, (path, tail) in enumerate(self._tails.items()):
            # Not the time of this read: a log may be found late, and a snapshot taken meanwhile.
            since_ns, self._read_ns[path] = self._read_ns[path], self._clock.now_ns()
            for lines in _added(tail, is_last=is_last):
                self.lines += len(lines)
                found += self.watching.lines(number, lines, since_ns=since_ns, monotonic_s=now_s)
        if is_last:
            self.watching.steps.restart()
        return found + self.watching.time_passed(now_s, is_paused=is_paused)

    def complaints(self) -> list[str]:
        """Return, once each, why rules cannot fire: no log, no steps in it, or a field is missing.

        Otherwise, a mistyped name would silently leave a training without a guard.
        """
        found = []
        if self._absent_s is not None and self._clock.monotonic_s() >= self._absent_s:
            self._absent_s = None
            if not any(tail.identity for tail in self._tails.values()):
                names = [os.fsdecode(pattern) for pattern in self._patterns]
                what = f"there is no log {listed(names, len(names))}"
                found.append(
                    f"{what} after {format_duration(_ABSENT_S)}, so no rule about it can fire"
                )
        if self.lines >= self._lines_due and not self.watching.count:
            self._lines_due = sys.maxsize
            what = (
                f"none of the first {self.lines:,} lines of its logs is a JSON object with a step"
            )
            found.append(f"{what}, so no rule about them can fire")
        if self.watching.count >= self._steps_due:
            self._steps_due = sys.maxsize
            for rule, fields in self.watching.blind():
                what = f"rule {rule.name} could not look at any of {self.watching.count:,} steps"
                lacks = f"; the last one lacks {listed(fields, len(fields))}" if fields else ""
                found.append(f"{what}, because none has all of its fields{lacks}")
        return found

    def absent(self) -> list[bytes]:
        """Return the patterns that have named no file so far."""
        # Remembered, and asked at each look: a log may be removed again.
        self._absent = [pattern for pattern in self._absent if not self._was_there(pattern)]
        return self._absent

    def close(self) -> None:
        """Close the logs."""
        for tail in self._tails.values():
            tail.close()

    def _was_there(self, pattern: bytes) -> bool:
        tail = self._tails.get(pattern)
        if tail is not None:
            return tail.identity is not None
        return any(os.path.isfile(path) for path in log_files([pattern]))

    def _look(self) -> None:
        looked_ns, self._looked_ns = self._looked_ns, self._clock.now_ns()
        followed = {tail.identity for tail in self._tails.values()} - {None}
        for path in log_files(self._patterns):
            if path not in self._tails:
                tail = Tail(path, from_end=False)
                if tail.identity in followed:  # a rotated log that the pattern matches too
                    tail.close()
                    continue
                self._tails[path] = tail
                self._read_ns[path] = looked_ns
        self.absent()


def _added(tail: Tail, *, is_last: bool) -> Iterator[list[bytes]]:
    yield from tail.read()
    if is_last:
        yield tail.rest()
