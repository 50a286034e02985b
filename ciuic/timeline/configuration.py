"""Small text files that configure a training, and how they differ between two snapshots."""

import difflib
from collections.abc import Sequence
from typing import Final, NamedTuple

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.model import MEMORY, Entry, SnapshotSummary
from ciuic.snapshot.memory import STATE_ROOT
from ciuic.store.records.manifest import Manifest
from ciuic.store.store import Store
from ciuic.timeline.states import settings_of
from ciuic.view.content import read_file
from ciuic.view.diff import Change

__all__ = ["FILES_MAX", "ConfigurationChange", "compare_configuration", "is_configuration"]

FILES_MAX: Final = 20
_FILE_BYTES_MAX: Final = 64 * 1024
_LINES_MAX: Final = 400
_SUFFIXES: Final = (b".json", b".yaml", b".yml", b".toml", b".ini", b".cfg", b".conf", b".env")


class ConfigurationChange(NamedTuple):
    """A configuration file that differs.

    Attributes:
        path: The file.
        lines: The lines of a unified diff, without line ends; at most 400.
        what: Why there are none: a version cannot be read, or is no text, or the lines are the
            same.
        is_new: Only the second snapshot has the file.
    """

    path: bytes
    lines: list[str]
    what: str = ""
    is_new: bool = False


def compare_configuration(
    store: Store, before: Manifest, after: Manifest, changes: Sequence[Change]
) -> list[ConfigurationChange]:
    """Return how configuration files differ: by their suffix, of at most 64 KiB, the first 20.

    Of snapshots of the library, the settings in ``state.json`` are compared.

    Args:
        store: An open store.
        before: The first snapshot.
        after: The second.
        changes: Those of ``is_configuration``, of what ``diff`` found between them.
    """
    if any(root.capture == MEMORY for root in (*before.roots, *after.roots)):
        # The files of the library hold a state, and its settings are a part of one of them.
        return _compared_settings(store, before.summary, after.summary)
    names = before.summary.id, after.summary.id
    return [_compared(store, change, names) for change in changes[:FILES_MAX]]


def _compared_settings(
    store: Store, before: SnapshotSummary, after: SnapshotSummary
) -> list[ConfigurationChange]:
    old, new = settings_of(store, before), settings_of(store, after)
    if old == new:
        return []
    lines = list(difflib.unified_diff(old, new, before.id, after.id, n=2, lineterm=""))
    return [ConfigurationChange(STATE_ROOT + b"/state.json", lines[:_LINES_MAX])]


def is_configuration(change: Change) -> bool:
    """Return whether a change is one of a configuration file's content."""
    entries = [entry for entry in (change.before, change.after) if entry is not None]
    return (
        change.sign in {"+", "-", "M"}
        and change.path.lower().endswith(_SUFFIXES)  # ".env" is a whole name as well
        and all(entry.is_file and entry.size_bytes <= _FILE_BYTES_MAX for entry in entries)
    )


def _compared(store: Store, change: Change, names: tuple[str, str]) -> ConfigurationChange:
    is_new = change.sign == "+"
    try:
        old, new = _lines(store, change.before), _lines(store, change.after)
    except (CorruptionError, UnknownFormatError) as error:
        return ConfigurationChange(change.path, [], error.message, is_new)
    except UnicodeDecodeError:
        return ConfigurationChange(change.path, [], "it is not text in UTF-8", is_new)
    lines = [line.rstrip("\n") for line in difflib.unified_diff(old, new, *names, n=2)]
    what = "" if lines else "only the end of the last line, or an empty file, differs"
    return ConfigurationChange(change.path, lines[:_LINES_MAX], what, is_new)


def _lines(store: Store, entry: Entry | None) -> list[str]:
    if entry is None or not entry.size_bytes:
        return []
    return b"".join(read_file(store, entry)).decode().removesuffix("\n").split("\n")
