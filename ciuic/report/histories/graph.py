"""Draws where a history branches: one lane for each line of descent, newest first.

*    went on after the restore
*    the first after it
| *  what was rolled back
| *
|/
o    what was restored; the oldest that is known
"""

from collections.abc import Hashable, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

__all__ = ["Drawn", "draw"]

Key = TypeVar("Key", bound=Hashable)
_LANES_MAX: Final = 12
"""More lanes are cut off: a line of text has to follow them."""


class Drawn(NamedTuple):
    """A line of the graph.

    Attributes:
        lanes: What to print.
        row: The number of the row that it belongs to; None: it only joins lanes.
    """

    lanes: str
    row: int | None


def draw(rows: Sequence[tuple[Key, Key | None]]) -> Iterator[Drawn]:
    """Yield the lines of the graph of some rows, newest first.

    A lane never moves sideways. So a reader can follow it down to where its row comes from.

    Args:
        rows: The key of each row, and the key of the row that it comes from; None, or a key that no
            later row has: nothing that is known.
    """
    places = {key: at for at, (key, _) in enumerate(rows)}
    lanes: list[Key | None] = []
    """What each lane leads to; None: it is free."""
    for at, (key, before) in enumerate(rows):
        leading = [lane for lane, wanted in enumerate(lanes) if wanted == key]
        mine = leading[0] if leading else lanes.index(None) if None in lanes else len(lanes)
        for other in reversed(leading[1:]):
            lanes[other] = None
            yield Drawn(_cut(_joined(lanes, mine, other)), None)
        lanes[mine : mine + 1] = [key]
        is_known = before is not None and places.get(before, -1) > at
        signs = ["|" if wanted is not None else " " for wanted in lanes]
        signs[mine] = "*" if is_known else "o"
        yield Drawn(_cut(" ".join(signs).rstrip()), at)
        lanes[mine] = before if is_known else None


def _joined(lanes: Sequence[object], mine: int, other: int) -> str:
    """Return the line on which a lane ends in another one to its left."""
    line = list(" ".join(["|" if wanted is not None else " " for wanted in lanes]))
    for place in range(2 * mine + 1, 2 * other):
        line[place] = "_" if line[place] == " " else line[place]
    line[2 * other - 1] = "/"
    return "".join(line).rstrip()


def _cut(line: str) -> str:
    return line if len(line) < 2 * _LANES_MAX else f"{line[: 2 * _LANES_MAX - 1]}~"
