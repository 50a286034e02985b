"""The snapshots that this machine has committed to a bucket.

Copies of a virtual machine may share their name and their machine ID, so manifests do not tell them
apart. Each has a cache directory of its own, with this record.
"""

import contextlib
from collections.abc import Collection, Mapping
from typing import Final

from ciuic.errors import StoreError
from ciuic.ids import SnapshotId
from ciuic.store.directory.folder import Folder
from ciuic.store.records import layout

__all__ = ["OwnSnapshots"]

_NAME: Final = "own"
_BEGIN: Final = "begin"
"""The IDs that were there when it was written. They count as own, and so does what was taken
before. The time alone would not do: this machine's clock may have been wrong then, or earlier.
"""
_BYTES_MAX: Final = 64 * 1024 * 1024


class OwnSnapshots:
    """A directory in the cache directory. Until it exists, every snapshot counts as own.

    Args:
        path: The cache directory.
    """

    def __init__(self, path: str) -> None:
        self._folder = Folder(path, _NAME, is_unlocked=True)

    def among(self, taken_ns: Mapping[SnapshotId, int]) -> set[SnapshotId]:
        """Return which snapshots this machine has committed; the first call makes the record.

        Args:
            taken_ns: When each of the snapshots was taken.

        Raises:
            StoreError: The record cannot be read or made.
        """
        if not self._folder.has(_BEGIN):
            self._folder.make()
            self._folder.create(_BEGIN, "\n".join(sorted(taken_ns)).encode())
        begin_ns = self._folder.mtime_ns(_BEGIN)
        known = self._folder.names(layout.parse_manifest_name)
        there = self._folder.read(_BEGIN, _BYTES_MAX).decode("ascii", "replace")
        known.update(map(SnapshotId, there.split()))
        return {one for one, when_ns in taken_ns.items() if one in known or when_ns < begin_ns}

    def add(self, snapshot_id: SnapshotId) -> None:
        """Add a snapshot before its commit."""
        if self._folder.has(_BEGIN):
            with contextlib.suppress(StoreError):  # the snapshot is worth more than the record
                self._folder.create(layout.manifest_name(snapshot_id), b"")

    def drop(self, snapshot_ids: Collection[SnapshotId]) -> None:
        """Drop snapshots that are gone."""
        self._folder.remove_durably(map(layout.manifest_name, snapshot_ids))
