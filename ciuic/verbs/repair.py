"""Mend a store: put back what was damaged from wherever its bytes still are.

look       every pack is read in full; what is damaged is looked for in its parity, in other packs,
           in hot copies, in the live files
mend       packs that parity gives back whole are written again, under their own name
store      chunks that were found elsewhere go to new packs
rewrite    what is sound in a pack that stays damaged goes to a new one
set aside  each damaged file keeps a name in ``quarantine/`` before anything takes its place

Looking changes nothing. Nothing is ever deleted, and each step is durable before the next one
needs it: whatever ends the run, the store is no worse than it was, and the next run goes on.
"""

import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ciuic import durable
from ciuic.catalog import list_snapshots
from ciuic.clock import Clock
from ciuic.errors import (
    CancelledError,
    CorruptionError,
    SnapshotNotFoundError,
    StoreError,
    UnknownFormatError,
)
from ciuic.hashing import checksum
from ciuic.memory import prepare_for_bulk
from ciuic.model import Entry, SnapshotSummary, Trouble
from ciuic.store import Store, layout
from ciuic.store.faults import store_faults
from ciuic.store.files import open_regular, read_at, read_regular
from ciuic.store.frame import DATA
from ciuic.store.header import Header, read_header
from ciuic.store.inspect import PackCheck, inspect_pack, pack_frames
from ciuic.store.lock import Lock
from ciuic.store.manifest import MANIFEST_BYTES_MAX
from ciuic.store.mending import opened_mender
from ciuic.store.nodes import iter_tree
from ciuic.store.pack import MAGIC, PackedFrame, footer_frames
from ciuic.store.packfile import PackFile
from ciuic.store.parity import inspect_parity, make_parity, parity_path, write_parity
from ciuic.store.sealed import unseal
from ciuic.store.survey import Survey
from ciuic.store.trash import Trash
from ciuic.store.writer import publish_pack, sync_packs
from ciuic.verbs.sources import Origin, find_in_file, read_origin

__all__ = [
    "BadManifest",
    "BadPack",
    "Remaining",
    "RepairPlan",
    "RepairReport",
    "apply_repair",
    "chunk_counts",
    "mend_entrance",
    "plan_repair",
]

