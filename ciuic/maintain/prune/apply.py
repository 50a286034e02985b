"""Carry out a prune plan: free the space of chunks that no snapshot needs.

expire     remove snapshots whose time in the trash is over
remove     remove packs without needed chunks
rewrite    copy the needed chunks of fragmented or small packs to new packs, and remove the old ones

A prune can be stopped at any moment: every snapshot stays intact, and the next prune does the rest.
"""

import functools
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ciuic.errors import CiuicError, StoreFullError
from ciuic.ids import ChunkId, PackId
from ciuic.maintain.prune.plan import free_bytes
from ciuic.maintain.prune.report import PruneCounts, PrunePlan, PruneReport
from ciuic.maintain.watch import OnProgress, cancel_check
from ciuic.store.damage_records import forget_gone_packs
from ciuic.store.directory.reserve import release_reserve
from ciuic.store.gc.remove import Removals, remove_parity
from ciuic.store.gc.rewrite import PackTotals, Rewriter, Rewritten, point_at_retained
from ciuic.store.gc.rewrite_output import (
    CountingOutput,
    NewPack,
    Output,
    PackOutput,
    remove_from_index,
)
from ciuic.store.gc.usage import PackUsage, pack_path
from ciuic.store.parity.shape import PARITY_DEFAULT
from ciuic.store.records import layout
from ciuic.store.store import Store
from ciuic.system.clock import Clock

__all__ = ["Work", "apply_prune", "foresee_prune", "prune_work", "report_of", "rewrite"]

_STOPPED = "prune was stopped; what was removed stays removed; run it again to continue"


class Work(NamedTuple):
    """What every step of a prune needs.

    Attributes:
        check: Raises CancelledError once the user has interrupted.
        done: Receives the number of packs that were rewritten.
        duration_s: Returns the time since the prune began.
    """

    store: Store
    plan: PrunePlan
    parity: float
    check: Callable[[], None]
    done: Callable[[int], None]
    duration_s: Callable[[], float]


def foresee_prune(
    store: Store,
    plan: PrunePlan,
    *,
    parity: float = PARITY_DEFAULT,
    clock: Clock,
    cancelled: Callable[[], bool] = lambda: False,
    progress: OnProgress = lambda _what, _done, _total: None,
) -> PruneReport:
    """Return the report that ``apply_prune`` would return, to the byte, unless it finds new damage.

    Frames that a prune would encode again are encoded and thrown away, to learn their new length.
    """
    work = prune_work(store, plan, parity, clock, cancelled=cancelled, progress=progress)
    rewritten = rewrite(work, CountingOutput(free_bytes(store) + plan.removed_bytes))
    return report_of(work, rewritten, dry_run=True)


def apply_prune(
    store: Store,
    plan: PrunePlan,
    *,
    parity: float = PARITY_DEFAULT,
    clock: Clock,
    cancelled: Callable[[], bool] = lambda: False,
    progress: OnProgress = lambda _what, _done, _total: None,
) -> PruneReport:
    """Carry out a plan. The store must have been open for writing since the plan was made.

    Args:
        store: Open for writing.
        plan: The plan.
        parity: The share of each new pack that its parity takes, 0 to 1.
        clock: Measures how long it takes.
        cancelled: Asked often.
        progress: Receives the stage, the steps done and their total.

    Raises:
        StoreFullError: There is no space to rewrite packs; the steps that need none were done.
        StoreError: The store failed; every snapshot is as it was.
        CancelledError: ``cancelled`` turned true; what was done stays done.
    """
    work = prune_work(store, plan, parity, clock, cancelled=cancelled, progress=progress)
    if plan.has_work:
        store.prune_mark.set()
    remove_parity(store.path, plan.orphans)
    with Removals(store.path) as removals:
        removals.begin_with(functools.partial(_expire, store, plan))
        rewritten = _remove_and_rewrite(work, removals)
    forget_gone_packs(store, work.check)
    store.prune_mark.clear()
    return report_of(work, rewritten, dry_run=False)


def prune_work(
    store: Store,
    plan: PrunePlan,
    parity: float,
    clock: Clock,
    *,
    cancelled: Callable[[], bool],
    progress: OnProgress,
) -> Work:
    """Return what every step of a prune needs; its time begins now."""
    began_s = clock.monotonic_s()
    return Work(
        store,
        plan,
        parity,
        check=cancel_check(cancelled, _STOPPED),
        done=lambda done: progress("rewrite", done, len(plan.rewritten)),
        duration_s=lambda: clock.monotonic_s() - began_s,
    )


def _expire(store: Store, plan: PrunePlan) -> None:
    """Delete expired snapshots for good, durably. Only then may packs be removed.

    Other threads change the chunk index and write new packs meanwhile, which harms no snapshot in
    the trash. After an interruption, the next writer adds to the chunk index what it lacks.
    """
    store.trash.empty(plan.expired)
    for snapshot_id in store.trash.orphaned_copies():
        store.manifests.copies.remove(snapshot_id)
    store.trash.finish_purges()


