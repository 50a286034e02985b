"""Work in steps: a generator that yields while it waits, so that one thread goes on with several.

What the work returns is what the generator returns.
"""

from collections.abc import Generator
from typing import TypeVar

__all__ = ["Steps", "all_steps"]

Result = TypeVar("Result")
Steps = Generator[None, None, Result]


def all_steps(steps: Steps[Result]) -> Result:
    """Do all of the work, one step after the other, and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result
