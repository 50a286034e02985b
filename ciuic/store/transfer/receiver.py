"""Receives the chunks of another store: into new packs, or as a count for a dry run."""

from collections.abc import Sequence
from typing import Final, Protocol

from ciuic.ids import ChunkId, PackId
from ciuic.store.adding import new_writer
from ciuic.store.format.frame import Frame
from ciuic.store.packs.writer import StoreWriter
from ciuic.store.records.kinds import CHAIN_MAX
from ciuic.store.store import Store

__all__ = ["CHAIN_HALF", "CountingReceiver", "Receiver", "StoreReceiver"]

CHAIN_HALF: Final = CHAIN_MAX // 2
"""A delta is sent as it is if its chain in the store that it comes from, and the chain of its delta
base in the copy, are at most this long. Then the two together are no longer than a chain may be."""


class Receiver(Protocol):
    """Receives chunks.

    Attributes:
        reads: It needs the bytes of what it receives.
    """

    reads: bool

    def lacking(self, chunk_ids: Sequence[ChunkId]) -> set[ChunkId]:
        """Return the chunks that are neither there nor received."""

    def takes_delta(self, frame: Frame) -> bool:
        """Return whether a delta can be received as it is: its delta bases are there."""

    def add_frame(self, frame: Frame, payload: bytes) -> None:
        """Receive a frame as it is."""

    def add_chunks(self, kind: int, chunks: Sequence[tuple[ChunkId, bytes]]) -> None:
        """Receive decoded chunks."""


class StoreReceiver:
    """Writes to a store that is open for writing.

    Args:
        store: The store.
        parity: The share of each new pack that its parity takes, 0 to 1.
    """

    reads = True

    def __init__(self, store: Store, *, parity: float) -> None:
        self._store = store
        self._parity = parity
        self._writer: StoreWriter | None = None

    @property
    def _open(self) -> StoreWriter:
        if self._writer is None:
            # Deltas that cannot be received as they are get no other base.
            self._writer = new_writer(self._store, parity=self._parity, chain_cost=1)
        return self._writer

    def lacking(self, chunk_ids: Sequence[ChunkId]) -> set[ChunkId]:
        """See ``Receiver``."""
        return self._open.lacking(chunk_ids)

    def takes_delta(self, frame: Frame) -> bool:
        """See ``Receiver``.

        A chunk that is recorded, and whose delta chain is broken, is not received as a delta: its
        new delta base could be a delta against the chunk itself.
        """
        if self._open.lacking(frame.delta_bases):
            return False
        if self._store.index.places([chunk_id for chunk_id, _ in frame.chunks]):
            return False
        # A base without a chain is on its way: it was received by the same rule.
        chains = [self._store.reader.chain(base) or () for base in frame.delta_bases]
        return all(len(chain) <= CHAIN_HALF for chain in chains)

    def add_frame(self, frame: Frame, payload: bytes) -> None:
        """See ``Receiver``."""
        self._open.add_frame(frame, payload)

    def add_chunks(self, kind: int, chunks: Sequence[tuple[ChunkId, bytes]]) -> None:
        """See ``Receiver``."""
        self._open.add(kind, chunks)

    def finish(self) -> int:
        """Make everything that was received durable; returns the bytes of the new packs.

        Raises:
            StoreError: The store failed, now or earlier.
        """
        writer, self._writer = self._writer, None
        return 0 if writer is None else writer.finish().stored_bytes

    def abort(self) -> None:
        """Give up what is in no pack yet; harmless after ``finish``."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.abort()


class CountingReceiver:
    """Counts what a store would receive, and changes nothing.

    Args:
        store: The store; None if there is none yet.
    """

    reads = False

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self._received: set[ChunkId] = set()
        self._changed: dict[PackId, int] = {}
        if store is not None:
            sizes = store.pack_files()
            for pack_id, size_bytes in store.index.packs().items():
                if sizes.get(pack_id) != size_bytes:
                    self._changed[pack_id] = sizes.get(pack_id, 0)

    def lacking(self, chunk_ids: Sequence[ChunkId]) -> set[ChunkId]:
        """See ``Receiver``."""
        lacking = set(chunk_ids) - self._received
        if self._store is None:
            return lacking
        there = self._store.index.usable(list(lacking))
        for one, place in self._store.index.places(list(there)).items() if self._changed else ():
            size_bytes = self._changed.get(place.pack_id)
            if size_bytes is not None and place.offset_bytes + place.frame_bytes > size_bytes:
                there.discard(one)  # the writer, which renews the index, will not find it
        return lacking - there

    def takes_delta(self, frame: Frame) -> bool:
        """See ``Receiver``."""
        return not self.lacking(frame.delta_bases)

    def add_frame(self, frame: Frame, _payload: bytes) -> None:
        """See ``Receiver``."""
        self._received.update([chunk_id for chunk_id, _ in frame.chunks])

    def add_chunks(self, _kind: int, chunks: Sequence[tuple[ChunkId, bytes]]) -> None:
        """See ``Receiver``."""
        self._received.update([chunk_id for chunk_id, _ in chunks])
