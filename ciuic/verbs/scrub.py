"""Reading packs again and again, so that rot is found while it can still be mended.

A scrub reads packs in full, those first that were checked longest ago, compares them with their
checksums, and remembers in the catalog what it found and when. So it can be stopped at any
moment and goes on where it was, a little every day.

Damage is told as packs -> chunks -> files -> snapshots, each once. Chunks that no pack has any
more are struck from the catalog: the next snapshot that still finds their bytes stores them again,
and with that every snapshot that needs them is whole.

No lock keeps the store there while packs are read. If its disk is unmounted or another store comes
to light at its place meanwhile, the scrub ends with that: what is not found there is no damage.
"""

import contextlib
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ciuic.catalog import list_snapshots, lost_manifest, lost_snapshots
from ciuic.clock import Clock, rfc3339
from ciuic.errors import (
    CancelledError,
    CorruptionError,
    SnapshotNotFoundError,
    StoreError,
    UnknownFormatError,
    UnreachableError,
)
from ciuic.memory import prepare_for_bulk
from ciuic.model import Trouble, path_text
from ciuic.store import Store, layout, open_store
from ciuic.store.header import read_header
from ciuic.store.inspect import PackCheck, inspect_pack, pack_frames
from ciuic.store.parity import inspect_parity, parity_path
from ciuic.store.survey import Survey, known_lost
from ciuic.units import parse_duration_s, parse_size_bytes

__all__ = [
    "Budget",
    "Costs",
    "DamagedFile",
    "DamagedPack",
    "Health",
    "KnownDamage",
    "ScrubReport",
    "health",
    "lost_before",
    "parse_budget",
    "read_since_s",
    "scrub",
]

_NS: Final = 1_000_000_000
_SLOW_BYTES_PER_S: Final = 10_000_000
_REMEMBER_S: Final = 20.0
"""A killed scrub reads again what it read in this time."""
_LOCK_WAIT_S: Final = 10.0

OnProgress = Callable[[int, int], None]
"""Told packs read and packs that will be read."""


class Budget(NamedTuple):
    """How much a scrub may read. One pack is read in any case, or none would ever be."""

    duration_s: float = math.inf
    size_bytes: float = math.inf


_ALL: Final = Budget()


class DamagedFile(NamedTuple):
    """A path that can't be had, and the snapshots in which it can't, newest first."""

    path: bytes
    what: str
    snapshots: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """A part of the document of ``ciuic scrub --json``."""
        return {
            "path": path_text(self.path),
            "what": self.what,
            "snapshots": list(self.snapshots),
        }


@dataclass(slots=True)
class DamagedPack:
    """A pack that was found to be damaged in this run.

    Attributes:
        check: What is wrong with it.
        is_new: The last check did not find that.
        lost: Chunks that can't be had from anywhere.
        saved: Damaged chunks that another pack has, or that can be mended.
        files: What the lost ones cost. A file that lost chunks in several packs stands with the
            first of them.
    """

    check: PackCheck
    is_new: bool
    lost: tuple[bytes, ...] = ()
    saved: int = 0
    files: list[DamagedFile] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """A part of the document of ``ciuic scrub --json``."""
        return {
            "pack": self.check.pack.hex(),
            "new": self.is_new,
            "what": self.check.what,
            "footer_ok": self.check.footer_ok,
            "stretches": [
                {
                    "offset_bytes": one.offset_bytes,
                    "length_bytes": one.length_bytes,
                    "what": one.what,
                    "chunks": [name.hex() for name in one.chunks],
                }
                for one in self.check.bad
            ],
            "lost_chunks": len(self.lost),
            "saved_chunks": self.saved,
            "files": [one.as_json() for one in self.files],
        }


OnDamage = Callable[[DamagedPack], None]
"""Told of a pack that is damaged."""


class KnownDamage(NamedTuple):
    """A pack that an earlier check found to be damaged, and that was not read since."""

    pack: bytes
    what: str
    checked_ns: int

    def as_json(self) -> dict[str, Any]:
        """A part of the documents of ``ciuic scrub --json`` and ``stats --json``."""
        return {"pack": self.pack.hex(), "what": self.what, "checked": rfc3339(self.checked_ns)}


