"""``ciuic diff``: a line with sizes for each change between two snapshots, and a summary."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import click

from ciuic.cli.progress import progress
from ciuic.cli.render import print_json_array, printable
from ciuic.cli.table import echo_path, print_pair
from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.report.change_documents import CHANGE_WORDS, change_json
from ciuic.report.cost import NewContent
from ciuic.store.index.database import IndexDamagedError
from ciuic.store.records.manifest import Manifest
from ciuic.store.store import Store
from ciuic.units import counted, format_bytes, format_files
from ciuic.view.diff import Change

__all__ = ["ChangeCost", "ChangeTotals", "print_changes", "sizes_text"]

_DAMAGE: Final = (CorruptionError, UnknownFormatError, IndexDamagedError)


def print_changes(
    store: Store, before: Manifest, changes: Iterable[Change], *, quick: bool, as_json: bool
) -> bool:
    """Print the changes since a snapshot; return whether damage hides which content is new.

    Args:
        store: An open store.
        before: The older snapshot.
        changes: What changed since.
        quick: Don't compute new content, which needs all trees of ``before``.
        as_json: Print one JSON document instead of text.
    """
    cost = ChangeCost(store, before, quick=quick)
    if as_json:
        print_json_array(change_json(change, cost.new_bytes(change)) for change in changes)
        return cost.is_damaged
    totals = ChangeTotals()
    for change in changes:
        sizes = sizes_text(change, cost.new_bytes(change))
        echo_path(f"{change.sign} ", change.path, f"  {sizes}" if sizes else "")
        totals.add(change)
    totals.print(cost)
    return cost.is_damaged


class ChangeCost:
    """Counts the bytes of new content of each change, as long as no damage prevents it.

    Args:
        store: An open store.
        before: The older snapshot.
        quick: Count nothing.
    """

    def __init__(self, store: Store, before: Manifest, *, quick: bool) -> None:
        self._store = store
        self._before = before
        self._is_known = not quick
        self._content: NewContent | None = None
        self._new_bytes = 0
        self.is_damaged = False

    def new_bytes(self, change: Change) -> int | None:
        """Return the bytes of new content of a change; None if they are not known."""
        if change.sign == "?":
            self.is_damaged |= change.after is not None  # not a root that could not be read
            return None
        if not self._is_known:
            return None
        entry = change.after
        if entry is None or not entry.is_file or change.sign == "m":
            return 0
        try:
            if self._content is None:
                # Only after the first change: without changes, nothing is read.
                with progress("compare") as shown:
                    self._content = NewContent(self._store, self._before, shown.fraction)
            new_bytes = self._content.of(entry)
        except _DAMAGE as error:
            self._is_known = False
            self.is_damaged = True
            click.echo(
                f"ciuic: the amount of new content is not known: {printable(error.message)}",
                err=True,
            )
            return None
        self._new_bytes += new_bytes
        return new_bytes

    def sentence(self) -> str:
        """Return the end of the summary: the new content of all changes."""
        if not self._is_known or self._content is None:
            return ""
        return f"; new content: {format_bytes(self._new_bytes)}, before compression"


def sizes_text(change: Change, new_bytes: int | None) -> str:
    """Return the sizes that follow a path: before, after, and the new content of a file."""
    before, after = change.before, change.after
    old = format_bytes(before.size_bytes) if before is not None and before.is_file else ""
    new = format_bytes(after.size_bytes) if after is not None and after.is_file else ""
    if change.sign == "m" or not (old or new):
        return ""
    text = new or old
    if old and new and (change.size_before != change.size_after):
        text = f"{old} -> {new}"
    if new and new_bytes is not None and new_bytes != change.size_after:
        text = f"{text}, {format_bytes(new_bytes)} new"
    return text


@dataclass(slots=True)
class ChangeTotals:
    """Sums of changes: files by sign, and together everything that has no bytes."""

    files: dict[str, int] = field(default_factory=lambda: dict.fromkeys("+-M", 0))
    size_bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys("+-M", 0))
    others: int = 0
    left_out: int = 0

    def add(self, change: Change) -> None:
        """Add a change."""
        entry = change.after or change.before
        if change.sign == "x":
            self.left_out += 1
            return
        if change.sign not in self.files or entry is None or not entry.is_file:
            self.others += 1
            return
        self.files[change.sign] += 1
        self.size_bytes[change.sign] += (change.size_after or 0) - (change.size_before or 0)

    def print(self, cost: ChangeCost) -> None:
        """Print the summary on stderr."""
        print_pair("", f"{self._sentence()}{cost.sentence()}", 0, err=True)

    def _sentence(self) -> str:
        parts = [
            f"{format_files(count)} {CHANGE_WORDS[sign]} ({_signed(self.size_bytes[sign])})"
            for sign, count in self.files.items()
            if count
        ]
        if self.others:
            parts.append(counted(self.others, "other change"))
        if self.left_out:
            parts.append(f"{counted(self.left_out, 'path')} left out by the rules of B")
        return ", ".join(parts) or "nothing changed"


def _signed(size_bytes: int) -> str:
    return f"{'-' if size_bytes < 0 else '+'}{format_bytes(abs(size_bytes))}"
