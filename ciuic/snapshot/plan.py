"""Plan a snapshot: its roots, its parent, and whether it is full or incremental."""

import os
import stat
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from ciuic.catalog import check_tags, list_snapshots
from ciuic.errors import UsageError
from ciuic.ids import DEFAULT_SCHEDULE
from ciuic.model import (
    COMMAND,
    LIBRARY,
    ExcludeRules,
    Owner,
    PathWarning,
    SnapshotSummary,
    complete_ones,
    newest_first,
)
from ciuic.snapshot.walk.walked_directory import OldTree
from ciuic.source.directory import DirectoryHandle
from ciuic.source.exclusions import Exclusions
from ciuic.source.freeze.early import LeftOut
from ciuic.store.packs.writer import CHAIN_COST_DEFAULT
from ciuic.store.parity.shape import PARITY_DEFAULT
from ciuic.store.store import Store
from ciuic.system.clock import Clock, is_future
from ciuic.system.machine import this_machine

__all__ = ["SnapshotPlan", "TakeRequest", "full_due_ns", "left_out", "plan_snapshot"]

_NS: Final = 1_000_000_000
_PARENTS_SEARCHED: Final = 50


class TakeRequest(NamedTuple):
    """A request for a snapshot.

    Attributes:
        roots: Absolute paths, raw bytes.
        exclude: Which paths to exclude.
        base: Take a full snapshot.
        base_interval_s: Take a full snapshot if the last one is at least this old; 0: never.
        tags: Words to find the snapshot by.
        hot_snapshots: Number of newest snapshots that keep their reflink copies.
        hot_by_schedule: The same for the snapshots of each schedule that has a number of its own.
        parity: Size of a pack's parity as a share of the pack; 0: no parity.
        chain_cost: Limit on the cost of delta chains: bytes to read for a chunk, as a multiple of
            its stored size without a delta base; 1: no deltas.
        trouble: Warnings from before the snapshot that the manifest should have.
        origin: What asked for it.
        schedule: The schedule that it belongs to; empty: none.
        threads: How many threads hash and encode; 0: one for each core, eight at most.
        memory_bytes: How many bytes of files may be in memory to be encoded; the packs' queue has
            half as much.
    """

    roots: tuple[bytes, ...]
    exclude: ExcludeRules = ExcludeRules()
    base: bool = False
    base_interval_s: float = 43_200.0
    tags: tuple[str, ...] = ()
    hot_snapshots: int = 1
    parity: float = PARITY_DEFAULT
    chain_cost: float = CHAIN_COST_DEFAULT
    trouble: tuple[PathWarning, ...] = ()
    origin: str = COMMAND
    schedule: str = DEFAULT_SCHEDULE
    threads: int = 0
    memory_bytes: int = 32 * 1024 * 1024
    hot_by_schedule: Mapping[str, int] = MappingProxyType({})


class SnapshotPlan(NamedTuple):
    """The plan of a snapshot.

    Attributes:
        roots: Normalized and sorted paths.
        snapshots: The existing complete snapshots, newest first.
        owner: Whose snapshot this will be.
        parent: The snapshot that it is compared with.
        is_full: The snapshot is full: every file is read.
        old: For each root, the older tree that it is compared with, if there is one.
    """

    roots: tuple[bytes, ...]
    exclusions: Exclusions
    taken_ns: int
    snapshots: list[SnapshotSummary]
    owner: Owner
    parent: SnapshotSummary | None
    is_full: bool
    old: dict[bytes, OldTree]


def plan_snapshot(
    store: Store, request: TakeRequest, clock: Clock, *, moment_ns: int = 0
) -> SnapshotPlan:
    """Plan a snapshot from the request and the store, without reading the source.

    Args:
        store: The store.
        request: What the snapshot is of.
        clock: Tells the time.
        moment_ns: The time that the snapshot will have, if it is not the present.

    Raises:
        UsageError: There is no root, a root is not absolute, or a pattern is invalid.
        StoreError: The store cannot be read.
    """
    roots = _checked_roots(request.roots, store.path)
    check_tags(request.tags)
    exclusions = _exclusions(request.exclude)
    taken_ns = clock.now_ns()
    snapshots = complete_ones(list_snapshots(store))
    owner = Owner(this_machine(), is_library=request.origin == LIBRARY)
    own = [snapshot for snapshot in snapshots if snapshot.owner.is_same(owner)]
    series = [snapshot for snapshot in own if snapshot.schedule == request.schedule]
    is_full = request.base or _full_is_due(series, roots, request.base_interval_s, taken_ns)
    old = _old_trees(store, series, roots, taken_ns)
    parent = _parent(own, series, roots, moment_ns or taken_ns)
    return SnapshotPlan(roots, exclusions, taken_ns, snapshots, owner, parent, is_full, old)


def full_due_ns(store: Store, request: TakeRequest, now_ns: int) -> int:
    """Return when the next full snapshot of a request is due, in nanoseconds since 1970.

    Args:
        store: The store.
        request: The request.
        now_ns: The present time. It is returned if a full snapshot is due.
    """
    owner = Owner(this_machine(), is_library=request.origin == LIBRARY)
    series = [
        snapshot
        for snapshot in complete_ones(list_snapshots(store))
        if snapshot.owner.is_same(owner) and snapshot.schedule == request.schedule
    ]
    roots = frozenset(request.roots)
    if _full_is_due(series, request.roots, request.base_interval_s, now_ns):
        return now_ns
    if not request.base_interval_s:
        return sys.maxsize
    last_ns: dict[bytes, int] = {}
    for one in series:
        if one.kind == "base" and not is_future(one.taken_ns, now_ns):
            for root in roots.intersection(one.roots):
                last_ns[root] = max(one.taken_ns, last_ns.get(root, 0))
    return min(last_ns.values()) + int(request.base_interval_s * _NS)


