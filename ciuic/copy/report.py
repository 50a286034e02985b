"""The report of ``ciuic copy``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ciuic.documents import Document
from ciuic.ids import SnapshotId
from ciuic.system.clock import rfc3339

__all__ = ["CopiedSnapshot", "CopyReport"]


class CopiedSnapshot(NamedTuple):
    """A snapshot that was copied.

    Attributes:
        id: The snapshot.
        taken_ns: When it was taken.
        chunks: How many chunks were sent for it.
        sent_bytes: Their stored bytes.
    """

    id: SnapshotId
    taken_ns: int
    chunks: int
    sent_bytes: int

    def as_json(self) -> Document:
        """Return its fields in the document of ``ciuic copy``."""
        return {
            "id": self.id,
            "taken": rfc3339(self.taken_ns),
            "chunks": self.chunks,
            "sent_bytes": self.sent_bytes,
        }


@dataclass(slots=True)
class CopyReport:
    """What a copy did, or what a dry run would do.

    Attributes:
        copy: The directory or URL of the copy.
        dry_run: Nothing was changed.
        copied: The snapshots that are in the copy now.
        present: Snapshots that were there before.
        forgotten: Snapshots that the copy has forgotten, and that were not named.
        refused: Snapshots that could not be copied, and why.
        is_damaged: One of them is refused because of damage.
        resent_chunks: Lost chunks of the copy that were sent again.
        damaged_there: Snapshots of the copy that stay damaged, as far as is known.
        sent_bytes: Stored bytes of all chunks that were sent.
        stored_bytes: Bytes of the copy's new packs.
        unlabelled: Snapshots in the copy that did not get their tags, pin and note.
        notes: What failed after a snapshot was in the copy; nothing is lost.
        total_s: How long it took.
    """

    copy: str
    dry_run: bool
    copied: list[CopiedSnapshot] = field(default_factory=list)
    present: list[SnapshotId] = field(default_factory=list)
    forgotten: list[SnapshotId] = field(default_factory=list)
    refused: dict[SnapshotId, str] = field(default_factory=dict)
    is_damaged: bool = False
    resent_chunks: int = 0
    damaged_there: list[SnapshotId] = field(default_factory=list)
    sent_bytes: int = 0
    stored_bytes: int = 0
    unlabelled: list[SnapshotId] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    total_s: float = 0.0

    def refuse(self, found: Mapping[SnapshotId, str], *, is_damage: bool) -> None:
        """Add snapshots that cannot be copied."""
        self.refused.update(found)
        self.is_damaged |= is_damage and bool(found)

    def add_present(self, there: CopiedSnapshot) -> None:
        """Add a snapshot that was there before; the chunks that it lacked were sent again."""
        self.present.append(there.id)
        self.resent_chunks += there.chunks

    def as_json(self) -> Document:
        """Return the document of ``ciuic copy --json``."""
        return {
            "copy": self.copy,
            "dry_run": self.dry_run,
            "copied": [snapshot.as_json() for snapshot in self.copied],
            "present": self.present,
            "forgotten": self.forgotten,
            "refused": [
                {"id": snapshot_id, "what": what} for snapshot_id, what in self.refused.items()
            ],
            "mended_chunks": self.resent_chunks,
            "damaged_there": self.damaged_there,
            "sent_bytes": self.sent_bytes,
            "stored_bytes": self.stored_bytes,
            "notes": self.notes,
            "total_s": round(self.total_s, 6),
        }
