"""Fills packs with encoded frames, and seals them.

    caller's threads: append to packs  ->  one thread: parity, write full buffers
                                       ->  one thread: seal

A snapshot that stores nothing new has none of these threads, and does not load this module.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from ciuic.errors import CiuicError, StoreError
from ciuic.ids import PackId, SessionId
from ciuic.store.directory.faults import store_faults
from ciuic.store.format.frame import Frame
from ciuic.store.packs.pack_writer import BUFFER_BYTES, TOGETHER_BYTES, PackFile
from ciuic.store.packs.writer import SealedPack, WriteTotals
from ciuic.store.records.kinds import DATA
from ciuic.system.buffers import give_back_holes

__all__ = ["PackFiller"]

_SEALING_MAX: Final = 2
"""The most packs that wait for their fsync; more would only let a slow disk fill the memory."""
_TRANSACTION_PACKS: Final = 16
"""Packs in a transaction of the chunk index: a killed run loses only their index rows."""


class PackFiller:
    """Packs that are being filled, and the threads that fill and seal them.

    Args:
        temporary: The directory of unfinished packs.
        publish: Gives a completed pack its name.
        record: Makes the sealed packs durable and records them; called after some of them.
        totals: Counts the packs and their bytes.
        parity: The share of each pack that its parity takes; 0: none is written.
        joins_small: Small chunks of a snapshot are joined with its trees in one pack.
        session_id: The session, which the packs name as their writer.
        queue_bytes: How many encoded bytes may wait to be written.

    ``put`` may be called from any thread. After ``end``, only ``take_sealed`` may be called.
    """

    def __init__(
        self,
        temporary: str,
        publish: Callable[[PackFile, PackId], None],
        record: Callable[[], None],
        totals: WriteTotals,
        *,
        parity: float,
        joins_small: bool,
        session_id: SessionId,
        queue_bytes: int,
    ) -> None:
        self._temporary = temporary
        self._publish = publish
        self._record = record
        self._totals = totals
        self._parity = parity
        self._joins_small = joins_small
        self._session_id = session_id
        self._waiting_max = max(1, queue_bytes // BUFFER_BYTES)
        self._sealed: list[SealedPack] = []
        self._failure: BaseException | None = None
        self._adding = threading.Lock()
        self._sealing: queue.Queue[PackFile | None] = queue.Queue(_SEALING_MAX)
        self._open: dict[bool, PackFile] = {}
        self._helper = ThreadPoolExecutor(1, "write")
        self._sealer = threading.Thread(target=self._run, name="seal", daemon=True)
        self._sealer.start()

    def put(self, frame: Frame, payload: bytes | memoryview) -> None:
        """Append a frame to a pack; waits while too many bytes wait to be written.

        Raises:
            StoreError: The store failed, now or earlier.
        """
        # In this order: no other thread may append to a pack whose failure is not noted yet.
        with self._adding, self._noting_failure():
            if self._failure is None:
                self._append(frame, payload)
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raise the first failure of a thread."""
        if self._failure is not None:
            raise self._failure

    def give_up(self) -> None:
        """Discard the packs that are not sealed."""
        if self._failure is None:
            self._failure = StoreError("the snapshot was abandoned")

    def end(self) -> None:
        """Seal the last packs, and wait for the threads to end; harmless twice."""
        with self._adding:
            with self._noting_failure():
                self._join_small()
            packs = [self._open.pop(is_data) for is_data in list(self._open)]
        for pack in packs:
            self._sealing.put(pack)
        if self._sealer.is_alive():
            self._sealing.put(None)
        self._sealer.join()
        self._helper.shutdown()

    def take_sealed(self) -> list[SealedPack]:
        """Return the packs that have got their names since the last call."""
        sealed, self._sealed = self._sealed, []
        return sealed

    @contextlib.contextmanager
    def _noting_failure(self) -> Iterator[None]:
        """Keep the first failure, which ``raise_failure`` raises, instead of raising it."""
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - whatever it is, the pack is not complete
            if self._failure is None:
                self._failure = error

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
                    self._temporary,
                    self._session_id,
                    parity=self._parity,
                    helper=self._helper,
                    waiting_max=self._waiting_max,
                )
                self._open[is_data] = pack
            pack.add(frame, payload)
        if pack.is_full:
            del self._open[is_data]
            self._sealing.put(pack)

    def _seal_packs(self) -> None:
        while (pack := self._sealing.get()) is not None:
            if self._failure is not None:
                _discard(pack)
                continue
            try:
                self._seal(pack)
            except BaseException:
                _discard(pack)
                raise
            pack.close()
            if self._totals.packs % _TRANSACTION_PACKS == 0:
                self._record()
                give_back_holes()

    def _seal(self, pack: PackFile) -> None:
        with store_faults("write to", self._temporary):
            pack_id = pack.complete()
        self._publish(pack, pack_id)
        self._sealed.append((pack_id, pack.size_bytes, pack.frames))
        self._totals.stored_bytes += pack.size_bytes
        self._totals.packs += 1

    def _run(self) -> None:
        """Seal packs; after a failure, discard the others so that no caller hangs."""
        try:
            self._seal_packs()
        except BaseException as error:  # noqa: BLE001 - carried to the caller's thread
            if self._failure is None:
                self._failure = error
            self._seal_packs()


def _discard(pack: PackFile) -> None:
    # On a disk that has become read-only, the file stays: the next run removes it. An error here
    # would end the thread that others wait for.
    with contextlib.suppress(OSError, CiuicError):
        pack.discard()
