"""Repairs a store in a bucket, beside other writers. docs/protocol.md has the rules.

find       read every pack; look for the bytes of damaged chunks in other packs and in live files
store      store these chunks again, and the sound frames of the damaged packs, in new packs
keep       copy each damaged pack to ``quarantine/``
condemn    name the damaged packs in one object: no later session relies on them

A prune then deletes the damaged packs, when every session that may rely on them has ended. It does
not ask what they hold: what was sound there is in new packs, and the rest is lost.
"""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import Final

from ciuic.errors import (
    CancelledError,
    CorruptionError,
    MissingError,
    OfflineError,
    SnapshotNotFoundError,
    StoreError,
    UnknownFormatError,
    UsageError,
)
from ciuic.ids import ChunkId, PackId, SnapshotId
from ciuic.maintain.bad_marks import repair_mark, survey_marks
from ciuic.maintain.objects import bucket_of, damaged_manifests, inspect_object, pack_object
from ciuic.maintain.repair.known_damage import forget_repaired
from ciuic.maintain.repair.lost_chunks import LostChunkSearch
from ciuic.maintain.repair.manifests import sound_manifest
from ciuic.maintain.repair.report import OTHER_PACK, BadManifest, BadPack, RepairPlan, SavedChunk
from ciuic.maintain.repair.storing import store_again
from ciuic.maintain.watch import OnProgress
from ciuic.model import PathWarning
from ciuic.store.directory.files import read_at
from ciuic.store.gc.upload_output import UploadOutput
from ciuic.store.health.inspect import PackCheck
from ciuic.store.health.salvage import listed_or_salvaged
from ciuic.store.health.soundness import sound_payload
from ciuic.store.records import layout
from ciuic.store.records.retired import RETIRED_BYTES_MAX
from ciuic.store.store import Store

__all__ = ["apply_in_bucket", "plan_in_bucket"]

_HINT: Final = (
    "Put the object back from an older version of the bucket, run the repair on a machine that has"
    " used the store, or take it from a copy of the store with --from COPY."
)


def plan_in_bucket(
    store: Store,
    *,
    cancelled: Callable[[], bool] = lambda: False,
    progress: OnProgress | None = None,
) -> RepairPlan:
    """Read every pack of a bucket, and find out what is damaged and what can be done.

    Changes nothing. It reads the packs that a prune or a repair has condemned, too: a snapshot that
    is restored is read from them as long as they are there. If the store is open for writing,
    prunes delete no condemned pack from now on: it may have what is damaged elsewhere.

    Raises:
        StoreError: The bucket cannot be read.
        CancelledError: ``cancelled`` turned true.
    """
    bucket = bucket_of(store)
    if store.writable:
        bucket.begin_repair(store.session_id)
    sizes = store.pack_files()
    shut_packs = bucket.shut_packs()
    damaged: list[BadPack] = []
    condemned: list[BadPack] = []
    unread: dict[str, str] = {}
    read_bytes = 0
    for pack_id in sorted(sizes):
        if cancelled():
            raise CancelledError("the repair was stopped")
        check = inspect_object(bucket, pack_id, cancelled)
        read_bytes += check.read_bytes
        if check.unknown:
            unread[f"{layout.PACKS}/{layout.pack_name(pack_id)}"] = check.unknown
        if check.what and check.read_bytes:
            found = condemned if pack_id in shut_packs else damaged
            found.append(_diagnosed(store, check))
        if progress is not None:
            progress("read packs", read_bytes, sum(sizes.values()))
    unreadable = {chunk_id for bad in (*damaged, *condemned) for chunk_id in bad.lost}
    search = LostChunkSearch(store, unreadable, cancelled)
    remaining = search.run(progress)
    marks = survey_marks(store)
    for key, what in marks.unread.items():
        unread[layout.mark_key(*key)] = what
    return RepairPlan(
        packs=tuple(damaged),
        origins=search.origins,
        lost=frozenset(search.lost),
        manifests=tuple([_bad_manifest(store, bad) for bad in damaged_manifests(store)]),
        marks=marks,
        retired=store.trash.retired.damage()[0],
        bare=(),
        uncopied=(),
        stale_catalog=False,
        remaining=remaining,
        unreachable={layout.mark_key(*key): what for key, what in marks.unreachable.items()},
        unread=unread,
        read_bytes=read_bytes,
        pack_count=len(sizes),
        condemned=tuple(condemned),
    )


