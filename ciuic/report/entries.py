"""Directory entries of a snapshot: how commands and the page present them."""

import stat
from typing import Final

from ciuic.documents import Document
from ciuic.model import BEING_WRITTEN, SKIPPED, UNREADABLE, Entry, path_text
from ciuic.system.clock import rfc3339

__all__ = ["KINDS", "LEGEND", "STATES", "entry_json", "mark", "type_name"]

KINDS: Final = {"base": "full", "delta": "incremental"}
"""The word for each kind of snapshot."""
STATES: Final = {BEING_WRITTEN: "in flux", UNREADABLE: "unreadable", SKIPPED: "left out"}
"""The word for each state of an entry that is not consistent."""
LEGEND: Final = {
    BEING_WRITTEN: "a program was writing it: it may hold a mixture of old and new",
    UNREADABLE: "it could not be read: the snapshot has no content of it",
    SKIPPED: "left out on purpose, with everything in it",
}
"""What each state means for the file."""

_TYPES: Final = {
    "d": "directory",
    "-": "file",
    "l": "symlink",
    "p": "fifo",
    "c": "char",
    "b": "block",
}


def entry_json(path: bytes, entry: Entry) -> Document:
    """Return one element of the document of ``ciuic ls --json``."""
    return {
        "path": path_text(path),
        "type": type_name(entry),
        "mode": f"{entry.mode & 0o7777:04o}",
        "uid": entry.uid,
        "gid": entry.gid,
        "size_bytes": entry.size_bytes,
        "mtime": rfc3339(entry.mtime_ns),
        "state": STATES.get(entry.state, "whole"),
        "target": path_text(entry.content) if entry.is_symlink else None,
    }


def type_name(entry: Entry) -> str:
    """Return the word for an entry's type: ``file``, ``directory``, ``symlink``..."""
    return _TYPES.get(stat.filemode(entry.mode)[0], "unknown")


def mark(entry: Entry) -> str:
    """Return what is printed behind the name of an entry that is not consistent; else nothing."""
    return f"  [{STATES[entry.state]}]" if entry.state in STATES else ""
