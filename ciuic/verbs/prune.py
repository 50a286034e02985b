"""Give back the room of what no snapshot needs any more.

expire     forgotten snapshots whose time in the trash is over go for good
mark       every chunk that a snapshot needs, or one in the trash
census     what each pack holds of that
remove     packs that hold nothing of it
rewrite    packs that hold little of it: the rest moves to new packs

Nothing is guessed: a manifest or a tree that can't be read, or a manifest that is gone though
nobody forgot the snapshot, ends the run before anything is removed. Whatever ends it, at any
moment, leaves a store in which every snapshot is whole, and the next run takes up what is left
to do.
"""

import functools
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ciuic.catalog import lost_manifest, lost_snapshots
from ciuic.clock import Clock
from ciuic.errors import (
    CancelledError,
    CiuicError,
    CorruptionError,
    StoreFullError,
    UnknownFormatError,
    UnreachableError,
)
from ciuic.memory import prepare_for_bulk
from ciuic.store import Store
from ciuic.store.manifest import Manifest
from ciuic.store.mark import Marks, mark_tree
from ciuic.store.parity import PARITY_DEFAULT
from ciuic.store.removal import Removals, orphaned_parity, remove_parity
from ciuic.store.rewrite import Rewriter, forget_packs, point_at_keepers
from ciuic.store.sweep import DEAD_FRACTION, Census, PackUse, take_census

__all__ = ["PruneCounts", "PrunePlan", "PruneReport", "apply_prune", "foresee_prune", "plan_prune"]

_NS: Final = 1_000_000_000

OnProgress = Callable[[str, int, int], None]
"""Told what is being done, how many steps of it are done, and of how many."""


@dataclass(frozen=True, slots=True)
class PruneCounts:
    """So many packs, and their bytes together."""

    packs: int = 0
    size_bytes: int = 0

    def as_json(self) -> dict[str, int]:
        """The form that commands print."""
        return {"packs": self.packs, "bytes": self.size_bytes}


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """What a prune is going to do.

    Attributes:
        expired: Snapshots in the trash whose time is over.
        in_trash: How many others can still be brought back.
        removed: Packs that nobody needs.
        rewritten: Packs that are worn, those with the most garbage first.
        kept: The other packs.
        orphans: Parity of packs that are gone, and its bytes.
        damaged: Of those, packs that are known to be damaged, and what is wrong with them.
        needed_chunks: Chunks that snapshots need.
        dead_chunks: Chunks in packs that nobody needs, further copies of needed ones included.
        marks: What is needed.
        census: Of all packs.
    """

    expired: tuple[str, ...]
    in_trash: int
    removed: tuple[PackUse, ...]
    rewritten: tuple[PackUse, ...]
    kept: PruneCounts
    orphans: dict[bytes, int]
    damaged: dict[bytes, str]
    needed_chunks: int
    dead_chunks: int
    marks: Marks = field(repr=False)
    census: Census = field(repr=False)


@dataclass(frozen=True, slots=True)
class PruneReport:
    """What a prune did, or with ``dry_run`` would do.

    Attributes:
        expired: Snapshots that were in the trash and can't be brought back any more.
        in_trash: How many others can be.
        removed: Packs that held nothing needed.
        rewritten: Packs that went after what was needed of them had moved.
        written: New packs that took it.
        kept: Packs that stay as they are.
        orphans: Parity of packs that were gone already.
        damaged: Packs that stay because they are damaged.
    """

    dry_run: bool
    expired: tuple[str, ...]
    in_trash: int
    removed: PruneCounts
    rewritten: PruneCounts
    written: PruneCounts
    kept: PruneCounts
    orphans: PruneCounts
    damaged: tuple[bytes, ...]
    needed_chunks: int
    dead_chunks: int
    total_s: float

    @property
    def freed_bytes(self) -> int:
        """By how much the packs are smaller together."""
        old = self.removed.size_bytes + self.rewritten.size_bytes
        return old - self.written.size_bytes

    def as_json(self) -> dict[str, Any]:
        """The document of ``ciuic prune --json``."""
        return {
            "dry_run": self.dry_run,
            "expired": list(self.expired),
            "in_trash": self.in_trash,
            "freed_bytes": self.freed_bytes,
            "removed": self.removed.as_json(),
            "rewritten": self.rewritten.as_json(),
            "written": self.written.as_json(),
            "kept": self.kept.as_json(),
            "orphans": self.orphans.as_json(),
            "damaged": [one.hex() for one in self.damaged],
            "needed_chunks": self.needed_chunks,
            "dead_chunks": self.dead_chunks,
            "total_s": round(self.total_s, 6),
        }