def _remove_and_rewrite(work: Work, removals: Removals) -> Rewritten:
    """Rewrite packs and remove packs; if rewriting fails, still remove the unneeded packs.

    On a full disk, it is tried once more with the space of those and of the reserve.
    """
    store, plan = work.store, work.plan
    available = functools.partial(free_bytes, store)
    unneeded = [use.pack_id for use in plan.removed]
    is_pointed = False
    with _pack_output(work, removals, unneeded, available) as output:
        if not output.has_free_space:
            removals.wait()
        first = _rewriter(work, output)
        try:
            point_at_retained(store.packs, store.index, plan.usage.retained)
            is_pointed = True
            return _run(work, first, plan.rewritten)
        except CiuicError as error:
            is_full = isinstance(error, StoreFullError)
            full_bytes = available()
            if is_full:
                # Also where much seems to be free: a quota may be used up.
                release_reserve(store.path)
            elif not output.unneeded:
                raise
            # Their removal needs no space, and may free the space that rewriting needs.
            if output.unneeded:
                _remove_unneeded(store, plan.usage.retained, output.unneeded, removals)
            if not is_full:
                removals.finish()
                raise
    removals.wait()
    if not is_pointed:
        store.index.rollback()  # what of it fitted on the full disk
        point_at_retained(store.packs, store.index, plan.usage.retained)
    left = [use for use in plan.rewritten if os.path.lexists(pack_path(store.path, use.pack_id))]
    # What seemed to be free on the full disk is not, so only what this prune has freed counts.
    with _pack_output(work, removals, [], lambda: max(0, available() - full_bytes)) as output:
        second = _run(work, _rewriter(work, output), left)
    before = first.rewritten
    # A pack with damage is among those left.
    return Rewritten(
        _sum(before.written, second.written), _sum(before.removed, second.removed), second.damaged
    )


def _sum(one: PackTotals, other: PackTotals) -> PackTotals:
    return PackTotals(one.packs + other.packs, one.size_bytes + other.size_bytes)


def _pack_output(
    work: Work, removals: Removals, unneeded: list[PackId], available: Callable[[], int]
) -> PackOutput:
    store = work.store
    return PackOutput(
        store.path,
        store.packs,
        store.session_id,
        store.index,
        removals,
        parity=work.parity,
        free_bytes=available,
        unneeded=unneeded,
    )


def rewrite(work: Work, output: Output[NewPack]) -> Rewritten:
    """Move the needed chunks out of the plan's fragmented and small packs."""
    return _run(work, _rewriter(work, output), work.plan.rewritten)


def _run(work: Work, rewriter: Rewriter[NewPack], uses: Sequence[PackUsage]) -> Rewritten:
    return rewriter.run(uses, check=work.check, done=work.done)


def _rewriter(work: Work, output: Output[NewPack]) -> Rewriter[NewPack]:
    store, plan = work.store, work.plan
    return Rewriter(
        store.packs,
        store.reader,
        plan.marks,
        plan.usage,
        output,
        temporary=os.path.join(store.path, layout.TEMPORARY),
        joins_small=bool(work.parity) or store.bucket is not None,
    )


def _remove_unneeded(
    store: Store, retained: dict[ChunkId, PackId], unneeded: list[PackId], removals: Removals
) -> None:
    """Remove packs. If the disk is too full to change the chunk index, it is built again."""
    removals.wait()
    try:
        point_at_retained(store.packs, store.index, retained)
        remove_from_index(store.index, unneeded)
        removals.add(unneeded)
    except StoreFullError:
        store.index_keeper.drop()
        removals.add(unneeded)
        removals.wait()
        store.index_keeper.renew()
        point_at_retained(store.packs, store.index, retained)


def report_of(work: Work, rewritten: Rewritten, *, dry_run: bool) -> PruneReport:
    """Return what was done, or would be done."""
    plan = work.plan
    stay = {
        use.pack_id: use.size_bytes for use in plan.rewritten if use.pack_id in rewritten.damaged
    }
    kept_bytes = plan.kept.size_bytes + sum(stay.values())
    return PruneReport(
        dry_run=dry_run,
        expired=plan.expired,
        in_trash=plan.in_trash,
        removed=PruneCounts(len(plan.removed), plan.removed_bytes),
        rewritten=PruneCounts(*rewritten.removed),
        merged=plan.merged,
        written=PruneCounts(*rewritten.written),
        kept=PruneCounts(plan.kept.packs + len(stay), kept_bytes),
        orphans=PruneCounts(len(plan.orphans), sum(plan.orphans.values())),
        damaged=tuple(sorted({*plan.damaged, *stay})),
        needed_chunks=plan.needed_chunks,
        dead_chunks=plan.dead_chunks,
        total_s=work.duration_s(),
    )
