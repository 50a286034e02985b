"""Single checks of a scrub. They change nothing."""

import contextlib
import os
from collections.abc import Collection, Mapping

from ciuic.catalog import lost_manifest, lost_snapshots
from ciuic.errors import (
    CorruptionError,
    SnapshotNotFoundError,
    StoreError,
    UnknownFormatError,
    UnreachableError,
)
from ciuic.ids import ChunkId, PackId, SnapshotId
from ciuic.maintain.bad_marks import survey_marks
from ciuic.model import PathWarning
from ciuic.store.health.inspect import PackCheck
from ciuic.store.index.places import ChunkPlace
from ciuic.store.parity.parity_file import inspect_parity, parity_path
from ciuic.store.records import layout
from ciuic.store.store import Store

__all__ = [
    "check_with_parity",
    "damaged_manifests",
    "damaged_marks",
    "has_gone",
    "recorded_packs",
    "sound_copies",
    "suspects",
    "unreadable",
]


def recorded_packs(store: Store) -> set[PackId]:
    """Return packs that the chunk index names; empty if it is missing or damaged."""
    with contextlib.suppress(StoreError):
        index = store.existing_index
        if index is not None:
            return set(index.packs())
    return set()


def suspects(store: Store) -> set[PackId]:
    """Return the packs in which a snapshot has found damage, and that no check has read since."""
    with contextlib.suppress(StoreError):
        index = store.existing_index
        if index is not None:
            return index.suspects()
    return set()


def has_gone(store: Store) -> bool:
    """Return whether the chunk index has recorded that packs are gone."""
    with contextlib.suppress(StoreError):
        index = store.existing_index
        if index is not None:
            return index.has_gone()
    return False


def damaged_manifests(
    store: Store, among: Collection[SnapshotId] | None = None
) -> list[PathWarning]:
    """Manifests and copies of manifests that are damaged or lost, and marks.

    Every file is read: the rows of the chunk index do not prove that the files are intact.

    Args:
        store: The store.
        among: Only look at these snapshots; None: at all.
    """
    found = []
    there = store.manifests.files()
    for snapshot_id in sorted(there if among is None else there.keys() & set(among)):
        file = layout.manifest_name(snapshot_id)
        has_copy = os.path.lexists(os.path.join(store.path, layout.PARITY, file))
        is_copied = has_copy and store.manifests.copies.read(snapshot_id) is not None
        if has_copy and not is_copied:
            path = os.fsencode(os.path.join(layout.PARITY, file))
            found.append(PathWarning(path, "the copy of a manifest is damaged"))
        with contextlib.suppress(SnapshotNotFoundError):
            try:
                store.manifest(snapshot_id, copy=False)
            except (CorruptionError, UnknownFormatError) as error:
                what = f"{error.message}; its copy is sound" if is_copied else error.message
                path = os.fsencode(os.path.join(layout.SNAPSHOTS, file))
                found.append(PathWarning(path, what))
    found += damaged_marks(store, among)
    for snapshot_id in lost_snapshots(store):
        if among is not None and snapshot_id not in among:
            continue
        path = os.fsencode(os.path.join(layout.SNAPSHOTS, layout.manifest_name(snapshot_id)))
        found.append(PathWarning(path, lost_manifest(store, snapshot_id).message))
    return found


def damaged_marks(store: Store, among: Collection[SnapshotId] | None = None) -> list[PathWarning]:
    """Newest marks of snapshots that are damaged or gone: see ``damaged_manifests``."""
    found = []
    survey = survey_marks(store, among)
    for bad in survey.damaged:
        what = f"{bad.what}; its copy is sound" if bad.has_copy else bad.what
        found.append(((bad.id, bad.number), what))
    found += [*survey.unreachable.items(), *survey.unread.items()]
    return [
        PathWarning(os.fsencode(os.path.join(layout.MARKS, layout.mark_name(*key))), what)
        for key, what in sorted(found)
    ]


def unreadable(store: Store, check: PackCheck, kinds: Mapping[ChunkId, int]) -> list[ChunkId]:
    """Return the chunks of a damaged pack that no pack and no parity gives.

    Args:
        store: The store.
        check: The result of reading the pack.
        kinds: The chunks in question, and their kinds.

    Raises:
        StoreError: An I/O error of the store, which is not damage of a chunk.
    """
    if not check.read_bytes and store.packs.size_bytes(check.pack_id) is None:
        places = store.reader.places(list(kinds))
        elsewhere = {key for key, place in places.items() if place.pack_id != check.pack_id}
        return [chunk_id for chunk_id in kinds if chunk_id not in elsewhere]
    return [key for key, kind in kinds.items() if not _is_readable(store, key, kind)]


def _is_readable(store: Store, chunk_id: ChunkId, kind: int) -> bool:
    try:
        store.reader.chunk(chunk_id, kind=kind)
    except (CorruptionError, UnknownFormatError):
        return False
    return True


def sound_copies(store: Store, pack_id: PackId, chunk_ids: list[ChunkId]) -> dict[ChunkId, PackId]:
    """For chunks that the chunk index places in this pack: another pack with a sound copy.

    Raises:
        IndexDamagedError: The chunk index is damaged.
    """
    found: dict[ChunkId, PackId] = {}
    # Not from the reader: after damage, it looks into the packs, in the order of their IDs.
    for chunk_id, place in store.index.places(chunk_ids).items():
        other = _sound_copy(store, chunk_id, place) if place.pack_id == pack_id else None
        if other is not None:
            found[chunk_id] = other
    return found


def _sound_copy(store: Store, chunk_id: ChunkId, place: ChunkPlace) -> PackId | None:
    """Return a pack that has a sound copy of a chunk, other than the pack of this place."""
    tried = [place]
    while (other := store.reader.another_place(chunk_id, *tried)) is not None:
        tried.append(other)
        if other.pack_id == place.pack_id:
            continue  # the chunk index does not choose between copies in one pack
        with contextlib.suppress(CorruptionError, UnknownFormatError):
            store.reader.frame(other, repair=False)
            return other.pack_id
    return None


def check_with_parity(store_path: str, check: PackCheck) -> PackCheck:
    """Add the result of checking a pack's parity: otherwise rot in parity is found too late.

    A pack without parity does not count as damaged.
    """
    try:
        problem = inspect_parity(store_path, check.pack_id)
    except UnreachableError as error:
        problem = error.message
    else:
        if not problem or not os.path.lexists(parity_path(store_path, check.pack_id)):
            return check
    what = f"its parity is damaged: {problem}"
    return check._replace(what=f"{check.what}; {what}" if check.what else what)