class _Roots(NamedTuple):
    """What is kept of ten thousand manifests."""

    taken_ns: int
    id: str
    trees: list[bytes]


def plan_prune(
    store: Store,
    *,
    trash_s: float,
    now_ns: int,
    leaving: Collection[str] = (),
    given_up: Collection[str] = (),
    cancelled: Callable[[], bool] = lambda: False,
    progress: OnProgress = lambda _what, _done, _total: None,
) -> PrunePlan:
    """Find out what is not needed. Changes nothing.

    Args:
        store: Open for writing, so that nobody adds to it meanwhile.
        trash_s: How long a forgotten snapshot stays in the trash.
        now_ns: The time.
        leaving: Listed snapshots that are to be foreseen as if they were forgotten now.
        given_up: Lost ones that are to be foreseen as if they were given up now.
        cancelled: Asked now and then.
        progress: Told how far it has come.

    Raises:
        CorruptionError: A manifest or a tree can't be read, a manifest is lost, or the file system
            can't give out a pack.
        UnknownFormatError: A later version of ciuic wrote some of the store.
        CancelledError: ``cancelled`` turned true.
    """
    prepare_for_bulk()
    check = _checker(cancelled, "nothing was removed")
    _refuse_lost(store, given_up)
    for unreachable in store.unreachable_packs().values():
        raise _unreadable(unreachable, "a pack")
    forgotten = _trash(store)
    # Without a trash the time says nothing: it may have been another one when they were forgotten.
    expired = {
        roots.id
        for roots, forgotten_ns in forgotten
        if not trash_s or now_ns - forgotten_ns >= trash_s * _NS
    }
    in_trash = len(forgotten) - len(expired) + (len(leaving) if trash_s else 0)
    expired.update(() if trash_s else leaving)
    marks = Marks(store.index)
    trees = list(_trees(store, expired, [roots for roots, _ in forgotten]))
    for number, (snapshot, root) in enumerate(trees):
        progress("mark", number, len(trees))
        try:
            mark_tree(store.reader, marks, root, check=check)
        except (CorruptionError, UnknownFormatError) as error:
            raise _unreadable(error, f"the trees of {snapshot}") from error
    packs = store.pack_files()

    def counted(done: int) -> None:
        check()
        progress("read packs", done, len(packs))

    try:
        census = take_census(store.path, store.reader, packs, marks, check=counted)
    except UnreachableError as error:
        raise _unreadable(error, "a pack") from error
    rotten = {name: what for name, (_, _, what) in store.index.checks().items() if what}
    rotten.update(dict.fromkeys(census.unreadable, "its footer is damaged"))
    removed = tuple([one for one in census.uses if not one.needed_chunks])
    worn = [
        one
        for one in census.uses
        if one.needed_chunks and one.dead_fraction > DEAD_FRACTION and one.pack not in rotten
    ]
    worn.sort(key=lambda one: (-one.dead_fraction, one.pack))
    gone = {one.pack for one in (*removed, *worn)}
    left = {name: size for name, size in packs.items() if name not in gone}
    return PrunePlan(
        expired=tuple(sorted(expired)),
        in_trash=in_trash,
        removed=removed,
        rewritten=tuple(worn),
        kept=PruneCounts(len(left), sum(left.values())),
        orphans=orphaned_parity(store.path, packs),
        damaged={name: rotten[name] for name in left if name in rotten},
        needed_chunks=sum([one.needed_chunks for one in census.uses]),
        dead_chunks=sum([one.dead_chunks for one in census.uses]),
        marks=marks,
        census=census,
    )


