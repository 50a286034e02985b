"""Tables and lines that fit the terminal they are printed on.

On a terminal a table is as wide as the terminal and no wider: the least important columns are left
out and long texts are shortened. In a pipe everything is printed in full.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import click

from ciuic.cli.render import has_style, printable

__all__ = [
    "Column",
    "cut_end",
    "cut_middle",
    "cut_time",
    "display_width",
    "echo_path",
    "print_pair",
    "print_table",
    "terminal_columns",
]

_ELLIPSIS: Final = "…"
_GAP: Final = 2
_DEFAULT: Final = 80
_WIDTH_MIN: Final = 12
_MINUTES: Final = len("2026-06-15 14:30")
_TEXT_MIN: Final = 20
"""A value with fewer columns than this beside its key is not wrapped."""

Cut = Callable[[str, int], str]


def terminal_columns(*, err: bool = False) -> int | None:
    """Return the width of the terminal that shows stdout, or stderr; None without a terminal."""
    stream = sys.stderr if err else sys.stdout
    try:
        if not stream.isatty():
            return None
        asked = os.environ.get("COLUMNS", "")
        if asked.isdecimal() and int(asked):
            return int(asked)
        # A terminal that does not know its size, as on a serial line, reports 0.
        return os.get_terminal_size(stream.fileno()).columns or _DEFAULT
    except (OSError, ValueError):  # it was closed
        return None


def display_width(text: str) -> int:
    """Return the columns that a text takes: wide characters take two, accents none."""
    return len(text) if text.isascii() else sum(map(_character_width, text))


def _character_width(char: str) -> int:
    # Imported late: few tables hold other characters than ASCII.
    import unicodedata

    if unicodedata.category(char) in {"Mn", "Me"}:
        return 0
    return 2 if unicodedata.east_asian_width(char) in {"W", "F"} else 1


def cut_end(text: str, width: int) -> str:
    """Return the beginning of a text, with an ellipsis if it was shortened."""
    if display_width(text) <= width:
        return text
    return _head(text, width - 1) + _ELLIPSIS if width > 0 else ""


def cut_middle(text: str, width: int) -> str:
    """Return both ends of a text: a third is its beginning, and a path's last name stays whole."""
    if display_width(text) <= width:
        return text
    if width < 3:
        return cut_end(text, width)
    tail = width - 1 - (width - 1) // 3
    name = display_width(text) - display_width(text[: max(0, text.rfind("/"))])
    if tail < name < width:
        tail = name
    return _head(text, width - 1 - tail) + _ELLIPSIS + _tail(text, tail)


def cut_time(text: str, width: int) -> str:
    """Return a local time, without seconds if it does not fit with them."""
    return text if display_width(text) <= width else cut_end(text[:_MINUTES], width)


def _head(text: str, width: int) -> str:
    for at, char in enumerate(text):
        width -= _character_width(char)
        if width < 0:
            return text[:at]
    return text


def _tail(text: str, width: int) -> str:
    for at in range(len(text) - 1, -1, -1):
        width -= _character_width(text[at])
        if width < 0:
            return text[at + 1 :]
    return text


class Column(NamedTuple):
    """A column, and how it adapts to a narrow terminal.

    Attributes:
        name: The header.
        right: Cells are aligned right, because they hold numbers.
        drop: The column with the highest number is left out first; 0: never.
        cut: Shortens a cell to a width; None: its cells are never shortened.
        least: The width down to which cells are shortened before a column is left out.
        wrap: Cells go on in further lines instead of being shortened; for the last column only.
    """

    name: str
    right: bool = False
    drop: int = 0
    cut: Cut | None = None
    least: int = _WIDTH_MIN
    wrap: bool = False


def print_table(
    header: Sequence[str | Column],
    rows: Sequence[Sequence[str]],
    *,
    right: frozenset[int] = frozenset(),
) -> None:
    """Print rows in columns under a header, no wider than the terminal.

    Args:
        header: The columns; a column given as text is neither left out nor shortened.
        rows: Their cells.
        right: The numbers of columns given as text whose cells are aligned right.
    """
    columns = [
        column if isinstance(column, Column) else Column(column, number in right)
        for number, column in enumerate(header)
    ]
    cells = [
        row if "".join(row).isprintable() else [printable(cell) for cell in row] for row in rows
    ]
    available = terminal_columns()
    shown = _fitted(columns, cells, available)
    all_rows = [[column.name for column in columns], *cells]
    printed = (
        _plain_lines(columns, all_rows, shown)
        if available is None and all("".join(row).isascii() for row in cells)
        else [
            line if available is None else cut_end(line, available)
            for row in all_rows
            for line in _lines(columns, row, shown)
        ]
    )
    if has_style():
        printed[0] = click.style(printed[0], bold=True)
    # At once: click empties the stream's buffer each time.
    click.echo("\n".join(printed))
    left_out = _left_out(columns, cells, shown)
    if left_out and sys.stderr.isatty():
        print_pair("", f"too narrow for {', '.join(left_out)}; --json has all", 0, err=True)


