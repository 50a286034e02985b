"""A walk through every state that a model can reach."""

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

__all__ = ["Walk", "walk"]

State = TypeVar("State")


class Walk(NamedTuple):
    """The result of a walk: the number of states, and how a promise was broken (empty: never)."""

    states: int
    broken: str


def walk(
    first: State,
    steps: Callable[[State], Iterable[tuple[str, State]]],
    broken: Callable[[State], str],
    states_max: int = 0,
) -> Walk:
    """Visit every state that is reachable from the first one, until a promise is broken.

    Args:
        first: Breaks no promise.
        steps: Yields each step from a state, in words, and the state after it.
        broken: Returns the promise that a state breaks; empty: none.
        states_max: Give up, without a broken promise, after this many states; 0: never.
    """
    before: dict[State, tuple[State, str] | None] = {first: None}
    waiting = [first]
    while waiting:
        state = waiting.pop()
        for told, after in steps(state):
            if after in before:
                continue
            before[after] = state, told
            if promise := broken(after):
                return Walk(len(before), "; ".join([*_way(before, after), promise]))
            waiting.append(after)
        if states_max and len(before) > states_max:
            break
    return Walk(len(before), "")


def _way(before: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    """Return the steps that led to a state."""
    steps: list[str] = []
    while (link := before[state]) is not None:
        state, told = link
        steps.append(told)
    return steps[::-1]
