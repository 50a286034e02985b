"""Which of many steps need no look, because no rule can fire at them.

Most steps of a training are quiet. A rule cannot fire among steps if one of its conditions does not
hold there often enough in a row. Its conditions then need only the last of these steps, as many as
they remember, and can leave out those before.
"""

from collections.abc import Sequence

from ciuic.guard.rules.conditions import Condition

__all__ = ["last_needless"]


def last_needless(
    rules: Sequence[Sequence[tuple[Condition, Sequence[float]]]], count: int, window: int
) -> int | None:
    """Return the last step of a row of them from which the conditions can go on by ``rest``.

    The caller has looked at the first ``window`` steps, each of them counted, except that the first
    may belong to the step before; no rule fires after these. It looks at those after the step that
    is returned.

    Args:
        rules: The conditions of each rule, with the value of their field at each step.
        count: How many steps there are.
        window: No condition remembers more steps.

    Returns:
        The place of the step; None: all steps must be looked at.
    """
    rows: list[bytes] = []
    for conditions in rules:
        is_quiet = False
        for condition, values in conditions:
            holds = condition.may_hold(values)
            is_quiet = is_quiet or b"\1" * condition.steps not in holds[1:]
            if condition.has_row:
                rows.append(holds)
        if not is_quiet:
            return None
    for place in range(count - 1 - window, window - 1, -1):
        # Where a row goes on, its beginning would be forgotten.
        if not any(holds[place] for holds in rows):
            return place
    return None
