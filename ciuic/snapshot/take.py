"""Take a snapshot: freeze, gather, make durable, commit.

freeze     subvolumes as a whole, in milliseconds; other roots file by file during the walk
gather     walk, compare, read, encode, store; nothing of it if nothing has changed (``unscanned``)
durable    sync the packs; write the records of the reflink copies
commit     write the manifest, last
tidy       copy the manifest, remove reflink copies of older snapshots, update the chunk index: a
           failure here is reported as a note, because the snapshot exists
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import ciuic
from ciuic.catalog import list_snapshots, remember
from ciuic.errors import CancelledError, CommitUncertainError, StoreError
from ciuic.ids import ChunkId, SnapshotId
from ciuic.model import EMERGENCY_TAG, Owner, PathWarning, Root, SnapshotSummary
from ciuic.progress import Meter, Pace, Progress
from ciuic.snapshot.after_commit import run_after_commit
from ciuic.snapshot.observers import CaptureTime, Warnings, WrittenFiles
from ciuic.snapshot.plan import TakeRequest, left_out, plan_snapshot
from ciuic.snapshot.read.reader_context import ReaderContext
from ciuic.snapshot.read.sinks import Sinks
from ciuic.snapshot.report import TakeReport
from ciuic.snapshot.unscanned import unchanged_parent, unchanged_root
from ciuic.snapshot.walk.directories import WalkRules
from ciuic.snapshot.walk.file_capture import FileCapture
from ciuic.snapshot.walk.gather import Gatherer
from ciuic.snapshot.walk.read_queue import ReadQueue
from ciuic.snapshot.walk.reader_start import LateReaders
from ciuic.source.freeze.freezer import Freezer, FreezeRequest
from ciuic.store.adding import new_writer
from ciuic.store.records.manifest import Manifest
from ciuic.store.restored import Restored
from ciuic.store.store import Store
from ciuic.system.buffers import collect_rarely
from ciuic.system.clock import Clock
from ciuic.system.limits import raise_open_files_limit

__all__ = ["take_snapshot"]


def take_snapshot(
    store: Store,
    request: TakeRequest,
    *,
    clock: Clock,
    cancelled: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
    pacer: Pace | None = None,
) -> TakeReport:
    """Take a snapshot of the request's roots into a store that is open for writing.

    When this returns, the snapshot is committed and durable. If it raises, the store has the same
    snapshots as before, and perhaps packs that the next run reuses. Only after
    CommitUncertainError, the store lists the new snapshot.

    Raises:
        UsageError: There is no root, a root is not absolute, or a pattern is invalid.
        CommitUncertainError: The snapshot is listed, but a power cut may still undo it.
        StoreError: The store failed.
        CancelledError: ``cancelled`` returned true.
    """
    collect_rarely()
    run = _Run(store, request, clock, pacer)
    try:
        try:
            gathered = run.gather(cancelled, Meter(progress))
            manifest = run.make_durable(gathered)
            # A last time: the program has told the user that it stops.
            _checker(cancelled)()
            manifest = run.commit(manifest)
        except BaseException as error:
            run.give_up(is_committed=isinstance(error, CommitUncertainError))
            raise
        # The snapshot exists: from here on, a failure is only reported as a note.
        notes = run.tidy(manifest.summary)
    finally:
        run.close()
    return run.report(manifest, gathered.excluded, notes)


class _Gathered(NamedTuple):
    """The result of the walk and the readers.

    Attributes:
        roots: The roots' records.
        files: Number of regular files.
        logical_bytes: Their length; hard links count once.
        excluded: Number of names that a rule excludes.
        read_bytes: Bytes read from the source.
        capture_s: Time from the first freeze until the last byte was captured.
    """

    roots: list[Root]
    files: int
    logical_bytes: int
    excluded: int
    read_bytes: int
    capture_s: float


class _Run:
    """A snapshot in progress: the plan, and a method for each phase."""

    def __init__(
        self, store: Store, request: TakeRequest, clock: Clock, pacer: Pace | None
    ) -> None:
        self._began_s = self._phase_s = clock.monotonic_s()
        self._phases_s: dict[str, float] = {}
        self._pacer = pacer
        self._store, self._request, self._clock = store, request, clock
        self._plan = plan_snapshot(store, request, clock)
        self._restored = Restored(store, self._plan.roots, self._plan.owner.machine)
        self._open_files = raise_open_files_limit()
        self._id = store.new_snapshot_id()
        self._warnings = Warnings(request.trouble)
        self._written = WrittenFiles(self._warnings)
        self._capture = CaptureTime(clock)
        self._freezer = Freezer(store.identity_path, store.header.store_id, self._freeze_request())
        self._writer = new_writer(
            store,
            parity=request.parity,
            chain_cost=request.chain_cost,
            queue_bytes=request.memory_bytes // 2,
        )
        self._writer.keep_trees()

    def gather(self, cancelled: Callable[[], bool], meter: Meter) -> _Gathered:
        """Freeze, walk, read and store."""
        self._freezer.prepare()
        parent = unchanged_parent(
            self._store, self._plan, self._request, self._freezer, _checker(cancelled)
        )
        if parent is not None:
            return self._gather_nothing(parent)
        sinks = Sinks(self._warnings.add, self._written.add)
        context = ReaderContext(
            self._store,
            self._writer,
            skip_unchanged=not self._plan.is_full,
            sinks=sinks,
            cancelled=cancelled,
            clock=self._clock,
            handled=meter.handled,
            pacer=self._pacer,
        )
        content = LateReaders(
            context, threads=self._request.threads, memory_bytes=self._request.memory_bytes
        )
        try:
            gatherer = self._gatherer(content, sinks, cancelled, meter)
            self._capture.begin()
            views = self._freezer.begin()
            self._capture.frozen(list(views.values()))
            roots = gatherer.gather(
                [(views[root], self._plan.old.get(root)) for root in self._plan.roots],
                walked=self._walked,
            )
        finally:
            content.close()
        self._written.name_holders()
        self._end_phase("gather")
        tally, capture_s = gatherer.tally, self._capture.duration_s(context.captured_s)
        return _Gathered(
            roots,
            tally.files,
            tally.logical_bytes,
            tally.excluded,
            context.read_bytes,
            round(capture_s, 6),
        )

    def _gather_nothing(self, parent: Manifest) -> _Gathered:
        """Take over what the parent has: nothing has changed since."""
        self._end_phase("gather")
        summary = parent.summary
        roots = [unchanged_root(root) for root in parent.roots]
        return _Gathered(roots, summary.files, summary.logical_bytes, 0, 0, 0.0)

    def make_durable(self, gathered: _Gathered) -> Manifest:
        """Make everything that the manifest names durable; returns the manifest to commit."""
        # A server may create the manifest late, and others that add would wait for the index.
        totals = self._writer.finish(index_waits=self._store.bucket is None)
        self._freezer.record()
        self._end_phase("durable")
        parent = self._plan.parent
        summary = SnapshotSummary(
            id=self._id,
            kind="base" if self._plan.is_full else "delta",
            parent=parent.id if parent is not None else None,
            taken_ns=self._plan.taken_ns,
            files=gathered.files,
            logical_bytes=gathered.logical_bytes,
            new_bytes=totals.new_bytes,
            stored_bytes=totals.stored_bytes,
            tags=tuple(dict.fromkeys(self._request.tags)),
            trouble_count=self._warnings.count,
            roots=self._plan.roots,
            flux_count=self._written.count,
            host=self._plan.owner.machine.name,
            machine=self._plan.owner.machine.id,
            origin=self._request.origin,
            schedule=self._request.schedule,
            follows=self._restored.follows,
            store=self._store.header.store_id,
        )
        return Manifest(
            summary=summary,
            roots=tuple(gathered.roots),
            host=summary.host,
            writer=f"ciuic {ciuic.__version__}",
            read_bytes=gathered.read_bytes,
            capture_s=gathered.capture_s,
            exclude=self._request.exclude,
            trouble=tuple(self._warnings.first),
        )

    def commit(self, manifest: Manifest) -> Manifest:
        """Write the manifest; returns it with the ID that the snapshot got."""
        committed = self._store.commit(manifest)
        if committed.summary.id != self._id:
            # Another writer drew the same ID, and its reflink copies may have that name.
            self._freezer.abandon()
            self._id = committed.summary.id
        self._end_phase("commit")
        return committed

    def tidy(self, summary: SnapshotSummary) -> tuple[PathWarning, ...]:
        """Do the steps that need the snapshot to exist; returns a note for each failure."""
        retained = _newest(summary, self._plan.snapshots, self._request)
        retain = partial(self._freezer.retain, retained)
        steps = (
            ("copies of its manifest could not be written", self._copy_manifests),
            ("the chunk index could not be updated", partial(remember, self._store, summary)),
            ("older reflink copies could not be removed", retain),
            ("notes of restores could not be removed", self._restored.remove),
        )
        notes = run_after_commit(self._store.path, summary.id, steps)
        self._end_phase("tidy")
        return notes

    def give_up(self, *, is_committed: bool) -> None:
        """End the run after an error; without a commit, remove its reflink copies."""
        self._writer.abort()
        if not is_committed and not self._store.manifests.has(self._id):
            self._freezer.abandon()

    def close(self) -> None:
        """Close descriptors and release locks."""
        self._freezer.close()

    def report(
        self, manifest: Manifest, excluded: int, notes: tuple[PathWarning, ...]
    ) -> TakeReport:
        """Return the report of the snapshot."""
        return TakeReport.of(
            manifest,
            total_s=self._clock.monotonic_s() - self._began_s,
            notes=notes,
            flux=self._written.paths(),
            excluded=excluded,
            waited_s=self._pacer.waited_s if self._pacer is not None else 0.0,
            phases_s=self._phases_s,
        )

    def _end_phase(self, name: str) -> None:
        """Note how long a phase took: since the end of the one before."""
        now_s = self._clock.monotonic_s()
        self._phases_s[name] = now_s - self._phase_s
        self._phase_s = now_s

    def _freeze_request(self) -> FreezeRequest:
        old = self._plan.old
        since = {} if self._plan.is_full else {root: tree.taken_ns for root, tree in old.items()}
        return FreezeRequest(
            id=self._id,
            taken_ns=self._plan.taken_ns,
            roots=self._plan.roots,
            existing=[snapshot.id for snapshot in self._plan.snapshots],
            listed=self._listed,
            previous={root: tree.snapshot_id for root, tree in old.items()},
            unchanged_since=since,
            is_left_out=left_out(self._store, self._plan.exclusions),
        )

    def _listed(self) -> list[SnapshotId]:
        return [snapshot.id for snapshot in list_snapshots(self._store)]

    def _gatherer(
        self,
        content: LateReaders,
        sinks: Sinks,
        cancelled: Callable[[], bool],
        meter: Meter,
    ) -> Gatherer:
        skip_unchanged = not self._plan.is_full
        files = FileCapture(
            content,
            ReadQueue(self._store, content, self._open_files),
            skip_unchanged=skip_unchanged,
            keep_copies=self._request.hot_snapshots > 0,
            sinks=sinks,
        )
        rules = WalkRules(
            exclusions=self._plan.exclusions,
            skip_unchanged=skip_unchanged,
            find_delta_bases=skip_unchanged and self._writer.makes_deltas,
        )
        return Gatherer(
            self._store,
            self._writer.put_node,
            files,
            rules=rules,
            sinks=sinks,
            cancelled=cancelled,
            progress=meter.walked,
            handled=meter.handled,
            captured_nodes=self._captured_node,
            began_ns=self._plan.taken_ns,
        )

    def _captured_node(self, kind: int, node_id: ChunkId) -> bytes:
        """Read a tree node that the walk has stored."""
        plain = self._writer.kept_tree(node_id)
        return self._store.reader.node(kind, node_id) if plain is None else plain

    def _walked(self) -> None:
        self._capture.walked()
        self._written.name_holders()

    def _copy_manifests(self) -> StoreError | None:
        """Copy the manifest, and the one before it if a killed run left that without a copy."""
        if not self._request.parity or self._store.bucket is not None:
            return None
        copies, header = self._store.manifests.copies, self._store.header
        failure = copies.keep(self._id, header)
        before = next(iter(self._plan.snapshots), None)
        if failure is None and before is not None and copies.read(before.id) is None:
            failure = copies.keep(before.id, header)
        return failure


def _checker(cancelled: Callable[[], bool]) -> Callable[[], None]:
    """Return a function that raises if ``cancelled`` returns true."""

    def check() -> None:
        if cancelled():
            raise CancelledError("the snapshot was interrupted")

    return check


def _newest(
    taken: SnapshotSummary, older: list[SnapshotSummary], request: TakeRequest
) -> list[SnapshotId]:
    """Return the newest snapshots of each owner, schedule and set of roots, as many as are hot.

    A snapshot of a failed job stays besides them while it is the newest: the state that the job
    goes back to is in an older one.
    """
    sets: dict[tuple[Owner, str, tuple[bytes, ...]], list[SnapshotId]] = {}
    emergencies: dict[tuple[Owner, str, tuple[bytes, ...]], SnapshotId] = {}
    for snapshot in (taken, *older):
        key = snapshot.owner, snapshot.schedule, snapshot.roots
        if EMERGENCY_TAG not in snapshot.tags:
            sets.setdefault(key, []).append(snapshot.id)
        elif key not in sets and _hot_count(request, snapshot.schedule):
            emergencies.setdefault(key, snapshot.id)
    kept = [
        snapshot_id
        for (_, schedule, _), ids in sets.items()
        for snapshot_id in ids[: _hot_count(request, schedule)]
    ]
    return [*kept, *emergencies.values()]


def _hot_count(request: TakeRequest, schedule: str) -> int:
    return request.hot_by_schedule.get(schedule, request.hot_snapshots)