@dataclass(slots=True)
class Health:
    """What earlier checks found, as the catalog remembers it.

    Attributes:
        packs: How many there are.
        unchecked: How many of them were never read in full.
        oldest_ns: When the one was read whose turn comes next; None if some never were, or
            there is none.
        damaged: What is known to be damaged.
        lost_chunks: Chunks that were lost, and have not been stored again or mended since.
    """

    packs: int
    unchecked: int
    oldest_ns: int | None
    damaged: tuple[KnownDamage, ...]
    lost_chunks: int

    def as_json(self) -> dict[str, Any]:
        """The field ``checks`` of ``ciuic stats --json`` and ``status --json``."""
        return {
            "packs": self.packs,
            "unchecked": self.unchecked,
            "oldest": None if self.oldest_ns is None else rfc3339(self.oldest_ns),
            "damaged": [one.as_json() for one in self.damaged],
            "lost_chunks": self.lost_chunks,
        }


@dataclass(slots=True)
class ScrubReport:
    """What a scrub did and found.

    Attributes:
        health: As the catalog has it by now.
        damaged: Packs that were read and found damaged.
        missing: Files whose chunks are in no pack that was read.
        manifests: Manifests and copies of them that can't be read.
        unreachable: Packs that their file system can't give out.
        unread: Packs that could not be read for another reason than damage.
        not_remembered: Why the catalog does not know of this; empty if it does.
        stopped: Empty if there was nothing left to read; "budget", or "asked".
        is_whole: Every pack was read.
        is_complete: What the damage costs is known: ``cancelled`` may have come before.
        lost: If it is about what earlier checks found, and about nothing else: chunks that they
            found to be lost, and that have not been stored again. ``missing`` is what they cost.
        store_id: Of the store that it is about.
        costs: Finds out what the damage costs, or has; it goes on where the scrub broke off.
    """

    read_packs: int = 0
    read_bytes: int = 0
    total_s: float = 0.0
    health: Health = field(default_factory=lambda: Health(0, 0, None, (), 0))
    damaged: list[DamagedPack] = field(default_factory=list)
    missing: list[DamagedFile] = field(default_factory=list)
    manifests: list[Trouble] = field(default_factory=list)
    unreachable: list[Trouble] = field(default_factory=list)
    unread: list[Trouble] = field(default_factory=list)
    not_remembered: str = ""
    stopped: str = ""
    is_whole: bool = False
    is_complete: bool = False
    lost: tuple[bytes, ...] = ()
    store_id: str = ""
    costs: "Costs | None" = field(default=None, repr=False, compare=False)

    @property
    def known(self) -> tuple[KnownDamage, ...]:
        """Damage that was found earlier and lies in packs that were not read now."""
        now = {one.check.pack for one in self.damaged}
        return tuple([one for one in self.health.damaged if one.pack not in now])

    @property
    def ok(self) -> bool:
        """No damage is known, from this run or an earlier one."""
        found = self.damaged or self.missing or self.manifests or self.unreachable
        return not (found or self.known)

    def as_json(self) -> dict[str, Any]:
        """The document of ``ciuic scrub --json``."""
        return {
            "ok": self.ok,
            "stopped": self.stopped,
            "read_packs": self.read_packs,
            "read_bytes": self.read_bytes,
            "total_s": round(self.total_s, 6),
            "checks": self.health.as_json(),
            "damaged": [one.as_json() for one in self.damaged],
            "missing": [one.as_json() for one in self.missing],
            "manifests": [one.as_json() for one in self.manifests],
            "known": [one.as_json() for one in self.known],
            "unreachable": [one.as_json() for one in self.unreachable],
            "unread": [one.as_json() for one in self.unread],
            "not_remembered": self.not_remembered,
        }


def parse_budget(text: str) -> Budget:
    """``10m`` or ``2h`` of time, or ``10 GiB`` of reading.

    Raises:
        ValueError: It is neither, or nothing.
    """
    with contextlib.suppress(ValueError):
        duration_s = parse_duration_s(text)
        if duration_s:
            return Budget(duration_s=duration_s)
    with contextlib.suppress(ValueError):
        size_bytes = parse_size_bytes(text)
        if size_bytes:
            return Budget(size_bytes=size_bytes)
    raise ValueError(f"'{text}' is neither a time such as 10m or 2h, nor a size such as 10GiB")


