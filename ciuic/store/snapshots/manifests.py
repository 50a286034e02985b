"""Reads and writes the manifests of a store, and lists its snapshots.

A snapshot exists if and only if its manifest is in ``snapshots/``. Only ``Store.commit`` and
``Store.adopt`` create a new one; a repair puts back a lost one from its copy. The marks of a
snapshot say whether it is listed or forgotten: ``trash``.
"""

import contextlib
import os
from collections.abc import Collection, Iterable

from ciuic.errors import (
    CorruptionError,
    MissingError,
    SnapshotNotFoundError,
    StoreError,
    UnreachableError,
)
from ciuic.ids import SnapshotId
from ciuic.store.directory.folder import Folder
from ciuic.store.directory.listing import pack_sizes
from ciuic.store.place.packs import Bucket
from ciuic.store.records import layout
from ciuic.store.records.manifest import (
    MANIFEST_BYTES_MAX,
    Manifest,
    decode_manifest,
)
from ciuic.store.snapshots.copies import ManifestCopies

__all__ = ["Manifests"]


class Manifests:
    """The manifests of one store.

    Args:
        store_path: The store's directory, or the cache directory of a store in a bucket.
        bucket: Has the manifests, and the directory then has copies; None: the directory has
            them.

    Attributes:
        copies: Their copies, which are read if a manifest is damaged.
    """

    def __init__(self, store_path: str, bucket: Bucket | None = None) -> None:
        self.copies = ManifestCopies(store_path)
        self._bucket = bucket
        self._store_path = store_path
        self._folder = Folder(store_path, layout.SNAPSHOTS)
        self._quarantine = Folder(store_path, layout.QUARANTINE)

    def files(self) -> dict[SnapshotId, os.stat_result | None]:
        """Return every committed snapshot, with the file status of its manifest.

        The value is None if the file system cannot give the status; reading that manifest then
        raises the reason.

        Raises:
            CorruptionError: The directory of manifests is missing, and packs exist.
            StoreError: The directory cannot be listed.
        """
        found = self._folder.statuses(layout.parse_manifest_name)
        # Asked afterwards: a directory that cannot be read is not one that is gone.
        if not found and not self._folder.exists() and pack_sizes(self._store_path):
            raise CorruptionError(
                f"the store {self._store_path} has lost its directory '{layout.SNAPSHOTS}'",
                hint="Put it back, or run 'ciuic repair --apply': it uses the copies of manifests.",
            )
        return {
            snapshot_id: None if isinstance(status, UnreachableError) else status
            for snapshot_id, status in found.items()
        }

    def has(self, snapshot_id: SnapshotId) -> bool:
        """Return whether the file of this snapshot's manifest exists, damaged or not."""
        return self._folder.has(layout.manifest_name(snapshot_id))

    def is_there(self, snapshot_id: SnapshotId) -> bool:
        """Like ``has``, and ask the bucket: another machine may have removed the manifest."""
        if self._bucket is not None:
            return self._bucket.has_manifest(snapshot_id)
        return self.has(snapshot_id)

    def all_there(self) -> set[SnapshotId]:
        """Return the snapshots for which ``is_there`` is true, from one listing."""
        if self._bucket is not None:
            return self._bucket.manifest_ids()
        return self._folder.names(layout.parse_manifest_name)

    def read(self, snapshot_id: SnapshotId, *, copy: bool = True) -> Manifest:
        """Read a snapshot's manifest.

        Args:
            snapshot_id: The snapshot.
            copy: Read the copy if the manifest is damaged. False: read what counts, which in a
                bucket is not what this machine has of it.

        Raises:
            SnapshotNotFoundError: The snapshot does not exist.
            UnreachableError: The file system cannot read the manifest.
            CorruptionError: The manifest is damaged, and so is its copy.
            UnknownFormatError: A later version wrote it.
        """
        return self.read_file(snapshot_id, copy=copy)[0]

    def read_file(self, snapshot_id: SnapshotId, *, copy: bool = True) -> tuple[Manifest, bytes]:
        """Like ``read``; returns the manifest and the content of its file."""
        if self._bucket is not None and not copy:
            return self._fetched(self._bucket, snapshot_id)
        try:
            data = self._folder.read(layout.manifest_name(snapshot_id), MANIFEST_BYTES_MAX)
            return decode_manifest(data, snapshot_id), data
        except CorruptionError as error:
            if self._bucket is not None:
                return self._fetched(self._bucket, snapshot_id)
            kept = self.copies.read(snapshot_id) if copy else None
            if kept is None:
                raise _damaged(snapshot_id, error) from error
            return decode_manifest(kept, snapshot_id), kept
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise SnapshotNotFoundError(f"there is no snapshot {snapshot_id}") from error
            raise

    def ids(self) -> set[SnapshotId]:
        """Return every committed snapshot, from file names alone.

        Raises:
            StoreError: The directory cannot be listed.
        """
        return self._folder.names(layout.parse_manifest_name)

    def create(self, snapshot_id: SnapshotId, data: bytes) -> bool:
        """Durably write a manifest, unless the snapshot exists already.

        Returns:
            False if there is a manifest of this ID; it is unchanged.

        Raises:
            CommitUncertainError: The file is written, and a power cut may still undo that.
            StoreError: The file is not written.
        """
        if self._bucket is None:
            return self._folder.create(layout.manifest_name(snapshot_id), data)
        is_created = self._bucket.create_manifest(snapshot_id, data)
        # The snapshot exists now. Without a copy on this machine, the next run fetches it.
        if is_created:
            with contextlib.suppress(StoreError):
                self._folder.create(layout.manifest_name(snapshot_id), data)
        return is_created

    def remove(self, snapshot_ids: Iterable[SnapshotId]) -> None:
        """Remove manifests; ``sync`` makes the removal durable.

        Raises:
            StoreError: A manifest cannot be removed.
        """
        snapshot_ids = list(snapshot_ids)
        if self._bucket is not None:
            self._bucket.remove_manifests(snapshot_ids)
        self._folder.remove_all(map(layout.manifest_name, snapshot_ids))

    def sync(self) -> None:
        """Make removals durable.

        Raises:
            StoreError: They may not be durable.
        """
        self._folder.sync()

    def set_aside(self, snapshot_ids: Collection[SnapshotId]) -> None:
        """Durably move damaged manifests to ``quarantine/``; missing manifests are skipped.

        Raises:
            StoreError: A manifest cannot be moved.
        """
        if self._bucket is not None:
            self._bucket.set_manifests_aside(frozenset(snapshot_ids))
            self._folder.remove_all(map(layout.manifest_name, snapshot_ids))
            return
        for snapshot_id in sorted(self.files().keys() & set(snapshot_ids)):
            self._folder.set_aside(layout.manifest_name(snapshot_id), self._quarantine)

    def written_ns(self, snapshot_id: SnapshotId) -> int:
        """Return the mtime of a manifest, in ``snapshots/`` or ``quarantine/``; 0 if unknown."""
        name = layout.manifest_name(snapshot_id)
        for folder in (self._folder, self._quarantine):
            with contextlib.suppress(StoreError):
                return folder.mtime_ns(name)
        return 0

    def _fetched(self, bucket: Bucket, snapshot_id: SnapshotId) -> tuple[Manifest, bytes]:
        """Read a manifest from the bucket, and replace this machine's copy if it differs."""
        name = layout.manifest_name(snapshot_id)
        try:
            data = bucket.manifest(snapshot_id)
            manifest = decode_manifest(data, snapshot_id)
        except MissingError as error:
            raise SnapshotNotFoundError(f"there is no snapshot {snapshot_id}") from error
        except CorruptionError as error:
            raise _damaged(snapshot_id, error) from error
        with contextlib.suppress(StoreError):
            if self._copied(name) != data:
                self._folder.replace(name, data)
        return manifest, data

    def _copied(self, name: str) -> bytes:
        """Return what this machine has of a manifest in a bucket."""
        with contextlib.suppress(StoreError):
            return self._folder.read(name, MANIFEST_BYTES_MAX)
        return b""

    def remembered_ids(self) -> set[SnapshotId]:
        """Return the snapshots whose manifest has a copy, or was set aside by a repair."""
        return self.copies.ids() | self._quarantine.names(layout.parse_set_aside_name)


def _damaged(snapshot_id: SnapshotId, error: CorruptionError) -> CorruptionError:
    message = f"the manifest of {snapshot_id}: {error.message}"
    if isinstance(error, UnreachableError):
        return UnreachableError(message, hint=error.hint)
    return CorruptionError(
        message,
        hint="Put the file back from a backup of the store, or abandon the snapshot:"
        f" 'ciuic forget {snapshot_id}'.",
    )
