"""Values -> text for people, or JSON for programs.

Names come from file systems and stores, and are hostile: nothing that could move a terminal's
cursor is ever printed as it is. JSON has them exactly.
"""

import os
from collections.abc import Sequence
from typing import Any

import click

__all__ = [
    "as_json_text",
    "coloured",
    "mode_text",
    "print_json",
    "print_table",
    "printable",
]


def as_json_text(document: Any) -> str:
    """One JSON document; bytes that are not UTF-8 come as lone surrogates and survive."""
    import json

    return json.dumps(document, indent=2, ensure_ascii=True)


def print_json(document: Any) -> None:
    """Print one JSON document."""
    click.echo(as_json_text(document))


def printable(text: str | bytes) -> str:
    """Text that is safe on a terminal: controls and odd bytes as backslash escapes."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")
    if text.isprintable():
        return text
    return "".join([one if one.isprintable() else _escaped(one) for one in text])


def _escaped(one: str) -> str:
    if "\udc80" <= one <= "\udcff":
        return f"\\x{ord(one) - 0xDC00:02x}"
    return one.encode("unicode_escape", "surrogatepass").decode()


def mode_text(mode: int) -> str:
    """``drwxr-xr-x``, as ls prints it."""
    import stat

    return stat.filemode(mode)


def print_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset()
) -> None:
    """Print rows in columns under a header; ``right`` names the columns that hold numbers."""
    cells = [list(header), *[[printable(cell) for cell in row] for row in rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for number, row in enumerate(cells):
        parts = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        line = "  ".join(parts).rstrip()
        click.echo(click.style(line, bold=True) if number == 0 and _has_style() else line)


def coloured(text: str, colour: str) -> str:
    """Text in a colour, where the terminal wants any; click takes it out of pipes."""
    return click.style(text, fg=colour) if _has_style() else text


def _has_style() -> bool:
    """Whether the terminal wants any: no-color.org, and terminals that have none."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