def health(store: Store) -> Health:
    """What earlier checks found. Reads no pack.

    Raises:
        StoreError: The directory of packs can't be read.
    """
    packs = store.pack_files()
    checks = {name: one for name, one in _checks(store).items() if name in packs}
    unchecked = len(packs) - len(checks)
    damaged = [
        KnownDamage(name, what, checked_ns)
        for name, (checked_ns, _, what) in sorted(checks.items(), key=lambda one: one[1][0])
        if what
    ]
    oldest_ns = min((one[0] for one in checks.values()), default=None)
    return Health(
        packs=len(packs),
        unchecked=unchecked,
        oldest_ns=None if unchecked else oldest_ns,
        damaged=tuple(damaged),
        lost_chunks=len(known_lost(store)),
    )


def lost_before(store: Store) -> ScrubReport | None:
    """What earlier checks found to be lost, for ``Costs`` to complete; None if nothing is."""
    lost = known_lost(store)
    return ScrubReport(lost=tuple(sorted(lost)), store_id=store.header.store_id) if lost else None


def read_since_s(store: Store, since_ns: int) -> float:
    """About how long packs have been read since then, by the times at which each was done.

    A pack took the time since the one before it was done, and no longer than a slow disk takes.
    """
    found = sorted([one[:2] for one in _checks(store).values() if one[0] >= since_ns])
    spent_s = 0.0
    before_ns = since_ns
    for checked_ns, read_bytes in found:
        spent_s += min((checked_ns - before_ns) / _NS, read_bytes / _SLOW_BYTES_PER_S)
        before_ns = checked_ns
    return spent_s


def scrub(
    store_path: str,
    *,
    clock: Clock,
    budget: Budget = _ALL,
    rest_s: float = 0.0,
    manifests: bool = True,
    cancelled: Callable[[], bool] = lambda: False,
    progress: OnProgress | None = None,
    found: OnDamage = lambda _: None,
) -> ScrubReport:
    """Read packs in full, those first that were checked longest ago.

    No lock is held while packs are read: snapshots are taken and packs pruned meanwhile.

    Args:
        store_path: The store's directory.
        clock: Tells the time.
        budget: How much to read.
        rest_s: Packs that were checked less than this ago are left alone.
        manifests: Read all of them, too.
        cancelled: Asked often; when it turns true, the scrub ends, and remembers what it read.
        progress: Told how far it has come.
        found: Told of a damaged pack as soon as it is, before anything remembers it; of what it
            costs the report tells.

    Raises:
        StoreError: The store can't be used, or has gone, or another one is there by now. Damage
            is not raised but reported.
    """
    prepare_for_bulk()
    run = _Scrub(store_path, clock, cancelled, found)
    return run.run(budget, rest_s, progress, manifests=manifests)


