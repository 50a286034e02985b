"""Find out what is damaged in a store, and where its bytes still are.

Every pack is read in full. What is damaged in it is looked for in its parity, in other packs, in
hot copies and in the live files. Looking changes nothing; ``mend.py`` does what is to be done.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ciuic.catalog import list_snapshots, lost_manifest, lost_snapshots
from ciuic.errors import (
    CancelledError,
    CorruptionError,
    SnapshotNotFoundError,
    StoreError,
    UnknownFormatError,
    UnreachableError,
)
from ciuic.hashing import checksum
from ciuic.memory import prepare_for_bulk
from ciuic.model import Entry, SnapshotSummary, Trouble
from ciuic.store import Store, layout
from ciuic.store.faults import store_faults
from ciuic.store.files import open_regular, read_regular
from ciuic.store.frame import DATA
from ciuic.store.inspect import PackCheck, healed_frames, inspect_pack, pack_frames
from ciuic.store.leftovers import unreachable_leftovers
from ciuic.store.manifest import MANIFEST_BYTES_MAX
from ciuic.store.mending import opened_mender
from ciuic.store.nodes import iter_tree
from ciuic.store.pack import MAGIC, PackedFrame, footer_frames
from ciuic.store.parity import inspect_parity
from ciuic.store.survey import Survey
from ciuic.store.trash import Trash
from ciuic.verbs.sources import Origin, find_in_file

__all__ = [
    "OTHER_PACK",
    "PARITY",
    "BadManifest",
    "BadPack",
    "OnProgress",
    "Remaining",
    "RepairPlan",
    "RepairReport",
    "chunk_counts",
    "is_sound",
    "is_whole",
    "plan_repair",
]

PARITY: Final = "parity"
OTHER_PACK: Final = "another pack"
_NAMED_MAX: Final = 1000
"""Damaged paths of a snapshot that are kept by name; the others are counted."""

OnProgress = Callable[[str, int, int], None]
"""Told what is being done, how many steps of it are done, and of how many."""


class BadPack(NamedTuple):
    """A damaged pack, and what can be done.

    Attributes:
        pack: Its ID.
        what: What is wrong with it.
        whole: Its parity gives it back as it was, to the bit.
        healed: Chunks in damaged places that can be had all the same: kind and source of each.
        lost: Chunks in damaged places that are in no pack and in no parity, and their kind.
    """

    pack: bytes
    what: str
    whole: bool
    healed: dict[bytes, tuple[int, str]]
    lost: dict[bytes, int]


class BadManifest(NamedTuple):
    """A manifest that is damaged or gone, and whether its copy can take its place.

    Attributes:
        id: The snapshot's.
        what: What is wrong.
        has_copy: It can.
        in_trash: The snapshot is forgotten, and lies in the trash.
        is_gone: There is no file that could be set aside.
        hint: What a person can do where a repair can't.
    """

    id: str
    what: str
    has_copy: bool
    in_trash: bool = False
    is_gone: bool = False
    hint: str = ""

    @property
    def has_remedy(self) -> bool:
        """A repair does something about it."""
        return self.has_copy or not self.is_gone


class Remaining(NamedTuple):
    """A snapshot that can't be had as a whole, even after the repair.

    Attributes:
        id: The snapshot's.
        damaged: Paths that can't be had, the first of them.
        damaged_count: How many there are.
        files_left: Regular files that can be had.
        files: How many the snapshot has in all.
    """

    id: str
    damaged: tuple[Trouble, ...]
    damaged_count: int
    files_left: int
    files: int

    def as_json(self) -> dict[str, Any]:
        """The form that commands print."""
        return {
            "id": self.id,
            "files": self.files,
            "files_left": self.files_left,
            "damaged_count": self.damaged_count,
            "damaged": [one.as_json() for one in self.damaged],
        }


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """What was found, and what a repair does about it.

    Attributes:
        packs: Damaged packs.
        origins: Chunks that no pack has, and the file that still has their bytes.
        lost: Chunks that snapshots need and nobody has.
        manifests: Damaged or lost ones. One without a copy is set aside, and missed from then on.
        retired: What is wrong with the list of retired IDs, which is set aside; empty: nothing.
        bare: Packs without sound parity.
        uncopied: Snapshots whose manifest has no copy, or an old one.
        stale_catalog: The catalog does not say what the packs do.
        remaining: Snapshots that stay damaged.
        unreachable: Packs, their parity, manifests and left-overs that their file system can't give
            out, so that nothing can take their place; by where they are, and why.
        read_bytes: Read from packs.
        pack_count: How many packs there are.
    """

    packs: tuple[BadPack, ...]
    origins: dict[bytes, Origin]
    lost: frozenset[bytes]
    manifests: tuple[BadManifest, ...]
    retired: str
    bare: tuple[bytes, ...]
    uncopied: tuple[str, ...]
    stale_catalog: bool
    remaining: tuple[Remaining, ...]
    unreachable: dict[str, str]
    read_bytes: int
    pack_count: int

    @property
    def is_damaged(self) -> bool:
        """Something was found that is not what was written."""
        found = self.packs or self.manifests or self.retired or self.unreachable
        return bool(found or self.origins or self.remaining)

    @property
    def is_hopeless(self) -> bool:
        """Something stays damaged, whatever is done."""
        is_lost = any(not one.has_copy for one in self.manifests)
        return bool(self.remaining or self.unreachable) or is_lost

    @property
    def has_work(self) -> bool:
        """A repair would change something."""
        return bool(
            self.packs
            or any(one.has_remedy for one in self.manifests)
            or self.retired
            or self.origins
            or self.bare
            or self.uncopied
            or self.stale_catalog
        )


@dataclass(frozen=True, slots=True)
class RepairReport:
    """The outcome of a repair, or what it would be.

    Attributes:
        plan: What was found.
        applied: It was done.
        quarantined: Names in ``quarantine/`` of what was set aside.
        total_s: How long it took.
    """

    plan: RepairPlan
    applied: bool
    quarantined: tuple[str, ...]
    total_s: float

    @property
    def ok(self) -> bool:
        """Nothing is damaged, or nothing is any more."""
        return not (self.plan.is_hopeless if self.applied else self.plan.is_damaged)

    def as_json(self) -> dict[str, Any]:
        """The document of ``ciuic repair --json``."""
        plan = self.plan
        return {
            "ok": self.ok,
            "applied": self.applied,
            "read_bytes": plan.read_bytes,
            "packs_read": plan.pack_count,
            "packs": [
                {
                    "pack": one.pack.hex(),
                    "what": one.what,
                    "whole": one.whole,
                    "chunks": chunk_counts(one, plan),
                }
                for one in plan.packs
            ],
            "found_chunks": len(plan.origins),
            "lost_chunks": len(plan.lost),
            "manifests": [
                {
                    "id": one.id,
                    "what": one.what,
                    "has_copy": one.has_copy,
                    "in_trash": one.in_trash,
                    "is_gone": one.is_gone,
                }
                for one in plan.manifests
            ],
            "retired": plan.retired,
            "unreachable": [
                {"path": path, "what": what} for path, what in sorted(plan.unreachable.items())
            ],
            "parity_missing": len(plan.bare),
            "copies_missing": len(plan.uncopied),
            "stale_catalog": plan.stale_catalog,
            "snapshots": [one.as_json() for one in plan.remaining],
            "quarantined": list(self.quarantined),
            "total_s": round(self.total_s, 6),
        }


def chunk_counts(bad: BadPack, plan: RepairPlan) -> dict[str, int]:
    """Where the chunks of a damaged pack's damaged places come from, and how many from each."""
    counts: dict[str, int] = {}
    for _, how in bad.healed.values():
        counts[how] = counts.get(how, 0) + 1
    for name in bad.lost:
        how = plan.origins[name].how if name in plan.origins else "lost"
        counts[how] = counts.get(how, 0) + 1
    return counts


