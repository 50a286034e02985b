"""Many lines of a file -> the steps of the source that leads, as far as no other line matters.

``Steps`` says which line begins a step, and what the lines of other sources add to it. Here the
same is found for many lines at once. It ends before a line that would do more than add a missing
field to a step: a rollback, a new leader, or a loss that is not finite on another rank.
"""

import math
import operator
from collections.abc import Sequence
from typing import NamedTuple

from ciuic.guard.logs.records import Lines

__all__ = ["Rows", "rows_of"]

Values = Sequence[float | None]


class Rows(NamedTuple):
    """Steps that follow each other, with all of their fields.

    Attributes:
        steps: Their numbers, each greater than the one before.
        values: For each field, its value at each step; None: the step does not have it.
        end: The place of the first line after them.
    """

    steps: list[int]
    values: list[list[float | None]]
    end: int


def rows_of(
    lines: Lines, start: int, rank: str, step: int, values: Values, *, ahead_max: int
) -> Rows:
    """Return the steps that lines begin, from a place on.

    Args:
        lines: The lines of the file that leads.
        start: The place.
        rank: The rank that leads.
        step: The step that began before them.
        values: The fields of that step.
        ahead_max: A line of another rank that is further ahead leads from there on.
    """
    steps, ranks = lines.steps[start:], lines.ranks[start:]
    columns = [column[start:] for column in lines.values]
    if ranks.count(rank) == len(ranks):
        end = _rising(steps, step)
        if end == len(steps) or end > 1:
            return Rows(steps[:end], [column[:end] for column in columns], start + end)
    is_own = [one == rank for one in ranks]
    if None not in values and all(map(_is_full, columns)):
        begun, end = _begun(steps, is_own, step, ahead_max)
        found = [[column[place] for place in begun] for column in columns]
        return Rows([steps[place] for place in begun], found, start + end)
    found, begun, end = _filled(Lines(steps, ranks, columns), is_own, step, values, ahead_max)
    return Rows(begun, found, start + end)


def _is_full(column: Values) -> bool:
    """Return whether there is a finite value at each place."""
    there = [value for value in column if value is not None]
    return len(there) == len(column) and all(map(math.isfinite, there))


def _rising(steps: Sequence[int], before: int) -> int:
    """Return how many steps are each greater than the one before."""
    if steps and steps[0] > before and all(map(operator.lt, steps, steps[1:])):
        return len(steps)
    for end, step in enumerate(steps):
        if step <= before:
            return end
        before = step
    return len(steps)


def _begun(
    steps: Sequence[int], is_own: Sequence[bool], before: int, ahead_max: int
) -> tuple[list[int], int]:
    """Return the places of the lines that begin a step, and of the line that ends the rows.

    No other line adds anything to a step.
    """
    found = []
    for place, (step, own) in enumerate(zip(steps, is_own, strict=True)):
        if own and step > before:
            found.append(place)
            before = step
        elif (own and step < before) or step > before + ahead_max:
            return found, place
    return found, len(steps)


def _filled(
    lines: Lines, is_own: Sequence[bool], before: int, values: Values, ahead_max: int
) -> tuple[list[list[float | None]], list[int], int]:
    """Return the steps that lines begin, with the fields that later lines add to them.

    Returns:
        The fields, the steps, and the place of the line that ends the rows.
    """
    numbers: list[int] = []
    rows: list[list[float | None]] = []
    newest, end = list(values), len(lines.steps)
    read = zip(lines.steps, is_own, *lines.values, strict=True)
    for place, (step, own, *given) in enumerate(read):
        if step == before:
            if not _fill(newest, given, is_begun_here=bool(rows)):
                end = place
                break
        elif own and step > before:
            before, newest = step, given
            numbers.append(step)
            rows.append(newest)
        elif own or step > before + ahead_max:
            end = place
            break
    return [list(column) for column in zip(*rows, strict=True)], numbers, end


def _fill(newest: list[float | None], given: Values, *, is_begun_here: bool) -> bool:
    """Add the fields that a step lacks; returns False if the line would do something else."""
    missing = []
    for column, (old, new) in enumerate(zip(newest, given, strict=True)):
        if new is None:
            continue
        if old is None:
            missing.append(column)
        elif math.isfinite(old) and not math.isfinite(new):
            return False
    if missing and not is_begun_here:
        return False
    for column in missing:
        newest[column] = given[column]
    return True
