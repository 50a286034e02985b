"""Values -> text for people, or JSON for programs.

Names come from file systems and stores, and may be hostile: nothing that could move a terminal's
cursor is printed as it is. JSON has names exactly.
"""

import os
from collections.abc import Iterable, Sequence
from typing import Final

import click

from ciuic.documents import Document

__all__ = [
    "NO_SCHEDULE",
    "as_json_text",
    "brief",
    "coloured",
    "has_style",
    "labels",
    "mode_text",
    "print_json",
    "print_json_array",
    "print_json_last",
    "printable",
    "warning_text",
]


NO_SCHEDULE: Final = "none"
"""Shown for a snapshot that belongs to no schedule."""
_BRIEF_MAX: Final = 256
"""The longest host name has 64 characters; an escaped one four times as many."""
_TAG_MAX: Final = 64
_TAGS_MAX: Final = 100
_TOGETHER: Final = 1 << 16
"""Characters of an array that are written together: click empties the stream's buffer each time."""


def as_json_text(document: Document | Sequence[Document]) -> str:
    """Encode one JSON document; bytes that are not UTF-8 become lone surrogates and survive."""
    import json

    return json.dumps(document, indent=2, ensure_ascii=True)


def print_json(document: Document | Sequence[Document]) -> None:
    """Print one JSON document."""
    click.echo(as_json_text(document))


class _Array:
    """An array that is printed while its elements are computed.

    Attributes:
        count: How many elements it has, with those that wait.
        open: The array that has elements and was not ended; None if there is none.
    """

    open: "_Array | None" = None

    def __init__(self) -> None:
        self._waiting: list[str] = []
        self._length = 0
        self._is_begun = False
        self.count = 0

    def add(self, element: Document) -> None:
        """Add an element. It waits until there are enough to be written together."""
        text = "  " + as_json_text(element).replace("\n", "\n  ")
        self._waiting.append(text)
        self._length += len(text)
        self.count += 1
        _Array.open = self
        if self._length >= _TOGETHER:
            self._write()

    def end(self) -> None:
        """Print what waits and the end."""
        _Array.open = None
        self._write()
        click.echo("\n]" if self.count else "[]")

    def _write(self) -> None:
        waiting, self._waiting, self._length = self._waiting, [], 0
        if waiting:
            before, self._is_begun = ",\n" if self._is_begun else "[\n", True
            click.echo(before + ",\n".join(waiting), nl=False)


def print_json_array(elements: Iterable[Document]) -> int:
    """Print an array while its elements are computed; memory does not grow with it.

    If an element cannot be computed, the array stays open, and ``print_json_last`` ends it.

    Returns:
        The number of elements.
    """
    array = _Array()
    _Array.open = None
    for element in elements:
        array.add(element)
    array.end()
    return array.count


def print_json_last(document: Document) -> None:
    """Print a document, as the last element of the array that is open, if there is one."""
    array = _Array.open
    if array is None:
        print_json(document)
    else:
        array.add(document)
        array.end()


def printable(text: str | bytes) -> str:
    """Make text safe for a terminal: controls and odd bytes become backslash escapes."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")
    if text.isprintable():
        return text
    return "".join([char if char.isprintable() else _escaped(char) for char in text])


def _escaped(char: str) -> str:
    if "\udc80" <= char <= "\udcff":
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape", "surrogatepass").decode()


def mode_text(mode: int) -> str:
    """Format a mode as ls does: ``drwxr-xr-x``."""
    import stat

    return stat.filemode(mode)


def coloured(text: str, colour: str) -> str:
    """Color text where the terminal has style; click removes it in a pipe."""
    return click.style(text, fg=colour) if has_style() else text


def has_style() -> bool:
    """Return whether to print styles: see no-color.org; dumb terminals have none."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def brief(text: str, length_max: int = _BRIEF_MAX) -> str:
    """Shorten a text of a manifest that is longer than ciuic would write it.

    The store does not check these texts, so they may be as long as a manifest.
    """
    return text if len(text) <= length_max else f"{text[: length_max - 1]}…"


def labels(tags: Sequence[str], *, pinned: bool) -> str:
    """Return a snapshot's tags for a table, with a mark if it is pinned."""
    shown = [brief(tag, _TAG_MAX) for tag in tags[:_TAGS_MAX]]
    more = [f"and {len(tags) - _TAGS_MAX:,} more"] if len(tags) > _TAGS_MAX else []
    return ",".join([*shown, *more, *(["(pinned)"] if pinned else [])])


def warning_text(warning: Document) -> str:
    """Return the line for a path of a snapshot that is not as it should be."""
    from ciuic.snapshot.hooks import HOOK_WARNING

    # A failed hook has the path of the first root, which is not at fault.
    if warning["what"].startswith(HOOK_WARNING):
        return f"ciuic: {printable(warning['what'])}"
    return f"{printable(warning['path'])}: {printable(warning['what'])}"
