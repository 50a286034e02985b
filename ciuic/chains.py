"""Snapshot chains: a full snapshot, and the incremental snapshots since it."""

from collections.abc import Iterable
from typing import NamedTuple

from ciuic.documents import Document
from ciuic.ids import SnapshotId
from ciuic.model import SnapshotSummary, newest_first

__all__ = ["SnapshotChain", "snapshot_chains"]


class SnapshotChain(NamedTuple):
    """The number of snapshots since the last full snapshot.

    Attributes:
        length: 0 for a full snapshot.
        is_known: The full snapshot and all between are listed. If not, because one was forgotten or
            cannot be read, the length is a lower bound.
    """

    length: int
    is_known: bool

    def __str__(self) -> str:
        return f"{self.length:,}{'' if self.is_known else '+'}"

    def as_json(self) -> Document:
        """Return its fields in the documents of ``ciuic list`` and ``show``."""
        return {"chain_length": self.length, "chain_complete": self.is_known}


def snapshot_chains(snapshots: Iterable[SnapshotSummary]) -> dict[SnapshotId, SnapshotChain]:
    """Return the chain of each snapshot."""
    found: dict[SnapshotId, SnapshotChain] = {}
    unknown = SnapshotChain(0, is_known=False)
    for summary in reversed(newest_first(snapshots)):  # parents first, whatever the clock said
        if summary.kind == "base":
            found[summary.id] = SnapshotChain(0, is_known=True)
        else:
            before = found.get(summary.parent or SnapshotId(""), unknown)
            found[summary.id] = SnapshotChain(before.length + 1, before.is_known)
    return found
