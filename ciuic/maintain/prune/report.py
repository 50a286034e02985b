"""The plan of a prune, and its report."""

from dataclasses import dataclass, field

from ciuic.documents import Document
from ciuic.ids import PackId, SnapshotId
from ciuic.store.gc.mark import Marks
from ciuic.store.gc.usage import PackUsage, Usage

__all__ = ["PruneCounts", "PrunePlan", "PruneReport"]


@dataclass(frozen=True, slots=True)
class PruneCounts:
    """A number of packs, and their total length."""

    packs: int = 0
    size_bytes: int = 0

    def as_json(self) -> dict[str, int]:
        """Return the form that commands print."""
        return {"packs": self.packs, "bytes": self.size_bytes}


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """What a prune will do.

    Attributes:
        expired: Snapshots whose time in the trash is over.
        in_trash: The number of other snapshots in the trash, which can still be brought back.
        removed: Packs that no snapshot needs.
        rewritten: Fragmented packs, those with the most garbage first, then small packs.
        merged: The packs among ``rewritten`` that are merged because they are small.
        kept: All other packs.
        orphans: Parity files without a pack, and their lengths.
        damaged: Kept packs that are known to be damaged, and why.
        needed_chunks: The number of chunks that snapshots need.
        dead_chunks: The number of chunks that no snapshot needs, and of second copies.
        marks: Which chunks are needed.
        usage: Usage of all packs.
    """

    expired: tuple[SnapshotId, ...]
    in_trash: int
    removed: tuple[PackUsage, ...]
    rewritten: tuple[PackUsage, ...]
    merged: PruneCounts
    kept: PruneCounts
    orphans: dict[PackId, int]
    damaged: dict[PackId, str]
    needed_chunks: int
    dead_chunks: int
    marks: Marks = field(repr=False)
    usage: Usage = field(repr=False)

    @property
    def removed_bytes(self) -> int:
        """Total length of the packs that no snapshot needs."""
        return sum([use.size_bytes for use in self.removed])

    @property
    def has_work(self) -> bool:
        """Whether a prune would change the store."""
        return bool(self.expired or self.removed or self.rewritten or self.orphans)


@dataclass(frozen=True, slots=True)
class PruneReport:
    """What a prune did, or with ``dry_run`` would do.

    Attributes:
        expired: Snapshots that were removed from the trash for good.
        in_trash: The number of other snapshots in the trash.
        removed: Packs without needed chunks.
        rewritten: Packs that were removed after their needed chunks were copied.
        merged: The packs among ``rewritten`` that were only small.
        written: New packs with those chunks.
        kept: Packs that stay.
        orphans: Parity files that had no pack.
        damaged: Packs that stay because they are damaged.
        condemned: In a bucket: packs that are removed when other writers have ended.
        waiting_for: In a bucket: the leases of these writers.
        revoked: In a bucket: the leases of writers that can no longer commit.
    """

    dry_run: bool
    expired: tuple[SnapshotId, ...]
    in_trash: int
    removed: PruneCounts
    rewritten: PruneCounts
    merged: PruneCounts
    written: PruneCounts
    kept: PruneCounts
    orphans: PruneCounts
    damaged: tuple[PackId, ...]
    needed_chunks: int
    dead_chunks: int
    total_s: float
    condemned: PruneCounts = PruneCounts()
    waiting_for: tuple[str, ...] = ()
    revoked: tuple[str, ...] = ()

    @property
    def freed_bytes(self) -> int:
        """By how many bytes the total length of all packs has decreased."""
        old = self.removed.size_bytes + self.rewritten.size_bytes
        return old - self.written.size_bytes

    def as_json(self) -> Document:
        """Return the document of ``ciuic prune --json``."""
        return {
            "dry_run": self.dry_run,
            "expired": list(self.expired),
            "in_trash": self.in_trash,
            "freed_bytes": self.freed_bytes,
            "removed": self.removed.as_json(),
            "rewritten": self.rewritten.as_json(),
            "merged": self.merged.as_json(),
            "written": self.written.as_json(),
            "kept": self.kept.as_json(),
            "orphans": self.orphans.as_json(),
            "condemned": self.condemned.as_json(),
            "waiting_for": list(self.waiting_for),
            "revoked": list(self.revoked),
            "damaged": [pack_id.hex() for pack_id in self.damaged],
            "needed_chunks": self.needed_chunks,
            "dead_chunks": self.dead_chunks,
            "total_s": round(self.total_s, 6),
        }
