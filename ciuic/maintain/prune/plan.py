"""Make a prune plan: find out what no snapshot needs. Changes nothing.

expire     find the snapshots whose time in the trash is over
mark       mark every chunk that a snapshot needs, including snapshots in the trash
usage      measure how much of each pack is needed
choose     choose packs to remove (nothing needed) and to rewrite (fragmented, or small)

The plan fails, and nothing is removed, if a manifest or a tree cannot be read, or if a manifest is
gone although its snapshot was not forgotten.
"""

import sys
from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple

from ciuic.catalog import lost_manifest, lost_snapshots
from ciuic.errors import CorruptionError, UnknownFormatError, UnreachableError
from ciuic.ids import ChunkId, PackId, SnapshotId
from ciuic.maintain.prune.report import PruneCounts, PrunePlan
from ciuic.maintain.watch import OnProgress, cancel_check
from ciuic.store.gc.mark import Marks, mark_tree
from ciuic.store.gc.merge import choose_merges
from ciuic.store.gc.remove import orphaned_parity
from ciuic.store.gc.rewrite_output import merge_bytes_max
from ciuic.store.gc.usage import DEAD_FRACTION, PackUsage, Usage, measure_usage
from ciuic.store.records.manifest import Manifest
from ciuic.store.store import Store
from ciuic.system.buffers import prepare_for_bulk
from ciuic.system.free_space import free_space

__all__ = ["free_bytes", "mark_needed", "plan_prune", "refuse_lost_manifests"]

_NS: Final = 1_000_000_000


class _Trees(NamedTuple):
    """The fields of a manifest that a plan keeps in memory: there may be ten thousand."""

    taken_ns: int
    snapshot_id: SnapshotId
    trees: list[ChunkId]


class _Expiry(NamedTuple):
    """The snapshots whose time in the trash is over, and how many stay in the trash."""

    expired: frozenset[SnapshotId]
    in_trash: int


class _Choice(NamedTuple):
    """The packs that will be removed or rewritten, by reason."""

    unneeded: tuple[PackUsage, ...]
    fragmented: tuple[PackUsage, ...]
    merged: tuple[PackUsage, ...]


def plan_prune(
    store: Store,
    *,
    trash_s: float,
    now_ns: int,
    leaving: Collection[SnapshotId] = (),
    given_up: Collection[SnapshotId] = (),
    cancelled: Callable[[], bool] = lambda: False,
    progress: OnProgress = lambda _what, _done, _total: None,
) -> PrunePlan:
    """Make a prune plan. Changes nothing.

    Args:
        store: Open for writing, so that nothing is added to it meanwhile.
        trash_s: How long a forgotten snapshot stays in the trash.
        now_ns: The time.
        leaving: Listed snapshots that count as forgotten now.
        given_up: Lost snapshots that count as given up now.
        cancelled: Asked often.
        progress: Receives the stage, the steps done and their total.

    Raises:
        CorruptionError: A manifest or a tree cannot be read, a manifest is lost, or the file system
            cannot return a pack.
        UnknownFormatError: A later version of ciuic wrote some of the store.
        CancelledError: ``cancelled`` turned true.
    """
    prepare_for_bulk()
    check = cancel_check(cancelled, "prune was stopped; nothing was removed")
    refuse_lost_manifests(store, given_up)
    _refuse_unreachable_packs(store)
    expiry = _find_expired(_read_trash(store), leaving, trash_s, now_ns)
    marks = mark_needed(store, expiry.expired, check, progress)
    packs = store.pack_files()
    usage = _measure(store, packs, marks, check, progress)
    packs = {
        pack_id: size for pack_id, size in packs.items() if pack_id not in store.index.shut_packs
    }
    damaged = _known_damage(store, usage)
    choice = _choose_packs(store, usage, damaged)
    return _assemble(
        store,
        expiry=expiry,
        packs=packs,
        marks=marks,
        usage=usage,
        damaged=damaged,
        choice=choice,
    )


def refuse_lost_manifests(store: Store, given_up: Collection[SnapshotId] = ()) -> None:
    """Refuse to remove anything without a manifest: it may be put back, and needs unknown packs.

    Args:
        store: An open store.
        given_up: Lost snapshots that count as given up.

    Raises:
        CorruptionError: A manifest is lost, or a record of retired IDs is damaged.
    """
    store.trash.retired.check()  # without this list, what was purged seems to be lost
    lost = [snapshot_id for snapshot_id in lost_snapshots(store) if snapshot_id not in given_up]
    if lost:
        error = lost_manifest(store, lost[0])
        raise CorruptionError(f"{error.message}, so nothing was removed", hint=error.hint)


def _refuse_unreachable_packs(store: Store) -> None:
    for error in store.unreachable_packs().values():
        raise _unreadable(error, "a pack")


def _read_trash(store: Store) -> dict[SnapshotId, int]:
    """Return when each snapshot in the trash was forgotten, in nanoseconds since 1970."""
    try:
        return {found.id: found.forgotten_ns for found in store.trash.read()}
    except (CorruptionError, UnknownFormatError) as error:
        raise _unreadable(error, "the trash") from error


def _find_expired(
    trash: dict[SnapshotId, int], leaving: Collection[SnapshotId], trash_s: float, now_ns: int
) -> _Expiry:
    # A trash time of 0 removes all: the clock may have been wrong when they were forgotten.
    expired = {
        snapshot_id
        for snapshot_id, forgotten_ns in trash.items()
        if not trash_s or now_ns - forgotten_ns >= trash_s * _NS
    }
    in_trash = len(trash) - len(expired) + (len(leaving) if trash_s else 0)
    expired.update(() if trash_s else leaving)
    return _Expiry(frozenset(expired), in_trash)