class _Scrub:
    """One run."""

    def __init__(
        self, store_path: str, clock: Clock, cancelled: Callable[[], bool], found: OnDamage
    ) -> None:
        self._store_path = store_path
        self._clock = clock
        self._cancelled = cancelled
        self._found = found
        self._report = ScrubReport()
        self._checks: dict[bytes, tuple[int, int, str]] = {}
        self._waiting: list[tuple[PackCheck, int]] = []
        self._lost: dict[bytes, bytes] = {}
        self._elsewhere: dict[bytes, dict[bytes, bytes]] = {}

    def run(
        self, budget: Budget, rest_s: float, progress: OnProgress | None, *, manifests: bool
    ) -> ScrubReport:
        began_s = self._clock.monotonic_s()
        report = self._report
        report.costs = Costs(report)
        report.store_id = read_header(self._store_path).store_id
        with self._opened() as store:
            self._checks = _checks(store)
            recorded = _recorded(store)
            packs = store.pack_files()
            unreachable = store.unreachable_packs()
            if manifests:
                report.manifests = _damaged_manifests(store)
        for name, error in unreachable.items():
            self._note_unreachable(name, error)
        self._note_gone([name for name in recorded if name not in packs | unreachable])
        turn = self._in_turn(packs, rest_s)
        wait_s = 0.0
        try:
            self._read_all(turn, packs, budget, began_s, progress)
            wait_s = 0.0 if report.stopped == "asked" else _LOCK_WAIT_S
        finally:
            # Whatever ends it, what was read need not be read again, and counts for the day.
            self._remember(wait_s=wait_s)
        report.is_whole = not report.stopped and len(turn) == len(packs)
        report.is_complete = not (report.damaged or report.unreachable or report.is_whole)
        report.costs.find(self._store_path, self._cancelled)
        with self._opened() as store:
            report.health = health(store)
        report.total_s = self._clock.monotonic_s() - began_s
        return report

    def _read_all(
        self,
        turn: list[bytes],
        packs: dict[bytes, int],
        budget: Budget,
        began_s: float,
        progress: OnProgress | None,
    ) -> None:
        """Read packs until all are, the budget is spent, or somebody asks for the end."""
        report = self._report
        remembered_s = began_s
        for number, name in enumerate(turn):
            now_s = self._clock.monotonic_s()
            if self._cancelled():
                report.stopped = "asked"
                break
            if number and _is_spent(budget, now_s - began_s, report.read_bytes + packs[name]):
                report.stopped = "budget"
                break
            try:
                self._read(name)
            except CancelledError:
                report.stopped = "asked"
                break
            if self._clock.monotonic_s() - remembered_s > _REMEMBER_S:
                self._remember(wait_s=0.0)
                remembered_s = self._clock.monotonic_s()
            if progress is not None:
                progress(number + 1, len(turn))

    def _in_turn(self, packs: Iterable[bytes], rest_s: float) -> list[bytes]:
        """Packs to read, those checked longest ago first, those never checked before them."""
        now_ns = self._clock.now_ns()
        since: dict[bytes, int] = {}
        for name in packs:
            checked_ns = self._checks.get(name, (0, 0, ""))[0]
            # One of the future was noted before the clock was set back, and tells nothing.
            since[name] = checked_ns if checked_ns <= now_ns else 0
        rested = [name for name in since if now_ns - since[name] >= rest_s * _NS]
        return sorted(rested, key=lambda name: (since[name], name))

    def _read(self, name: bytes) -> None:
        report = self._report
        try:
            check = inspect_pack(self._store_path, name, cancelled=self._cancelled)
        except UnreachableError as error:
            self._note_unreachable(name, error)
            return
        except UnknownFormatError as error:
            report.unread.append(Trouble(os.fsencode(f"packs/{name.hex()}"), error.message))
            return
        if not check.read_bytes and check.what and not self._is_recorded(name):
            return  # pruned meanwhile
        check = _with_parity(self._store_path, check)
        report.read_packs += 1
        report.read_bytes += check.read_bytes
        if check.what:
            self._note_damage(check)
        # Not before it was told: what is remembered is no news any more.
        self._waiting.append((check, self._clock.now_ns()))
        if check.what:
            # So that nothing is stored as a reference to what has just been found to be lost.
            self._remember(wait_s=0.0)

    @contextlib.contextmanager
    def _opened(self, *, write: bool = False, wait_s: float = 0.0) -> Iterator[Store]:
        """The store, and no other one: neither in the beginning nor, by its path, in the end."""
        # Before it is opened: a writer tidies up.
        _refuse_other(self._store_path, self._report.store_id)
        with open_store(self._store_path, write=write, wait_s=wait_s) as store:
            # Now, or a reader could make one where another store has none.
            _ = store.existing_index
            yield store
            _refuse_other(self._store_path, self._report.store_id)

    def _note_unreachable(self, name: bytes, error: UnreachableError) -> None:
        _refuse_other(self._store_path, self._report.store_id)
        path = os.path.join(layout.PACKS, layout.pack_name(name))
        self._report.unreachable.append(Trouble(os.fsencode(path), error.message))

    def _note_gone(self, names: list[bytes]) -> None:
        for name in names:
            if self._is_recorded(name):
                check = PackCheck(name, 0, footer_ok=False, bad=(), what="it is gone")
                self._note(DamagedPack(check, is_new=True))

    def _is_recorded(self, name: bytes) -> bool:
        """The catalog names the pack still: who prunes strikes it from there first."""
        with self._opened() as store:
            return name in _recorded(store)

    def _note_damage(self, check: PackCheck) -> None:
        before = self._checks.get(check.pack, (0, 0, ""))[2]
        found = DamagedPack(check, is_new=before != check.what)
        with self._opened() as store:
            names = {name: one.kind for one in check.bad for name in one.chunks}
            lost = [name for name, kind in names.items() if not _can_be_had(store, name, kind)]
            saved = [name for name in names if name not in set(lost)]
            self._elsewhere[check.pack] = _sound_copies(store, check.pack, saved)
        found.lost = tuple(lost)
        found.saved = len(saved)
        self._lost |= dict.fromkeys(lost, check.pack)
        self._note(found)

    def _note(self, pack: DamagedPack) -> None:
        self._report.damaged.append(pack)
        self._found(pack)

    def _remember(self, *, wait_s: float) -> None:
        """Write to the catalog what was found; what can't be written now waits."""
        if not self._waiting:
            return
        try:
            with self._opened(write=True, wait_s=wait_s) as store:
                for check, checked_ns in self._waiting:
                    self._put(store, check, checked_ns)
                store.index.commit()
        except StoreError as error:
            self._report.not_remembered = error.message
        else:
            self._report.not_remembered = ""
            self._waiting = []

    def _put(self, store: Store, check: PackCheck, checked_ns: int) -> None:
        index = store.index
        if self._checks.get(check.pack, (0, 0, ""))[2] and not check.what:
            # It was mended, or only the cable was at fault: what it holds is there again.
            index.add_pack(check.pack, check.read_bytes, pack_frames(store.path, check.pack))
        index.put_check(check.pack, checked_ns, check.read_bytes, check.what)
        lost = [name for name, pack in self._lost.items() if pack == check.pack]
        places = index.places(lost)
        for name, place in places.items():
            if place.pack != check.pack:  # a snapshot has stored it again by now
                del self._lost[name]
        index.drop_chunks([name for name in lost if name in self._lost])
        # A prune must not take the sound copy for the one that is not needed.
        copies = self._elsewhere.get(check.pack, {})
        index.drop_chunks(list(copies))
        for pack in set(copies.values()):
            known = index.checks().get(pack)
            frames = pack_frames(store.path, pack)
            index.add_pack(pack, index.packs()[pack], frames)
            if known is not None:
                index.put_check(pack, *known)