def foresee_prune(
    store: Store,
    plan: PrunePlan,
    *,
    clock: Clock,
    cancelled: Callable[[], bool] = lambda: False,
    progress: OnProgress = lambda _what, _done, _total: None,
) -> PruneReport:
    """What ``apply_prune`` would report, to the byte, as long as it finds no new damage.

    Frames that would be encoded again are, and are thrown away: there is no other way to know
    how long they become.
    """
    return _run(store, plan, 0, dry_run=True, clock=clock, cancelled=cancelled, progress=progress)


def apply_prune(
    store: Store,
    plan: PrunePlan,
    *,
    parity: float = PARITY_DEFAULT,
    clock: Clock,
    cancelled: Callable[[], bool] = lambda: False,
    progress: OnProgress = lambda _what, _done, _total: None,
) -> PruneReport:
    """Do what the plan says; the store has been open for writing since it was made.

    Args:
        store: Open for writing.
        plan: What to do.
        parity: The share of each new pack that its parity takes, 0 to 1.
        clock: Measures how long it takes.
        cancelled: Asked now and then.
        progress: Told how far it has come.

    Raises:
        StoreFullError: There is no room to rewrite packs; what needs none is done.
        StoreError: The store failed; every snapshot is as it was.
        CancelledError: ``cancelled`` turned true; what was done stays done.
    """
    return _run(
        store, plan, parity, dry_run=False, clock=clock, cancelled=cancelled, progress=progress
    )


def _run(
    store: Store,
    plan: PrunePlan,
    parity: float,
    *,
    dry_run: bool,
    clock: Clock,
    cancelled: Callable[[], bool],
    progress: OnProgress,
) -> PruneReport:
    began_s = clock.monotonic_s()
    dead = [one.pack for one in plan.removed]
    dead_bytes = sum([one.size_bytes for one in plan.removed])

    def rewriter_of(removals: Removals | None, dead: list[bytes]) -> Rewriter:
        def room_bytes() -> int:
            found = os.statvfs(store.path)
            return found.f_bavail * found.f_frsize + (dead_bytes if dry_run else 0)

        return Rewriter(
            store.path,
            store.index,
            store.reader,
            plan.marks,
            plan.census,
            parity=parity,
            room_bytes=room_bytes,
            removals=removals,
            dead=dead,
        )

    def run(rewriter: Rewriter) -> None:
        rewriter.run(
            plan.rewritten,
            check=_checker(cancelled, "run it again to go on; what was removed by now is removed"),
            done=lambda done: progress("rewrite", done, len(plan.rewritten)),
        )

    if dry_run:
        rewriter = rewriter_of(None, [])
        run(rewriter)
    else:
        if plan.expired or plan.removed or plan.rewritten or plan.orphans:
            store.begin_prune()
        # Before anything is written: the pack that a killed prune left parity of may come again.
        remove_parity(store.path, plan.orphans)
        with Removals(store.path) as removals:
            removals.begin_with(functools.partial(_expire, store, plan))
            rewriter = rewriter_of(removals, dead)
            if not rewriter.has_room:
                removals.wait()
            try:
                point_at_keepers(store.path, store.index, plan.census.keepers)
                run(rewriter)
            except CiuicError as error:
                if not rewriter.dead:
                    raise
                # They need nothing that can't be had, and may leave what the others lack.
                _remove(store, plan.census.keepers, rewriter.dead, removals)
                if not isinstance(error, StoreFullError):
                    removals.finish()
                    raise
                rewriter = rewriter_of(removals, [])
                run(rewriter)
        store.end_prune()
    still = {use.pack: use.size_bytes for use in plan.rewritten if use.pack in rewriter.damaged}
    return PruneReport(
        dry_run=dry_run,
        expired=plan.expired,
        in_trash=plan.in_trash,
        removed=PruneCounts(len(dead), dead_bytes),
        rewritten=PruneCounts(*rewriter.removed),
        written=PruneCounts(*rewriter.written),
        kept=PruneCounts(plan.kept.packs + len(still), plan.kept.size_bytes + sum(still.values())),
        orphans=PruneCounts(len(plan.orphans), sum(plan.orphans.values())),
        damaged=tuple(sorted({*plan.damaged, *still})),
        needed_chunks=plan.needed_chunks,
        dead_chunks=plan.dead_chunks,
        total_s=clock.monotonic_s() - began_s,
    )