def mark_needed(
    store: Store,
    expired: frozenset[SnapshotId],
    check: Callable[[], None],
    progress: OnProgress,
) -> Marks:
    """Mark every chunk that a snapshot needs, except chunks needed only as delta bases.

    Args:
        store: Open for writing.
        expired: Snapshots that need nothing, in addition to those that are purged.
        check: Called often; raises to end the work.
        progress: Receives the stage, the trees that are marked and their total.

    Raises:
        CorruptionError: A manifest or a tree cannot be read.
        UnknownFormatError: A later version of ciuic wrote it.
    """
    marks = Marks(store.index)
    trees = list(_needed_trees(store, expired))
    for number, (snapshot, root) in enumerate(trees):
        progress("mark", number, len(trees))
        try:
            mark_tree(store.reader, marks, root, check=check)
        except (CorruptionError, UnknownFormatError) as error:
            raise _unreadable(error, f"the trees of {snapshot}") from error
    return marks


def _needed_trees(
    store: Store, expired: frozenset[SnapshotId]
) -> Iterator[tuple[SnapshotId, ChunkId]]:
    """ID and root trees of every listed snapshot and every one in the trash, oldest first."""
    found = []
    going = expired | store.trash.purged()
    for snapshot_id in store.manifests.files():
        if snapshot_id in going:
            continue
        try:
            found.append(_trees_of(store.manifest(snapshot_id)))
        except (CorruptionError, UnknownFormatError) as error:
            raise _unreadable(error, f"snapshot {snapshot_id}") from error
    for _, snapshot_id, trees in sorted(found):
        for tree in trees:
            yield snapshot_id, tree


def _trees_of(manifest: Manifest) -> _Trees:
    trees = [root.tree for root in manifest.roots if root.tree]
    return _Trees(manifest.summary.taken_ns, manifest.summary.id, trees)


def _measure(
    store: Store,
    packs: dict[PackId, int],
    marks: Marks,
    check: Callable[[], None],
    progress: OnProgress,
) -> Usage:
    """Read the footers of all packs. Also marks the delta bases of needed chunks."""

    def counted(done: int) -> None:
        check()
        progress("footers", done, len(packs))

    try:
        return measure_usage(
            store.packs,
            store.reader,
            packs,
            marks,
            check=counted,
            shut_packs=store.index.shut_packs,
        )
    except UnreachableError as error:
        raise _unreadable(error, "a pack") from error


def _known_damage(store: Store, usage: Usage) -> dict[PackId, str]:
    """Packs that a check found damaged, or whose footer is damaged, and the reason."""
    checks = store.index.checks()
    damaged = {pack_id: check.what for pack_id, check in checks.items() if check.what}
    damaged.update(dict.fromkeys(usage.unreadable, "its footer is damaged"))
    return damaged


def _choose_packs(store: Store, usage: Usage, damaged: dict[PackId, str]) -> _Choice:
    unneeded = tuple([use for use in usage.uses if not use.needed_chunks])
    fragmented = [
        use
        for use in usage.uses
        if use.needed_chunks and use.dead_fraction > DEAD_FRACTION and use.pack_id not in damaged
    ]
    fragmented.sort(key=lambda use: (-use.dead_fraction, use.pack_id))
    taken = {use.pack_id for use in (*unneeded, *fragmented)}.union(damaged)
    merged = choose_merges(
        [use for use in usage.uses if use.pack_id not in taken],
        writes_anyway=bool(fragmented),
        bytes_max=merge_bytes_max(free_bytes(store)),
    )
    return _Choice(unneeded, tuple(fragmented), merged)


def free_bytes(store: Store) -> int:
    """Return the free space for new packs; a bucket has no limit that it tells."""
    return free_space(store.path).available_bytes if store.bucket is None else sys.maxsize


def _assemble(
    store: Store,
    *,
    expiry: _Expiry,
    packs: dict[PackId, int],
    marks: Marks,
    usage: Usage,
    damaged: dict[PackId, str],
    choice: _Choice,
) -> PrunePlan:
    rewritten = (*choice.fragmented, *choice.merged)
    going = {use.pack_id for use in (*choice.unneeded, *rewritten)}
    kept = {pack_id: size for pack_id, size in packs.items() if pack_id not in going}
    return PrunePlan(
        expired=tuple(sorted(expiry.expired)),
        in_trash=expiry.in_trash,
        removed=choice.unneeded,
        rewritten=rewritten,
        merged=PruneCounts(len(choice.merged), sum([use.size_bytes for use in choice.merged])),
        kept=PruneCounts(len(kept), sum(kept.values())),
        orphans=orphaned_parity(store.path, packs),
        damaged={pack_id: damaged[pack_id] for pack_id in kept if pack_id in damaged},
        needed_chunks=sum([use.needed_chunks for use in usage.uses]),
        dead_chunks=sum([use.dead_chunks for use in usage.uses]),
        marks=marks,
        usage=usage,
    )


def _unreadable(
    error: CorruptionError | UnknownFormatError, what: str
) -> CorruptionError | UnknownFormatError:
    message = f"{what} cannot be read, so nothing was removed: {error.message}"
    if isinstance(error, UnknownFormatError):
        return UnknownFormatError(message)
    if isinstance(error, UnreachableError):
        return UnreachableError(message, hint=error.hint)
    return CorruptionError(
        message,
        hint="Run 'ciuic repair --apply', or 'ciuic repair --apply --from COPY' if a copy of the"
        " store has the snapshot. If neither repairs it, abandon the snapshot with"
        " 'ciuic forget ID'. Nothing is removed until then.",
    )
