"""Takes what a damaged store has lost from another store that has the same snapshots.

Every chunk is decoded there and compared with its ID before it is stored here: a frame that matches
its checksums is not enough to replace what is lost. Manifests are taken to the byte.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from ciuic.catalog import known_lost
from ciuic.copy.copy import CopyRequest, OnProgress, copy_snapshots, shows_nothing
from ciuic.copy.lost_packs import unlisted_are_sound
from ciuic.copy.report import CopyReport
from ciuic.documents import Document
from ciuic.errors import CorruptionError, MissingError, UnknownFormatError, UnreachableError
from ciuic.ids import ChunkId, SnapshotId
from ciuic.store.records import layout
from ciuic.store.records.manifest import decode_manifest
from ciuic.store.store import Store
from ciuic.system.clock import Clock
from ciuic.view.damage import DamageSurvey

__all__ = ["CopyRepair", "foresee_repair", "repair_from_copy"]


@dataclass(frozen=True, slots=True)
class CopyRepair:
    """What another store gave, or can give.

    Attributes:
        address: Its directory or URL.
        has: The damaged snapshots that it has.
        would_repair: The damaged snapshots that it would repair; with ``--apply``, none.
        repaired: Those that are undamaged now; without ``--apply``, none.
        chunks: Chunks that were taken.
        problem: Why some chunks were not taken; empty: all were.
    """

    address: str
    has: tuple[SnapshotId, ...] = ()
    would_repair: tuple[SnapshotId, ...] = ()
    repaired: tuple[SnapshotId, ...] = ()
    chunks: int = 0
    problem: str = ""

    def as_json(self) -> Document:
        """Return an element of ``copies`` of ``ciuic repair --json``."""
        return {
            "address": self.address,
            "has": list(self.has),
            "heals": list(self.would_repair),
            "healed": list(self.repaired),
            "chunks": self.chunks,
            "problem": self.problem or None,
        }


def foresee_repair(
    store: Store, other: Store, damaged: Collection[SnapshotId], lost: Collection[ChunkId]
) -> CopyRepair:
    """Return what ``repair_from_copy`` would do. Changes nothing, and reads no content.

    Args:
        store: See ``repair_from_copy``.
        other: See ``repair_from_copy``.
        damaged: See ``repair_from_copy``.
        lost: See ``repair_from_copy``.
    """
    has = other.listed_ids() & set(damaged)
    there = DamageSurvey(other, known_lost(other))
    would_repair = {one for one in has if there.is_sound(one)}
    given = other.reader.places(sorted(lost)).keys()
    here = DamageSurvey(store, set(lost))
    listed = store.listed_ids()
    for one in damaged:
        # Another snapshot may bring the chunks of one that the other store does not have.
        if one in listed and one not in has and _is_given(here, one, given):
            would_repair.add(one)
    return CopyRepair(other.name, has=tuple(sorted(has)), would_repair=tuple(sorted(would_repair)))


def _is_given(here: DamageSurvey, snapshot_id: SnapshotId, given: Collection[ChunkId]) -> bool:
    return all(
        path.chunks and all(chunk in given for chunk in path.chunks.values())
        for path in here.damage(snapshot_id)
    )


def repair_from_copy(
    store: Store,
    other: Store,
    damaged: Sequence[SnapshotId],
    lost: Collection[ChunkId] = (),
    *,
    parity: float,
    clock: Clock,
    cancelled: Callable[[], bool] = lambda: False,
    progress: OnProgress = shows_nothing,
) -> CopyRepair:
    """Take what damaged snapshots lack from another store.

    Args:
        store: The damaged store, open for writing, after its own repair.
        other: The other store.
        damaged: The damaged snapshots.
        lost: The chunks that this store has lost, besides those that its chunk index knows of.
        parity: The share of each new pack that its parity takes, 0 to 1.
        clock: Measures.
        cancelled: Asked often.
        progress: Called often.

    Raises:
        StoreError: One of the stores failed. What was taken by then stays.
        CancelledError: ``cancelled`` turned true; the same.
    """
    has = tuple(sorted(other.listed_ids() & set(damaged)))
    report = CopyReport(copy=store.name, dry_run=False)
    if has:
        _put_back_manifests(store, other, has)
        request = CopyRequest(frozenset(has), parity, is_checked=True)
        copy_snapshots(
            other, store, request, report, clock=clock, cancelled=cancelled, progress=progress
        )
    # In a bucket, the chunk index still places them in packs that a repair has condemned.
    still_lost = set(lost) - store.index.usable(list(lost))
    survey = DamageSurvey(store, known_lost(store) | still_lost)
    listed = store.listed_ids()
    # Also those that the other store does not have: what they lacked may have come with another.
    repaired = tuple([one for one in sorted(damaged) if one in listed and survey.is_sound(one)])
    is_all = len(repaired) == len(set(damaged)) and unlisted_are_sound(store, survey)
    _forget(store, repaired, is_all=is_all)
    chunks = report.resent_chunks + sum([copied.chunks for copied in report.copied])
    problem = "; ".join([f"{one}: {what}" for one, what in report.refused.items()])
    return CopyRepair(other.name, has, (), repaired, chunks, problem)


def _put_back_manifests(store: Store, other: Store, snapshot_ids: Collection[SnapshotId]) -> None:
    """Replace damaged manifests in a bucket; a repair of a directory has set them aside.

    In a bucket they stay until then: a damaged manifest stops the prunes of every machine.
    """
    bucket = store.bucket
    if bucket is None:
        return
    for snapshot_id in snapshot_ids:
        try:
            decode_manifest(bucket.manifest(snapshot_id), snapshot_id)
        except (MissingError, UnknownFormatError, UnreachableError):
            continue  # a lost one is copied with its snapshot
        except CorruptionError:
            bucket.put_back(snapshot_id, other.manifests.read_file(snapshot_id)[1])


def _forget(store: Store, repaired: Collection[SnapshotId], *, is_all: bool) -> None:
    """Forget damage that a scrub has recorded.

    Args:
        store: The store, open for writing.
        repaired: The snapshots that are undamaged now.
        is_all: No other snapshot is damaged, not even one in the trash.
    """
    index = store.index
    paths = {layout.manifest_key(one) for one in repaired}
    index.keep_damaged_documents(index.damaged_documents().keys() - paths)
    if is_all:
        index.forget_gone()
        index.forget_lost()
    index.commit()
