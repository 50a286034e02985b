"""Older versions of a chunk, as candidates for its delta base."""

import dataclasses
from collections.abc import Callable


@dataclasses.dataclass(frozen=True, slots=True)
class Older:
    """A candidate with everything that ``codec.DeltaBase`` asks for."""

    read: Callable[[], bytes | memoryview | None]
    cost_bytes: int
    worth_bytes: int
    bytes_min: int = 0
