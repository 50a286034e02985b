"""``ciuic ls``."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import click

from ciuic.catalog import naming_removal
from ciuic.cli.candidates import SNAPSHOT, stored_path
from ciuic.cli.named_damage import NamedDamage
from ciuic.cli.opening import find_snapshot
from ciuic.cli.options import ShortOptionsCommand, absolute, copies_option, given, json_option
from ciuic.cli.read_copies import opened_with_copies
from ciuic.cli.render import mode_text, print_json_array, printable
from ciuic.cli.session import Session
from ciuic.cli.table import cut_middle, cut_time, display_width, print_pair, terminal_columns
from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.model import Entry
from ciuic.report.entries import LEGEND, STATES, entry_json, mark
from ciuic.store.records.manifest import Manifest
from ciuic.store.store import Store
from ciuic.system.clock import local_time_text
from ciuic.view.listing import OnDamage, children, readable_roots, walk
from ciuic.view.located import Located
from ciuic.view.locator import locate

__all__ = ["command"]

_NAME_MIN: Final = 8
_BATCH: Final = 4096
"""Lines in a batch: its widest name decides which columns a narrow terminal shows."""


@click.command("ls", cls=ShortOptionsCommand)
@click.argument("snapshot_id", type=SNAPSHOT, metavar="ID")
@click.argument("path", required=False, callback=given, shell_complete=stored_path)
@click.option("-R", "--recursive", is_flag=True, help="Also list what directories hold.")
@copies_option
@json_option
@click.pass_obj
def command(
    session: Session, *, snapshot_id: str, path: str | None, recursive: bool, as_json: bool
) -> None:
    """List a path of a snapshot; without PATH its roots.

    ciuic marks a file that is not intact: [in flux] if a program was writing it when the snapshot
    was taken, [unreadable] or [left out] if the snapshot has no content of it.
    """
    with opened_with_copies(session, only=snapshot_id) as store:
        wanted = None if path is None else absolute(path)
        holding = () if wanted is None else (wanted,)
        manifest = store.manifest(find_snapshot(session, store, snapshot_id, holding=holding).id)
        damage = NamedDamage()
        found = damage.after(
            _located(store, manifest, wanted, recursive=recursive, on_damage=damage)
        )
        with naming_removal(store, manifest.summary.id):
            if as_json:
                print_json_array(entry_json(located.path, located.entry) for located in found)
            else:
                _print(found, whole_paths=recursive or path is None)


def _located(
    store: Store, manifest: Manifest, path: bytes | None, *, recursive: bool, on_damage: OnDamage
) -> Iterator[Located]:
    """Yield what to list; without a path the roots."""
    if path is None:
        tops: Iterable[Located] = readable_roots(store, manifest.roots, on_damage)
    else:
        top = locate(store, manifest, path)
        if top.entry.is_directory and not recursive:
            try:
                yield from children(store, top)
            except CorruptionError as error:
                on_damage(path, error)
            return
        tops = [top]
    for top in tops:
        if recursive:
            yield from walk(store, top, on_damage=on_damage)
        else:
            yield top


def _print(found: Iterable[Located], *, whole_paths: bool) -> None:
    """Print lines as they are found: the list of a large tree does not fit into memory."""
    states: set[int] = set()
    left_out: set[str] = set()
    for batch in _batches(found):
        names = [
            located.path if whole_paths else os.path.basename(located.path) for located in batch
        ]
        columns = _fitting(names, [located.entry for located in batch])
        for located, name in zip(batch, names, strict=True):
            _print_entry(name, located.entry, columns)
        states.update([located.entry.state for located in batch])
        left_out.update(columns.left_out)
    for state in sorted(states & LEGEND.keys()):
        click.echo(f"[{STATES[state]}]: {LEGEND[state]}", err=True)
    if left_out and sys.stderr.isatty():
        names_left_out = ", ".join(sorted(left_out))
        print_pair("", f"too narrow for {names_left_out}; --json has all", 0, err=True)


def _batches(found: Iterable[Located]) -> Iterator[list[Located]]:
    """Yield lists of at most ``_BATCH`` paths; also those that were found before an error."""
    batch: list[Located] = []
    try:
        for located in found:
            batch.append(located)
            if len(batch) == _BATCH:
                yield batch
                batch = []
    except (CorruptionError, UnknownFormatError):
        if batch:
            yield batch
        raise
    if batch:
        yield batch


class _Columns(NamedTuple):
    """The columns before the name.

    Attributes:
        left_out: The columns that the terminal has no space for.
        size_width: The width of the size.
        has_seconds: The time has seconds.
    """

    left_out: tuple[str, ...]
    size_width: int
    has_seconds: bool

    def head(self, entry: Entry) -> str:
        """Return the text before the name of an entry."""
        mode = "" if "MODE" in self.left_out else f"{mode_text(entry.mode)} "
        owner = "" if "OWNER" in self.left_out else f"{entry.uid:>6} {entry.gid:>6} "
        when = local_time_text(entry.mtime_ns)
        when = when if self.has_seconds else cut_time(when, _MINUTES)
        return f"{mode}{owner}{entry.size_bytes:>{self.size_width},} {when} "


_ALL: Final = _Columns((), 14, has_seconds=True)
_MINUTES: Final = len("2026-06-15 14:30")


def _fitting(names: Sequence[bytes], entries: Sequence[Entry]) -> _Columns:
    """Return as many columns as the terminal has space for beside the widest name.

    The target of a symlink does not count: it is shortened.
    """
    available = terminal_columns()
    if available is None:
        return _ALL
    width_max = max(
        [
            display_width(printable(name) + mark(entry))
            for name, entry in zip(names, entries, strict=True)
        ]
    )
    size_width = max([len(f"{entry.size_bytes:,}") for entry in entries])
    choices = (
        _ALL,
        _Columns((), size_width, has_seconds=False),
        _Columns(("OWNER",), size_width, has_seconds=False),
        _Columns(("MODE", "OWNER"), size_width, has_seconds=False),
    )
    for columns in choices:
        if len(columns.head(entries[0])) + width_max <= available:
            return columns
    return choices[-1]


def _print_entry(name: bytes, entry: Entry, columns: _Columns) -> None:
    head = columns.head(entry)
    available = terminal_columns()
    left = None if available is None else available - len(head) - len(mark(entry))
    click.echo(f"{head}{_shown_name(name, entry, left)}{mark(entry)}")


def _shown_name(name: bytes, entry: Entry, width: int | None) -> str:
    """Return the name, and the target of a symlink, which is shortened first."""
    shown, arrow, target = printable(name), " -> ", printable(entry.content)
    if not entry.is_symlink:
        return shown if width is None else cut_middle(shown, max(width, _NAME_MIN))
    whole = f"{shown}{arrow}{target}"
    if width is None:
        return whole
    target_width = width - display_width(shown) - len(arrow)
    if target_width < _NAME_MIN:
        return cut_middle(whole, max(width, _NAME_MIN))
    return f"{shown}{arrow}{cut_middle(target, target_width)}"
