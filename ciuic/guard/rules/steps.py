"""Lines of several files and ranks -> steps in order, each once.

One source, a rank of a file, leads: its steps count, in the order in which it logs them. The lines
of other sources add fields to a step that is still the newest; so several ranks that log a step are
one step. A source that logs much further than the leader replaces it, because the leader's log has
ended.

If the leader logs an earlier step, the training was rolled back, and everything starts again. A job
that starts again may log to another file: the first source leads then.
"""

import math
from collections.abc import Sequence
from typing import Final

from ciuic.guard.logs.records import Lines, Record
from ciuic.guard.rules.rows import Rows, rows_of

__all__ = ["Steps"]

_BEHIND_MAX: Final = 100
"""How many steps another source may be ahead of the leader."""

Source = tuple[int, str]


class Steps:
    """The newest step and its fields.

    Attributes:
        step: The newest step; None before the first line.
        values: Its fields, as far as lines have them.
        rollbacks: How often a step was earlier than the one before it.
    """

    def __init__(self) -> None:
        self.step: int | None = None
        self.values: tuple[float | None, ...] = ()
        self.rollbacks = 0
        self._leader: Source | None = None

    def add(self, file: int, record: Record) -> bool | None:
        """Add a line.

        Args:
            file: The number of its file.
            record: What the line says.

        Returns:
            True if a new step began, False if the newest step got another field, and None if the
            line changes nothing.
        """
        step = record.step
        if self.step is None or self._leader is None:
            if self.step is not None and step <= self.step:
                self.rollbacks += 1
            return self._begin((file, record.rank), record)
        if step == self.step:
            merged = _merged(self.values, record.values)
            if merged is self.values:
                return None
            self.values = merged
            return False
        source = (file, record.rank)
        if source == self._leader:
            if step < self.step:
                self.rollbacks += 1
            return self._begin(source, record)
        if step > self.step + _BEHIND_MAX:
            return self._begin(source, record)
        return None

    def rows(self, file: int, lines: Lines, start: int) -> Rows | None:
        """Return the steps that lines of a file begin, from a place on.

        Only ``take_over`` adds them. They end before a line that does more than begin a step of the
        leader, or add a missing field to it. None: another file leads.
        """
        if self.step is None or self._leader is None or self._leader[0] != file:
            return None
        rank = self._leader[1]
        return rows_of(lines, start, rank, self.step, self.values, ahead_max=_BEHIND_MAX)

    def take_over(self, rows: Rows) -> None:
        """Go on after steps of the leader."""
        self.step = rows.steps[-1]
        self.values = tuple([column[-1] for column in rows.values])

    def restart(self) -> None:
        """The job has ended: further lines are from its next start."""
        self._leader = None

    def _begin(self, source: Source, record: Record) -> bool:
        self._leader = source
        self.step = record.step
        self.values = record.values
        return True


def _merged(
    before: tuple[float | None, ...], more: Sequence[float | None]
) -> tuple[float | None, ...]:
    """Add the fields that a step lacks. A value that is not finite counts from any rank."""
    if before == more:
        return before
    merged = tuple(
        new
        if old is None or (new is not None and math.isfinite(old) and not math.isfinite(new))
        else old
        for old, new in zip(before, more, strict=True)
    )
    return before if merged == before else merged