class Costs:
    """Which files of which snapshots the damage in a report costs.

    To find out may take longer than there is time at once: it can be broken off at any moment, and
    goes on where it was. It begins anew only when some of what was lost has been stored again
    meanwhile, and costs nothing any more. Snapshots that were taken since it began are left out:
    none is made of what is known to be lost. What was lost since then another report tells.

    Args:
        report: Is told.
    """

    def __init__(self, report: ScrubReport) -> None:
        self.report = report
        self._own: set[bytes] = set()
        self._survey: Survey | None = None
        self._left: list[str] = []
        self._found: dict[bytes, tuple[str, list[str], bytes | None]] = {}

    def find(self, store_path: str, cancelled: Callable[[], bool] = lambda: False) -> bool:
        """Look at snapshots until all have been, or ``cancelled`` turns true.

        Whoever calls it often enough gets to the end, even if it is cancelled from the beginning.
        Returns whether the report tells the costs now.

        Raises:
            StoreError: The store can't be used, or another one is there by now: the next time the
                search begins anew.
        """
        if not self.report.is_complete:
            with open_store(store_path) as store, contextlib.suppress(CancelledError):
                try:
                    _refuse_other(store_path, self.report.store_id)
                    self._walk(store, cancelled)
                    _refuse_other(store_path, self.report.store_id)
                except StoreError:
                    self._survey = None
                    raise
                self._tell(store)
        return self.report.is_complete

    def _walk(self, store: Store, cancelled: Callable[[], bool]) -> None:
        def check() -> None:
            if cancelled():
                raise CancelledError("scrub was stopped", hint="")

        owners = self._owners
        own = _still_lost(store, owners)
        lost = own | known_lost(store)
        if self._survey is None or not self._own <= own:
            self._own = own
            self._survey = Survey(store, lost)
            self._left = [one.id for one in reversed(list_snapshots(store))]
            self._found = {}
        self._survey.go_on(store, lost, check)
        while self._left:
            with contextlib.suppress(SnapshotNotFoundError):  # forgotten meanwhile
                for one in list(self._survey.damage(self._left[-1])):
                    packs = [owners[name] for name in one.chunks.values() if name in owners]
                    row = self._found.setdefault(
                        one.path, (one.what, [], packs[0] if packs else None)
                    )
                    row[1].append(self._left[-1])
            self._left.pop()
            check()

    def _tell(self, store: Store) -> None:
        report = self.report
        by_pack = {one.check.pack: one for one in report.damaged}
        is_missing = any(not one.check.read_bytes for one in report.damaged) or report.unreachable
        there = store.snapshot_files()
        for path, (what, snapshots, pack) in sorted(self._found.items()):
            file = DamagedFile(path, what, tuple([one for one in snapshots if one in there]))
            if not file.snapshots:
                continue
            if pack in by_pack:
                by_pack[pack].files.append(file)
            elif pack is not None or report.is_whole or is_missing:
                report.missing.append(file)
        report.is_complete = True

    @property
    def _owners(self) -> dict[bytes, bytes]:
        """The pack of each chunk that was lost with it; empty where that is not known."""
        before = dict.fromkeys(self.report.lost, b"")
        return before | {name: one.check.pack for one in self.report.damaged for name in one.lost}


