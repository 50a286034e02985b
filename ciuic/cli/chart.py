"""A curve in a terminal: points in braille characters, a scale, and marks below them.

A braille character has two columns and four rows of dots, so a chart has twice as many columns as
characters. A stream that cannot show them gets one character for each point.
"""

import math
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

from ciuic.cli.render import coloured

__all__ = ["Mark", "chart_lines", "has_unicode", "number_text"]

_BRAILLE: Final = 0x2800
_DOTS: Final = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""The bits of the dots of a character, by column and row from the top."""
_WIDTH_MIN: Final = 10
_CURVE_COLOUR: Final = "cyan"


class Mark(NamedTuple):
    """A sign below the chart.

    Attributes:
        step: Where.
        sign: One character.
        colour: Its color; empty: none.
        rank: Of several marks in one place, the one with the greatest rank is shown.
    """

    step: int
    sign: str
    colour: str
    rank: int


def has_unicode() -> bool:
    """Return whether stdout can show braille characters."""
    try:
        "⠿▲◆".encode(sys.stdout.encoding or "ascii")
    except (UnicodeError, LookupError):
        return False
    return True


def number_text(value: float) -> str:
    """Return a value with four significant digits."""
    return f"{value:.4g}"


def chart_lines(
    curves: Sequence[Sequence[tuple[int, float]]],
    marks: Sequence[Mark],
    *,
    width: int,
    height: int,
) -> list[str]:
    """Return the lines of a chart.

    Args:
        curves: Points with finite values.
        marks: Signs below them.
        width: Characters of a line.
        height: Lines of the curve.
    """
    points = [point for curve in curves for point in curve]
    steps = [step for step, _ in points] + [mark.step for mark in marks]
    if not steps:
        return []
    values = [value for _, value in points]
    scale = _scale(values, height)
    margin = max([len(text) for text in scale], default=0)
    columns = max(_WIDTH_MIN, width - margin - 2)
    axis = _Axis(min(steps), max(steps), columns)
    lines = []
    if values:
        grid = _grid(points, axis, min(values), max(values), height)
        for text, row in zip(scale, grid, strict=True):
            lines.append(
                f"{text.rjust(margin)} ┤{_shown(row)}"
                if has_unicode()
                else f"{text.rjust(margin)} |{_shown(row)}"
            )
    indent = " " * (margin + 2)
    if marks:
        lines.append(indent + _marks_line(marks, axis))
    first, last = f"{axis.first:,}", f"{axis.last:,}"
    space = columns - len(first) - len(last)
    lines.append(f"{indent}{first}{' ' * max(1, space)}{last}" if first != last else indent + first)
    return lines


class _Axis(NamedTuple):
    """The steps, from the left to the right."""

    first: int
    last: int
    columns: int

    def place(self, step: int, columns: int) -> int:
        """Return the column of a step, if there are this many."""
        if self.last == self.first:
            return 0
        # Integers: a step may have more digits than a float.
        return (step - self.first) * (columns - 1) // (self.last - self.first)


def _scale(values: Sequence[float], height: int) -> list[str]:
    if not values:
        return []
    texts = [""] * height
    texts[-1] = number_text(min(values))
    texts[0] = number_text(max(values))
    if height > 4:
        texts[height // 2] = number_text(_between(min(values), max(values), 0.5))
    return texts


def _between(least: float, greatest: float, share: float) -> float:
    # Not least + (greatest - least) * share: the difference may be too large for a float.
    return least * (1 - share) + greatest * share


def _grid(
    points: Sequence[tuple[int, float]], axis: _Axis, least: float, greatest: float, height: int
) -> list[str]:
    is_braille = has_unicode()
    across, down = (2, 4) if is_braille else (1, 1)
    rows, columns = height * down, axis.columns * across
    cells: list[list[int]] = [[0] * axis.columns for _ in range(height)]
    for step, value in points:
        x = axis.place(step, columns)
        # Halves: the difference of two finite numbers may be infinite.
        span = greatest / 2 - least / 2
        share = (value / 2 - least / 2) / span if span > 0 else 0.0
        y = rows - 1 - min(rows - 1, max(0, math.floor(share * (rows - 1) + 0.5)))
        cells[y // down][x // across] |= _DOTS[x % 2][y % 4] if is_braille else 1
    if is_braille:
        return ["".join([chr(_BRAILLE + cell) if cell else " " for cell in row]) for row in cells]
    return ["".join(["*" if cell else " " for cell in row]) for row in cells]


def _shown(row: str) -> str:
    row = row.rstrip()
    return coloured(row, _CURVE_COLOUR) if row else ""


def _marks_line(marks: Sequence[Mark], axis: _Axis) -> str:
    shown: dict[int, Mark] = {}
    for mark in marks:
        x = axis.place(mark.step, axis.columns)
        if x not in shown or mark.rank > shown[x].rank:
            shown[x] = mark
    parts = []
    at = 0
    for x in sorted(shown):
        mark = shown[x]
        parts.append(" " * (x - at))
        parts.append(coloured(mark.sign, mark.colour) if mark.colour else mark.sign)
        at = x + 1
    return "".join(parts)
