"""Adds chunks to a store: deduplicate, encode, fill packs, seal them, and sync before a commit.

    caller's threads: look up, encode  ->  one thread: append to packs  ->  one thread: seal
                                           one thread: parity, write full buffers

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
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

from ciuic.errors import CorruptionError, StoreError
from ciuic.ids import ChunkId, PackId, SessionId
from ciuic.store.directory.faults import store_faults
from ciuic.store.format.frame import CHUNKS_MAX, Frame, encode_frame
from ciuic.store.format.pack import PackedFrame
from ciuic.store.index.chunk_index import ChunkIndex
from ciuic.store.packs.delta_encoder import DeltaEncoder, PreviousVersions
from ciuic.store.packs.frame_queue import FrameQueue
from ciuic.store.packs.pack_writer import TOGETHER_BYTES, PackFile
from ciuic.store.packs.reader import StoreReader
from ciuic.store.parity.parity_writer import write_parity
from ciuic.store.records import layout
from ciuic.store.records.kinds import ALONE_BYTES, DATA, chunk_id_of
from ciuic.system import durable, nofollow
from ciuic.system.buffers import give_back_holes

__all__ = [
    "CHAIN_COST_DEFAULT",
    "QUEUE_BYTES_DEFAULT",
    "DirectoryOutlet",
    "PackOutlet",
    "StoreWriter",
    "WriteTotals",
    "publish_pack",
    "sync_packs",
]

CHAIN_COST_DEFAULT: Final = 3.0
_NODE_GROUP_BYTES: Final = 256 * 1024
QUEUE_BYTES_DEFAULT: Final = 16 * 1024 * 1024
_SEALING_MAX: Final = 2
"""The most packs that wait for their fsync; more would only let a slow disk fill the memory."""
_TRANSACTION_PACKS: Final = 16
"""Packs in a transaction of the chunk index: a killed run loses only their index rows."""
_WAITING_PACKS: Final = 2
"""Up to this many packs are recorded after the snapshot's commit, in one transaction with its row.
SQLite keeps that many rows in memory, and locks out no reader."""

Chunks = Sequence[tuple[ChunkId, bytes | memoryview]]


class WriteTotals:
    """What a writer added: plain bytes of file content, bytes of pack files, and packs."""

    def __init__(self) -> None:
        self.new_bytes = 0
        self.stored_bytes = 0
        self.packs = 0


def publish_pack(store_path: str, pack: PackFile, pack_id: PackId) -> None:
    """Give a completed pack, and its parity, their names.

    Both are durable after ``sync_packs``. The parity comes first: a writer that is killed between
    the two leaves parity that the next prune removes. In the other order it would leave a pack
    that the next snapshot uses and that no parity protects.

    Raises:
        StoreError: The pack or its parity can't be written.
    """
    place = os.path.join(store_path, layout.PACKS)
    final = os.path.join(place, layout.pack_name(pack_id))
    with store_faults("write to", place):
        parity = pack.parity()
    if parity is not None:
        write_parity(store_path, pack_id, parity)
    with store_faults("write to", place):
        durable.publish(pack.fd, pack.path, final)


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


class PackOutlet(Protocol):
    """Where completed packs go."""

    def publish(self, pack: PackFile, pack_id: PackId) -> None:
        """Give a completed pack its name; it is durable after ``sync``."""

    def sync(self) -> None:
        """Make all published packs durable under their names."""


class DirectoryOutlet:
    """Packs become files in the store's directory. See ``PackOutlet``."""

    def __init__(self, store_path: str) -> None:
        self._store_path = store_path

    def publish(self, pack: PackFile, pack_id: PackId) -> None:
        """See ``publish_pack``."""
        publish_pack(self._store_path, pack, pack_id)

    def sync(self) -> None:
        """See ``sync_packs``."""
        sync_packs(self._store_path)