def plan_repair(
    store: Store,
    *,
    parity: float,
    cancelled: Callable[[], bool] = lambda: False,
    progress: OnProgress | None = None,
) -> RepairPlan:
    """Read every pack, and find out what is damaged and what can be done. Changes nothing.

    Args:
        store: An open store.
        parity: The share of a pack that its parity is to take; 0: packs may be without.
        cancelled: Asked now and then; ends the work when it turns true.
        progress: Told how far it is.

    Raises:
        StoreError: The store can't be read for a reason that is not damage.
        CancelledError: ``cancelled`` turned true.
    """
    prepare_for_bulk()
    sizes = store.pack_files()
    unreachable = _Unreachable()
    for pack, error in store.unreachable_packs().items():
        unreachable.note_pack(pack, error)
    for place, error in unreachable_leftovers(store.path).items():
        unreachable.found[place] = error.message
    packs, bare, read_bytes = [], [], 0
    for number, pack in enumerate(sorted(sizes)):
        if cancelled():
            raise CancelledError("the repair was stopped")
        try:
            check = inspect_pack(store.path, pack, cancelled=cancelled)
        except UnreachableError as error:
            unreachable.note_pack(pack, error)
            del sizes[pack]
            continue
        read_bytes += check.read_bytes
        if check.what:
            packs.append(_diagnosed(store, check))
        elif parity and _lacks_parity(store, pack, unreachable):
            bare.append(pack)
        if progress is not None:
            progress("packs", number + 1, len(sizes))
    unreadable = {name for one in packs for name in one.lost}
    for pack in unreachable.packs:
        told = _told_by_catalog(store, pack)
        unreadable |= {name for name, kind in told.items() if not _source(store, name, kind)}
    search = _Search(store, unreadable, cancelled)
    remaining = search.run(progress)
    trash = Trash(store.path)
    retired = _retired_damage(trash)
    manifests, uncopied = _manifests(store, unreachable)
    # Without the list nobody knows whether a snapshot is lost or was forgotten for good.
    lost_manifests = [] if retired else _lost_manifests(store)
    return RepairPlan(
        packs=tuple(packs),
        origins=search.origins,
        lost=frozenset(search.lost),
        manifests=(*manifests, *lost_manifests, *_trash_damage(store, trash, unreachable)),
        retired=retired,
        bare=tuple(bare),
        uncopied=uncopied if parity else (),
        stale_catalog=_is_stale(store, sizes),
        remaining=remaining,
        unreachable=unreachable.found,
        read_bytes=read_bytes,
        pack_count=len(sizes),
    )