def _refuse_other(store_path: str, wanted: str) -> None:
    """What is looked at is the store that it was in the beginning.

    Raises:
        StoreError: It has gone, or another one is at its path.
    """
    if read_header(store_path).store_id != wanted:
        raise StoreError(
            f"there is another store at {store_path} by now",
            hint="Mount the file system of the first one again. What is not found here is no"
            " damage.",
        )


def _still_lost(store: Store, lost: dict[bytes, bytes]) -> set[bytes]:
    """Without those that a snapshot has stored in another pack since they were found lost."""
    index = store.existing_index
    places = {} if index is None else index.places(list(lost))
    return {name for name, pack in lost.items() if name not in places or places[name].pack == pack}


def _checks(store: Store) -> dict[bytes, tuple[int, int, str]]:
    with contextlib.suppress(StoreError):
        index = store.existing_index
        if index is not None:
            return index.checks()
    return {}


def _recorded(store: Store) -> set[bytes]:
    with contextlib.suppress(StoreError):
        index = store.existing_index
        if index is not None:
            return set(index.packs())
    return set()


def _damaged_manifests(store: Store) -> list[Trouble]:
    """Every manifest is read, and its copy: the catalog's rows say nothing about the disk."""
    found = []
    for name in sorted(store.snapshot_files()):
        file = layout.manifest_name(name)
        has_copy = os.path.lexists(os.path.join(store.path, layout.PARITY, file))
        is_copied = has_copy and store.manifest_copy(name) is not None
        if has_copy and not is_copied:
            path = os.fsencode(os.path.join(layout.PARITY, file))
            found.append(Trouble(path, "the copy of a manifest is damaged"))
        with contextlib.suppress(SnapshotNotFoundError):
            try:
                store.manifest(name, copy=False)
            except (CorruptionError, UnknownFormatError) as error:
                what = f"{error.message}; its copy is whole" if is_copied else error.message
                path = os.fsencode(os.path.join(layout.SNAPSHOTS, file))
                found.append(Trouble(path, what))
    for name in lost_snapshots(store):
        path = os.fsencode(os.path.join(layout.SNAPSHOTS, layout.manifest_name(name)))
        found.append(Trouble(path, lost_manifest(store, name).message))
    return found


def _can_be_had(store: Store, name: bytes, kind: int) -> bool:
    """Another pack has the chunk, or the reader can mend it."""
    try:
        store.reader.chunk(name, kind=kind)
    except (CorruptionError, UnknownFormatError):  # a store that fails is no damage of a chunk
        return False
    return True


def _sound_copies(store: Store, pack: bytes, names: list[bytes]) -> dict[bytes, bytes]:
    """Chunks that the catalog says to be in this pack, and another pack that has each."""
    found: dict[bytes, bytes] = {}
    for name, place in store.reader.places(names).items():
        other = store.reader.another_place(name, place) if place.pack == pack else None
        if other is not None:
            with contextlib.suppress(CorruptionError, UnknownFormatError):
                store.reader.frame(other, heal=False)
                found[name] = other.pack
    return found


def _with_parity(store_path: str, check: PackCheck) -> PackCheck:
    """The check of a pack and of its parity, where it has one: rot there is found too late else."""
    try:
        problem = inspect_parity(store_path, check.pack)
    except UnreachableError as error:
        problem = error.message
    else:
        if not problem or not os.path.lexists(parity_path(store_path, check.pack)):
            return check
    what = f"its parity is damaged: {problem}"
    return check._replace(what=f"{check.what}; {what}" if check.what else what)


def _is_spent(budget: Budget, spent_s: float, read_bytes: int) -> bool:
    return spent_s >= budget.duration_s or read_bytes > budget.size_bytes
