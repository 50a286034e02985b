"""Which of many steps need no look, because a rule cannot fire at them.

Most steps of a training are quiet. A rule cannot fire at a step unless each of its conditions may
hold there and at the steps before, as many in a row as it asks for. The conditions then need only
the last steps before such a step, as many as they remember, and can leave out those before.
"""

from collections.abc import Sequence

__all__ = ["first_chance", "last_break"]


def first_chance(marks: Sequence[tuple[bytes, bytes]], start: int) -> int | None:
    """Return the first step, from a place on, at which a rule may fire; None: there is none.

    Args:
        marks: For each condition what ``Condition.may_hold`` returned for the steps, and what these
            marks must be at the steps in a row that it asks for.
        start: The place.
    """
    at = start
    while True:
        latest = at
        for marked, needed in marks:
            begin = marked.find(needed, max(at - len(needed) + 1, 0))
            if begin < 0:
                return None
            latest = max(latest, begin + len(needed) - 1)
        if latest == at:
            return at
        at = latest


def last_break(marks: Sequence[bytes], first: int, last: int) -> int | None:
    """Return the last of some steps at which no condition may hold; None: there is none.

    From there, conditions can go on by ``Condition.rest``. Where a row of steps goes on, its
    beginning would be forgotten.

    Args:
        marks: What ``Condition.may_hold`` returned for the steps.
        first: The place of the first of the steps to search.
        last: The place of the last one.
    """
    at = last
    while at >= first:
        earliest = at
        for marked in marks:
            earliest = min(earliest, marked.rfind(0, first, earliest + 1))
        if earliest == at:
            return at
        at = earliest
    return None
