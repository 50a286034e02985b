"""Take a snapshot: freeze, gather, make durable, commit.

freeze     what can be frozen as a whole, in milliseconds; then file by file as the walk goes
gather     walk, compare, read, encode, store
durable    packs, by a barrier; the record of what is frozen
commit     the manifest, last
retain     frozen copies of older snapshots are given up
"""

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import ciuic
from ciuic.capture import SUBVOLUME, Freezer, LeftOut, RootView
from ciuic.catalog import list_snapshots, remember
from ciuic.clock import Clock, is_future
from ciuic.errors import UsageError
from ciuic.limits import raise_open_files_limit
from ciuic.memory import prepare_for_bulk
from ciuic.model import SnapshotSummary, TakeReport, Trouble
from ciuic.scan import DirectoryHandle, Exclusions
from ciuic.store import Store
from ciuic.store.layout import HEADER
from ciuic.store.manifest import TROUBLE_MAX, Manifest
from ciuic.store.parity import PARITY_DEFAULT
from ciuic.store.writer import CHAIN_COST_DEFAULT
from ciuic.verbs.gather import Gatherer, OldTree
from ciuic.verbs.label import check_tags
from ciuic.verbs.progress import Progress
from ciuic.verbs.reading import ContentReader

__all__ = ["TakeRequest", "take_snapshot"]

_NS: Final = 1_000_000_000
_PARENTS_SEARCHED: Final = 50


@dataclass(frozen=True, slots=True)
class TakeRequest:
    """What to take a snapshot of.

    Attributes:
        roots: Absolute paths, raw bytes.
        exclude: Patterns, see ``scan.Exclusions``.
        base: Read everything, whatever the parent says.
        base_interval_s: Take a base snapshot by itself when the last one is as old as this;
            0: never.
        tags: Words to find the snapshot by.
        hot_snapshots: How many of the newest snapshots keep their frozen copies.
        parity: The share of each pack that its parity takes; 0: none is written.
        chain_cost: How many times the stored bytes that a chunk takes alone may have to be read
            to have it; 1: every chunk stands alone.
    """

    roots: tuple[bytes, ...]
    exclude: tuple[str, ...] = ()
    base: bool = False
    base_interval_s: float = 43_200.0
    tags: tuple[str, ...] = ()
    hot_snapshots: int = 1
    parity: float = PARITY_DEFAULT
    chain_cost: float = CHAIN_COST_DEFAULT


class _Silent:
    def update(self, files: int, size_bytes: int, path: bytes) -> None:
        pass


class _Troubles:
    """Collects trouble from several threads: the first paths by name, all of them by number."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.first: list[Trouble] = []
        self.count = 0

    def add(self, path: bytes, what: str, harmless: bool = False) -> None:
        with self._lock:
            self.count += not harmless
            if len(self.first) < TROUBLE_MAX:
                self.first.append(Trouble(path, what, harmless))


class _Flux:
    """Collects files in flux from several threads, and names who writes to them."""

    def __init__(self, troubles: _Troubles) -> None:
        self._troubles = troubles
        self._lock = threading.Lock()
        self._unnamed: list[tuple[bytes, tuple[int, int], str]] = []
        self._paths: list[bytes] = []
        self.count = 0

    def add(self, path: bytes, inode: tuple[int, int], what: str) -> None:
        with self._lock:
            self._unnamed.append((path, inode, what))
            self.count += 1

    def name_holders(self) -> None:
        """Turn what has gathered into trouble, soon: programs don't stay."""
        with self._lock:
            found, self._unnamed = self._unnamed, []
        if not found:
            return
        # A twentieth of a second to import, for those who need it.
        from ciuic.capture.holders import find_holders

        # To look through all processes for many files takes no longer than for one.
        holders = find_holders([inode for _, inode, what in found if not what])
        for path, inode, what in found:
            holder = f" by {holders[inode]}" if inode in holders else ""
            self._troubles.add(path, f"in flux: {what or f'open for writing{holder}'}")
        self._paths.extend([path for path, _, _ in found][: TROUBLE_MAX - len(self._paths)])

    def paths(self) -> tuple[bytes, ...]:
        """The first of them."""
        return tuple(self._paths)


