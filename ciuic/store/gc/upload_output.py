"""Where a rewrite in a bucket puts the chunks that it moves: new packs, which are uploaded.

The emptied packs are only remembered: the caller condemns them.
"""

import os
from collections.abc import Iterable, Sequence

from ciuic.ids import PackId
from ciuic.store.format.pack import PackedFrame
from ciuic.store.gc.usage import read_payload
from ciuic.store.packs.pack_writer import PACK_BYTES, PackFile
from ciuic.store.place.packs import OpenPack, PackUploads
from ciuic.store.records import layout
from ciuic.store.store import Store

__all__ = ["UploadOutput"]


class UploadOutput:
    """Uploads the packs of a rewrite, and remembers which packs they emptied. See ``Output``.

    Args:
        store: Open for writing.
        packs: Its packs.

    Attributes:
        emptied: The packs whose needed chunks are in new packs.
    """

    portion_bytes = PACK_BYTES

    def __init__(self, store: Store, packs: PackUploads) -> None:
        self._store = store
        self._packs = packs
        self.emptied: list[PackId] = []

    def begin(self) -> None:
        """See ``Output``."""

    def announce(self, opened: OpenPack, frames: Iterable[PackedFrame]) -> None:
        """See ``Output``."""
        for packed in frames:
            opened.read_ahead(packed.offset_bytes, packed.frame.total_bytes)

    def payload(self, opened: OpenPack, packed: PackedFrame) -> bytes:
        """See ``Output``."""
        payload = read_payload(opened, packed)
        opened.done(packed.offset_bytes, packed.frame.total_bytes)
        return payload

    def new_pack(self, expected_bytes: int) -> PackFile:
        """See ``Output``."""
        temporary = os.path.join(self._store.path, layout.TEMPORARY)
        return PackFile(
            temporary, self._store.session_id, expected_bytes=min(PACK_BYTES, expected_bytes)
        )

    def publish(self, pack: PackFile, pack_id: PackId, emptied: Sequence[PackId]) -> None:
        """Begin to upload a pack, and record it: the old places of its chunks will go."""
        pack.close()
        self._packs.publish(pack.path, pack_id, is_direct=pack.is_direct)
        self._store.index.move(pack_id, pack.size_bytes, pack.frames, [])
        self.emptied += emptied

    def finish(self, emptied: Sequence[PackId]) -> None:
        """Wait for all uploads."""
        self._packs.sync()
        self._store.index.commit()
        self.emptied += emptied