def apply_in_bucket(
    store: Store, plan: RepairPlan, *, cancelled: Callable[[], bool] = lambda: False
) -> tuple[RepairPlan, tuple[str, ...]]:
    """Carry out a plan in a store that is open with ``removes``.

    If it is stopped, nothing is condemned, and the next repair starts over.

    Returns:
        The plan, with the marks that could not be repaired; and the names in ``quarantine/`` of the
        packs that were copied there.

    Raises:
        StoreError: The bucket failed, or a prune revoked this session.
        CancelledError: ``cancelled`` turned true.
    """
    bucket = bucket_of(store)
    left: dict[str, str] = {}
    for mark in plan.marks.damaged:
        name = layout.mark_key(mark.id, mark.number)
        if mark.stays:
            left[name] = mark.stays
            continue
        try:
            repair_mark(store, mark)
        except SnapshotNotFoundError:
            pass  # it was removed meanwhile
        except (CorruptionError, UnknownFormatError, UsageError) as error:
            left[name] = error.message
    for name in plan.retired:
        _set_retired_aside(store, name)
    replaced = [bad.pack_id for bad in plan.packs if not bad.stays]
    _store_chunks(store, plan)
    output = UploadOutput(store, bucket.packs)
    for pack_id in replaced:
        if cancelled():
            raise CancelledError("the repair was stopped")
        data = pack_object(bucket, pack_id)
        _copy_sound_frames(output, pack_id, data)
        bucket.place.put(f"{layout.QUARANTINE}/{layout.pack_name(pack_id)}", data)
    output.finish([])
    if plan.lost:
        # As a scrub does: this machine's snapshots store them again, and its lists show the damage.
        store.index.drop_chunks(sorted(plan.lost))
    # A session of its own puts manifests back.
    forget_repaired(store, plan, {*left, *[layout.manifest_key(bad.id) for bad in plan.manifests]})
    if replaced:
        _condemn(store, replaced)
    bucket.end_writing()
    return plan.with_left(left), tuple(map(layout.pack_name, replaced))


def _diagnosed(store: Store, check: PackCheck) -> BadPack:
    """Find out which chunks of a damaged pack can be read from elsewhere."""
    saved: dict[ChunkId, SavedChunk] = {}
    lost: dict[ChunkId, int] = {}
    for chunk_id, kind in _damaged_chunks(store, check).items():
        try:
            store.reader.chunk(chunk_id, kind=kind)
            saved[chunk_id] = SavedChunk(kind, OTHER_PACK)
        except CorruptionError:
            lost[chunk_id] = kind
    return BadPack(check.pack_id, check.what, False, saved, lost, stays=bool(check.unknown))


def _bad_manifest(store: Store, bad: PathWarning) -> BadManifest:
    """Report a damaged or lost manifest."""
    path = os.fsdecode(bad.path)
    snapshot_id = SnapshotId(path.rpartition("/")[2].removesuffix(".json"))
    has_copy = sound_manifest(store, snapshot_id) is not None
    return BadManifest(snapshot_id, f"{path}: {bad.what}", has_copy, is_gone=True, hint=_HINT)


def _damaged_chunks(store: Store, check: PackCheck) -> dict[ChunkId, int]:
    """Return the chunks of damaged frames, and their kinds."""
    found = {chunk_id: bad.kind for bad in check.bad for chunk_id in bad.chunks}
    with contextlib.suppress(StoreError):
        # An index segment has the list of frames, also of a pack that was cut.
        listed = bucket_of(store).segments.frames(check.pack_id)
        for packed in listed or store.index_keeper.list_pack(check.pack_id):
            begin, end = packed.offset_bytes, packed.offset_bytes + packed.frame.total_bytes
            is_bad = end > check.read_bytes or any(
                bad.offset_bytes < end and begin < bad.offset_bytes + bad.length_bytes
                for bad in check.bad
            )
            if is_bad:
                found.update((chunk_id, packed.frame.kind) for chunk_id, _ in packed.frame.chunks)
    return found


def _store_chunks(store: Store, plan: RepairPlan) -> None:
    """Store damaged chunks again, even if another pack has them: a prune may remove that pack."""
    again = {chunk_id: saved.kind for bad in plan.packs for chunk_id, saved in bad.saved.items()}
    store_again(store, again, plan.origins.values(), parity=0.0)


def _set_retired_aside(store: Store, name: str) -> None:
    """Replace a damaged record of retired IDs by one with those that can be read in it."""
    place, key = bucket_of(store).place, f"{layout.RETIRED}/{name}"
    store.trash.retired.renew(name, store.manifests.ids())
    with contextlib.suppress(MissingError):  # another repair was first
        data = place.get(key, RETIRED_BYTES_MAX)
        place.put(f"{layout.QUARANTINE}/{layout.RETIRED}-{name}", data)
        place.delete([key])


def _copy_sound_frames(output: UploadOutput, pack_id: PackId, data: bytes) -> None:
    """Copy the sound frames of a damaged pack to a new pack."""
    with _in_memory(data) as fd:
        read = functools.partial(read_at, fd)
        pack = output.new_pack(len(data))
        try:
            for packed in listed_or_salvaged(fd, pack_id):
                with contextlib.suppress(CorruptionError):
                    # A damaged header in front of it is replaced by the list's copy.
                    payload = sound_payload(read, packed)
                    if payload is not None:
                        pack.add(packed.frame, payload)
            if pack.frames:
                output.publish(pack, pack.complete(), [])
        except BaseException:
            pack.discard()
            raise
        if not pack.frames:
            pack.discard()


@contextlib.contextmanager
def _in_memory(data: bytes) -> Iterator[int]:
    fd = os.memfd_create("pack")
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(data)
        yield fd
    finally:
        os.close(fd)


def _condemn(store: Store, packs: list[PackId]) -> None:
    """Commit: from now on, no session relies on the damaged packs."""
    bucket = bucket_of(store)
    try:
        is_condemned = bucket.condemned.condemn(store.session_id, packs, damaged=True)
    except OfflineError:
        bucket.keep_leases()  # the request may still arrive
        raise
    if not is_condemned:
        raise StoreError(
            "a prune has revoked this repair, because it seemed to be dead",
            hint="Run it again.",
        )
