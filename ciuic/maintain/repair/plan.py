"""Make a repair plan: find the damage in a store, and where its bytes can still be read.

packs        read every pack in full; look for damaged chunks in parity and other packs
snapshots    walk every snapshot; look for missing chunks in reflink copies and live files
manifests    check those of listed, forgotten and lost snapshots, their copies, and retired IDs
chunk index  compare it with the packs

This changes nothing. ``apply_repair`` carries out the plan.
"""

import os
from collections.abc import Callable

from ciuic.catalog import lost_manifest, lost_snapshots
from ciuic.errors import (
    CancelledError,
    CorruptionError,
    SnapshotNotFoundError,
    StoreError,
    UnknownFormatError,
    UnreachableError,
)
from ciuic.ids import ChunkId, PackId, SnapshotId
from ciuic.maintain.bad_marks import survey_marks
from ciuic.maintain.repair.diagnosis import diagnose, source_of
from ciuic.maintain.repair.lost_chunks import LostChunkSearch
from ciuic.maintain.repair.report import BadManifest, BadPack, RepairPlan
from ciuic.maintain.watch import OnProgress
from ciuic.store.directory.faults import store_faults
from ciuic.store.directory.files import read_regular
from ciuic.store.directory.leftovers import unreachable_leftovers
from ciuic.store.health.inspect import inspect_pack
from ciuic.store.parity.parity_file import inspect_parity
from ciuic.store.records import layout
from ciuic.store.records.manifest import MANIFEST_BYTES_MAX
from ciuic.store.store import Store
from ciuic.system import nofollow
from ciuic.system.buffers import prepare_for_bulk

