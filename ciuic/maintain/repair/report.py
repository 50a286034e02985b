"""The plan of a repair, and its report."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from ciuic.documents import Document
from ciuic.ids import ChunkId, PackId, SnapshotId
from ciuic.maintain.bad_marks import MarkSurvey
from ciuic.maintain.repair.sources import Origin
from ciuic.model import PathWarning
from ciuic.store.records import layout

__all__ = [
    "OTHER_PACK",
    "PARITY",
    "SAME_PACK",
    "BadManifest",
    "BadPack",
    "Remaining",
    "RepairPlan",
    "RepairReport",
    "SavedChunk",
    "chunk_counts",
]

PARITY: Final = "parity"
OTHER_PACK: Final = "another pack"
COPY: Final = "a copy"
SAME_PACK: Final = "the same pack"
"""Only the first of the two copies of its frame's header is damaged."""


class SavedChunk(NamedTuple):
    """A chunk of a damaged frame that the store can still read from elsewhere.

    Attributes:
        kind: ``DATA``, ``RECIPE`` or ``TREE``.
        source: ``OTHER_PACK``, ``SAME_PACK`` or ``PARITY``.
    """

    kind: int
    source: str


class BadPack(NamedTuple):
    """A damaged pack, and where its chunks can be read.

    Attributes:
        pack_id: Its ID.
        what: What is wrong with it.
        is_repairable: Parity restores the pack in full.
        saved: Chunks of damaged frames that the store can still read from elsewhere.
        lost: Chunks of damaged frames that no pack and no parity has, and their kinds.
        stays: A later version wrote some of it, so that it cannot be rewritten. Only the chunks of
            its damaged frames are stored again, in another pack.
    """

    pack_id: PackId
    what: str
    is_repairable: bool
    saved: dict[ChunkId, SavedChunk]
    lost: dict[ChunkId, int]
    stays: bool = False

    @property
    def has_remedy(self) -> bool:
        """Whether a repair rewrites the pack, or stores some of its chunks again."""
        return not self.stays or any(saved.source == PARITY for saved in self.saved.values())


class BadManifest(NamedTuple):
    """A manifest that is damaged or gone.

    Attributes:
        id: ID of the snapshot.
        what: What is wrong.
        has_copy: It has a sound copy, which can replace it.
        in_trash: The snapshot is in the trash.
        is_gone: There is no file that could be set aside.
        hint: What the user can do if a repair cannot help.
    """

    id: SnapshotId
    what: str
    has_copy: bool
    in_trash: bool = False
    is_gone: bool = False
    hint: str = ""

    @property
    def has_remedy(self) -> bool:
        """Whether a repair replaces it or sets it aside."""
        return self.has_copy or not self.is_gone


class Remaining(NamedTuple):
    """A snapshot that stays damaged, even after the repair.

    Attributes:
        id: ID of the snapshot.
        damaged: The first damaged paths.
        damaged_count: Number of damaged paths.
        files_left: Regular files that can be restored.
        files: All regular files of the snapshot.
    """

    id: SnapshotId
    damaged: tuple[PathWarning, ...]
    damaged_count: int
    files_left: int
    files: int

    def as_json(self) -> Document:
        """Return the form that commands print."""
        return {
            "id": self.id,
            "files": self.files,
            "files_left": self.files_left,
            "damaged_count": self.damaged_count,
            "damaged": [warning.as_json() for warning in self.damaged],
        }


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """The damage that was found, and what a repair will do.

    Attributes:
        packs: Damaged packs.
        origins: Chunks that no pack has, each with a file that still has its bytes.
        lost: Chunks that snapshots need, and that were not found anywhere.
        manifests: Damaged or lost manifests. A damaged one without a copy is set aside, and counts
            as lost from then on.
        marks: Marks that are damaged or gone. Without a copy, the snapshot gets a pin.
        retired: Damaged records of retired IDs, which are set aside: by file name, what is wrong.
        bare: Packs without sound parity.
        uncopied: Snapshots whose manifest has no copy, or an outdated one.
        stale_catalog: The chunk index does not match the packs.
        remaining: Snapshots that stay damaged.
        unreachable: Packs, parity files, manifests, marks and leftovers that the file system cannot
            return, and marks of a bucket that are closed to this machine, by path in the store, and
            why. Nothing can replace them.
        unread: What a later version wrote, by path in the store: it is left as it is.
        read_bytes: Bytes of packs that were read.
        pack_count: Number of packs.
        from_copies: Chunks of ``packs`` that another store has given, or has.
        repaired_by_copies: Snapshots that other stores have repaired, or would repair.
        condemned: In a bucket: damaged packs that an earlier repair or prune has condemned, and
            that are not deleted yet. What they have lost counts; they need no further repair.
    """

    packs: tuple[BadPack, ...]
    origins: dict[ChunkId, Origin]
    lost: frozenset[ChunkId]
    manifests: tuple[BadManifest, ...]
    marks: MarkSurvey
    retired: dict[str, str]
    bare: tuple[PackId, ...]
    uncopied: tuple[SnapshotId, ...]
    stale_catalog: bool
    remaining: tuple[Remaining, ...]
    unreachable: dict[str, str]
    unread: dict[str, str]
    read_bytes: int
    pack_count: int
    from_copies: frozenset[ChunkId] = frozenset()
    repaired_by_copies: tuple[SnapshotId, ...] = ()
    condemned: tuple[BadPack, ...] = ()

    @property
    def is_damaged(self) -> bool:
        """Whether damage was found."""
        documents = self.manifests or self.marks.damaged or self.retired
        found = self.packs or self.unreachable or self.origins or self.remaining
        return bool(documents or found or self.repaired_by_copies)

    @property
    def is_hopeless(self) -> bool:
        """Whether damage will remain after the repair."""
        is_lost = any(not manifest.has_copy for manifest in self.manifests)
        stays = any(pack.stays for pack in self.packs)
        stays |= any(mark.stays for mark in self.marks.damaged)
        return bool(self.remaining or self.unreachable) or is_lost or stays

    def with_left(self, left: Mapping[str, str]) -> "RepairPlan":
        """Return the plan as it was carried out.

        Args:
            left: The marks that could not be repaired, by path in the store, and why.
        """
        damaged = [
            bad._replace(stays=left.get(layout.mark_key(bad.id, bad.number), bad.stays))
            for bad in self.marks.damaged
        ]
        return replace(self, marks=self.marks._replace(damaged=damaged))

    @property
    def has_work(self) -> bool:
        """Whether a repair would change the store."""
        return bool(
            any(pack.has_remedy for pack in self.packs)
            or any(manifest.has_remedy for manifest in self.manifests)
            or any(not mark.stays for mark in self.marks.damaged)
            or self.retired
            or self.origins
            or self.bare
            or self.uncopied
            or self.marks.uncopied
            or self.stale_catalog
            or self.repaired_by_copies
        )