def _diagnosed(store: Store, check: PackCheck) -> BadPack:
    path = os.path.join(store.path, layout.PACKS, layout.pack_name(check.pack))
    whole = False
    with contextlib.suppress(CorruptionError), store_faults("read", path):
        fd = open_regular(path)
        try:
            with opened_mender(store.path, check.pack, fd) as mender:
                whole = is_whole(mender.read, mender.size_bytes, check.pack)
        finally:
            os.close(fd)
    healed: dict[bytes, tuple[int, str]] = {}
    lost: dict[bytes, int] = {}
    for name, kind in ({} if whole else _damaged_chunks(store, check)).items():
        how = _source(store, name, kind)
        if how:
            healed[name] = (kind, how)
        else:
            lost[name] = kind
    return BadPack(check.pack, check.what, whole, healed, lost)


def _damaged_chunks(store: Store, check: PackCheck) -> dict[bytes, int]:
    """What lay in damaged places, by all that tells of it: the pack, its parity, the catalog."""
    named = {name: bad.kind for bad in check.bad for name in bad.chunks}
    if not check.footer_ok:
        named |= _told_by_parity(store, check.pack)
    named |= _told_by_catalog(store, check.pack)
    damaged = {bad.offset_bytes for bad in check.bad}
    with contextlib.suppress(CorruptionError, UnknownFormatError):
        for one in pack_frames(store.path, check.pack):
            if one.offset_bytes not in damaged:
                for name, _ in one.frame.chunks:
                    named.pop(name, None)
    return named


def _told_by_catalog(store: Store, pack: bytes) -> dict[bytes, int]:
    with contextlib.suppress(StoreError):
        index = store.existing_index
        if index is not None:
            return index.chunks_in(pack)
    return {}


def _told_by_parity(store: Store, pack: bytes) -> dict[bytes, int]:
    """What the footer lists, as parity gives it back: the catalog may have been made without."""
    path = os.path.join(store.path, layout.PACKS, layout.pack_name(pack))
    with contextlib.suppress(CorruptionError, UnknownFormatError), store_faults("read", path):
        fd = open_regular(path)
        try:
            frames = healed_frames(store.path, pack, fd)
        finally:
            os.close(fd)
        return {name: one.frame.kind for one in frames for name, _ in one.frame.chunks}
    return {}


