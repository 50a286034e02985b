"""Where a rewrite puts the chunks that it moves: new packs, or a count for a dry run.

Order of durable writes for each new pack (docs/format.md, "Order of removal"):

    1. the new pack is synced and gets its name, and the directory of packs is synced;
    2. one transaction of the chunk index records the chunks in the new pack, and removes the
       emptied packs;
    3. the emptied packs are unlinked.

Packs that no snapshot needs are removed with the first emptied packs. Some disks delay syncs while
they free blocks; removing packs early overlaps this with the rewriting. If little space is free,
these packs are removed before anything is rewritten. If that leaves almost none, the reserve of the
store is released, and the first new packs are short: each frees the packs that it replaces.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol, TypeVar

from ciuic.ids import ChunkId, PackId, SessionId
from ciuic.store.directory.reserve import RESERVE_BYTES, release_reserve
from ciuic.store.format.frame import Frame
from ciuic.store.format.pack import MAGIC, PackedFrame, encode_footer
from ciuic.store.gc.remove import Removals, unlink_pack
from ciuic.store.gc.usage import read_frames, read_payload
from ciuic.store.index.chunk_index import ChunkIndex
from ciuic.store.index.places import Emptied
from ciuic.store.packs.pack_writer import PACK_BYTES, PackFile, publish_pack
from ciuic.store.packs.writer import sync_packs
from ciuic.store.place.packs import OpenPack, Packs
from ciuic.store.records import layout
from ciuic.system.hashing import PACK_LABEL_BYTES

__all__ = [
    "CountedPack",
    "CountingOutput",
    "NewPack",
    "Output",
    "PackOutput",
    "merge_bytes_max",
    "remove_from_index",
]

_PORTION_BYTES_MIN: Final = 256 * 1024
_PORTION_SHARE: Final = 8
"""A new pack takes at most an eighth of the free space; two may be open at once."""


def merge_bytes_max(free_bytes: int) -> float:
    """Return how many bytes can be merged into new packs of full length, the last one excepted."""
    portion = _portion_bytes(free_bytes)
    return float("inf") if portion == PACK_BYTES else portion


def _portion_bytes(free_bytes: int) -> int:
    """Return the length of a new pack with this much free space."""
    return max(_PORTION_BYTES_MIN, min(PACK_BYTES, free_bytes // _PORTION_SHARE))


def remove_from_index(index: ChunkIndex, pack_ids: Sequence[PackId]) -> None:
    """Durably remove packs from the chunk index, before their files are removed.

    The chunk index must not send a reader to a removed pack.

    Raises:
        StoreFullError: The disk is full.
        StoreError: The chunk index cannot be written.
    """
    if pack_ids:
        index.remove_packs(pack_ids)
        index.commit()


class CountedPack:
    """Has the interface of ``PackFile``, writes nothing, and counts the pack's exact length."""

    def __init__(self) -> None:
        self.frames: list[PackedFrame] = []
        self.size_bytes = len(MAGIC)

    def add(self, frame: Frame, _payload: bytes | memoryview) -> None:
        """Count one frame."""
        self.frames.append(PackedFrame(self.size_bytes, frame, frame.encode_header()))
        self.size_bytes += frame.total_bytes

    def absorb(self, other: "CountedPack") -> None:
        """Count the frames of another pack."""
        for packed in other.frames:
            self.add(packed.frame, b"")

    def complete(self) -> PackId:
        """Count the footer; returns the pack's ID."""
        pack_id, footer = encode_footer(self.frames, self.size_bytes, bytes(PACK_LABEL_BYTES))
        self.size_bytes += len(footer)
        return pack_id

    def discard(self) -> None:
        """Nothing was written, so nothing is removed."""


NewPack = TypeVar("NewPack", PackFile, CountedPack)


class Output(Protocol[NewPack]):
    """Takes the packs that a rewrite makes.

    Attributes:
        portion_bytes: Length at which a new pack is full, if it frees as much.
    """

    portion_bytes: int

    def begin(self) -> None:
        """Measure the free space, before the first pack is made."""

    def announce(self, opened: OpenPack, frames: Iterable[PackedFrame]) -> None:
        """Announce that these frames of an open pack will be read next."""

    def payload(self, opened: OpenPack, packed: PackedFrame) -> bytes:
        """Return the stored payload of a frame that is copied unchanged.

        Raises:
            CorruptionError: The payload is damaged.
        """

    def new_pack(self, expected_bytes: int) -> NewPack:
        """Return an empty pack that will have about this length."""

    def publish(self, pack: NewPack, pack_id: PackId, emptied: Sequence[PackId]) -> None:
        """Make a complete pack durable, then remove the packs that it emptied."""

    def finish(self, emptied: Sequence[PackId]) -> None:
        """Remove the packs that were emptied last; every removal is durable when this returns."""


class CountingOutput:
    """Counts the bytes of new packs. Only chunks that must be encoded again are read.

    Args:
        free_bytes: Free space of the store's file system after the removal of packs that no
            snapshot needs.
    """

    def __init__(self, free_bytes: int) -> None:
        self.portion_bytes = _portion_bytes(free_bytes)

    def begin(self) -> None:
        """Do nothing."""

    def announce(self, _opened: OpenPack, _frames: Iterable[PackedFrame]) -> None:
        """Do nothing: frames that are copied unchanged are not read."""

    def payload(self, _opened: OpenPack, _packed: PackedFrame) -> bytes:
        """Return no bytes: a count needs only the header."""
        return b""

    def new_pack(self, _expected_bytes: int) -> CountedPack:
        """Return an empty pack."""
        return CountedPack()

    def publish(self, _pack: CountedPack, _pack_id: PackId, _emptied: Sequence[PackId]) -> None:
        """Do nothing: there is nothing to write."""

    def finish(self, _emptied: Sequence[PackId]) -> None:
        """Do nothing: there is nothing to remove."""