PARITY: Final = "parity"
OTHER_PACK: Final = "another pack"
_WINDOW_BYTES: Final = 1024 * 1024
_HEADER_BYTES_MAX: Final = 1024 * 1024
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
    """

    id: str
    what: str
    has_copy: bool
    in_trash: bool = False


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
        manifests: Damaged or lost ones. One without a copy is set aside.
        retired: What is wrong with the list of retired IDs, which is set aside; empty: nothing.
        bare: Packs without sound parity.
        uncopied: Snapshots whose manifest has no copy, or an old one.
        stale_catalog: The catalog does not say what the packs do.
        remaining: Snapshots that stay damaged.
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
    read_bytes: int
    pack_count: int

    @property
    def is_damaged(self) -> bool:
        """Something was found that is not what was written."""
        return bool(self.packs or self.manifests or self.retired or self.origins or self.remaining)

    @property
    def is_hopeless(self) -> bool:
        """Something stays damaged, whatever is done."""
        return bool(self.remaining) or any(not one.has_copy for one in self.manifests)

    @property
    def has_work(self) -> bool:
        """A repair would change something."""
        return bool(
            self.packs
            or self.manifests
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
                }
                for one in plan.manifests
            ],
            "retired": plan.retired,
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
    packs, bare, read_bytes = [], [], 0
    for number, pack in enumerate(sorted(sizes)):
        if cancelled():
            raise CancelledError("the repair was stopped")
        check = inspect_pack(store.path, pack, cancelled=cancelled)
        read_bytes += check.read_bytes
        if check.what:
            packs.append(_diagnosed(store, check))
        elif parity and inspect_parity(store.path, pack):
            bare.append(pack)
        if progress is not None:
            progress("packs", number + 1, len(sizes))
    unreadable = {name for one in packs for name in one.lost}
    search = _Search(store, unreadable, cancelled)
    remaining = search.run(progress)
    trash = Trash(store.path)
    retired = _retired_damage(trash)
    manifests, uncopied = _manifests(store)
    # Without the list nobody knows whether a snapshot is lost or was forgotten for good.
    lost_manifests = [] if retired else _lost_manifests(store)
    return RepairPlan(
        packs=tuple(packs),
        origins=search.origins,
        lost=frozenset(search.lost),
        manifests=(*manifests, *lost_manifests, *_trash_damage(store, trash)),
        retired=retired,
        bare=tuple(bare),
        uncopied=uncopied if parity else (),
        stale_catalog=_is_stale(store, sizes),
        remaining=remaining,
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
                whole = _is_whole(mender.read, mender.size_bytes, check.pack)
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
    """What lay in damaged places, by all that tells of it: the pack itself, and the catalog."""
    named = {name: bad.kind for bad in check.bad for name in bad.chunks}
    with contextlib.suppress(StoreError):
        index = store.existing_index
        if index is not None:
            named |= index.chunks_in(check.pack)
    damaged = {bad.offset_bytes for bad in check.bad}
    with contextlib.suppress(CorruptionError, UnknownFormatError):
        for one in pack_frames(store.path, check.pack):
            if one.offset_bytes not in damaged:
                for name, _ in one.frame.chunks:
                    named.pop(name, None)
    return named


def _source(store: Store, name: bytes, kind: int) -> str:
    """From where in the store a chunk in a damaged place can be had; empty: from nowhere."""
    for heal, how in ((False, OTHER_PACK), (True, PARITY)):
        with contextlib.suppress(CorruptionError, UnknownFormatError):
            store.reader.chunk(name, kind=kind, heal=heal)
            return how
    return ""


def _is_whole(read: Callable[[int, int], bytes], size_bytes: int, pack: bytes) -> bool:
    """What ``read`` (length, offset) gives is the pack, to the last bit.

    The ID binds the footer, and the footer's checksums bind the frames.
    """
    try:
        frames = footer_frames(read, size_bytes, pack)
        return read(len(MAGIC), 0) == MAGIC and all(_is_sound(read, one) for one in frames)
    except (CorruptionError, UnknownFormatError):
        return False


def _is_sound(read: Callable[[int, int], bytes], one: PackedFrame) -> bool:
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
        count, has_lost_trees = 0, False
        with contextlib.suppress(SnapshotNotFoundError):
            for spoiled in survey.damage(snapshot.id):
                if spoiled.chunks and all(self._can_be_had(name) for name in spoiled.chunks):
                    continue
                count += 1
                has_lost_trees |= not spoiled.chunks
                if len(named) < _NAMED_MAX:
                    named.append(Trouble(spoiled.path, spoiled.what))
        left = snapshot.files - count
        if has_lost_trees:
            left = sum(1 for _ in self._files(snapshot.id)) - count
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


def _manifests(store: Store) -> tuple[list[BadManifest], tuple[str, ...]]:
    """Manifests that are damaged, and snapshots without a copy of theirs."""
    bad, uncopied = [], []
    listed = store.snapshot_files()
    for name in sorted(listed):
        copy = store.manifest_copy(name)
        try:
            store.manifest(name, copy=False)
        except CorruptionError as error:
            bad.append(BadManifest(name, error.message, copy is not None))
        except (UnknownFormatError, SnapshotNotFoundError):
            continue
        else:
            if copy != _manifest_file(store, name):
                uncopied.append(name)
    return bad, tuple(uncopied)


def _lost_manifests(store: Store) -> list[BadManifest]:
    """Snapshots that nobody has forgotten, and whose manifest is only there as a copy."""
    return [
        BadManifest(name, f"the manifest of {name} is gone", has_copy=True)
        for name, is_retired in sorted(store.lone_copies().items())
        if not is_retired and store.manifest_copy(name) is not None
    ]


def _trash_damage(store: Store, trash: Trash) -> Iterator[BadManifest]:
    for name in trash.ids():
        try:
            trash.read(name, None)
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


def apply_repair(
    store: Store,
    plan: RepairPlan,
    *,
    parity: float,
    clock: Clock,
    cancelled: Callable[[], bool] = lambda: False,
    progress: OnProgress | None = None,
) -> tuple[str, ...]:
    """Do what a plan says, in a store that is open for writing.

    Can be ended at any moment: a new plan finds what is left to do.

    Returns:
        The names in ``quarantine/`` of what was set aside.

    Raises:
        StoreError: The store failed, or is full; what was mended so far stays mended.
        CancelledError: ``cancelled`` turned true.
    """
    hands = _Hands(store, parity, clock)
    whole = [one for one in plan.packs if one.whole]
    broken = [one for one in plan.packs if not one.whole]
    steps: list[Callable[[], None]] = [
        *[functools.partial(hands.mend_manifest, one) for one in plan.manifests],
        *[hands.set_retired_aside for _ in range(bool(plan.retired))],
        *[functools.partial(hands.mend_pack, one.pack) for one in whole],
        functools.partial(hands.store_chunks, broken, plan.origins),
        *[functools.partial(hands.rewrite_pack, one) for one in broken],
        functools.partial(hands.renew_catalog, plan.lost),
        *[functools.partial(hands.add_parity, pack) for pack in plan.bare],
        *[functools.partial(store.keep_copies, name) for name in plan.uncopied],
    ]
    for number, step in enumerate(steps):
        if cancelled():
            raise CancelledError("the repair was stopped")
        step()
        if progress is not None:
            progress("repair", number + 1, len(steps))
    return tuple(hands.quarantined)


class _Hands:
    """Does the steps of a repair, each of them durably."""

    def __init__(self, store: Store, parity: float, clock: Clock) -> None:
        self._store = store
        self._parity = parity
        self._clock = clock
        self._trash = Trash(store.path)
        self._packs = os.path.join(store.path, layout.PACKS)
        self._temporary = os.path.join(store.path, layout.TEMPORARY)
        self.quarantined: list[str] = []

    def mend_manifest(self, bad: BadManifest) -> None:
        """The copy of a manifest takes its place; without one it is only set aside."""
        name = layout.manifest_name(bad.id)
        place = layout.TRASH if bad.in_trash else layout.SNAPSHOTS
        path = os.path.join(self._store.path, place, name)
        self._set_aside(path, f"{layout.TRASH}-{name}" if bad.in_trash else name)
        data = self._store.manifest_copy(bad.id)
        if data is None:
            self._take_away(path)
        elif bad.in_trash:
            forgotten = self._trash.read(bad.id, data)
            self._trash.put(bad.id, data, forgotten.forgotten_ns)
        else:
            with store_faults("write", path):
                durable.write_whole(path, data, temporary_directory=self._temporary, mode=0o600)

    def set_retired_aside(self) -> None:
        """A damaged list of retired IDs gives way to a new one."""
        path = os.path.join(self._store.path, layout.RETIRED)
        self._set_aside(path, layout.RETIRED)
        self._take_away(path)

    def mend_pack(self, pack: bytes) -> None:
        """Write a pack that its parity gives back whole."""
        path = os.path.join(self._packs, layout.pack_name(pack))
        temporary = os.path.join(self._temporary, durable.temporary_name("mended-"))
        with store_faults("write", temporary):
            source = open_regular(path)
            try:
                target = os.open(
                    temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
                )
                try:
                    with opened_mender(self._store.path, pack, source) as mender:
                        size = mender.size_bytes
                        for at in range(0, size, _WINDOW_BYTES):
                            _write_all(target, mender.read(_WINDOW_BYTES, at))
                    read = functools.partial(read_at, target)
                    if not _is_whole(read, size, pack):
                        raise CorruptionError("a mended pack is not what it was")
                    frames = footer_frames(read, size, pack)
                    self._set_aside(path, layout.pack_name(pack))
                    durable.publish(target, temporary, path)
                finally:
                    os.close(target)
                    durable.remove_file(temporary)
            finally:
                os.close(source)
        sync_packs(self._store.path)
        self._record(pack, size, frames)
        if self._parity and inspect_parity(self._store.path, pack):
            self.add_parity(pack)

    def store_chunks(self, broken: list[BadPack], origins: dict[bytes, Origin]) -> None:
        """What was found of damaged and lost chunks goes to new packs."""
        again = {
            name: kind
            for bad in broken
            for name, (kind, how) in bad.healed.items()
            if how == PARITY
        }
        if not again and not origins:
            return
        # Where they are said to lie they are not: they count as new.
        self._store.index.drop_chunks([*again, *origins])
        writer = self._store.writer(parity=self._parity)
        try:
            for name, kind in again.items():
                plain = self._store.reader.chunk(name, kind=kind)
                if kind == DATA:
                    writer.add_data([(name, plain)])
                else:
                    writer.put_node(kind, bytes(plain))
            for origin in origins.values():
                data = read_origin(self._store, origin)
                if data is not None:
                    writer.add_data([(origin.chunk, data)])
            writer.finish()
        except BaseException:
            writer.abort()
            raise

    def rewrite_pack(self, bad: BadPack) -> None:
        """What is sound in a damaged pack goes to a new one; the old one is set aside."""
        path = os.path.join(self._packs, layout.pack_name(bad.pack))
        made = self._write_sound_frames(bad.pack, path)
        if made == bad.pack:
            return  # only what the frames say again was damaged: it stands under its own name
        self._set_aside(path, layout.pack_name(bad.pack))
        sidecar = parity_path(self._store.path, bad.pack)
        self._set_aside(sidecar, f"{layout.pack_name(bad.pack)}.parity")
        self._store.index.remove_pack(bad.pack)
        self._store.index.commit()
        self._take_away(path)
        self._take_away(sidecar)

    def renew_catalog(self, lost: Iterable[bytes]) -> None:
        """The catalog says what the packs do, and which chunks nobody has."""
        index = self._store.index
        index.clear()
        self._store.renew_catalog()
        index.drop_chunks(list(lost))
        index.commit()

    def add_parity(self, pack: bytes) -> None:
        """Give a sound pack the parity that it lacks."""
        path = os.path.join(self._packs, layout.pack_name(pack))
        with store_faults("read", path):
            fd = open_regular(path)
            try:
                maker = make_parity(fd, self._parity)
            finally:
                os.close(fd)
        write_parity(self._store.path, pack, maker)
        sync_packs(self._store.path)

    def _write_sound_frames(self, pack: bytes, path: str) -> bytes | None:
        """Copy the sound frames of a damaged pack to a new one; returns its ID."""
        with store_faults("write to", self._packs):
            fd = open_regular(path)
            made: PackFile | None = None
            try:
                read = functools.partial(read_at, fd)
                for one in pack_frames(self._store.path, pack):
                    with contextlib.suppress(CorruptionError):
                        if _is_sound(read, one):
                            made = made or PackFile(self._temporary, parity=self._parity)
                            at = one.offset_bytes + len(one.header)
                            made.add(one.frame, read(one.frame.stored_bytes, at))
                if made is None:
                    return None
                name = made.complete()
                if name == pack:
                    self._set_aside(path, layout.pack_name(pack))
                publish_pack(self._store.path, made, name)
                sync_packs(self._store.path)
                self._record(name, made.size_bytes, made.frames)
                return name
            except BaseException:
                if made is not None:
                    made.discard()
                raise
            finally:
                os.close(fd)
                if made is not None:
                    made.close()

    def _record(self, pack: bytes, size_bytes: int, frames: Iterable[PackedFrame]) -> None:
        index = self._store.index
        index.add_pack(pack, size_bytes, frames)
        index.put_check(pack, self._clock.now_ns(), size_bytes, "")
        index.commit()

    def _take_away(self, path: str) -> None:
        """Remove a name of what was set aside, durably."""
        with store_faults("take away", path):
            if os.path.lexists(path):
                durable.remove_file(path)
                durable.sync_directory(os.path.dirname(path))

    def _set_aside(self, path: str, name: str) -> None:
        """Give a file a name in ``quarantine/``, before another one takes its place."""
        if not os.path.lexists(path):
            return
        directory = os.path.join(self._store.path, layout.QUARANTINE)
        with store_faults("write to", directory):
            if not os.path.isdir(directory):
                durable.make_directory(directory, 0o700)
            for number in itertools.count():
                candidate = f"{name}.{number}" if number else name
                target = os.path.join(directory, candidate)
                if os.path.lexists(target):
                    # A run that was ended here has done it.
                    if os.path.samestat(os.lstat(target), os.lstat(path)):
                        break
                    continue
                durable.keep_as(path, target)
                break
        self.quarantined.append(candidate)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def mend_entrance(store_path: str, *, apply: bool) -> tuple[str, ...]:
    """Put back what a store can't be opened without, from its copy: the header, ``snapshots/``.

    Args:
        store_path: The store's directory.
        apply: Do it; otherwise only say so.

    Returns:
        What was damaged, one sentence each; empty for a store that opens.

    Raises:
        StoreError: There is no store, or nothing to mend it with.
    """
    found = []
    try:
        read_header(store_path)
    except CorruptionError as error:
        data = _header_copy(store_path)
        if data is None:
            raise
        found.append(error.message)
        if apply:
            _put_back_header(store_path, data)
    snapshots = os.path.join(store_path, layout.SNAPSHOTS)
    if not os.path.lexists(snapshots) and os.path.isdir(os.path.join(store_path, layout.PARITY)):
        found.append(f"the store {store_path} has lost its directory '{layout.SNAPSHOTS}'")
        if apply:
            with store_faults("make", snapshots):
                durable.make_directory(snapshots, 0o700)
    return tuple(found)


def _header_copy(store_path: str) -> bytes | None:
    path = os.path.join(store_path, layout.PARITY, layout.HEADER)
    with contextlib.suppress(OSError, CorruptionError):
        data = read_regular(path, _HEADER_BYTES_MAX)
        unseal(data, Header)
        return data
    return None


def _put_back_header(store_path: str, data: bytes) -> None:
    path = os.path.join(store_path, layout.HEADER)
    lock = Lock(os.path.join(store_path, layout.WRITE_LOCK))
    lock.take_alone()
    try:
        with store_faults("write", path):
            if os.path.lexists(path):
                directory = os.path.join(store_path, layout.QUARANTINE)
                durable.make_directory(directory, 0o700)
                with contextlib.suppress(FileExistsError):
                    durable.keep_as(path, os.path.join(directory, layout.HEADER))
            temporary = os.path.join(store_path, layout.TEMPORARY)
            durable.make_directory(temporary, 0o700)
            durable.write_whole(path, data, temporary_directory=temporary, mode=0o600)
    finally:
        lock.release()
