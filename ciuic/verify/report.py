"""The report of a verification."""

import msgspec

from ciuic.documents import Document
from ciuic.ids import ChunkId, SnapshotId
from ciuic.model import PathWarning

__all__ = ["VerifyReport", "VerifySnapshot"]


class VerifySnapshot(msgspec.Struct, frozen=True):
    """The damage found in one snapshot; it is intact if ``damaged`` is empty.

    Attributes:
        nearest_valid: The snapshot to restore instead: the newest older snapshot that can be
            restored completely, or else the oldest newer one. It is this snapshot itself if parity
            or another pack can repair all its damage. None if there is none, or none is needed.
        intact_in: For damaged paths, the newest snapshot not newer than this one that can restore
            the path.
    """

    id: SnapshotId
    damaged: tuple[PathWarning, ...]
    nearest_valid: SnapshotId | None = None
    intact_in: dict[bytes, SnapshotId] = msgspec.field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """The snapshot can be restored bit for bit."""
        return not self.damaged

    def as_json(self) -> Document:
        """Return an element of the document of ``ciuic verify --json``."""
        return {
            "id": self.id,
            "ok": self.ok,
            "nearest_valid": self.nearest_valid,
            "damaged": [
                {**found.as_json(), "intact_in": self.intact_in.get(found.path)}
                for found in self.damaged
            ],
        }


class VerifyReport(msgspec.Struct, frozen=True):
    """The report of a verification.

    Attributes:
        bad: Chunks that cannot be read.
        unreachable: Packs that the file system cannot read, even if no snapshot needs them.
        copies: Frames that cannot be used, although every chunk in them can be read from elsewhere.
            They damage no snapshot.
        removed: Snapshots that a prune removed for good meanwhile: there is nothing to verify.
    """

    snapshots: tuple[VerifySnapshot, ...]
    read_bytes: int
    chunks: int
    total_s: float
    bad: frozenset[ChunkId] = frozenset()
    unreachable: tuple[PathWarning, ...] = ()
    copies: tuple[PathWarning, ...] = ()
    removed: tuple[SnapshotId, ...] = ()

    @property
    def ok(self) -> bool:
        """No snapshot is damaged, and every pack can be read."""
        return all(snapshot.ok for snapshot in self.snapshots) and not self.unreachable

    def as_json(self) -> Document:
        """Return the document of ``ciuic verify --json``."""
        return {
            "ok": self.ok,
            "read_bytes": self.read_bytes,
            "chunks": self.chunks,
            "total_s": round(self.total_s, 6),
            "snapshots": [snapshot.as_json() for snapshot in self.snapshots],
            "unreachable": [pack.as_json() for pack in self.unreachable],
            "damaged_copies": [copy.as_json() for copy in self.copies],
            "removed": list(self.removed),
        }