class PackOutput:
    """Writes new packs, and removes the packs that they emptied. A context manager.

    It never needs more free space than two new packs, one of data and one of nodes. With little
    free space the packs are as short as what is left of one old pack.

    Args:
        store_path: The store's directory. The caller holds the write locks alone.
        packs: The store's packs.
        session_id: The session, which the packs name as their writer.
        index: The chunk index.
        removals: Removes packs.
        parity: The share of each new pack that its parity takes.
        free_bytes: Returns the free space of the store's file system.
        unneeded: Packs that no snapshot needs. They are removed with the first emptied packs, or
            before if there is little free space.

    Attributes:
        portion_bytes: Length at which a new pack is full.
        unneeded: The unneeded packs that have not been removed.
    """

    def __init__(
        self,
        store_path: str,
        packs: Packs,
        session_id: SessionId,
        index: ChunkIndex,
        removals: Removals,
        *,
        parity: float,
        free_bytes: Callable[[], int],
        unneeded: Sequence[PackId],
    ) -> None:
        self.unneeded = list(unneeded)
        self.portion_bytes = 0
        self._store_path = store_path
        self._packs = packs
        self._session_id = session_id
        self._index = index
        self._removals = removals
        self._parity = parity
        self._free_bytes = free_bytes
        self._helper = ThreadPoolExecutor(1, "write")

    def __enter__(self) -> "PackOutput":
        return self

    def __exit__(self, *_: object) -> None:
        self._helper.shutdown()

    @property
    def has_free_space(self) -> bool:
        """The free space allows new packs of full length."""
        return self._free_bytes() // _PORTION_SHARE >= PACK_BYTES

    def begin(self) -> None:
        """Measure the free space; if there is little, first remove what no snapshot needs."""
        if not self.has_free_space:
            self._remove([])
            self._removals.wait()  # their space may be the only free space
            if self._free_bytes() < RESERVE_BYTES:
                release_reserve(self._store_path)
        self.portion_bytes = _portion_bytes(self._free_bytes())

    def announce(self, opened: OpenPack, frames: Iterable[PackedFrame]) -> None:
        """Ask the kernel to read these frames ahead, and nothing between them."""
        begin = end = 0
        for packed in frames:
            if packed.offset_bytes != end:
                if end > begin:
                    opened.read_ahead(begin, end - begin)
                begin = packed.offset_bytes
            end = packed.offset_bytes + packed.frame.total_bytes
        if end > begin:
            opened.read_ahead(begin, end - begin)

    def payload(self, opened: OpenPack, packed: PackedFrame) -> bytes:
        """Read and check the stored payload of a frame."""
        return read_payload(opened, packed)

    def new_pack(self, expected_bytes: int) -> PackFile:
        """Return an empty pack."""
        return PackFile(
            os.path.join(self._store_path, layout.TEMPORARY),
            self._session_id,
            parity=self._parity,
            expected_bytes=min(self.portion_bytes, expected_bytes),
            helper=self._helper,
        )

    def publish(self, pack: PackFile, pack_id: PackId, emptied: Sequence[PackId]) -> None:
        """Make a complete pack durable, then remove the packs that it emptied.

        Raises:
            StoreError: The new pack or the chunk index cannot be written; no pack was removed.
        """
        try:
            self._commit(pack, pack_id, emptied)
        except BaseException:
            self._index.rollback()
            # Nothing refers to the new pack, and its space may be what was missing.
            unlink_pack(self._store_path, pack_id)
            raise
        self._removals.add([*emptied, *self.unneeded])
        self.unneeded = []
        self.begin()
        pack.close()

    def _commit(self, pack: PackFile, pack_id: PackId, emptied: Sequence[PackId]) -> None:
        """Sync the pack and, at the same time, update the chunk index."""
        publishing = self._helper.submit(self._make_durable, pack, pack_id)
        try:
            if self.unneeded:
                self._index.remove_packs(self.unneeded)
            held = (Emptied(old, self._chunks_of(old)) for old in emptied)
            self._index.move(pack_id, pack.size_bytes, pack.frames, held)
        finally:
            publishing.exception()  # wait for the end, even after an error
        publishing.result()
        self._index.commit()

    def finish(self, emptied: Sequence[PackId]) -> None:
        """Remove the packs that were emptied last; every removal is durable when this returns."""
        self._remove(emptied)
        self._removals.finish()

    def _remove(self, emptied: Sequence[PackId]) -> None:
        """Remove emptied packs, and the packs that no snapshot needs."""
        gone = [*emptied, *self.unneeded]
        remove_from_index(self._index, gone)
        self._removals.add(gone)
        self.unneeded = []

    def _make_durable(self, pack: PackFile, pack_id: PackId) -> None:
        publish_pack(self._store_path, pack, pack_id)
        sync_packs(self._store_path)

    def _chunks_of(self, pack_id: PackId) -> list[ChunkId]:
        frames = read_frames(self._packs, pack_id)
        return [chunk_id for packed in frames for chunk_id, _ in packed.frame.chunks]