def _source(store: Store, name: bytes, kind: int) -> str:
    """From where in the store a chunk in a damaged place can be had; empty: from nowhere."""
    for heal, how in ((False, OTHER_PACK), (True, PARITY)):
        with contextlib.suppress(CorruptionError, UnknownFormatError):
            store.reader.chunk(name, kind=kind, heal=heal)
            return how
    return ""


def is_whole(read: Callable[[int, int], bytes], size_bytes: int, pack: bytes) -> bool:
    """What ``read`` (length, offset) gives is the pack, to the last bit.

    The ID binds the footer, and the footer's checksums bind the frames.
    """
    try:
        frames = footer_frames(read, size_bytes, pack)
        return read(len(MAGIC), 0) == MAGIC and all(is_sound(read, one) for one in frames)
    except (CorruptionError, UnknownFormatError):
        return False


def is_sound(read: Callable[[int, int], bytes], one: PackedFrame) -> bool:
    """What ``read`` (length, offset) gives has this frame, to the last bit.

    Raises:
        CorruptionError: It can't be read.
    """
    data = memoryview(read(one.frame.total_bytes, one.offset_bytes))
    payload = data[len(one.header) :]
    return (
        data[: len(one.header)] == one.header
        and len(payload) == one.frame.stored_bytes
        and checksum(payload) == one.frame.payload_checksum
    )


class _Search:
    """Goes through all snapshots for what can't be had, and looks for it outside of the store.

    Attributes:
        origins: Chunks that a hot copy or a live file still has.
        lost: Chunks that nobody has.
    """

    def __init__(self, store: Store, unreadable: set[bytes], cancelled: Callable[[], bool]) -> None:
        self._store = store
        self._unreadable = unreadable
        self._cancelled = cancelled
        self._readable: set[bytes] = set()
        self.origins: dict[bytes, Origin] = {}
        self.lost: set[bytes] = set()

    def run(self, progress: OnProgress | None) -> tuple[Remaining, ...]:
        """Look for everything; returns the snapshots that stay damaged."""
        snapshots = list_snapshots(self._store)
        survey = Survey(self._store, self._unreadable)
        damaged = []
        for number, snapshot in enumerate(snapshots):
            if self._cancelled():
                raise CancelledError("the repair was stopped")
            if self._look_through(survey, snapshot.id):
                damaged.append(snapshot)
            if progress is not None:
                progress("snapshots", number + 1, len(snapshots))
        # Only now it is known what the files of all snapshots give back.
        found = [self._remaining(survey, one) for one in damaged]
        return tuple([one for one in found if one.damaged_count])

    def _look_through(self, survey: Survey, snapshot_id: str) -> bool:
        """Look for what a snapshot lacks; returns whether it lacks anything."""
        is_damaged = False
        with contextlib.suppress(SnapshotNotFoundError):
            for spoiled in survey.damage(snapshot_id):
                is_damaged = True
                missing = {name for name in spoiled.chunks if not self._can_be_had(name)}
                if missing:
                    self._look_in_file(snapshot_id, spoiled.path, missing)
        return is_damaged

    def _look_in_file(self, snapshot_id: str, path: bytes, missing: set[bytes]) -> None:
        manifest = self._store.manifest(snapshot_id)
        for origin in find_in_file(self._store, manifest, path, missing):
            self.origins[origin.chunk] = origin
        self.lost |= missing
        self.lost.difference_update(self.origins)

    def _can_be_had(self, name: bytes) -> bool:
        if name in self.origins or name in self._readable:
            return True
        if name in self._unreadable:
            return False
        # It is looked up whether a pack is long enough, and parity may give back what is not.
        with contextlib.suppress(CorruptionError, UnknownFormatError):
            self._store.reader.chunk(name, kind=DATA)
            self._readable.add(name)
            return True
        self._unreadable.add(name)
        return False

    def _remaining(self, survey: Survey, snapshot: SnapshotSummary) -> Remaining:
        named: list[Trouble] = []
        count, lost_files, has_lost_trees = 0, 0, False
        with contextlib.suppress(SnapshotNotFoundError):
            for spoiled in survey.damage(snapshot.id):
                if spoiled.chunks and all(self._can_be_had(name) for name in spoiled.chunks):
                    continue
                count += 1
                lost_files += not spoiled.is_directory
                has_lost_trees |= spoiled.is_directory
                if len(named) < _NAMED_MAX:
                    named.append(Trouble(spoiled.path, spoiled.what))
        there = snapshot.files
        if has_lost_trees:
            there = sum(1 for _ in self._files(snapshot.id))
        left = there - lost_files
        return Remaining(snapshot.id, tuple(named), count, max(0, left), snapshot.files)

    def _files(self, snapshot_id: str) -> Iterator[Entry]:
        """The regular files of a snapshot that can still be found."""
        waiting = [(root.tree, 0) for root in self._store.manifest(snapshot_id).roots if root.tree]
        while waiting:
            tree, level = waiting.pop()
            with contextlib.suppress(CorruptionError, UnknownFormatError):
                for entry in iter_tree(self._store.reader.node, tree, level):
                    if entry.is_file:
                        yield entry
                    elif entry.is_directory and entry.content:
                        waiting.append((entry.content, entry.level))


