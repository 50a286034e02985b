"""Freeze the roots of one snapshot, and record the reflink copies.

    prepare   remove leftovers, free space, copy files that look changed (``early``)
    keep_if_unchanged   instead of the next two steps, if a snapshot needs no scan
    begin     freeze the subvolumes, one right after the other
    walk      of other roots, copy each file that has changed since ``prepare`` when the walk
              reaches it (``views``)
    record    write the records of the copies, before the snapshot's manifest
    retain    remove the reflink copies of all but the newest snapshots

A failure here costs speed, never a snapshot: the root is then captured in place, and the manifest
says so.
"""

import contextlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from ciuic.errors import SourceError, StoreError
from ciuic.ids import SnapshotId
from ciuic.source.directory import open_root
from ciuic.source.freeze.area import Area
from ciuic.source.freeze.early import EarlyCopies, LeftOut
from ciuic.source.freeze.generation import is_unchanged_since
from ciuic.source.freeze.interface import IN_PLACE
from ciuic.source.freeze.methods import REFLINK, SUBVOLUME, Choice, choose, subvolume_top
from ciuic.source.freeze.private import opened
from ciuic.source.freeze.records import RootRecord
from ciuic.source.freeze.trust import FrozenRoot, open_frozen
from ciuic.source.freeze.views import ReflinkView, RootView, SubvolumeView
from ciuic.system import durable, kernel
from ciuic.system.free_space import COPIES_RESERVE, is_short_of_space

__all__ = ["FreezeRequest", "Freezer"]

_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class FreezeRequest(NamedTuple):
    """What a snapshot tells about itself and the ones before it.

    Attributes:
        id: Its ID.
        taken_ns: When it began.
        roots: Its roots.
        existing: All snapshots of the store when it was planned, newest first.
        listed: Returns the snapshots of the store now: others may have been taken meanwhile.
        previous: The parent snapshot of each root.
        unchanged_since: For each root, a time in ns: files without a change since then are not
            captured again. Roots without a time are captured whole.
        is_left_out: Tells which names are excluded.
    """

    id: SnapshotId
    taken_ns: int
    roots: Sequence[bytes]
    existing: Sequence[SnapshotId]
    listed: Callable[[], Collection[SnapshotId]]
    previous: Mapping[bytes, SnapshotId]
    unchanged_since: Mapping[bytes, int]
    is_left_out: LeftOut


class _PreparedRoot(NamedTuple):
    """The result of ``Freezer.prepare`` for a root.

    Attributes:
        choice: How the root is captured.
        previous: The root's reflink copies for the parent snapshot, if they still exist.
        early: The copies that were made before the freeze; None: the root has no area.
    """

    choice: Choice
    previous: FrozenRoot | None
    early: EarlyCopies | None


