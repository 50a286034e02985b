"""Copies of manifests and of the store's header, kept with the parity.

ciuic reads them if an original is damaged. They are never the commit: a copy without a manifest
means that the manifest was lost.
"""

import contextlib
from collections.abc import Collection

from ciuic.errors import StoreError
from ciuic.ids import SnapshotId
from ciuic.store.directory.folder import Folder
from ciuic.store.records import layout
from ciuic.store.records.header import Header
from ciuic.store.records.manifest import MANIFEST_BYTES_MAX, decode_manifest

__all__ = ["ManifestCopies"]


class ManifestCopies:
    """The copies in one store."""

    def __init__(self, store_path: str) -> None:
        self._folder = Folder(store_path, layout.PARITY)
        self._manifests = Folder(store_path, layout.SNAPSHOTS)

    def ids(self) -> set[SnapshotId]:
        """Return the snapshots whose manifest has a copy, including damaged copies."""
        return self._folder.names(layout.parse_manifest_name)

    def read(self, snapshot_id: SnapshotId) -> bytes | None:
        """Return the copy of a manifest; None if there is no undamaged copy."""
        with contextlib.suppress(StoreError):
            data = self._folder.read(layout.manifest_name(snapshot_id), MANIFEST_BYTES_MAX)
            decode_manifest(data, snapshot_id)
            return data
        return None

    def keep(self, snapshot_id: SnapshotId, header: Header) -> StoreError | None:
        """Copy a committed snapshot's manifest; copy ``header`` if it has no copy yet.

        Returns:
            The error, if any. It is not raised: no command may fail because of a copy.
        """
        name = layout.manifest_name(snapshot_id)
        try:
            self.put(name, self._manifests.read(name, MANIFEST_BYTES_MAX))
            if not self._folder.has(layout.HEADER):
                self.put(layout.HEADER, header.encode())
        except StoreError as error:
            return error
        return None

    def put(self, name: str, data: bytes) -> None:
        """Durably write ``data`` as the copy of the file ``name``, a manifest or the header.

        Raises:
            StoreError: The copy cannot be written; an older copy is unchanged.
        """
        self._folder.make_and_replace(name, data)

    def renew(self, snapshot_id: SnapshotId, data: bytes) -> None:
        """Replace the copy of a manifest if there is one. No error is raised or returned."""
        if self._folder.has(layout.manifest_name(snapshot_id)):
            with contextlib.suppress(StoreError):
                self.put(layout.manifest_name(snapshot_id), data)

    def remove(self, snapshot_id: SnapshotId) -> None:
        """Remove the copy of a manifest; the removal is not synced.

        Raises:
            StoreError: The copy cannot be removed.
        """
        self._folder.remove(layout.manifest_name(snapshot_id))

    def remove_all(self, snapshot_ids: Collection[SnapshotId]) -> None:
        """Durably remove the copies of these manifests.

        Raises:
            StoreError: They cannot be removed.
        """
        if snapshot_ids:
            self._folder.remove_durably(map(layout.manifest_name, snapshot_ids))
