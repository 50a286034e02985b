"""A change between two snapshots as JSON."""

from typing import Final

from ciuic.documents import Document
from ciuic.model import path_text
from ciuic.view.diff import Change

__all__ = ["CHANGE_WORDS", "change_json"]

CHANGE_WORDS: Final = {
    "+": "added",
    "-": "removed",
    "M": "changed",
    "m": "metadata",
    "T": "type",
    "x": "left_out",
    "?": "unknown",
}


def change_json(change: Change, new_bytes: int | None = None) -> Document:
    """Return one element of the document of ``ciuic diff --json``."""
    difference = None
    if change.sign not in {"?", "x"}:
        difference = (change.size_after or 0) - (change.size_before or 0)
    return {
        "change": CHANGE_WORDS[change.sign],
        "path": path_text(change.path),
        "size_before_bytes": change.size_before,
        "size_after_bytes": change.size_after,
        "difference_bytes": difference,
        "new_bytes": new_bytes,
    }