class _Capture:
    """How long the source had to hold still: from the first freeze to the last byte captured."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_s = self._ended_s = 0.0
        self._all_frozen = False

    def begin(self) -> None:
        """Now."""
        self._began_s = self._ended_s = self._clock.monotonic_s()

    def frozen(self, views: Sequence[RootView]) -> None:
        """What can be frozen as a whole is."""
        self._ended_s = self._clock.monotonic_s()
        self._all_frozen = all(view.how == SUBVOLUME for view in views)

    def walked(self) -> None:
        """Everything has been looked at, and cloned where that can be."""
        if not self._all_frozen:
            self._ended_s = self._clock.monotonic_s()

    def duration_s(self, last_read_s: float) -> float:
        """In all, when the last live file was read at a monotonic moment (0: there was none)."""
        return max(self._ended_s, last_read_s) - self._began_s


def take_snapshot(
    store: Store,
    request: TakeRequest,
    *,
    clock: Clock,
    cancelled: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
) -> TakeReport:
    """Take a snapshot of the request's roots into a store that is open for writing.

    When this returns the snapshot is committed and durable. When it raises, the store holds
    what it held before, and perhaps packs that the next run reuses.

    Raises:
        UsageError: There is no root, or one is not absolute, or a pattern has no meaning.
        StoreError: The store failed.
        CancelledError: ``cancelled`` turned true.
    """
    prepare_for_bulk()
    began_s = clock.monotonic_s()
    roots = _checked_roots(request.roots)
    check_tags(request.tags)
    exclusions = _exclusions(request.exclude)
    open_files = raise_open_files_limit()
    taken_ns = clock.now_ns()
    snapshots = list_snapshots(store)
    snapshot_id = store.new_snapshot_id()
    # By the time taken: each one names the one of the future as long as it is there, and so comes
    # before it in ``newest_first``, whatever was forgotten between them.
    parent = snapshots[0] if snapshots else None
    is_base = request.base or _base_is_due(snapshots, request.base_interval_s, taken_ns)
    old = _old_trees(store, snapshots, roots, taken_ns)
    troubles = _Troubles()
    flux = _Flux(troubles)
    header_path = os.path.join(store.path, HEADER)
    freezer = Freezer(header_path, store.header.store_id, snapshot_id, taken_ns)
    capture = _Capture(clock)

    def walked() -> None:
        capture.walked()
        flux.name_holders()

    writer = store.writer(parity=request.parity, chain_cost=request.chain_cost)
    try:
        freezer.prepare(
            roots,
            existing=[one.id for one in snapshots],
            previous={root: one.snapshot_id for root, one in old.items()},
            believed_since={} if is_base else {root: one.taken_ns for root, one in old.items()},
            is_left_out=_left_out(store, exclusions),
        )
        content = ContentReader(
            store,
            writer,
            believe=not is_base,
            trouble=troubles.add,
            flux=flux.add,
            cancelled=cancelled,
            clock=clock,
        )
        try:
            gatherer = Gatherer(
                store,
                writer,
                content,
                exclusions=exclusions,
                believe=not is_base,
                keep_clones=request.hot_snapshots > 0,
                open_files=open_files,
                trouble=troubles.add,
                flux=flux.add,
                cancelled=cancelled,
                progress=(progress or _Silent()).update,
            )
            capture.begin()
            views = freezer.begin()
            capture.frozen(list(views.values()))
            recorded = gatherer.gather(
                [(views[root], old.get(root)) for root in roots],
                walked=walked,
            )
        finally:
            content.close()
        flux.name_holders()
        totals = writer.finish()
        freezer.record()
        # From here on all that the manifest names is durable: this is the commit.
        manifest = Manifest(
            summary=SnapshotSummary(
                id=snapshot_id,
                kind="base" if is_base else "delta",
                parent=parent.id if parent is not None else None,
                taken_ns=taken_ns,
                files=gatherer.files,
                logical_bytes=gatherer.logical_bytes,
                new_bytes=totals.new_bytes,
                stored_bytes=totals.stored_bytes,
                tags=tuple(dict.fromkeys(request.tags)),
                trouble_count=troubles.count,
                roots=roots,
                flux_count=flux.count,
            ),
            roots=tuple(recorded),
            host=os.uname().nodename,
            writer=f"ciuic {ciuic.__version__}",
            read_bytes=content.read_bytes,
            capture_s=round(capture.duration_s(content.captured_s), 6),
            exclude=request.exclude,
            trouble=tuple(troubles.first),
        )
        store.commit(manifest)
        if request.parity:
            _keep_copies(store, snapshot_id, parent)
        freezer.retain(_newest(snapshot_id, snapshots, request.hot_snapshots))
    except BaseException:
        writer.abort()
        freezer.abandon()
        raise
    finally:
        freezer.close()
    remember(store, manifest.summary)
    return _report(manifest, clock.monotonic_s() - began_s, flux.paths())


def _keep_copies(store: Store, snapshot_id: str, parent: SnapshotSummary | None) -> None:
    """Copies of the manifest, and of its parent's if the run that took it was killed before."""
    store.keep_copies(snapshot_id)
    if parent is not None and store.manifest_copy(parent.id) is None:
        store.keep_copies(parent.id)


