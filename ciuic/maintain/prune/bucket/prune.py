"""Prunes a store in a bucket, beside other writers and prunes. docs/protocol.md has the steps.

finish     finish the condemnations of earlier prunes
purge      delete snapshots whose time in the trash is over
choose     plan: packs to remove, and packs to rewrite
rewrite    copy the needed chunks of the packs to rewrite to new packs
condemn    name all these packs in one object; from then on, no new session relies on them
wait       for each session that is at work, or revoke it
judge      read again what is needed; the packs that are needed after all are spared
delete     the other packs, when no repair that began meanwhile reads them
tidy       merge index segments, without the packs that are gone; delete records of no use

It can be stopped at any moment, and any prune of any machine does the rest.
"""

import contextlib
from collections.abc import Callable, Collection
from dataclasses import replace

from ciuic.catalog import lost_snapshots
from ciuic.errors import OfflineError, StoreError
from ciuic.ids import PackId, SnapshotId
from ciuic.maintain.prune.apply import Work, foresee_prune, prune_work, report_of, rewrite
from ciuic.maintain.prune.bucket.records import clean_records
from ciuic.maintain.prune.bucket.waiting import Patience, Waiting
from ciuic.maintain.prune.plan import mark_needed, plan_prune, refuse_lost_manifests
from ciuic.maintain.prune.report import PruneCounts, PrunePlan, PruneReport
from ciuic.maintain.watch import OnProgress, cancel_check
from ciuic.store.gc.judging import judge_packs
from ciuic.store.gc.rewrite import Rewritten
from ciuic.store.gc.upload_output import UploadOutput
from ciuic.store.gc.usage import follow_delta_bases, read_frames
from ciuic.store.place.bucket import StoreInBucket
from ciuic.store.place.sessions.condemned import Condemnation
from ciuic.store.place.sessions.leases import Lease, prune_lease
from ciuic.store.store import Store
from ciuic.system.clock import Clock

__all__ = ["finish_condemned", "is_unfinished", "prune_bucket"]

_STOPPED = "prune was stopped; what was removed stays removed; run it again to continue"


def prune_bucket(
    store: Store,
    *,
    trash_s: float,
    now_ns: int,
    clock: Clock,
    patience: Patience = Patience(),  # noqa: B008 - it is immutable
    dry_run: bool = False,
    leaving: Collection[SnapshotId] = (),
    given_up: Collection[SnapshotId] = (),
    cancelled: Callable[[], bool] = lambda: False,
    progress: OnProgress = lambda _what, _done, _total: None,
) -> PruneReport:
    """Prune a store in a bucket.

    Args:
        store: Open for writing, with ``removes``.
        trash_s: How long a forgotten snapshot stays in the trash.
        now_ns: The time.
        clock: Measures, and waits.
        patience: How long to wait for other sessions.
        dry_run: Remove nothing, and report what would be removed if no other session were at work.
        leaving: Listed snapshots that count as forgotten now.
        given_up: Lost snapshots that count as given up now.
        cancelled: Asked often.
        progress: Receives the stage, the steps done and their total.

    Raises:
        StoreError: The bucket failed, or another prune revoked this one. The next prune goes on.
        CancelledError: ``cancelled`` turned true; what was done stays done.
    """
    bucket = _bucket(store)
    check = cancel_check(cancelled, _STOPPED)
    waiting = Waiting(bucket, patience, clock, check=check)
    run = _Run(store, bucket, waiting, check, progress)
    if not dry_run:
        run.finish_earlier()
    plan = plan_prune(
        store,
        trash_s=trash_s,
        now_ns=now_ns,
        leaving=leaving,
        given_up=given_up,
        cancelled=cancelled,
        progress=progress,
    )
    if dry_run:
        return foresee_prune(
            store, plan, parity=0.0, clock=clock, cancelled=cancelled, progress=progress
        )
    work = prune_work(store, plan, 0.0, clock, cancelled=cancelled, progress=progress)
    return run.prune(work)