def _left_out(
    columns: Sequence[Column], cells: Sequence[Sequence[str]], shown: Sequence[tuple[int, int]]
) -> list[str]:
    """Return the names of the columns that are not shown although they have values."""
    shown_numbers = {at for at, _ in shown}
    return [
        column.name
        for at, column in enumerate(columns)
        if at not in shown_numbers and any(row[at] for row in cells)
    ]


def _plain_lines(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], shown: Sequence[tuple[int, int]]
) -> list[str]:
    """Return a line for each row of a table that is printed in full, and in ASCII: most are.

    It takes a quarter of the time that ``_lines`` takes.
    """
    form = "  ".join([f"{{:{'>' if columns[at].right else '<'}{width}}}" for at, width in shown])
    return [form.format(*row).rstrip() for row in rows]


def _lines(
    columns: Sequence[Column], row: Sequence[str], shown: Sequence[tuple[int, int]]
) -> Iterator[str]:
    """Yield the lines of a row: one, or several if the text of its last column is wrapped."""
    last, last_width = shown[-1]
    texts = [row[last]]
    if columns[last].wrap and display_width(row[last]) > last_width:
        texts = list(_wrapped(row[last], last_width))
    cells = [_cell(columns[at], row[at], width) for at, width in shown[:-1]]
    for number, text in enumerate(texts):
        head = [" " * display_width(cell) for cell in cells] if number else cells
        yield "  ".join([*head, _cell(columns[last], text, last_width)]).rstrip()


def _cell(column: Column, text: str, width: int) -> str:
    if text.isascii() and len(text) <= width:  # most cells
        return text.rjust(width) if column.right else text.ljust(width)
    size = display_width(text)
    if size > width and column.cut is not None:
        text = column.cut(text, width)
        size = display_width(text)
    space = " " * (width - size)
    return space + text if column.right else text + space


def _fitted(
    columns: Sequence[Column], cells: Sequence[Sequence[str]], available: int | None
) -> list[tuple[int, int]]:
    """Return the number and the width of each column that is shown."""
    widths = {
        at: max(map(_width_of(texts), texts))
        for at, texts in enumerate(zip([column.name for column in columns], *cells, strict=True))
    }
    if available is None or _total(widths) <= available:
        return list(widths.items())
    for at, column in enumerate(columns):
        if column.drop and not any(row[at] for row in cells):
            del widths[at]
    while _total(_least(columns, widths)) > available:
        spare = [at for at in widths if columns[at].drop]
        if not spare:
            break
        del widths[max(spare, key=lambda at: columns[at].drop)]
    least = _least(columns, widths)
    while _total(widths) > available:
        # The widest column shrinks first, so that short columns stay whole.
        at = max(widths, key=lambda at: (widths[at] > least[at], widths[at]))
        if widths[at] <= least[at]:
            break
        widths[at] -= 1
    return list(widths.items())


def _width_of(texts: Sequence[str]) -> Callable[[str], int]:
    """Return the function that measures these texts: ``display_width``, or one that is faster."""
    return len if "".join(texts).isascii() else display_width


def _least(columns: Sequence[Column], widths: dict[int, int]) -> dict[int, int]:
    return {
        at: width
        if columns[at].cut is None and not columns[at].wrap
        else min(width, max(columns[at].least, len(columns[at].name)))
        for at, width in widths.items()
    }


def _total(widths: dict[int, int]) -> int:
    return sum(widths.values()) + _GAP * (len(widths) - 1)


def echo_path(before: str, path: str | bytes, after: str = "") -> None:
    """Print a line with a path, which is shortened if the terminal is too narrow for it."""
    shown = printable(path)
    available = terminal_columns()
    if available is not None:
        left = available - display_width(before) - display_width(after)
        shown = cut_middle(shown, max(left, _WIDTH_MIN))
    click.echo(f"{before}{shown}{after}")


def print_pair(key: str, value: str, width: int, *, err: bool = False) -> None:
    """Print a key and its value; on a narrow terminal, the value is wrapped beside the key."""
    value = printable(value)
    available = terminal_columns(err=err)
    left = 0 if available is None else available - width
    lines = [value] if left < _TEXT_MIN else list(_wrapped(value, left))
    for number, line in enumerate(lines):
        click.echo(f"{' ' * width if number else key.ljust(width)}{line}", err=err)


def _wrapped(text: str, width: int) -> Iterator[str]:
    """Yield lines of whole words; a word that is longer than a line is broken."""
    line = ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else word
        if display_width(longer) <= width:
            line = longer
            continue
        if line:
            yield line
        line = word
        while display_width(line) > width:
            head = _head(line, width)
            yield head
            line = line[len(head) :]
    yield line