def _newest(snapshot_id: str, older: list[SnapshotSummary], count: int) -> list[str]:
    return [snapshot_id, *[one.id for one in older]][:count]


def _checked_roots(paths: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Normalised, sorted, each directory once: a root inside another root is part of it."""
    if not paths:
        raise UsageError("there is nothing to take a snapshot of: no path is configured")
    for path in paths:
        if not path.startswith(b"/"):
            raise UsageError(f"the root {os.fsdecode(path)!r} is not an absolute path")
    kept: list[bytes] = []
    for path in sorted({b"/" + os.path.normpath(path).lstrip(b"/") for path in paths}):
        if not any(path.startswith(other.rstrip(b"/") + b"/") for other in kept):
            kept.append(path)
    return tuple(kept)


def _left_out(store: Store, exclusions: Exclusions) -> LeftOut:
    """What the walk will pass by: the store itself, and what is excluded."""
    own = os.stat(store.path)

    def is_left_out(directory: DirectoryHandle, name: bytes, status: os.stat_result) -> bool:
        is_store = (status.st_dev, status.st_ino) == (own.st_dev, own.st_ino)
        return is_store or (exclusions.any and exclusions.match(directory, name))

    return is_left_out


def _exclusions(patterns: tuple[str, ...]) -> Exclusions:
    try:
        return Exclusions(patterns)
    except ValueError as error:
        raise UsageError(f"a pattern has no meaning: {error}") from error


def _base_is_due(snapshots: list[SnapshotSummary], base_interval_s: float, taken_ns: int) -> bool:
    """No base is younger than the interval; one of a clock that was ahead is not young for that."""
    bases_ns = [one.taken_ns for one in snapshots if one.kind == "base"]
    if not bases_ns or not base_interval_s:
        return not bases_ns
    since_ns = taken_ns - int(base_interval_s * _NS)
    return not any(since_ns < one and not is_future(one, taken_ns) for one in bases_ns)


def _old_trees(
    store: Store, snapshots: list[SnapshotSummary], roots: tuple[bytes, ...], taken_ns: int
) -> dict[bytes, OldTree]:
    """For each root the newest tree there is, also when the newest snapshot missed the root.

    Those of the future come last: until its time has come, every snapshot would read again what
    has changed since that one.
    """
    found = {}
    wanted = set(roots)
    ordered = sorted(snapshots, key=lambda one: is_future(one.taken_ns, taken_ns))
    for snapshot in ordered[:_PARENTS_SEARCHED]:
        if not wanted.intersection(snapshot.roots):
            continue
        for root in store.manifest(snapshot.id).roots:
            if root.path in wanted and root.tree:
                found[root.path] = OldTree(root.tree, snapshot.taken_ns, snapshot.id)
                wanted.discard(root.path)
    return found


def _report(manifest: Manifest, total_s: float, flux: tuple[bytes, ...]) -> TakeReport:
    summary = manifest.summary
    return TakeReport(
        id=summary.id,
        kind=summary.kind,
        parent=summary.parent,
        taken_ns=summary.taken_ns,
        files=summary.files,
        logical_bytes=summary.logical_bytes,
        read_bytes=manifest.read_bytes,
        new_bytes=summary.new_bytes,
        stored_bytes=summary.stored_bytes,
        freeze_s=manifest.capture_s,
        total_s=total_s,
        trouble=manifest.trouble,
        trouble_count=summary.trouble_count,
        flux=flux,
    )