@dataclass(frozen=True, slots=True)
class RepairReport:
    """The report of a repair, or of what it would do.

    Attributes:
        plan: The plan.
        applied: The plan was carried out.
        quarantined: Names in ``quarantine/`` of the files that were set aside.
        total_s: How long it took.
    """

    plan: RepairPlan
    applied: bool
    quarantined: tuple[str, ...]
    total_s: float

    @property
    def ok(self) -> bool:
        """No damage remains if the plan was applied; otherwise, no damage was found."""
        return not (self.plan.is_hopeless if self.applied else self.plan.is_damaged)

    def as_json(self) -> Document:
        """Return the document of ``ciuic repair --json``."""
        plan = self.plan
        return {
            "ok": self.ok,
            "applied": self.applied,
            "read_bytes": plan.read_bytes,
            "packs_read": plan.pack_count,
            "packs": [
                {
                    "pack": pack.pack_id.hex(),
                    "what": pack.what,
                    "whole": pack.is_repairable,
                    "stays": pack.stays,
                    "chunks": chunk_counts(pack, plan),
                }
                for pack in plan.packs
            ],
            "condemned": [
                {"pack": pack.pack_id.hex(), "what": pack.what, "chunks": chunk_counts(pack, plan)}
                for pack in plan.condemned
            ],
            "found_chunks": len(plan.origins),
            "lost_chunks": len(plan.lost),
            "manifests": [
                {
                    "id": manifest.id,
                    "what": manifest.what,
                    "has_copy": manifest.has_copy,
                    "in_trash": manifest.in_trash,
                    "is_gone": manifest.is_gone,
                }
                for manifest in plan.manifests
            ],
            "marks": [{**bad._asdict(), "stays": bool(bad.stays)} for bad in plan.marks.damaged],
            "retired": [
                {"path": f"{layout.RETIRED}/{name}", "what": what}
                for name, what in sorted(plan.retired.items())
            ],
            "unreachable": [
                {"path": path, "what": what} for path, what in sorted(plan.unreachable.items())
            ],
            "unread": [{"path": path, "what": what} for path, what in sorted(plan.unread.items())],
            "parity_missing": len(plan.bare),
            "copies_missing": len(plan.uncopied) + len(plan.marks.uncopied),
            "stale_catalog": plan.stale_catalog,
            "snapshots": [remaining.as_json() for remaining in plan.remaining],
            "quarantined": list(self.quarantined),
            "total_s": round(self.total_s, 6),
        }


def chunk_counts(bad: BadPack, plan: RepairPlan) -> dict[str, int]:
    """Return the number of chunks of a pack's damaged frames, by the source that still has them."""
    counts: dict[str, int] = {}
    for saved in bad.saved.values():
        counts[saved.source] = counts.get(saved.source, 0) + 1
    for chunk_id in bad.lost:
        how = "lost"
        if chunk_id in plan.origins:
            how = plan.origins[chunk_id].how
        elif chunk_id in plan.from_copies:
            how = COPY
        counts[how] = counts.get(how, 0) + 1
    return counts