__all__ = ["plan_repair"]


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
        parity: The share of a pack that its parity takes; 0: packs need no parity.
        cancelled: Asked often; ends the work when it turns true.
        progress: Receives the stage, the steps done and their total.

    Raises:
        StoreError: The store cannot be read for a reason that is not damage.
        CancelledError: ``cancelled`` turned true.
    """
    prepare_for_bulk()
    unreachable = _Unreachable(store)
    packs = _PackSurvey(store, parity, unreachable)
    packs.read_all(cancelled, progress)
    search = LostChunkSearch(store, packs.unreadable_chunks(), cancelled)
    remaining = search.run(progress)
    manifests = _ManifestSurvey(store, unreachable)
    marks = survey_marks(store)
    for key, what in marks.unreachable.items():
        unreachable.found[layout.mark_key(*key)] = what
    unread_marks = {layout.mark_key(*key): what for key, what in marks.unread.items()}
    if not parity:
        marks.uncopied.clear()
    return RepairPlan(
        packs=tuple(packs.damaged),
        origins=search.origins,
        lost=frozenset(search.lost),
        manifests=tuple(manifests.damaged),
        marks=marks,
        retired=manifests.retired,
        bare=tuple(packs.bare),
        uncopied=tuple(manifests.uncopied) if parity else (),
        stale_catalog=_is_stale(store, packs.sizes),
        remaining=remaining,
        unreachable=unreachable.found,
        unread={**packs.unread, **manifests.unread, **unread_marks},
        read_bytes=packs.read_bytes,
        pack_count=len(packs.sizes),
    )


class _Unreachable:
    """Collects the files that the file system cannot return, by path in the store."""

    def __init__(self, store: Store) -> None:
        self.found: dict[str, str] = {}
        self.packs: list[PackId] = []
        for pack_id, error in store.unreachable_packs().items():
            self.note_pack(pack_id, error)
        for place, error in unreachable_leftovers(store.path).items():
            self.found[place] = error.message

    def note_pack(self, pack_id: PackId, error: UnreachableError) -> None:
        self.packs.append(pack_id)
        self.found[f"{layout.PACKS}/{layout.pack_name(pack_id)}"] = error.message

    def note_parity(self, pack_id: PackId, error: UnreachableError) -> None:
        self.found[f"{layout.PARITY}/{layout.pack_name(pack_id)}"] = error.message

    def note_manifest(self, place: str, snapshot_id: SnapshotId, error: UnreachableError) -> None:
        self.found[_manifest_place(place, snapshot_id)] = error.message


class _PackSurvey:
    """Reads all packs.

    Attributes:
        sizes: Sizes of the packs that the file system can return.
        damaged: Packs that are damaged.
        bare: Sound packs without sound parity, if packs should have parity.
        unread: Packs with frames that a later version wrote, by path in the store.
        read_bytes: Bytes of packs that were read.
    """

    def __init__(self, store: Store, parity: float, unreachable: _Unreachable) -> None:
        self.sizes = store.pack_files()
        self.damaged: list[BadPack] = []
        self.bare: list[PackId] = []
        self.unread: dict[str, str] = {}
        self.read_bytes = 0
        self._store = store
        self._parity = parity
        self._unreachable = unreachable

    def read_all(self, cancelled: Callable[[], bool], progress: OnProgress | None) -> None:
        done_bytes, all_bytes = 0, sum(self.sizes.values())
        for pack_id in sorted(self.sizes):
            if cancelled():
                raise CancelledError("the repair was stopped")
            done_bytes += self.sizes[pack_id]
            try:
                self._read(pack_id, cancelled)
            except UnreachableError as error:
                self._unreachable.note_pack(pack_id, error)
                del self.sizes[pack_id]
                continue
            except StoreError:
                if not self._was_removed(pack_id):
                    raise
            if progress is not None:
                progress("read packs", done_bytes, all_bytes)

    def _read(self, pack_id: PackId, cancelled: Callable[[], bool]) -> None:
        check = inspect_pack(self._store.path, pack_id, cancelled=cancelled)
        if self._was_removed(pack_id):
            return
        self.read_bytes += check.read_bytes
        if check.unknown:
            self.unread[f"{layout.PACKS}/{layout.pack_name(pack_id)}"] = check.unknown
        if check.what:
            bad = diagnose(self._store, check)
            self.damaged.append(bad._replace(stays=bool(check.unknown) and not bad.is_repairable))
        elif self._parity and self._lacks_parity(pack_id) and not self._was_removed(pack_id):
            self.bare.append(pack_id)

    def _was_removed(self, pack_id: PackId) -> bool:
        """Return whether a pack is gone because a prune has removed it; then forget its size.

        A prune removes a pack from the chunk index first.
        """
        path = os.path.join(self._store.path, layout.PACKS, layout.pack_name(pack_id))
        if nofollow.exists(path):
            return False
        named = _named(self._store)
        if named is None or pack_id in named:
            return False
        self.sizes.pop(pack_id, None)
        return True

    def _lacks_parity(self, pack_id: PackId) -> bool:
        try:
            return bool(inspect_parity(self._store.path, pack_id))
        except UnreachableError as error:
            self._unreachable.note_parity(pack_id, error)
            return False

    def unreadable_chunks(self) -> set[ChunkId]:
        """Return the chunks of damaged or unreachable packs that neither packs nor parity have."""
        unreadable = {chunk_id for bad in self.damaged for chunk_id in bad.lost}
        for pack_id in self._unreachable.packs:
            for chunk_id, kind in self._store.index_keeper.recorded_in(pack_id).items():
                if not source_of(self._store, chunk_id, kind):
                    unreadable.add(chunk_id)
        return unreadable


class _ManifestSurvey:
    """Reads all manifests and the records of retired IDs.

    Attributes:
        damaged: Manifests that are damaged or lost.
        uncopied: Snapshots whose manifest has no copy, or an outdated one.
        retired: Damaged records of retired IDs, by file name, and what is wrong.
        unread: Documents that a later version wrote, by path in the store.
    """

    def __init__(self, store: Store, unreachable: _Unreachable) -> None:
        self.damaged: list[BadManifest] = []
        self.unread: dict[str, str] = {}
        self.uncopied: list[SnapshotId] = []
        self._store = store
        self._unreachable = unreachable
        self._forgotten = store.trash.unlisted()
        self.retired, unread = store.trash.retired.damage()
        self.unread.update({f"{layout.RETIRED}/{name}": what for name, what in unread.items()})
        for snapshot_id in sorted(store.manifests.files()):
            self._read(snapshot_id)
        # Without them, a snapshot may be lost or may have been removed for good.
        if not self.retired:
            self.damaged += _lost_manifests(store)

    def _read(self, snapshot_id: SnapshotId) -> None:
        copy = self._store.manifests.copies.read(snapshot_id)
        try:
            self._store.manifest(snapshot_id, copy=False)
        except UnreachableError as error:
            self._unreachable.note_manifest(layout.SNAPSHOTS, snapshot_id, error)
        except CorruptionError as error:
            is_forgotten = snapshot_id in self._forgotten
            self.damaged.append(
                BadManifest(snapshot_id, error.message, copy is not None, in_trash=is_forgotten)
            )
        except UnknownFormatError as error:
            self.unread[_manifest_place(layout.SNAPSHOTS, snapshot_id)] = error.message
        except SnapshotNotFoundError:
            pass
        else:
            if copy != _manifest_file(self._store, snapshot_id):
                self.uncopied.append(snapshot_id)


def _manifest_place(directory: str, snapshot_id: SnapshotId) -> str:
    return f"{directory}/{layout.manifest_name(snapshot_id)}"


def _lost_manifests(store: Store) -> list[BadManifest]:
    """Return snapshots that were not forgotten, and whose manifest is gone; some have a copy."""
    found = []
    for snapshot_id in lost_snapshots(store):
        error = lost_manifest(store, snapshot_id)
        has_copy = store.manifests.copies.read(snapshot_id) is not None
        found.append(
            BadManifest(snapshot_id, error.message, has_copy, is_gone=True, hint=error.hint)
        )
    return found


def _manifest_file(store: Store, snapshot_id: SnapshotId) -> bytes:
    path = os.path.join(store.path, layout.SNAPSHOTS, layout.manifest_name(snapshot_id))
    with store_faults("read", path):
        return read_regular(path, MANIFEST_BYTES_MAX)


def _is_stale(store: Store, sizes: dict[PackId, int]) -> bool:
    """Return whether the chunk index names other packs than these."""
    named = _named(store)
    if named is None:
        return True
    now = store.pack_files()
    # What has come or gone meanwhile does not count: other processes add and remove packs.
    stayed = {one: size for one, size in sizes.items() if one in now or one in named}
    known = {one: size for one, size in named.items() if one in sizes or one not in now}
    return stayed != known


def _named(store: Store) -> dict[PackId, int] | None:
    """Return the packs that the chunk index names, and their sizes; None if it is damaged."""
    try:
        index = store.existing_index
        return {} if index is None else index.packs()
    except StoreError:
        return None