class StoreWriter:
    """Adds chunks to a store that is open for writing.

    Other processes may add to the store at the same time. So the chunk index is changed in short
    transactions only: packs are recorded when they are durable, several together.

    Args:
        store_path: The store's directory, for temporary files.
        index: Its chunk index.
        output: Gives packs their names.
        parity: The share of each pack that its parity takes; 0: none is written.
        joins_small: Small chunks of a snapshot are joined with its trees in one pack.
        reader: Reads delta bases; closed at the end.
        chain_cost: See ``DeltaEncoder``.
        session_id: The session, which the packs name as their writer.
        queue_bytes: How many encoded bytes may wait to be written.

    ``add_data`` and ``put_node`` may be called from any thread. After ``finish`` or ``abort``
    the writer cannot be used any more.
    """

    def __init__(
        self,
        store_path: str,
        index: ChunkIndex,
        output: PackOutlet,
        *,
        parity: float,
        joins_small: bool,
        reader: StoreReader,
        chain_cost: float,
        session_id: SessionId,
        queue_bytes: int = QUEUE_BYTES_DEFAULT,
    ) -> None:
        self._output = output
        self._parity = parity
        self._joins_small = joins_small
        self._session_id = session_id
        self._reader = reader
        self._deltas = DeltaEncoder(reader, chain_cost, index)
        self._temporary = os.path.join(store_path, layout.TEMPORARY)
        self._index = index
        self._lock = threading.Lock()
        self._pending: set[ChunkId] = set()
        self._sealed: list[tuple[PackId, int, list[PackedFrame]]] = []
        self._groups: dict[int, list[tuple[ChunkId, bytes | memoryview]]] = {}
        self._group_bytes: dict[int, int] = {}
        self._failure: BaseException | None = None
        self._queue = FrameQueue(queue_bytes)
        self._sealing: queue.Queue[PackFile | None] = queue.Queue(_SEALING_MAX)
        self._open: dict[bool, PackFile] = {}
        self._helper = ThreadPoolExecutor(1, "write")
        self.totals = WriteTotals()
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
            for name, work in (("pack", self._fill_packs), ("seal", self._seal_packs))
        ]
        for thread in self._threads:
            thread.start()

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

    def _drop_if_damaged(self, kind: int, node_id: ChunkId) -> None:
        """Have a damaged node stored again. Other nodes of the same frame may be damaged too."""
        if self._index.known([node_id]):
            try:
                self._reader.node(kind, node_id)
            except CorruptionError:
                self._index.drop_chunks([node_id])
                self._index.commit()  # other processes that add wait for an open change

    def lacking(self, chunk_ids: Sequence[ChunkId]) -> set[ChunkId]:
        """Return the chunks that the store lacks, and that are not on their way into it.

        Raises:
            StoreError: The store failed, now or earlier.
        """
        self._raise_failure()
        with self._lock:  # before the index: see ``_claim``
            unclaimed = [chunk_id for chunk_id in chunk_ids if chunk_id not in self._pending]
        return set(unclaimed) - self._index.known(unclaimed)

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
                or two packs are left to that transaction, whose five syncs would otherwise be made
                twice. If they are lost, the next writer reads them from the packs.

        Raises:
            StoreError: They are not durable; no manifest may refer to them.
        """
        for kind, group in self._groups.items():
            self._enqueue(kind, group)
        self._groups = {}
        self._stop_threads()
        self._raise_failure()
        self._make_durable(index=not index_waits or self.totals.packs > _WAITING_PACKS)
        self._reader.close()
        return self.totals

    def abort(self) -> None:
        """End without a commit; sealed packs stay, and the next run reuses them."""
        if self._failure is None:
            self._failure = StoreError("the snapshot was abandoned")
        self._stop_threads()
        self._reader.close()
        # The run ends with an error already; a second one would only hide it.
        with contextlib.suppress(StoreError):
            self._make_durable()

    def _claim(self, chunks: Chunks) -> list[tuple[ChunkId, bytes | memoryview]]:
        """Return the chunks that no thread has stored or is storing; the caller must store them."""
        self._raise_failure()
        # Check the pending set before the index: a chunk is added to the index before it leaves
        # the pending set, so it is always found in at least one of the two.
        with self._lock:
            unclaimed = [chunk for chunk in chunks if chunk[0] not in self._pending]
        known = self._index.known([chunk_id for chunk_id, _ in unclaimed])
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
        self._queue.put(frame, payload, lambda: self._failure is not None)
        self._raise_failure()

    def _fill_packs(self) -> None:
        while (item := self._queue.get()) is not None:
            frame, payload = item
            if self._failure is None:
                self._append(frame, payload)
            self._queue.written(frame)
        try:
            self._join_small()
        except BaseException as error:  # noqa: BLE001 - the last step: the queue has ended
            if self._failure is None:
                self._failure = error
        for pack in self._open.values():
            self._sealing.put(pack)
        self._sealing.put(None)

    def _join_small(self) -> None:
        """Put the data and nodes of a small snapshot into one pack.

        Not in a directory without parity: damage would then hit both data and trees.
        """
        data, nodes = self._open.get(True), self._open.get(False)
        if not self._joins_small or data is None or nodes is None:
            return
        if data.size_bytes + nodes.size_bytes <= TOGETHER_BYTES:
            with store_faults("write to", self._temporary):
                data.absorb(self._open.pop(False))

    def _append(self, frame: Frame, payload: bytes | memoryview) -> None:
        # Nodes go to packs of their own, unless there is little of both. Reading a tree then
        # touches few packs, and an object store can cache them.
        is_data = frame.kind == DATA
        with store_faults("write to", self._temporary):
            pack = self._open.get(is_data)
            if pack is None:
                pack = PackFile(
                    self._temporary, self._session_id, parity=self._parity, helper=self._helper
                )
                self._open[is_data] = pack
            pack.add(frame, payload)
        if pack.is_full:
            del self._open[is_data]
            self._sealing.put(pack)

    def _seal_packs(self) -> None:
        while (pack := self._sealing.get()) is not None:
            if self._failure is not None:
                pack.discard()
                continue
            try:
                self._seal(pack)
            except BaseException:
                pack.discard()
                raise
            pack.close()
            if self.totals.packs % _TRANSACTION_PACKS == 0:
                self._make_durable()
                give_back_holes()

    def _seal(self, pack: PackFile) -> None:
        with store_faults("write to", self._temporary):
            pack_id = pack.complete()
        self._output.publish(pack, pack_id)
        self._sealed.append((pack_id, pack.size_bytes, pack.frames))
        with self._lock:
            self.totals.stored_bytes += pack.size_bytes
            self.totals.packs += 1

    def _make_durable(self, *, index: bool = True) -> None:
        self._output.sync()
        sealed, self._sealed = self._sealed, []
        for pack_id, size_bytes, frames in sealed:
            self._index.add_pack(pack_id, size_bytes, frames)
        if index:
            self._index.commit()
        with self._lock:
            for _, _, frames in sealed:
                for packed in frames:
                    self._pending.difference_update([chunk for chunk, _ in packed.frame.chunks])

    def _stop_threads(self) -> None:
        self._queue.end()
        for thread in self._threads:
            thread.join()
        self._helper.shutdown()

    def _run(self, work: Callable[[], None]) -> None:
        """Run one thread's work; after a failure, drain its queue so that no caller hangs."""
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - carried to the caller's thread
            if self._failure is None:
                self._failure = error
            self._queue.wake()
            work()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
