"""The report of a scrub."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from ciuic.catalog import known_lost
from ciuic.documents import Document
from ciuic.ids import ChunkId
from ciuic.maintain.scrub.damage_cost import CostSearch, DamagedFile, FileCost
from ciuic.maintain.scrub.pack_health import Health, KnownDamage
from ciuic.maintain.scrub.subject import Directory, Subject
from ciuic.model import PathWarning
from ciuic.store.health.inspect import PackCheck
from ciuic.store.store import Store

__all__ = ["DamagedPack", "OnDamage", "ScrubReport", "complete_costs", "lost_before", "search_for"]


@dataclass(slots=True)
class DamagedPack:
    """A pack that this run found to be damaged.

    Attributes:
        check: The result of reading it.
        is_new: The check before did not find this damage.
        lost: Chunks that no pack and no parity has.
        saved: The number of damaged chunks that another pack or parity has.
        files: Files that need the lost chunks. A file that lost chunks in several packs is listed
            with the first of these packs.
    """

    check: PackCheck
    is_new: bool
    lost: tuple[ChunkId, ...] = ()
    saved: int = 0
    files: list[DamagedFile] = field(default_factory=list)

    def as_json(self) -> Document:
        """Return a part of the document of ``ciuic scrub --json``."""
        return {
            "pack": self.check.pack_id.hex(),
            "new": self.is_new,
            "what": self.check.what,
            "footer_ok": self.check.footer_ok,
            "stretches": [
                {
                    "offset_bytes": bad.offset_bytes,
                    "length_bytes": bad.length_bytes,
                    "what": bad.what,
                    "chunks": [chunk_id.hex() for chunk_id in bad.chunks],
                }
                for bad in self.check.bad
            ],
            "lost_chunks": len(self.lost),
            "saved_chunks": self.saved,
            "files": [file.as_json() for file in self.files],
        }


OnDamage = Callable[[DamagedPack], None]
"""Receives a pack as soon as it is found to be damaged."""


@dataclass(slots=True)
class ScrubReport:
    """What a scrub did and found.

    Attributes:
        health: The results of all checks, after the scrub.
        damaged: Packs that were read and found damaged.
        missing: Damaged files whose chunks are in no pack that was read.
        manifests: Manifests and copies of manifests that cannot be read.
        unreachable: Packs that the file system cannot return.
        unread: Packs that could not be read for another reason than damage.
        not_remembered: Why the results are not in the chunk index; empty if they are.
        stopped: Why the scrub stopped early: "budget", or "asked"; empty if it read all packs.
        has_read_all: Every pack was read.
        has_gone: The chunk index has recorded that packs are gone.
        lost: Only in a report of ``lost_before``: chunks that earlier checks found to be lost, and
            that have not been stored again. ``missing`` has the files that need them.
        pending: The search for files that need lost chunks; None when it has finished.
    """

    read_packs: int = 0
    read_bytes: int = 0
    total_s: float = 0.0
    health: Health = field(default_factory=lambda: Health(0, 0, None, (), 0))
    damaged: list[DamagedPack] = field(default_factory=list)
    missing: list[DamagedFile] = field(default_factory=list)
    manifests: list[PathWarning] = field(default_factory=list)
    unreachable: list[PathWarning] = field(default_factory=list)
    unread: list[PathWarning] = field(default_factory=list)
    not_remembered: str = ""
    stopped: str = ""
    has_read_all: bool = False
    has_gone: bool = False
    lost: tuple[ChunkId, ...] = ()
    pending: CostSearch | None = field(default=None, repr=False, compare=False)

    @property
    def is_complete(self) -> bool:
        """Whether the search for damaged files has finished; a scrub may be cancelled before."""
        return self.pending is None

    @property
    def known(self) -> tuple[KnownDamage, ...]:
        """Damage that earlier checks found in packs that were not read now."""
        now = {pack.check.pack_id for pack in self.damaged}
        return tuple([known for known in self.health.damaged if known.pack_id not in now])

    @property
    def ok(self) -> bool:
        """No damage is known from this scrub or an earlier one."""
        found = self.damaged or self.missing or self.manifests or self.unreachable
        return not (found or self.known)

    def add_costs(self, costs: Sequence[FileCost]) -> None:
        """List each damaged file with the pack that lost its chunks, or as missing."""
        by_pack = {pack.check.pack_id: pack for pack in self.damaged}
        has_gaps = self.has_gone or bool(self.unreachable)
        has_gaps |= any(not pack.check.read_bytes for pack in self.damaged)
        for cost in costs:
            if cost.pack_id in by_pack:
                by_pack[cost.pack_id].files.append(cost.file)
            elif cost.is_listed or self.has_read_all or has_gaps:
                self.missing.append(cost.file)

    def as_json(self) -> Document:
        """Return the document of ``ciuic scrub --json``."""
        return {
            "ok": self.ok,
            "stopped": self.stopped,
            "read_packs": self.read_packs,
            "read_bytes": self.read_bytes,
            "total_s": round(self.total_s, 6),
            "checks": self.health.as_json(),
            "damaged": [pack.as_json() for pack in self.damaged],
            "missing": [file.as_json() for file in self.missing],
            "manifests": [warning.as_json() for warning in self.manifests],
            "known": [known.as_json() for known in self.known],
            "unreachable": [warning.as_json() for warning in self.unreachable],
            "unread": [warning.as_json() for warning in self.unread],
            "not_remembered": self.not_remembered,
        }


def search_for(report: ScrubReport, store_id: str, known: Collection[ChunkId] = ()) -> CostSearch:
    """Return a new search for the files that need what a report, or an earlier one, found lost."""
    lost = {chunk_id: pack.check.pack_id for pack in report.damaged for chunk_id in pack.lost}
    return CostSearch(store_id, dict.fromkeys([*known, *report.lost]) | lost)


def complete_costs(
    report: ScrubReport, store: str | Subject, cancelled: Callable[[], bool] = lambda: False
) -> bool:
    """Continue the search for damaged files; returns whether it has finished.

    Progress survives cancellation, so repeated calls finish.

    Raises:
        StoreError: The store cannot be used, or a different store is at its path; the next call
            searches from the beginning.
    """
    if report.pending is not None:
        subject = Directory(store) if isinstance(store, str) else store
        costs = report.pending.find(subject, cancelled)
        if costs is not None:
            report.add_costs(costs)
            report.pending = None
    return report.is_complete


def lost_before(store: Store) -> ScrubReport | None:
    """Return a report of chunks that earlier checks found lost, for ``complete_costs``, if any."""
    lost = known_lost(store)
    if not lost:
        return None
    report = ScrubReport(lost=tuple(sorted(lost)))
    report.pending = search_for(report, store.header.store_id)
    return report
