"""The logs of a job while they grow, with rules over them."""

from collections.abc import Sequence
from typing import Final

from ciuic.guard.logs.paths import log_files
from ciuic.guard.logs.tail import Tail
from ciuic.guard.rules.language import Rule
from ciuic.guard.rules.watching import Finding, Watching
from ciuic.system.clock import Clock

__all__ = ["JobLogs"]

_LOOK_S: Final = 5.0
"""How often patterns are looked up again: a rank may open its log late."""


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
        self._tails = {path: Tail(path, from_end=True) for path in log_files(patterns)}
        self._next_look_s = clock.monotonic_s() + _LOOK_S

    @property
    def last_step(self) -> int | None:
        """The newest step; None: no step was logged yet."""
        return self.watching.steps.step

    def poll(self, *, is_paused: bool = False) -> list[Finding]:
        """Read what was added; returns the rules that fired or whose fault ended.

        Args:
            is_paused: No step can come.
        """
        now_s = self._clock.monotonic_s()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + _LOOK_S
            self._look()
        found: list[Finding] = []
        for number, tail in enumerate(self._tails.values()):
            for lines in tail.read():
                self.lines += len(lines)
                found += self.watching.lines(
                    number, lines, now_ns=self._clock.now_ns(), monotonic_s=now_s
                )
        return found + self.watching.time(now_s, is_paused=is_paused)

    def close(self) -> None:
        """Close the logs."""
        for tail in self._tails.values():
            tail.close()

    def _look(self) -> None:
        followed = {tail.identity for tail in self._tails.values()} - {None}
        for path in log_files(self._patterns):
            if path not in self._tails:
                tail = Tail(path, from_end=False)
                if tail.identity in followed:  # a rotated log that the pattern matches too
                    tail.close()
                    continue
                self._tails[path] = tail
