"""What is scrubbed: a store in a bucket.

Each pack is read whole into memory. When a pack was read is recorded in the chunk index of this
machine alone, so each machine scrubs for itself.
"""

import contextlib
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Protocol

from ciuic.errors import StoreError
from ciuic.ids import ChunkId, PackId, SnapshotId
from ciuic.maintain.objects import bucket_of, damaged_manifests, inspect_object
from ciuic.maintain.scrub.checks import damaged_marks
from ciuic.model import PathWarning
from ciuic.store.health.inspect import PackCheck
from ciuic.store.store import Store

__all__ = ["Bucket", "OpenBucket"]


class OpenBucket(Protocol):
    """Opens a store in a bucket."""

    def __call__(
        self,
        *,
        write: bool = False,
        wait_s: float = 0.0,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> AbstractContextManager[Store]:
        """Open it; see ``open_at_address``."""


class Bucket:
    """A store in a bucket. See ``Subject``.

    Args:
        open_bucket: Opens it.

    Raises:
        StoreError: There is no store, or the bucket cannot be read.
    """

    def __init__(self, open_bucket: OpenBucket) -> None:
        self.opened = open_bucket
        with open_bucket() as store:
            self.store_id = store.header.store_id
            self._bucket = bucket_of(store)

    def refuse_other(self) -> None:
        """See ``Subject``; a session that opens the bucket reads its header."""

    def inspect(self, pack_id: PackId, cancelled: Callable[[], bool]) -> PackCheck:
        """See ``Subject``."""
        return inspect_object(self._bucket, pack_id, cancelled)

    def chunks_in(self, store: Store, pack_id: PackId) -> dict[ChunkId, int]:
        """See ``Subject``: the chunk index no longer has those that a scrub has found lost."""
        found = store.index_keeper.recorded_in(pack_id)
        with contextlib.suppress(StoreError):
            for packed in self._bucket.segments.frames(pack_id):
                found.update((chunk_id, packed.frame.kind) for chunk_id, _ in packed.frame.chunks)
        return found

    def was_removed(self, pack_id: PackId) -> bool:
        """See ``Subject``: a prune creates its verdict first, and a verdict stays."""
        return pack_id in self._bucket.condemned.deleted()

    def damaged_manifests(
        self, store: Store, among: Collection[SnapshotId] | None = None
    ) -> list[PathWarning]:
        """See ``Subject``."""
        return [*damaged_manifests(store, among), *damaged_marks(store, among)]