def _parent(
    own: list[SnapshotSummary],
    series: list[SnapshotSummary],
    roots: tuple[bytes, ...],
    taken_ns: int,
) -> SnapshotSummary | None:
    """Return the newest snapshot of the schedule that has one of the roots.

    If a snapshot of this machine has a time in the future, every new snapshot names it as its
    parent while it exists. So the new snapshots precede it in ``newest_first``, even if others are
    forgotten. Of several, it is the one that was committed last: the clock may have gone back again
    since the others.
    """
    if own and own[0].taken_ns >= taken_ns:
        return next(found for found in newest_first(own) if found.taken_ns >= taken_ns)
    wanted = set(roots)
    return next((found for found in series if wanted.intersection(found.roots)), None)


def _checked_roots(paths: tuple[bytes, ...], store_path: str) -> tuple[bytes, ...]:
    """Return the roots normalized and sorted, without roots that are inside another root."""
    if not paths:
        raise UsageError(
            "there is nothing to take a snapshot of: no paths are configured",
            hint="Name the directories, or set snapshot_paths in the configuration.",
        )
    for path in paths:
        if not path.startswith(b"/"):
            raise UsageError(
                f"the root {os.fsdecode(path)!r} is not an absolute path",
                hint="Start the path with /.",
            )
        if b"\0" in path:
            raise UsageError(
                f"the root {os.fsdecode(path)!r} has a NUL byte in it",
                hint="Write the path without it.",
            )
        own = os.path.realpath(os.fsencode(store_path)) + b"/"
        if (os.path.realpath(path) + b"/").startswith(own):
            raise UsageError(
                f"the root {os.fsdecode(path)!r} is in the store {store_path}",
                hint="A store cannot hold itself. Name directories outside the store.",
            )
    kept: list[bytes] = []
    for path in sorted({b"/" + os.path.normpath(path).lstrip(b"/") for path in paths}):
        if not any(path.startswith(other.rstrip(b"/") + b"/") for other in kept):
            kept.append(path)
    return tuple(kept)


def left_out(store: Store, exclusions: Exclusions) -> LeftOut:
    """Return a function that tells which names the walk will skip: the store and excluded names."""
    own = os.stat(store.path)

    def is_left_out(directory: DirectoryHandle, name: bytes, status: os.stat_result) -> bool:
        is_store = (status.st_dev, status.st_ino) == (own.st_dev, own.st_ino)
        if is_store or (exclusions.any and exclusions.match(directory, name)):
            return True
        # The walk keeps the mark of a marked directory, which is too small for an early copy.
        if exclusions.has_marks and stat.S_ISDIR(status.st_mode):
            inner = directory.child(name)
            return exclusions.mark(inner.fd) is not None
        return exclusions.is_too_large(status)

    return is_left_out


def _exclusions(rules: ExcludeRules) -> Exclusions:
    try:
        return Exclusions(rules)
    except ValueError as error:
        raise UsageError(
            f"an exclude rule is invalid: {error}", hint="Correct the pattern or the name."
        ) from error


def _full_is_due(
    snapshots: list[SnapshotSummary],
    roots: tuple[bytes, ...],
    base_interval_s: float,
    taken_ns: int,
) -> bool:
    """Return whether a full snapshot is due.

    It is due if none of the roots is in an older snapshot, or if one of the roots that are has no
    full snapshot within the interval. A snapshot with a time in the future is not within it.
    """
    known = set(roots).intersection([root for snapshot in snapshots for root in snapshot.roots])
    full = [snapshot for snapshot in snapshots if snapshot.kind == "base"]
    if base_interval_s:
        since_ns = taken_ns - int(base_interval_s * _NS)
        full = [
            snapshot
            for snapshot in full
            if since_ns < snapshot.taken_ns and not is_future(snapshot.taken_ns, taken_ns)
        ]
    return not known or not known.issubset([root for snapshot in full for root in snapshot.roots])


def _old_trees(
    store: Store, snapshots: list[SnapshotSummary], roots: tuple[bytes, ...], taken_ns: int
) -> dict[bytes, OldTree]:
    """Return the newest tree of each root, even if the newest snapshot lacks the root.

    Snapshots with a time in the future are tried last: files without a change since that time count
    as unchanged only when it has passed, so every snapshot until then would read them again.
    """
    found = {}
    wanted = set(roots)
    ordered = sorted(snapshots, key=lambda snapshot: is_future(snapshot.taken_ns, taken_ns))
    # Only snapshots of these roots count toward the limit.
    of_these = [snapshot for snapshot in ordered if wanted.intersection(snapshot.roots)]
    for snapshot in of_these[:_PARENTS_SEARCHED]:
        if not wanted.intersection(snapshot.roots):
            continue
        for root in store.manifest(snapshot.id).roots:
            if root.path in wanted and root.tree:
                found[root.path] = OldTree(root.tree, snapshot.taken_ns, snapshot.id)
                wanted.discard(root.path)
    return found
