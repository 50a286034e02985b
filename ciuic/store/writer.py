"""Adding to a store: deduplicate, encode, fill packs, seal them, and the barrier before a commit.

    caller's threads: look up, encode  ->  one thread: append to packs  ->  one thread: seal

Order of durable writes, on which every guarantee rests (docs/format.md, "Write order"):

    1. the parity of a pack is synced and gets its name, then the pack likewise;
    2. the directories of packs and of parity are synced: every name is durable;
    3. the catalog's transaction is committed;
    4. the manifest is written (``Store.commit``): this is the commit.

A failure at any point leaves packs that nobody refers to, which the next run reuses, and never
a manifest that refers to what is not there. The first failure ends the run: it is raised to
every caller from then on.
"""

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Final, Protocol

from ciuic import durable
from ciuic.codec import Reference
from ciuic.errors import CorruptionError, StoreError, UnknownFormatError
from ciuic.memory import give_back_holes
from ciuic.store import layout
from ciuic.store.faults import store_faults
from ciuic.store.frame import CHUNKS_MAX, DATA, Frame, chunk_id, encode_delta_frame, encode_frame
from ciuic.store.index import ChunkPlace, Index
from ciuic.store.packfile import PackFile
from ciuic.store.parity import write_parity
from ciuic.store.reader import StoreReader

__all__ = [
    "ALONE_BYTES",
    "CHAIN_COST_DEFAULT",
    "Earlier",
    "StoreWriter",
    "WriteTotals",
    "publish_pack",
    "sync_packs",
]

CHAIN_COST_DEFAULT: Final = 3.0
_NODE_GROUP_BYTES: Final = 256 * 1024
_QUEUE_BYTES: Final = 16 * 1024 * 1024
_SEALING_MAX: Final = 2
"""Packs that wait for their fsync; more would only let a slow disk fill the memory."""
_BARRIER_PACKS: Final = 16
"""Packs between two commits of the catalog: a killed run loses no more than their index rows."""

ALONE_BYTES: Final = 64 * 1024
"""A chunk of this length gets a frame of its own: behind others its numbers would not begin where
elements do, and byte planes would find none in them."""
_DELTAS_MAX: Final = 12
"""Links of a chain, however little they take: each is decoded in turn."""

Chunks = Sequence[tuple[bytes, bytes | memoryview]]


class Earlier(Protocol):
    """What is known of the last versions of chunks."""

    def of(self, name: bytes) -> bytes:
        """The ID of a chunk's last version; empty: it has none that is worth reading."""
        ...

    def tell(self, name: bytes, *, is_like: bool) -> None:
        """A chunk was compared with its last version: it is stored as a difference, or it isn't."""
        ...


class WriteTotals:
    """What a writer added: plain bytes of file content, and bytes of pack files."""

    def __init__(self) -> None:
        self.new_bytes = 0
        self.stored_bytes = 0
        self.packs = 0


class _ByteQueue:
    """A queue that holds a bounded number of bytes rather than of items."""

    def __init__(self, bytes_max: int) -> None:
        self._queue: queue.SimpleQueue[tuple[Frame, bytes | memoryview] | None] = (
            queue.SimpleQueue()
        )
        self._room = threading.Condition()
        self._free_bytes = bytes_max
        self._bytes_max = bytes_max

    def put(self, frame: Frame, payload: bytes | memoryview, failed: Callable[[], bool]) -> None:
        wanted = min(frame.stored_bytes, self._bytes_max)
        with self._room:
            self._room.wait_for(lambda: self._free_bytes >= wanted or failed())
            self._free_bytes -= wanted
        self._queue.put((frame, payload))

    def end(self) -> None:
        self._queue.put(None)

    def get(self) -> tuple[Frame, bytes | memoryview] | None:
        return self._queue.get()

    def written(self, frame: Frame) -> None:
        with self._room:
            self._free_bytes += min(frame.stored_bytes, self._bytes_max)
            self._room.notify_all()

    def wake(self) -> None:
        with self._room:
            self._room.notify_all()


def publish_pack(store_path: str, pack: PackFile, name: bytes) -> None:
    """Give a completed pack, and its parity, their names.

    Both are durable after ``sync_packs``. The parity comes first: a writer that is killed between
    the two leaves parity that the next prune removes, and not a pack that the next snapshot takes
    over and that nothing would mend.

    Raises:
        StoreError: One of them can't be written.
    """
    place = os.path.join(store_path, layout.PACKS)
    final = os.path.join(place, layout.pack_name(name))
    with store_faults("write to", place):
        parity = pack.parity()
    if parity is not None:
        write_parity(store_path, name, parity)
    with store_faults("write to", place):
        durable.publish(pack.fd, pack.path, final)