def finish_condemned(
    store: Store,
    *,
    clock: Clock,
    patience: Patience = Patience(),  # noqa: B008 - it is immutable
    cancelled: Callable[[], bool] = lambda: False,
) -> list[Lease]:
    """Delete the packs that prunes and repairs have condemned, as far as no session is waited for.

    Args:
        store: Open for writing, with ``removes``.
        clock: Measures, and waits.
        patience: How long to wait for other sessions.
        cancelled: Asked often.

    While a manifest is lost, only those of repairs are finished: what the snapshot needs is not
    known.

    Returns:
        The leases of the sessions that are waited for.

    Raises:
        StoreError: The bucket failed. The next prune goes on.
        CancelledError: ``cancelled`` turned true; what was done stays done.
    """
    bucket, check = _bucket(store), cancel_check(cancelled, _STOPPED)
    waiting = Waiting(bucket, patience, clock, check=check)
    run = _Run(store, bucket, waiting, check, lambda _what, _done, _total: None)
    run.finish_earlier(only_damaged=bool(lost_snapshots(store)))
    return waiting.left


def is_unfinished(store: Store) -> bool:
    """Return whether an earlier prune of some machine has condemned packs that are not deleted yet.

    Raises:
        StoreError: The bucket cannot be read.
    """
    return bool(_bucket(store).condemned.read())


def _bucket(store: Store) -> StoreInBucket:
    if not isinstance(store.bucket, StoreInBucket):
        raise ValueError(f"{store.name} is not in a bucket")
    return store.bucket


