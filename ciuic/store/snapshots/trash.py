"""Moves snapshots between the list and the trash, and deletes them for good.

``trash_files`` has the order of durable writes: at every moment, a snapshot is listed or in the
trash.
"""

import contextlib
from collections.abc import Collection, Iterable, Sequence

from ciuic.errors import (
    CommitUncertainError,
    CorruptionError,
    SnapshotNotFoundError,
    StoreError,
    UnknownFormatError,
)
from ciuic.ids import SnapshotId
from ciuic.store.directory.faults import uncertain_commit, uncertain_forget
from ciuic.store.directory.reserve import with_reserve
from ciuic.store.records.manifest import Manifest
from ciuic.store.snapshots.manifests import Manifests
from ciuic.store.snapshots.marks import Marks
from ciuic.store.snapshots.trash_files import Forgotten, TrashFiles

__all__ = ["Trash"]


class Trash:
    """The forgotten snapshots of one store. The caller of a change holds the write lock."""

    def __init__(self, store_path: str, manifests: Manifests, marks: Marks) -> None:
        self._store_path = store_path
        self._manifests = manifests
        self._marks = marks
        self._files = TrashFiles(store_path)

    def ids(self) -> list[SnapshotId]:
        """Return the forgotten snapshots in the trash, including damaged ones."""
        found = self._files.ids()
        listed = self._manifests.ids() if found else ()
        return [snapshot_id for snapshot_id in found if snapshot_id not in listed]

    def used_ids(self) -> set[SnapshotId]:
        """Return every ID in the trash or retired: no new snapshot may get one of them."""
        return {*self._files.ids(), *self._files.retired()}

    def read(self) -> list[Forgotten]:
        """Return the forgotten snapshots that can be brought back, oldest first.

        Raises:
            CorruptionError: A file in the trash is damaged.
            UnknownFormatError: A later version wrote a file in the trash.
        """
        found, damaged = self.survey()
        for error in damaged.values():
            raise error
        return found

    def survey(
        self,
    ) -> tuple[list[Forgotten], dict[SnapshotId, CorruptionError | UnknownFormatError]]:
        """Return the forgotten snapshots, oldest first, and the errors of unreadable ones."""
        found: list[Forgotten] = []
        marks = self._marks.newest()
        damaged: dict[SnapshotId, CorruptionError | UnknownFormatError] = {}
        for snapshot_id in self.ids():
            try:
                entry = self._entry(snapshot_id)
                summary = self._marks.labelled(entry.manifest.summary, marks)
                found.append(entry._replace(manifest=entry.manifest.with_summary(summary)))
            except (CorruptionError, UnknownFormatError) as error:
                damaged[snapshot_id] = error
            except StoreError:
                # Another process may prune, or bring this snapshot back, at the same time.
                if snapshot_id in self._files.ids():
                    raise
        found.sort(key=lambda entry: (entry.manifest.summary.taken_ns, entry.id))
        return found, damaged

    def forget(self, snapshot_ids: Sequence[SnapshotId], now_ns: int) -> None:
        """Durably move snapshots to the trash.

        Their chunks stay until a prune, and so do the copies of their manifests.

        Raises:
            SnapshotNotFoundError: A snapshot does not exist.
            CorruptionError: A manifest is damaged, so its snapshot could not be brought back.
            CommitUncertainError: They are forgotten, and a power cut may bring them back.
            StoreError: They are not forgotten. If the trash does not have all of them, all are
                listed as before.
        """
        files = {
            snapshot_id: self._manifests.read_file(snapshot_id)[1] for snapshot_id in snapshot_ids
        }
        try:
            with_reserve(self._store_path, lambda: self._files.put(files, now_ns))
        except StoreError:
            # The snapshots are still listed, so their files in the trash only use space.
            with contextlib.suppress(StoreError):
                self._files.remove(snapshot_ids)
            raise
        self._manifests.remove(snapshot_ids)
        try:
            self._manifests.sync()
        except StoreError as error:
            raise uncertain_forget(snapshot_ids, error.message) from error

    def bring_back(self, snapshot_id: SnapshotId) -> Manifest:
        """Durably move a snapshot from the trash back to the list, unchanged.

        Raises:
            SnapshotNotFoundError: It is not in the trash.
            CorruptionError: Its file in the trash is damaged.
            CommitUncertainError: It is listed, and after a power cut may be in the trash again.
            StoreError: The manifest cannot be written; the snapshot stays in the trash.
        """
        if snapshot_id not in self._files.ids():
            raise self._not_there(snapshot_id)
        if snapshot_id in self._manifests.files():
            # An earlier run was interrupted between the manifest and the trash.
            manifest = self._manifests.read(snapshot_id)
        else:
            _, _, manifest, data = self._entry(snapshot_id)
            try:
                with_reserve(self._store_path, lambda: self._manifests.write(snapshot_id, data))
            except CommitUncertainError as error:
                raise uncertain_commit(snapshot_id, error.message) from error
            self._manifests.copies.renew(snapshot_id, data)
        # It is listed, so a file in the trash does not count.
        with contextlib.suppress(StoreError):
            self._files.remove([snapshot_id])
        return manifest

    def empty(self, snapshot_ids: Collection[SnapshotId]) -> None:
        """Delete forgotten snapshots for good; no new snapshot gets their IDs.

        Raises:
            StoreError: Some are not deleted; those can still be brought back.
        """
        listed = self._manifests.files()
        gone = [snapshot_id for snapshot_id in snapshot_ids if snapshot_id not in listed]
        with_reserve(self._store_path, lambda: self._files.retire(gone))
        # The copies go before the trash's files: a copy alone means that a manifest was lost.
        self._manifests.copies.remove_all(gone)
        self._files.remove(snapshot_ids)
        self._marks.remove_all(gone)

    def give_up(self, snapshot_ids: Collection[SnapshotId]) -> None:
        """Delete snapshots whose manifests are lost; a prune may then remove their chunks.

        A damaged manifest is moved to ``quarantine/``.

        Raises:
            StoreError: They still count as lost.
        """
        with_reserve(self._store_path, lambda: self._files.retire(snapshot_ids))
        self._manifests.set_aside(snapshot_ids)
        self._manifests.copies.remove_all(snapshot_ids)
        self._marks.remove_all(snapshot_ids)

    def remove_marks_of_retired(self) -> None:
        """Remove the marks of snapshots that are gone for good, which a crash has left.

        Raises:
            StoreError: They can't be removed.
        """
        marked = self._marks.newest().keys() | self._marks.newest_copies().keys()
        there = {*self._manifests.ids(), *self._files.ids()}
        self._marks.remove_all((marked & self._files.retired()) - there)

    def check_retired(self) -> None:
        """Check that the list of retired IDs can be read.

        Raises:
            CorruptionError: The list is damaged.
            UnknownFormatError: A later version wrote it.
        """
        self._files.check_retired()

    def orphaned_copies(self) -> dict[SnapshotId, bool]:
        """Find copies of manifests whose snapshots are neither listed nor in the trash.

        Returns:
            For each snapshot whether its ID is retired. If not, its manifest is lost.
        """
        copied = self._manifests.copies.ids()
        there = {*self._manifests.files(), *self._files.ids()}
        retired = self._files.retired()
        return {snapshot_id: snapshot_id in retired for snapshot_id in copied - there}

    def find_missing(self, snapshot_ids: Iterable[SnapshotId]) -> set[SnapshotId]:
        """Return the IDs that are neither listed, nor in the trash, nor retired.

        Raises:
            StoreError: The store cannot be read.
        """
        # In the order in which a snapshot moves, so that none is missed while it moves.
        left = set(snapshot_ids).difference(self._manifests.files())
        left.difference_update(self._files.ids())
        return left - self._files.retired()

    def _entry(self, snapshot_id: SnapshotId) -> Forgotten:
        return self._files.read(snapshot_id, self._manifests.copies.read(snapshot_id))

    def _not_there(self, snapshot_id: SnapshotId) -> SnapshotNotFoundError:
        if snapshot_id in self._files.retired():
            return SnapshotNotFoundError(
                f"{snapshot_id} is gone for good: a prune has taken it from the trash",
                hint="'ciuic list' and 'ciuic list --trash' show the snapshots that are left.",
            )
        return SnapshotNotFoundError(
            f"{snapshot_id} is not in the trash",
            hint="'ciuic list --trash' shows what can be brought back.",
        )
