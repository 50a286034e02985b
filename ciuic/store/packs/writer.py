"""Adds chunks to a store: deduplicate, encode, fill packs, seal them, and sync before a commit.

    caller's threads: look up, encode  ->  ``PackFiller``: append to packs, seal

Order of durable writes, on which every guarantee rests (docs/format.md, "Write order"):

    1. the parity of a pack is synced and gets its name, then the pack itself;
    2. the directories of packs and of parity are synced: every name is durable;
    3. the chunk index's transaction is committed;
    4. the manifest is written (``Store.commit``): this is the commit.

A failure at any point leaves unreferenced packs, which the next run reuses, and never a manifest
that refers to a missing chunk. The first failure ends the run: every later call raises it.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from ciuic.errors import CorruptionError, StoreError
from ciuic.ids import ChunkId, PackId
from ciuic.store.directory.faults import store_faults
from ciuic.store.format.frame import CHUNKS_MAX, Frame, encode_frame
from ciuic.store.format.pack import PackedFrame
from ciuic.store.index.chunk_index import ChunkIndex
from ciuic.store.packs.delta_encoder import DeltaEncoder, PreviousVersions
from ciuic.store.packs.reader import StoreReader
from ciuic.store.records import layout
from ciuic.store.records.kinds import ALONE_BYTES, DATA, TREE, chunk_id_of
from ciuic.system import durable, nofollow

__all__ = [
    "CHAIN_COST_DEFAULT",
    "QUEUE_BYTES_DEFAULT",
    "Filler",
    "SealedPack",
    "StoreWriter",
    "WriteTotals",
    "sync_packs",
]

CHAIN_COST_DEFAULT: Final = 3.0
_KEPT_TREES_BYTES: Final = 16 * 1024 * 1024
_NODE_GROUP_BYTES: Final = 256 * 1024
QUEUE_BYTES_DEFAULT: Final = 16 * 1024 * 1024
_WAITING_PACKS: Final = 2
"""Up to this many packs are recorded after the snapshot's commit, in one transaction with its row.
SQLite keeps that many rows in memory, and locks out no reader."""

Chunks = Sequence[tuple[ChunkId, bytes | memoryview]]
SealedPack = tuple[PackId, int, list[PackedFrame]]
"""A pack that has its name: its ID, its length and its frames."""


class WriteTotals:
    """What a writer added: plain bytes of file content, bytes of pack files, and packs."""

    def __init__(self) -> None:
        self.new_bytes = 0
        self.stored_bytes = 0
        self.packs = 0


def sync_packs(store_path: str) -> None:
    """Make all published packs, and their parity, durable under their names.

    Raises:
        StoreError: They may not be durable.
    """
    for name in (layout.PARITY, layout.PACKS):
        directory = os.path.join(store_path, name)
        if name == layout.PACKS or nofollow.is_directory(directory):
            with store_faults("sync", directory):
                durable.sync_directory(directory)


class Filler(Protocol):
    """Fills packs and seals them; see ``PackFiller``."""

    def put(self, frame: Frame, payload: bytes | memoryview) -> None:
        """Append a frame to a pack, later; raises the first failure."""

    def raise_failure(self) -> None:
        """Raise the first failure of a thread."""

    def give_up(self) -> None:
        """Discard the packs that are not sealed."""

    def end(self) -> None:
        """Seal the last packs, and wait for the threads to end."""

    def take_sealed(self) -> list[SealedPack]:
        """Return the packs that have got their names since the last call."""
        ...


class StoreWriter:
    """Adds chunks to a store that is open for writing.

    Other processes may add to the store at the same time. So the chunk index is changed in short
    transactions only: packs are recorded when they are durable, several together.

    Args:
        index: Its chunk index.
        sync: Makes the packs that have names durable.
        fill: Starts the threads that fill packs, when the first frame is to be stored. It gets a
            function that makes the sealed packs durable and records them, and the totals.
        reader: Reads delta bases; closed at the end.
        chain_cost: See ``DeltaEncoder``.

    ``add_data`` and ``put_node`` may be called from any thread. After ``finish`` or ``abort`` the
    writer can no longer be used.
    """

    def __init__(
        self,
        index: ChunkIndex,
        sync: Callable[[], None],
        fill: Callable[[Callable[[], None], WriteTotals], Filler],
        *,
        reader: StoreReader,
        chain_cost: float,
    ) -> None:
        self._index = index
        self._sync = sync
        self._fill = fill
        self._filler: Filler | None = None
        self._is_abandoned = False
        self._reader = reader
        self._deltas = DeltaEncoder(reader, chain_cost, index)
        self._lock = threading.Lock()
        self._pending: set[ChunkId] = set()
        self._groups: dict[int, list[tuple[ChunkId, bytes | memoryview]]] = {}
        self._group_bytes: dict[int, int] = {}
        self._trees: dict[ChunkId, bytes] = {}
        self._trees_free_bytes = 0
        self.totals = WriteTotals()

    @property
    def makes_deltas(self) -> bool:
        """A chunk may be stored as a delta."""
        return self._deltas.is_enabled

    def add_data(
        self,
        chunks: Chunks,
        previous: PreviousVersions | None = None,
        widths: Mapping[ChunkId, int] | None = None,
    ) -> int:
        """Store the chunks of file content that the store lacks, small ones together.

        Args:
            chunks: ID and plain bytes of each. The bytes must not change until ``finish``.
            previous: Names each chunk's previous version; None: no deltas.
            widths: Bytes per element of chunks, from a file's header; missing: found by probing.

        Returns:
            Plain bytes that were new.

        Raises:
            StoreError: The store failed, now or earlier.
        """
        fresh = self._claim(chunks)
        if not fresh:
            return 0
        widths = widths or {}
        new_bytes = sum([len(plain) for _, plain in fresh])
        if previous is not None and self.makes_deltas:
            fresh = self._add_deltas(fresh, previous, widths)
        small = [chunk for chunk in fresh if len(chunk[1]) < ALONE_BYTES]
        for start in range(0, len(small), CHUNKS_MAX):
            self._enqueue(DATA, small[start : start + CHUNKS_MAX])
        for chunk in fresh:
            if len(chunk[1]) >= ALONE_BYTES:
                self._enqueue(DATA, [chunk], widths.get(chunk[0], 0))
        with self._lock:
            self.totals.new_bytes += new_bytes
        return new_bytes

    def put_node(self, kind: int, plain: bytes) -> ChunkId:
        """Store a tree or recipe node if the store lacks it; returns its ID.

        Raises:
            StoreError: The store failed, now or earlier.
        """
        node_id = chunk_id_of(kind, plain)
        if self._index.has_dropped:
            self._drop_if_damaged(kind, node_id)
        if not self._claim([(node_id, plain)]):
            return node_id
        if kind == TREE and self._trees_free_bytes >= len(plain):
            self._trees[node_id] = plain
            self._trees_free_bytes -= len(plain)
        full = None
        with self._lock:
            group = self._groups.setdefault(kind, [])
            group.append((node_id, plain))
            size = self._group_bytes.get(kind, 0) + len(plain)
            if size >= _NODE_GROUP_BYTES:
                full = self._groups.pop(kind)
                size = 0
            self._group_bytes[kind] = size
        if full:
            self._enqueue(kind, full)
        return node_id

    def keep_trees(self) -> None:
        """From now on, keep tree nodes in memory that the store lacks, 16 MiB at most."""
        self._trees_free_bytes = _KEPT_TREES_BYTES

    def kept_tree(self, node_id: ChunkId) -> bytes | None:
        """Return a tree node that ``keep_trees`` has kept: the store cannot read it yet."""
        return self._trees.get(node_id)

    def add(self, kind: int, chunks: Chunks) -> None:
        """Store the chunks of one kind that the store lacks: see ``add_data`` and ``put_node``."""
        if kind == DATA:
            self.add_data(chunks)
            return
        for _, plain in chunks:
            self.put_node(kind, bytes(plain))

    def _drop_if_damaged(self, kind: int, node_id: ChunkId) -> None:
        """Have a damaged node stored again. Other nodes of the same frame may be damaged too."""
        if self._index.usable([node_id]):
            try:
                self._reader.node(kind, node_id)
            except CorruptionError:
                self._index.drop_damaged([node_id])

    def lacking(self, chunk_ids: Sequence[ChunkId]) -> set[ChunkId]:
        """Return the chunks that the store lacks, and that are not on their way into it.

        Raises:
            StoreError: The store failed, now or earlier.
        """
        self._raise_failure()
        with self._lock:  # before the index: see ``_claim``
            unclaimed = [chunk_id for chunk_id in chunk_ids if chunk_id not in self._pending]
        return set(unclaimed) - self._index.usable(unclaimed)

    def add_frame(self, frame: Frame, payload: bytes | memoryview) -> None:
        """Store a frame of another store as it is. The store lacks its chunks: see ``lacking``.

        Args:
            frame: The header. Its delta bases are in the store, or on their way into it.
            payload: The stored payload, which matches the header's checksum. It must not change
                until ``finish``.

        Raises:
            StoreError: The store failed, now or earlier.
        """
        with self._lock:
            self._pending.update([chunk_id for chunk_id, _ in frame.chunks])
        self._put(frame, payload)

    def finish(self, *, index_waits: bool = False) -> WriteTotals:
        """Make all added chunks durable, and record them in the chunk index.

        Args:
            index_waits: The caller commits the snapshot and then the chunk index. The rows of one
                or two packs are left to that transaction, whose three syncs would otherwise be made
                twice. If they are lost, the next writer reads them from the packs.

        Raises:
            StoreError: They are not durable; no manifest may refer to them.
        """
        for kind, group in self._groups.items():
            self._enqueue(kind, group)
        self._groups = {}
        if self._filler is not None:
            self._filler.end()
        self._raise_failure()
        self._make_durable(index=not index_waits or self.totals.packs > _WAITING_PACKS)
        # It refers to this writer: its buffers would stay until Python collects cycles.
        self._filler = None
        self._reader.close()
        return self.totals

    def abort(self) -> None:
        """End without a commit; sealed packs stay, and the next run reuses them."""
        self._is_abandoned = True
        if self._filler is not None:
            self._filler.give_up()
            self._filler.end()
        self._reader.close()
        # The run ends with an error already; a second one would only hide it.
        with contextlib.suppress(StoreError):
            self._make_durable()
        self._filler = None

    def _claim(self, chunks: Chunks) -> list[tuple[ChunkId, bytes | memoryview]]:
        """Return the chunks that no thread has stored or is storing; the caller must store them."""
        self._raise_failure()
        # Check the pending set before the index: a chunk is added to the index before it leaves
        # the pending set, so it is always found in at least one of the two.
        with self._lock:
            unclaimed = [chunk for chunk in chunks if chunk[0] not in self._pending]
        known = self._index.usable([chunk_id for chunk_id, _ in unclaimed])
        fresh = []
        with self._lock:
            for chunk in unclaimed:
                chunk_id = chunk[0]
                if chunk_id not in known and chunk_id not in self._pending:
                    self._pending.add(chunk_id)
                    fresh.append(chunk)
        return fresh

    def _add_deltas(
        self,
        chunks: list[tuple[ChunkId, bytes | memoryview]],
        previous: PreviousVersions,
        widths: Mapping[ChunkId, int],
    ) -> list[tuple[ChunkId, bytes | memoryview]]:
        """Store chunks as deltas; returns the chunks that are better stored without a base."""
        alone = []
        for chunk in chunks:
            encoded = self._deltas.encode(chunk, previous, widths.get(chunk[0], 0))
            if encoded is None:
                alone.append(chunk)
            else:
                self._put(*encoded)
        return alone

    def _enqueue(self, kind: int, chunks: Chunks, width: int = 0) -> None:
        if chunks:
            self._put(*encode_frame(kind, chunks, width))

    def _put(self, frame: Frame, payload: bytes | memoryview) -> None:
        filler = self._filler or self._start_filling()
        filler.put(frame, payload)

    def _start_filling(self) -> Filler:
        with self._lock:
            if self._filler is None:
                self._filler = self._fill(self._make_durable, self.totals)
            return self._filler

    def _make_durable(self, *, index: bool = True) -> None:
        self._sync()
        sealed = self._filler.take_sealed() if self._filler is not None else []
        for pack_id, size_bytes, frames in sealed:
            self._index.add_pack(pack_id, size_bytes, frames)
        if index:
            self._index.commit()
        with self._lock:
            for _, _, frames in sealed:
                for packed in frames:
                    self._pending.difference_update([chunk for chunk, _ in packed.frame.chunks])

    def _raise_failure(self) -> None:
        if self._filler is not None:
            self._filler.raise_failure()
        if self._is_abandoned:
            raise StoreError("the snapshot was abandoned")