class Freezer:
    """Makes the reflink copies of one snapshot.

    Args:
        header_path: Path of the store's header.
        store_id: ID of the store.
        request: What the snapshot tells about itself.
    """

    def __init__(self, header_path: str, store_id: str, request: FreezeRequest) -> None:
        self._header_path = header_path
        self._store_id = store_id
        self._request = request
        self._areas: dict[bytes, Area] = {}
        self._prepared: dict[bytes, _PreparedRoot] = {}
        self._views: dict[bytes, RootView] = {}
        self._synced: set[bytes] = set()
        self._kept: dict[bytes, RootRecord] = {}

    def prepare(self) -> None:
        """Do as much as possible before the freeze, so that the freeze itself is short."""
        choices = {root: choose(root) for root in self._request.roots}
        # Make all areas first: making an area may remove copies that another root would use.
        placed = {root: self._with_area(choice) for root, choice in choices.items()}
        for root, choice in placed.items():
            self._prepared[root] = self._prepare_root(root, choice)
        for root, prepared in self._prepared.items():
            if prepared.choice.how == REFLINK and prepared.early is not None:
                since_ns = self._request.unchanged_since.get(root)
                with contextlib.suppress(OSError, SourceError):
                    prepared.early.make(open_root(root), since_ns, self._request.is_left_out)

    def keep_if_unchanged(self, store_path: bytes) -> bool:
        """Keep the parent snapshot's subvolumes instead of freezing if no root has changed.

        Args:
            store_path: The store, which is in no snapshot.

        Returns:
            Every root is proven to be as it was frozen for the parent snapshot.
        """
        kept = {}
        for root, prepared in self._prepared.items():
            choice, previous, _ = prepared
            is_synced = choice.how == SUBVOLUME and choice.place in self._synced
            # Without the sync, changes that are not committed yet would not be seen.
            if not is_synced or previous is None:
                return False
            if not is_unchanged_since(previous, root, store_path):
                return False
            kept[root] = previous.record
        self._kept = kept
        return True

    def begin(self) -> dict[bytes, RootView]:
        """Freeze the subvolumes; returns the view of each root."""
        trees: dict[bytes, RootRecord] = {}
        for root, prepared in self._prepared.items():
            if prepared.choice.how == SUBVOLUME:
                with contextlib.suppress(OSError):
                    self._freeze_subvolume(root, self._area(prepared.choice), trees)
        for root, prepared in self._prepared.items():
            self._views[root] = self._view(root, prepared, trees)
        return self._views

    def record(self) -> None:
        """Write the records durably; without a record, reflink copies are leftovers."""
        for path, area in self._areas.items():
            records = [
                record
                for root, prepared in self._prepared.items()
                if prepared.choice.place == path and (record := self._record_of(root)) is not None
            ]
            with contextlib.suppress(OSError):
                area.write_record(self._request.taken_ns, records)

    def retain(self, snapshot_ids: Collection[SnapshotId]) -> None:
        """Remove the reflink copies of all other snapshots that this run knows, after ``record``.

        Snapshots that others have taken meanwhile are left to the next run. If free space is short,
        all reflink copies are removed: they keep the blocks of deleted files in use.
        """
        unwanted = {self._request.id, *self._request.existing}.difference(snapshot_ids)
        for place, area in self._areas.items():
            area.end()
            with contextlib.suppress(OSError):
                is_short = is_short_of_space(place, COPIES_RESERVE)
                area.clean(area.finished() if is_short else unwanted)

    def abandon(self) -> None:
        """Remove the reflink copies of this snapshot, which failed."""
        for area in self._areas.values():
            area.end()
            with contextlib.suppress(OSError):
                area.clean([self._request.id])

    def close(self) -> None:
        """Close descriptors and locks; the next run removes copies without a record."""
        for view in self._views.values():
            view.close()
        for area in self._areas.values():
            area.close()

    def _prepare_root(self, root: bytes, choice: Choice) -> _PreparedRoot:
        previous = early = None
        previous_id = self._request.previous.get(root)
        if previous_id is not None:
            area = self._areas.get(choice.place or b"")
            previous = open_frozen(self._store_id, previous_id, root, user=area)
        if choice.place in self._areas:
            early = EarlyCopies(self._area(choice), self._request.taken_ns)
        return _PreparedRoot(choice, previous, early)

    def _with_area(self, choice: Choice) -> Choice:
        """Make the area of a root, if it needs one; without it, the root is captured in place."""
        place = choice.place
        if place is None or place in self._areas:
            return choice
        try:
            area = Area.make(
                place,
                self._header_path,
                self._store_id,
                in_subvolume=choice.how == SUBVOLUME,
            )
            try:
                area.begin(self._request.id)
            except OSError:
                area.close()
                raise
        except OSError as error:
            return choice._replace(how=IN_PLACE, why=str(error), place=None)
        self._areas[place] = area
        with contextlib.suppress(OSError):
            self._free_space(place, area)
            self._write_out(place)
        return choice

    def _free_space(self, place: bytes, area: Area) -> None:
        """Remove leftovers, and the oldest reflink copies while free space is short."""
        unknown = area.finished().difference(self._request.existing)
        if unknown:
            # Looked at after their runs have ended: those that are not listed now never will be.
            try:
                unknown = unknown.difference(self._request.listed())
            except StoreError:
                unknown = set()
        area.clean(unknown)
        frozen = area.snapshots()
        while frozen and is_short_of_space(place, COPIES_RESERVE):
            _, oldest = frozen.pop()
            area.clean([oldest])

    def _record_of(self, root: bytes) -> RootRecord | None:
        return self._kept[root] if root in self._kept else self._views[root].record()

    def _write_out(self, place: bytes) -> None:
        """Flush dirty data now, because the freeze would wait for it."""
        fd = os.open(place, _OPEN_DIRECTORY)
        try:
            durable.sync_file_system(fd)
            self._synced.add(place)
        finally:
            os.close(fd)

    def _area(self, choice: Choice) -> Area:
        return self._areas[choice.place or b""]

    def _freeze_subvolume(self, root: bytes, area: Area, trees: dict[bytes, RootRecord]) -> None:
        """Freeze the subvolume of a root, unless it was frozen for another root."""
        real = os.path.realpath(root)
        top = subvolume_top(real)
        if top is None:
            return
        inside = real[len(top) :].strip(b"/")
        shared = trees.get(top)
        if shared is not None:
            trees[root] = shared._replace(path=root, inside=inside)
            return
        name = b"%s.%d" % (self._request.id.encode(), len(trees))
        with opened(top) as source, opened(os.path.dirname(area.tree_path(name))) as trees_fd:
            kernel.snapshot_subvolume(source, trees_fd, name)
        with opened(area.tree_path(name)) as frozen:
            info = kernel.subvolume_info(frozen)
        record = RootRecord(root, SUBVOLUME, name, inside, info.uuid, info.generation)
        trees[top] = trees[root] = record

    def _view(
        self, root: bytes, prepared: _PreparedRoot, trees: Mapping[bytes, RootRecord]
    ) -> RootView:
        choice, previous, early = prepared
        try:
            if choice.how == SUBVOLUME and root in trees:
                area = self._area(choice)
                return SubvolumeView(root, previous, area, trees[root], self._request.taken_ns)
            # If a subvolume cannot be frozen, because it holds a swap file, its files still can.
            if early is not None:
                return ReflinkView(root, previous, self._area(choice), early)
        except OSError:
            pass  # the root is captured in place, and the manifest says so
        return RootView(root, previous)
