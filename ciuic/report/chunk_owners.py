"""Assigns each chunk of a store to one group of files, and adds up the bytes of each group.

Memory: 21 bytes a chunk of the store, and 16 more for each delta.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ciuic.ids import ChunkId
from ciuic.store.gc.mark import IdTable
from ciuic.store.store import Store

__all__ = ["ChunkOwners", "Share"]

_BATCH: Final = 4096


@dataclass(slots=True)
class Share:
    """The sums of a group of files.

    Attributes:
        files: Files in the chosen snapshots; a file in ten snapshots counts ten times.
        logical_bytes: Size of these files.
        unique_bytes: Plain bytes of the chunks that count for this group.
        stored_bytes: Bytes of these chunks in the store.
        only_bytes: Bytes in the store of the chunks that no other group needs.
    """

    files: int = 0
    logical_bytes: int = 0
    unique_bytes: int = 0
    stored_bytes: int = 0
    only_bytes: int = 0

    def as_json(self) -> dict[str, int]:
        """Return the fields of the JSON document."""
        return {
            "files": self.files,
            "logical_bytes": self.logical_bytes,
            "unique_bytes": self.unique_bytes,
            "stored_bytes": self.stored_bytes,
            "only_bytes": self.only_bytes,
        }


class ChunkOwners:
    """The group that each chunk of the store counts for."""

    def __init__(self, store: Store) -> None:
        self._table = IdTable(full_ids=False)
        self._stored = array("I")
        for rows in store.index.stored_shares():
            self._table.extend([chunk_id for chunk_id, _ in rows])
            self._stored.extend([stored_bytes for _, stored_bytes in rows])
        self._table.close()
        count = len(self._stored)
        self._owners = array("I", bytes(4 * count))  # 0: none yet; else 1 + group
        self._plain = array("I", bytes(4 * count))
        self._waiting: list[tuple[ChunkId, int, int]] = []

    def add(self, chunk_id: ChunkId, used_bytes: int, group: int) -> None:
        """Note that a file of a group uses the first bytes of a chunk."""
        self._waiting.append((chunk_id, used_bytes, group))
        if len(self._waiting) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        """Apply the notes that wait for a batch."""
        waiting, self._waiting = self._waiting, []
        owners, marks, plain = self._owners, self._table.marks, self._plain
        slots = self._table.slots([chunk_id for chunk_id, _, _ in waiting])
        for slot, (_, used_bytes, group) in zip(slots, waiting, strict=True):
            if slot < 0:
                continue  # the chunk is missing: 'ciuic verify' reports it
            plain[slot] = max(plain[slot], min(used_bytes, 0xFFFFFFFF))
            if not owners[slot]:
                owners[slot] = group + 1
            elif owners[slot] != group + 1:
                marks[slot] = 1

    def follow_delta_bases(self, store: Store) -> None:
        """Mark each delta base as needed by the groups that need its deltas."""
        deltas, bases = array("q"), array("q")
        for rows in store.index.delta_bases():
            deltas.extend(self._table.slots([delta for delta, _ in rows]))
            bases.extend(self._table.slots([base for _, base in rows]))
        owners, marks = self._owners, self._table.marks
        has_changed = True
        while has_changed:
            has_changed = False
            for delta, base in zip(deltas, bases, strict=True):
                if delta < 0 or base < 0 or not owners[delta]:
                    continue
                if not owners[base]:
                    owners[base] = owners[delta]
                    has_changed = True
                if not marks[base] and (marks[delta] or owners[base] != owners[delta]):
                    marks[base] = 1
                    has_changed = True

    def add_to(self, shares: Sequence[Share]) -> None:
        """Add the bytes of its chunks to the share of each group; ``shares`` is by group number."""
        for owner, is_shared, stored, plain in zip(
            self._owners, self._table.marks, self._stored, self._plain, strict=True
        ):
            if owner:
                share = shares[owner - 1]
                share.unique_bytes += plain
                share.stored_bytes += stored
                share.only_bytes += 0 if is_shared else stored
