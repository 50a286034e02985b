"""The budget of a scrub: how long it may run, or how much it may read."""

import contextlib
import math
import re
from typing import Final, NamedTuple

from ciuic.units import parse_duration_s, parse_size_bytes

__all__ = ["UNLIMITED", "Budget", "parse_budget"]


class Budget(NamedTuple):
    """How much a scrub may read. Even with a small budget, it reads one pack."""

    duration_s: float = math.inf
    size_bytes: float = math.inf

    def is_spent(self, spent_s: float, read_bytes: int) -> bool:
        """Return whether to stop after this time, or before this many bytes have been read."""
        return spent_s >= self.duration_s or read_bytes > self.size_bytes


UNLIMITED: Final = Budget()
_BARE_NUMBER: Final = re.compile(r"[0-9.]+")


def parse_budget(text: str) -> Budget:
    """Parse a budget: a time such as ``10m`` or ``2h``, or a size such as ``10 GiB``.

    Raises:
        ValueError: The text is neither, is zero, or has no unit.
    """
    if _BARE_NUMBER.fullmatch(text.strip()):
        raise ValueError(f"'{text}' has no unit: write a time such as 10m or 2h, or a size: 10GiB")
    with contextlib.suppress(ValueError):
        duration_s = parse_duration_s(text)
        if duration_s:
            return Budget(duration_s=duration_s)
    with contextlib.suppress(ValueError):
        size_bytes = parse_size_bytes(text)
        if size_bytes:
            return Budget(size_bytes=size_bytes)
    raise ValueError(f"'{text}' is neither a time such as 10m or 2h, nor a size such as 10GiB")
