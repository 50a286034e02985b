"""Read packs again regularly, so that rot is found while it can still be repaired.

A scrub reads packs in full, the packs that were checked longest ago first. It compares them with
their checksums, and records the result and the time in the chunk index. So it can be stopped at any
moment, and the next scrub continues: a little every day is enough.

Damage is reported as packs -> chunks -> files -> snapshots, each once. Chunks that are no longer in
any pack are removed from the chunk index. The next snapshot that still finds their bytes stores
them again, which repairs every snapshot that needs them. Records of the damage tell other machines,
whose chunk indexes may name the damaged copy: see ``damage_records``.

No lock keeps the store at its path while packs are read. If its disk is unmounted, or a different
store appears at its path, the scrub ends: a pack that is missing there is not damage.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from ciuic.catalog import known_lost, lacks_manifests
from ciuic.errors import CancelledError, StoreError, UnreachableError
from ciuic.ids import ChunkId, PackId, SnapshotId
from ciuic.maintain.scrub.budget import UNLIMITED, Budget
from ciuic.maintain.scrub.checks import (
    has_gone,
    recorded_packs,
    sound_copies,
    suspects,
    unreadable,
)
from ciuic.maintain.scrub.damage_cost import CostSearch
from ciuic.maintain.scrub.pack_health import damaged_documents, health, recorded_checks
from ciuic.maintain.scrub.report import (
    DamagedPack,
    OnDamage,
    ScrubReport,
    complete_costs,
    search_for,
)
from ciuic.maintain.scrub.subject import Directory, Subject
from ciuic.model import PathWarning
from ciuic.store.damage_records import note_read
from ciuic.store.health.inspect import PackCheck
from ciuic.store.index.database import IndexDamagedError
from ciuic.store.index.places import CheckRecord
from ciuic.store.index.records import GONE, UNNAMED
from ciuic.store.index_keeper import PackLists
from ciuic.store.records import layout
from ciuic.store.records.damage import ByteSpan, KnownDamage
from ciuic.store.store import Store
from ciuic.system.buffers import prepare_for_bulk
from ciuic.system.clock import Clock

__all__ = ["scrub"]

_NS: Final = 1_000_000_000
_REMEMBER_S: Final = 20.0
"""A killed scrub loses the results of this time, and the next one reads those packs again."""
_LOCK_WAIT_S: Final = 10.0
_NEVER: Final = CheckRecord(0, 0, "")

OnProgress = Callable[[int, int], None]
"""Receives the bytes of packs that were read, and of all packs that will be read."""


def scrub(
    store: str | Subject,
    *,
    clock: Clock,
    budget: Budget = UNLIMITED,
    rest_s: float = 0.0,
    manifests: bool = True,
    cancelled: Callable[[], bool] = lambda: False,
    progress: OnProgress | None = None,
    found: OnDamage = lambda _: None,
) -> ScrubReport:
    """Read packs in full, the packs that were checked longest ago first.

    No lock is held while packs are read: snapshots and prunes can run meanwhile.

    Args:
        store: The store's directory, or a store in another place.
        clock: The clock.
        budget: How much to read.
        rest_s: Packs that were checked more recently than this are not read.
        manifests: Also read all manifests.
        cancelled: Asked often; when it turns true, the scrub ends and records its results.
        progress: Receives the bytes that were read, and the bytes that will be read.
        found: Receives a damaged pack as soon as it is found, before the result is recorded. The
            files that it affects are in the report.

    Raises:
        StoreError: The store cannot be used, is gone, or was replaced by a different store. Damage
            is reported, not raised.
    """
    prepare_for_bulk()
    subject = Directory(store) if isinstance(store, str) else store
    run = _Scrub(subject, clock, cancelled, found)
    return run.run(budget, rest_s, progress, manifests=manifests)


class _Start(NamedTuple):
    """The packs of a store when a scrub begins.

    Attributes:
        packs: Sizes of packs.
        recorded: Packs that the chunk index names.
        unreachable: Packs that the file system cannot return, and why.
    """

    packs: dict[PackId, int]
    recorded: set[PackId]
    unreachable: dict[PackId, UnreachableError]


class _Scrub:
    """One scrub of a store."""

    def __init__(
        self,
        subject: Subject,
        clock: Clock,
        cancelled: Callable[[], bool],
        found: OnDamage,
    ) -> None:
        self._subject = subject
        self._clock = clock
        self._cancelled = cancelled
        self._found = found
        self._began_s = clock.monotonic_s()
        self._report = ScrubReport()
        self._checks: dict[PackId, CheckRecord] = {}
        self._suspects: set[PackId] = set()
        self._waiting: list[tuple[PackCheck, int]] = []
        self._documents: tuple[dict[str, str], int] | None = None
        self._lost: dict[ChunkId, PackId] = {}
        self._elsewhere: dict[PackId, dict[ChunkId, PackId]] = {}
        self._on_record = KnownDamage()
        self._added = 0

    def run(
        self, budget: Budget, rest_s: float, progress: OnProgress | None, *, manifests: bool
    ) -> ScrubReport:
        report = self._report
        start = self._look_around(manifests=manifests)
        if manifests:
            self._compare_documents()
            self._remember(wait_s=0.0)
        for pack_id, error in start.unreachable.items():
            self._note_unreachable(pack_id, error)
        self._note_gone(start.recorded - start.packs.keys() - start.unreachable.keys())
        turn = self._in_turn(start.packs, rest_s)
        wait_s = 0.0
        try:
            self._read_all(turn, start.packs, budget, progress)
            wait_s = 0.0 if report.stopped == "asked" else _LOCK_WAIT_S
        finally:
            # Also after an error: packs that were read count for today, and need not be read again.
            self._remember(wait_s=wait_s)
        report.has_read_all = not report.stopped and len(turn) == len(start.packs)
        with self._opened() as store:
            known = known_lost(store)
            report.has_gone = has_gone(store)
        # The daemon scrubs in many small runs: one of them a day looks for damage of earlier ones.
        is_known = manifests and (known or report.has_gone)
        if report.damaged or report.unreachable or is_known or report.has_read_all:
            search = report.pending = search_for(report, self._subject.store_id, known)
            if complete_costs(report, self._subject, self._cancelled):
                self._remember_search(search, known)
        with self._opened() as store:
            report.health = health(store)
        report.total_s = self._clock.monotonic_s() - self._began_s
        return report

    def _look_around(self, *, manifests: bool) -> _Start:
        with self._opened() as store:
            self._checks = recorded_checks(store)
            self._suspects = suspects(store)
            recorded = recorded_packs(store)
            start = _Start(store.pack_files(), recorded, store.unreachable_packs())
            self._on_record = store.packs.damage()
            if manifests:
                self._report.manifests = self._subject.damaged_manifests(store)
        return start

    def _in_turn(self, packs: Iterable[PackId], rest_s: float) -> list[PackId]:
        """Return the packs to read: never checked ones, then by the time of the last check."""
        now_ns = self._clock.now_ns()
        since: dict[PackId, int] = {}
        for pack_id in packs:
            checked_ns = self._checks.get(pack_id, _NEVER).checked_ns
            # A time in the future was recorded before the clock was set back: ignore it.
            since[pack_id] = checked_ns if checked_ns <= now_ns else 0
        rested = [pack_id for pack_id in since if now_ns - since[pack_id] >= rest_s * _NS]
        return sorted(rested, key=lambda pack_id: (since[pack_id], pack_id))

    def _read_all(
        self,
        turn: list[PackId],
        packs: dict[PackId, int],
        budget: Budget,
        progress: OnProgress | None,
    ) -> None:
        """Read packs until all are read, the budget is spent, or ``cancelled`` turns true."""
        report = self._report
        remembered_s = self._began_s
        done_bytes = 0
        all_bytes = min(sum([packs[pack_id] for pack_id in turn]), budget.size_bytes)
        for number, pack_id in enumerate(turn):
            spent_s = self._clock.monotonic_s() - self._began_s
            if self._cancelled():
                report.stopped = "asked"
                break
            if number and budget.is_spent(spent_s, report.read_bytes + packs[pack_id]):
                report.stopped = "budget"
                break
            try:
                self._read(pack_id)
            except CancelledError:
                report.stopped = "asked"
                break
            if self._clock.monotonic_s() - remembered_s > _REMEMBER_S:
                self._remember(wait_s=0.0)
                remembered_s = self._clock.monotonic_s()
            done_bytes += packs[pack_id]
            if progress is not None:
                progress(done_bytes, int(max(done_bytes, all_bytes)))

    def _read(self, pack_id: PackId) -> None:
        report = self._report
        try:
            check = self._subject.inspect(pack_id, self._cancelled)
        except UnreachableError as error:
            self._note_unreachable(pack_id, error)
            return
        checked_ns = self._clock.now_ns()
        if check.unknown:
            path = os.fsencode(f"packs/{pack_id.hex()}")
            report.unread.append(PathWarning(path, check.unknown))
            if not check.what:
                return
        if not check.read_bytes and check.what and self._subject.was_removed(pack_id):
            return  # pruned meanwhile
        for number in check.unknown_codecs:
            path = os.fsencode(f"packs/{pack_id.hex()}")
            what = f"its frames of codec {number} cannot be decoded by this version of ciuic"
            report.unread.append(PathWarning(path, what))
        report.read_packs += 1
        report.read_bytes += check.read_bytes
        if check.what:
            self._note_damage(check)
        if not check.unknown:
            self._share(check)
        # Record after reporting: a recorded damage is not reported as new again.
        self._waiting.append((check, checked_ns))
        if check.what:
            # Record at once, so that no snapshot refers to a chunk that is lost.
            self._remember(wait_s=0.0)

    @contextlib.contextmanager
    def _opened(self, *, write: bool = False, wait_s: float = 0.0) -> Iterator[Store]:
        """Open the store; checks before and after that it is still the same store."""
        # Check before opening it: a writer removes leftovers.
        self._subject.refuse_other()
        with self._subject.opened(write=write, wait_s=wait_s, cancelled=self._cancelled) as store:
            # Open the chunk index now: later, a reader could create it in another store.
            _ = store.existing_index
            yield store
            self._subject.refuse_other()
            store.refuse_other(self._subject.store_id)

    def _note_unreachable(self, pack_id: PackId, error: UnreachableError) -> None:
        self._subject.refuse_other()
        path = os.path.join(layout.PACKS, layout.pack_name(pack_id))
        self._report.unreachable.append(PathWarning(os.fsencode(path), error.message))

    def _note_gone(self, pack_ids: Iterable[PackId]) -> None:
        for pack_id in pack_ids:
            if not self._subject.was_removed(pack_id):
                check = PackCheck(pack_id, 0, footer_ok=False, bad=(), what="it is gone")
                self._note_damage(check)
                self._waiting.append((check, self._clock.now_ns()))

    def _note_damage(self, check: PackCheck) -> None:
        before = self._checks.get(check.pack_id, _NEVER).what
        found = DamagedPack(check, is_new=before != check.what)
        with self._opened() as store:
            kinds = {chunk_id: bad.kind for bad in check.bad for chunk_id in bad.chunks}
            if not check.footer_ok:
                # A pack that was cut or is gone does not say what it had.
                kinds |= self._subject.chunks_in(store, check.pack_id)
            lost = unreadable(store, check, kinds)
            saved = [chunk_id for chunk_id in kinds if chunk_id not in set(lost)]
            try:
                self._elsewhere[check.pack_id] = sound_copies(store, check.pack_id, saved)
            except IndexDamagedError:
                store.index_keeper.discard()  # it is built again to record the result
        found.lost = tuple(lost)
        found.saved = len(saved)
        self._lost |= dict.fromkeys(lost, check.pack_id)
        self._note(found)

    def _share(self, check: PackCheck) -> None:
        """Tell other machines which copies are damaged, or that none is, in spite of a record.

        What parity gives back is not named: in a directory, a snapshot may rely on that.
        """
        if not (check.what or self._on_record.names_of(check.pack_id)):
            return
        with self._opened() as store:
            given_back = set[ChunkId]()
            if store.bucket is None:
                bad = {chunk_id for bad in check.bad for chunk_id in bad.chunks}
                given_back = bad - self._lost.keys() - self._elsewhere.get(check.pack_id, {}).keys()
            spans = [
                ByteSpan(bad.offset_bytes, bad.offset_bytes + bad.length_bytes)
                for bad in check.bad
                if not check.footer_ok or not given_back.issuperset(bad.chunks)
            ]
            more = note_read(store, check.pack_id, spans, self._on_record, self._added)
            self._added += more

    def _note(self, pack: DamagedPack) -> None:
        self._report.damaged.append(pack)
        self._found(pack)

    def _remember(self, *, wait_s: float) -> None:
        """Write results to the chunk index. If that fails, they wait for the next call."""
        if not self._waiting and self._documents is None:
            return
        try:
            with self._opened(write=True, wait_s=wait_s) as store:
                # Before any change: other processes that add wait for an open one, and a server may
                # be slow.
                listed = self._list_packs(store)
                documents = self._still_damaged(store)
                since, suspected = store.index.checks(), store.index.suspects()
                for check, checked_ns in self._waiting:
                    recorded = since.get(check.pack_id, _NEVER)
                    is_older = self._is_older(check.pack_id, checked_ns, recorded)
                    if not (is_older or self._is_in_doubt(check, suspected)):
                        self._put(store, check, checked_ns, listed)
                if documents is not None:
                    store.index.put_damaged_documents(*documents)
                store.index.commit()
        except (StoreError, CancelledError) as error:
            self._report.not_remembered = error.message
        else:
            self._report.not_remembered = ""
            self._suspects = suspected  # before the other packs are read
            self._waiting = []
            self._documents = None

    def _remember_search(self, search: CostSearch, known: set[ChunkId]) -> None:
        """Record what the search through all snapshots has found.

        Args:
            search: The search.
            known: Chunks that were known to be lost before.
        """
        report = self._report
        lost = search.missing - known
        is_new = (
            bool(lost) or not report.has_gone or any(map(_is_unconfirmed, self._checks.items()))
        )
        is_damaged = bool(report.damaged) or search.has_damage
        is_over = not is_damaged and (report.has_gone or bool(known))
        if not (is_new if report.missing else is_over):
            return
        with (
            contextlib.suppress(StoreError, CancelledError),
            self._opened(write=True, wait_s=_LOCK_WAIT_S) as store,
        ):
            if report.missing:
                # Even if the chunk index has never known the packs that are gone.
                if not report.has_gone:
                    store.index.note_gone([UNNAMED])
                if not report.unreachable:  # its chunks are missing only as long as it is
                    store.index.note_lost(lost)
                store.index.confirm_gone(self._clock.now_ns())
            elif not lacks_manifests(store):
                store.index.forget_gone()
                store.index.forget_lost()
            store.index.commit()

    def _compare_documents(self) -> None:
        """Have ``_remember`` record which manifests and marks are damaged, if that has changed."""
        found = {os.fsdecode(bad.path): bad.what for bad in self._report.manifests}
        with self._opened() as store:
            known = {one.path: one.what for one in damaged_documents(store)}
        if found != known:
            self._documents = found, self._clock.now_ns()

    def _still_damaged(self, store: Store) -> tuple[dict[str, str], int] | None:
        """Return ``_documents`` without those that a repair has mended since they were read."""
        if self._documents is None:
            return None
        found, found_ns = self._documents
        damaged = set[str]()
        if found:
            among = {one for path in found if (one := _snapshot_of(path)) is not None}
            again = self._subject.damaged_manifests(store, among)
            damaged = {os.fsdecode(bad.path) for bad in again}
        return {path: what for path, what in found.items() if path in damaged}, found_ns

    def _is_older(self, pack_id: PackId, checked_ns: int, recorded: CheckRecord) -> bool:
        """Return whether a pack was read, or repaired, by another process after this one did."""
        if recorded == self._checks.get(pack_id):
            return False  # it is from before this scrub, whatever the clock said then
        # A time in the future was recorded before the clock was set back.
        return checked_ns < recorded.checked_ns <= self._clock.now_ns()

    def _is_in_doubt(self, check: PackCheck, suspected: set[PackId]) -> bool:
        """A snapshot has found damage in a pack that is sound here, perhaps after it was read here.

        The pack stays suspected, so the next scrub reads it again.
        """
        return not check.what and check.pack_id in suspected - self._suspects

    def _list_packs(self, store: Store) -> PackLists:
        """List the packs that ``_put`` makes the places of chunks."""
        pack_ids: set[PackId] = set()
        for check, _ in self._waiting:
            pack_ids.update(self._elsewhere.get(check.pack_id, {}).values())
            if self._is_mended(check):
                pack_ids.add(check.pack_id)
        return store.index_keeper.list_packs(pack_ids)

    def _is_mended(self, check: PackCheck) -> bool:
        """The pack was repaired, or only a cable was faulty: it has its chunks again."""
        was_damaged = bool(self._checks.get(check.pack_id, _NEVER).what)
        return not check.what and (was_damaged or check.pack_id in self._suspects)

    def _put(self, store: Store, check: PackCheck, checked_ns: int, listed: PackLists) -> None:
        index = store.index
        if self._is_mended(check):
            if check.pack_id not in listed:
                return  # it went since, or it cannot be read now: the next scrub looks again
            index.add_pack(check.pack_id, check.read_bytes, listed[check.pack_id])
        index.put_check(check.pack_id, checked_ns, check.read_bytes, check.what)
        lost = [chunk_id for chunk_id, pack_id in self._lost.items() if pack_id == check.pack_id]
        for chunk_id, place in index.places(lost).items():
            if place.pack_id != check.pack_id:  # a snapshot has stored it again since
                del self._lost[chunk_id]
        index.drop_chunks([chunk_id for chunk_id in lost if chunk_id in self._lost])
        # The index names the sound copies, or a prune would remove them as garbage. If one went
        # since, its chunk counts as lost.
        copies = self._elsewhere.get(check.pack_id, {})
        for chunk_id, place in index.places(list(copies)).items():
            if place.pack_id != check.pack_id:  # a prune has moved it since
                del copies[chunk_id]
        index.drop_chunks(list(copies))
        for pack_id in listed.keys() & copies.values():
            chunk_ids = {chunk_id for chunk_id, other in copies.items() if other == pack_id}
            index.replace_places(pack_id, listed[pack_id], chunk_ids)


def _is_unconfirmed(found: tuple[PackId, CheckRecord]) -> bool:
    """Return whether a pack is recorded as gone, and no scrub has found yet that it is missed."""
    pack_id, check = found
    return check.what == GONE and not check.checked_ns and pack_id != UNNAMED


def _snapshot_of(path: str) -> SnapshotId | None:
    """Return the snapshot of a manifest, its copy or a mark."""
    name = os.path.basename(path)
    mark = layout.parse_mark_name(name)
    return layout.parse_manifest_name(name) if mark is None else mark[0]