class _Unreachable:
    """Collects what the file system can't give out, by its place in the store."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self.packs: list[bytes] = []

    def note_pack(self, pack: bytes, error: UnreachableError) -> None:
        self.packs.append(pack)
        self.found[f"{layout.PACKS}/{layout.pack_name(pack)}"] = error.message

    def note_manifest(self, place: str, snapshot_id: str, error: UnreachableError) -> None:
        self.found[f"{place}/{layout.manifest_name(snapshot_id)}"] = error.message


def _lacks_parity(store: Store, pack: bytes, unreachable: _Unreachable) -> bool:
    try:
        return bool(inspect_parity(store.path, pack))
    except UnreachableError as error:
        unreachable.found[f"{layout.PARITY}/{layout.pack_name(pack)}"] = error.message
        return False


def _manifests(
    store: Store, unreachable: _Unreachable
) -> tuple[list[BadManifest], tuple[str, ...]]:
    """Manifests that are damaged, and snapshots without a copy of theirs."""
    bad, uncopied = [], []
    listed = store.snapshot_files()
    for name in sorted(listed):
        copy = store.manifest_copy(name)
        try:
            store.manifest(name, copy=False)
        except UnreachableError as error:
            unreachable.note_manifest(layout.SNAPSHOTS, name, error)
        except CorruptionError as error:
            bad.append(BadManifest(name, error.message, copy is not None))
        except (UnknownFormatError, SnapshotNotFoundError):
            continue
        else:
            if copy != _manifest_file(store, name):
                uncopied.append(name)
    return bad, tuple(uncopied)


def _lost_manifests(store: Store) -> list[BadManifest]:
    """Snapshots that nobody has forgotten, and whose manifest is at best there as a copy."""
    found = []
    for name in lost_snapshots(store):
        error = lost_manifest(store, name)
        has_copy = store.manifest_copy(name) is not None
        found.append(BadManifest(name, error.message, has_copy, is_gone=True, hint=error.hint))
    return found


def _trash_damage(store: Store, trash: Trash, unreachable: _Unreachable) -> Iterator[BadManifest]:
    for name in trash.ids():
        try:
            trash.read(name, None)
        except UnreachableError as error:
            unreachable.note_manifest(layout.TRASH, name, error)
        except CorruptionError as error:
            has_copy = store.manifest_copy(name) is not None
            yield BadManifest(name, error.message, has_copy, in_trash=True)
        except UnknownFormatError:
            continue


def _retired_damage(trash: Trash) -> str:
    try:
        trash.check_retired()
    except CorruptionError as error:
        return error.message
    except UnknownFormatError:
        pass
    return ""


def _manifest_file(store: Store, name: str) -> bytes:
    path = os.path.join(store.path, layout.SNAPSHOTS, layout.manifest_name(name))
    with store_faults("read", path):
        return read_regular(path, MANIFEST_BYTES_MAX)


def _is_stale(store: Store, sizes: dict[bytes, int]) -> bool:
    try:
        index = store.existing_index
        return (index.packs() if index is not None else {}) != sizes
    except StoreError:
        return True