class _Run:
    """One prune."""

    def __init__(
        self,
        store: Store,
        bucket: StoreInBucket,
        waiting: Waiting,
        check: Callable[[], None],
        progress: OnProgress,
    ) -> None:
        self._store = store
        self._bucket = bucket
        self._waiting = waiting
        self._check = check
        self._progress = progress
        self._removed: dict[PackId, int] = {}
        self._own_lease = prune_lease(store.session_id)

    def finish_earlier(self, *, only_damaged: bool = False) -> None:
        """Finish what earlier prunes have condemned, as far as no session is waited for.

        Packs that were deleted and have come back are deleted at once: no session relies on them.

        Args:
            only_damaged: Finish what repairs have condemned, and leave the rest.
        """
        # Verdicts first: the condemnation of one that is not carried out yet is there afterwards.
        deleted = self._bucket.condemned.deleted()
        condemnations = self._bucket.condemned.read()
        self._waiting.keep([one.session for one in condemnations])
        for condemnation in condemnations:
            if condemnation.damaged or not only_damaged:
                self._finish(condemnation)
        self._delete(deleted.difference(*(one.packs for one in condemnations)))
        self._store.index_keeper.renew(self._bucket.shut_packs())

    def prune(self, work: Work) -> PruneReport:
        """Purge, rewrite, condemn, wait, judge and delete."""
        earlier = PruneCounts(len(self._removed), sum(self._removed.values()))
        self._removed = {}
        self._purge(work.plan)
        output = UploadOutput(self._store, self._bucket.packs)
        rewritten = rewrite(work, output)
        sizes = {use.pack_id: use.size_bytes for use in (*work.plan.removed, *work.plan.rewritten)}
        packs = {*(use.pack_id for use in work.plan.removed), *output.emptied}
        condemned = PruneCounts()
        if packs:
            condemnation = self._condemn(packs)
            if not self._finish(condemnation):
                condemned = PruneCounts(len(packs), sum([sizes[pack_id] for pack_id in packs]))
        if self._removed or earlier.packs:
            with contextlib.suppress(StoreError):  # only readers without a chunk index need it
                self._bucket.segments.tidy(self._bucket.condemned.deleted())
        with contextlib.suppress(StoreError):  # the next prune does the rest
            clean_records(self._store, self._bucket, work.plan, self._check)
        return self._report(work, rewritten, earlier, condemned)

    def _purge(self, plan: PrunePlan) -> None:
        """Delete expired snapshots for good. Only then may what they needed be condemned."""
        self._store.trash.empty(plan.expired)
        self._store.trash.finish_purges()

    def _condemn(self, packs: Collection[PackId]) -> Condemnation:
        """Commit the condemnation, and end the lease."""
        session_id = self._store.session_id
        try:
            is_condemned = self._bucket.condemned.condemn(session_id, packs)
        except OfflineError:
            self._bucket.keep_leases()  # the request may still arrive
            raise
        if not is_condemned:
            raise StoreError(
                "another prune has revoked this one, because it seemed to be dead",
                hint="Run it again: it continues.",
            )
        self._bucket.end_writing()
        return Condemnation(session_id, frozenset(packs), None)

    def _finish(self, condemnation: Condemnation) -> bool:
        """Wait, judge, and delete; returns false if sessions are still at work."""
        deleted = condemnation.deleted
        if deleted is None:
            if not self._waiting.finish(condemnation.session, self._own_lease):
                return False
            deleted = self._judge(condemnation)
        if not self._waiting.finish_readers(condemnation.session, self._own_lease):
            return False
        self._delete(deleted)
        self._bucket.condemned.close(condemnation.session)
        return True

    def _judge(self, condemnation: Condemnation) -> frozenset[PackId]:
        """Create the verdict; returns the packs to delete."""
        store, bucket = self._store, self._bucket
        if condemnation.damaged:
            return bucket.condemned.judge(condemnation.session, condemnation.packs)
        bucket.fetch()
        # A manifest may have been lost since the plan, and a judgment cannot be taken back.
        refuse_lost_manifests(store)
        shut_packs = bucket.condemned.shut_packs(besides=condemnation.session) | condemnation.packs
        store.index_keeper.renew(shut_packs)
        sizes = store.pack_files()
        marks = mark_needed(store, frozenset(), self._check, self._progress)
        follow_delta_bases(store.packs, sizes, marks, check=lambda _: self._check())
        packs = condemnation.packs & sizes.keys()
        staying = sizes.keys() - shut_packs
        judgment = judge_packs(
            store, packs, staying, marks, check=self._check, session_id=condemnation.session
        )
        for pack_id, chunk_ids in judgment.elsewhere.items():
            store.index.replace_places(pack_id, read_frames(store.packs, pack_id), chunk_ids)
        store.index.commit()
        return bucket.condemned.judge(condemnation.session, condemnation.packs - judgment.spared)

    def _delete(self, deleted: frozenset[PackId]) -> None:
        """Delete those of the packs that are there."""
        sizes = self._store.pack_files()
        there = sorted(deleted & sizes.keys())
        self._store.index.remove_packs(there)
        self._store.index.commit()
        self._bucket.condemned.delete(there)
        self._removed |= {pack_id: sizes[pack_id] for pack_id in there}

    def _report(
        self, work: Work, rewritten: Rewritten, earlier: PruneCounts, condemned: PruneCounts
    ) -> PruneReport:
        """Return what was done: only packs that are deleted count as removed."""
        report = report_of(work, rewritten, dry_run=False)
        moved = {use.pack_id for use in work.plan.rewritten}
        removed = [size for pack_id, size in self._removed.items() if pack_id not in moved]
        emptied = [size for pack_id, size in self._removed.items() if pack_id in moved]
        return replace(
            report,
            removed=PruneCounts(len(removed) + earlier.packs, sum(removed) + earlier.size_bytes),
            rewritten=PruneCounts(len(emptied), sum(emptied)),
            condemned=condemned,
            waiting_for=tuple(lease.about for lease in self._waiting.left),
            revoked=tuple(lease.about for lease in self._waiting.revoked),
        )