def sync_packs(store_path: str) -> None:
    """All packs that were published are durable under their names, and their parity.

    Raises:
        StoreError: They may not be.
    """
    for name in (layout.PARITY, layout.PACKS):
        directory = os.path.join(store_path, name)
        if name == layout.PACKS or os.path.isdir(directory):
            with store_faults("sync", directory):
                durable.sync_directory(directory)


class StoreWriter:
    """Adds chunks to a store whose write lock is held.

    Args:
        store_path: The store's directory.
        index: Its catalog.
        parity: The share of each pack that its parity takes; 0: none is written.
        reader: Reads earlier versions of what is added.
        chain_cost: How many times the stored bytes that a chunk takes alone may have to be read
            to have it; up to 1: every chunk stands alone.
        avoided: Names of packs that can't be written to: what lies there is out of reach.

    ``add_data`` and ``put_node`` may be called from any thread. After ``finish`` or ``abort``
    the writer is used up.
    """

    def __init__(
        self,
        store_path: str,
        index: Index,
        *,
        parity: float,
        reader: StoreReader,
        chain_cost: float,
        avoided: Container[bytes] = (),
    ) -> None:
        self._store_path = store_path
        self._parity = parity
        self._avoided = avoided
        self._reader = reader
        self._chain_cost = chain_cost
        self._temporary = os.path.join(store_path, layout.TEMPORARY)
        self._index = index
        self._lock = threading.Lock()
        self._pending: set[bytes] = set()
        self._groups: dict[int, list[tuple[bytes, bytes | memoryview]]] = {}
        self._group_bytes: dict[int, int] = {}
        self._failure: BaseException | None = None
        self._queue = _ByteQueue(_QUEUE_BYTES)
        self._sealing: queue.Queue[PackFile | None] = queue.Queue(_SEALING_MAX)
        self._open: dict[bool, PackFile] = {}
        self.totals = WriteTotals()
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
            for name, work in (("pack", self._fill_packs), ("seal", self._seal_packs))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def makes_deltas(self) -> bool:
        """A chunk may be stored as a difference."""
        return self._chain_cost > 1

    def add_data(
        self,
        chunks: Chunks,
        earlier: Earlier | None = None,
        widths: Mapping[bytes, int] | None = None,
    ) -> int:
        """Store those chunks of file content that the store lacks, small ones together.

        Args:
            chunks: ID and plain bytes of each. The bytes must not change until ``finish``.
            earlier: Tells of each its last version, which it may be stored as a difference from.
            widths: Bytes of an element of each, where a header tells; else they are probed.

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
        if earlier is not None and self.makes_deltas:
            fresh = [one for one in fresh if not self._add_delta(one, earlier, widths)]
        small = [one for one in fresh if len(one[1]) < ALONE_BYTES]
        for start in range(0, len(small), CHUNKS_MAX):
            self._enqueue(DATA, small[start : start + CHUNKS_MAX])
        for one in fresh:
            if len(one[1]) >= ALONE_BYTES:
                self._enqueue(DATA, [one], widths.get(one[0], 0))
        with self._lock:
            self.totals.new_bytes += new_bytes
        return new_bytes

    def put_node(self, kind: int, plain: bytes) -> bytes:
        """Store a tree or recipe node if the store lacks it; returns its ID.

        Raises:
            StoreError: The store failed, now or earlier.
        """
        name = chunk_id(kind, plain)
        if not self._claim([(name, plain)]):
            return name
        full = None
        with self._lock:
            group = self._groups.setdefault(kind, [])
            group.append((name, plain))
            size = self._group_bytes.get(kind, 0) + len(plain)
            if size >= _NODE_GROUP_BYTES:
                full = self._groups.pop(kind)
                size = 0
            self._group_bytes[kind] = size
        if full:
            self._enqueue(kind, full)
        return name

    def finish(self) -> WriteTotals:
        """All that was added is durable and indexed when this returns.

        Raises:
            StoreError: It is not; nothing that was added may be referred to.
        """
        for kind, group in self._groups.items():
            self._enqueue(kind, group)
        self._groups = {}
        self._stop_threads()
        self._raise_failure()
        self._barrier()
        self._reader.close()
        return self.totals

    def abort(self) -> None:
        """End without a commit; packs that are sealed stay and are reused by the next run."""
        if self._failure is None:
            self._failure = StoreError("the run was given up")
        self._stop_threads()
        self._reader.close()
        # The run already ends with an error, which a second one here would only hide.
        with contextlib.suppress(StoreError):
            self._barrier()

    def _claim(self, chunks: Chunks) -> list[tuple[bytes, bytes | memoryview]]:
        """Those chunks that nobody has stored or is storing: now this caller's to store."""
        self._raise_failure()
        # Pending first, index second: a chunk moves from the one to the other in the order
        # that never leaves it in neither.
        with self._lock:
            unclaimed = [one for one in chunks if one[0] not in self._pending]
        known = self._index.known([name for name, _ in unclaimed])
        fresh = []
        with self._lock:
            for one in unclaimed:
                if one[0] not in known and one[0] not in self._pending:
                    self._pending.add(one[0])
                    fresh.append(one)
        return fresh

    def _add_delta(
        self, chunk: tuple[bytes, bytes | memoryview], earlier: Earlier, widths: Mapping[bytes, int]
    ) -> bool:
        """Store a chunk as a difference from its last version; returns whether that was done.

        Where that version would cost too much to read, what it is a difference from itself may
        do: it is less like the chunk, and nearer to what stands alone. Where the chain has as many
        links as it may have, what it ends with may do, and more links have room then.
        """
        name, plain = chunk
        last = earlier.of(name)
        chain = self._reader.chain(last) if last else None
        if chain is None or chain[0].length_bytes != len(plain):
            return False
        names = [last, *[one.reference for one in chain]]
        costs = [one.frame_bytes for one in chain]
        worth = [len(plain), *[self._worth_bytes(chain)] * (len(chain) - 1)]
        least = min(costs[:-1], default=0) // 2
        looked_at: set[bytes] = set()
        references = [
            (
                names[at],
                Reference(
                    self._read_earlier(names[at], looked_at), sum(costs[at:]), worth[at], least
                ),
            )
            for at in range(len(chain) - 1 if len(chain) > _DELTAS_MAX else 0, len(chain))
        ]
        encoded = encode_delta_frame(chunk, references, self._chain_cost, widths.get(name, 0))
        if encoded is not None:
            self._put(*encoded)
        # A version that is a difference itself was like the one before, and costs too much by now.
        if encoded is not None or (looked_at and len(chain) == 1):
            earlier.tell(name, is_like=encoded is not None)
        return encoded is not None

    def _worth_bytes(self, chain: list[ChunkPlace]) -> int:
        """What a version takes on average if chains are begun anew as soon as they cost too much.

        A difference from a distant version is worth it while it takes less: ever longer ones
        would put off for ever what makes the next ones short.
        """
        alone = chain[-1].frame_bytes
        delta = min([one.frame_bytes for one in chain])
        links = min(int((self._chain_cost - 1) * alone / delta), _DELTAS_MAX)
        return (alone + links * delta) // (links + 1)

    def _read_earlier(
        self, name: bytes, looked_at: set[bytes]
    ) -> Callable[[], bytes | memoryview | None]:
        def read() -> bytes | memoryview | None:
            looked_at.add(name)
            # The new chunk can do without one that is damaged; not so with a store that fails.
            with contextlib.suppress(CorruptionError, UnknownFormatError):
                return self._reader.chunk(name, kind=DATA)
            return None

        return read

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
        for pack in self._open.values():
            self._sealing.put(pack)
        self._sealing.put(None)

    def _append(self, frame: Frame, payload: bytes | memoryview) -> None:
        # Nodes go to packs of their own: reading a tree then touches few packs, and an object
        # store can keep those near.
        is_data = frame.kind == DATA
        with store_faults("write to", self._temporary):
            pack = self._open.get(is_data)
            if pack is None:
                pack = self._open[is_data] = PackFile(self._temporary, parity=self._parity)
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
            if self.totals.packs % _BARRIER_PACKS == 0:
                self._barrier()
                give_back_holes()

    def _seal(self, pack: PackFile) -> None:
        with store_faults("write to", self._temporary):
            name = pack.complete(self._avoided)
        publish_pack(self._store_path, pack, name)
        self._index.add_pack(name, pack.size_bytes, pack.frames)
        with self._lock:
            self.totals.stored_bytes += pack.size_bytes
            self.totals.packs += 1
            for packed in pack.frames:
                self._pending.difference_update([chunk for chunk, _ in packed.frame.chunks])

    def _barrier(self) -> None:
        sync_packs(self._store_path)
        self._index.commit()

    def _stop_threads(self) -> None:
        self._queue.end()
        for thread in self._threads:
            thread.join()

    def _run(self, work: Callable[[], None]) -> None:
        """Run one thread's work; keep its first failure and go on swallowing, so nobody hangs."""
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