def _expire(store: Store, plan: PrunePlan) -> None:
    """What has expired can be brought back no more, durably: now packs may go.

    Until then the catalog is told of these, and new ones are written. That harms no snapshot in
    the trash, and what the catalog knows too little of, should this be cut short, the next writer
    finds in the packs.
    """
    store.empty_trash(plan.expired)
    for name in store.lone_copies():
        store.drop_copy(name)


def _remove(
    store: Store, keepers: dict[bytes, bytes], dead: list[bytes], removals: Removals
) -> None:
    """Remove packs. On a disk so full that the catalog can't even forget them, it gives way."""
    removals.wait()
    try:
        point_at_keepers(store.path, store.index, keepers)
        forget_packs(store.index, dead)
        removals.add(dead)
    except StoreFullError:
        store.drop_catalog()
        removals.add(dead)
        removals.wait()
        store.renew_catalog()
        point_at_keepers(store.path, store.index, keepers)


def _refuse_lost(store: Store, given_up: Collection[str]) -> None:
    """What a snapshot needs is not known without its manifest, and it may be put back."""
    lost = [name for name in lost_snapshots(store) if name not in given_up]
    if lost:
        store.check_retired()  # without that list those that went for good seem lost
        error = lost_manifest(store, lost[0])
        raise CorruptionError(f"{error.message}, so nothing was removed", hint=error.hint)


def _trash(store: Store) -> list[tuple[_Roots, int]]:
    """What lies in the trash, and since when."""
    try:
        return [(_roots(one.manifest), one.forgotten_ns) for one in store.trash()]
    except (CorruptionError, UnknownFormatError) as error:
        raise _unreadable(error, "the trash") from error


def _trees(store: Store, expired: set[str], trash: list[_Roots]) -> Iterator[tuple[str, bytes]]:
    """ID and root trees of every snapshot that is kept or can be brought back, oldest first."""
    found = [one for one in trash if one.id not in expired]
    for name in store.snapshot_files():
        if name in expired:
            continue
        try:
            found.append(_roots(store.manifest(name)))
        except (CorruptionError, UnknownFormatError) as error:
            raise _unreadable(error, f"snapshot {name}") from error
    for _, name, trees in sorted(found):
        for tree in trees:
            yield name, tree


def _roots(manifest: Manifest) -> _Roots:
    trees = [root.tree for root in manifest.roots if root.tree]
    return _Roots(manifest.summary.taken_ns, manifest.summary.id, trees)


def _unreadable(
    error: CorruptionError | UnknownFormatError, what: str
) -> CorruptionError | UnknownFormatError:
    message = f"{what} can't be read, so nothing was removed: {error.message}"
    if isinstance(error, UnknownFormatError):
        return UnknownFormatError(message)
    if isinstance(error, UnreachableError):
        return UnreachableError(message)
    return CorruptionError(
        message, hint="'ciuic repair' tells what can be done; nothing is removed until then."
    )


def _checker(cancelled: Callable[[], bool], state: str) -> Callable[[], None]:
    def check() -> None:
        if cancelled():
            raise CancelledError(f"prune was stopped; {state}", hint="")

    return check
