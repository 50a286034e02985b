"""Removes packs in the background.

Unlinking a pack of 64 MiB takes tens of milliseconds. Most callers need not wait for that, so packs
are unlinked while new packs are written, in any order. Before that, the caller must have made the
needed chunks of the packs durable elsewhere, and must have durably removed the packs from the chunk
index.
"""

import contextlib
import os
from collections.abc import Callable, Container, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Final

from ciuic.errors import UnreachableError
from ciuic.ids import PackId
from ciuic.store.directory.faults import store_faults
from ciuic.store.directory.files import status_of
from ciuic.store.gc.usage import pack_path
from ciuic.store.packs.writer import sync_packs
from ciuic.store.parity.parity_file import parity_path
from ciuic.store.records import layout
from ciuic.system import durable, nofollow

__all__ = ["Removals", "orphaned_parity", "remove_parity", "unlink_pack"]

_REMOVERS: Final = 4
_WAITING_MAX: Final = 1000


class Removals:
    """Removes packs of one store, whose write locks the caller holds alone.

    A context manager: when the block ends without an error, all packs are durably removed.
    """

    def __init__(self, store_path: str) -> None:
        self._store_path = store_path
        self._pool = ThreadPoolExecutor(_REMOVERS, "remove")
        self._first: Future[None] | None = None
        self._running: dict[PackId, Future[None]] = {}
        self._is_durable = True

    def __enter__(self) -> "Removals":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self._pool.shutdown(cancel_futures=kind is not None)

    def begin_with(self, work: Callable[[], None]) -> None:
        """Run ``work`` in the background before any pack is removed; call this before ``add``.

        If it fails, no pack is removed, and ``wait`` raises its error.
        """
        self._first = self._pool.submit(work)

    def add(self, pack_ids: Sequence[PackId]) -> None:
        """Begin to remove packs that are no longer in the chunk index.

        Raises:
            StoreError: A pack that was added before cannot be removed.
        """
        for pack_id in pack_ids:
            self._is_durable = False
            while len(self._running) >= _WAITING_MAX:
                self._wait_for(next(iter(self._running)))
            self._running[pack_id] = self._pool.submit(self._remove, pack_id)

    def wait(self) -> None:
        """Wait until all packs are removed and their space is free.

        Raises:
            StoreError: A pack cannot be removed, or the work of ``begin_with`` has failed.
        """
        if self._first is not None:
            self._first.result()
        for pack_id in list(self._running):
            self._wait_for(pack_id)

    def finish(self) -> None:
        """Like ``wait``, and make the removals durable.

        Raises:
            StoreError: They may not be durable.
        """
        self.wait()
        if not self._is_durable:
            sync_packs(self._store_path)
            self._is_durable = True

    def _wait_for(self, pack_id: PackId) -> None:
        self._running.pop(pack_id).result()

    def _remove(self, pack_id: PackId) -> None:
        if self._first is not None:
            self._first.result()
        unlink_pack(self._store_path, pack_id)


def unlink_pack(store_path: str, pack_id: PackId) -> None:
    """Remove a pack and then its parity, which is useless without it."""
    path = pack_path(store_path, pack_id)
    with store_faults("remove", path):
        durable.remove_file(path)
    remove_parity(store_path, [pack_id])


def orphaned_parity(store_path: str, packs: Container[PackId]) -> dict[PackId, int]:
    """Return the sizes of parity files without a pack, which an interrupted removal leaves."""
    directory = os.path.join(store_path, layout.PARITY)
    found: dict[PackId, int] = {}
    with store_faults("list", directory):
        if not nofollow.is_directory(directory):
            return found
        for file in nofollow.list_names(directory):
            pack_id = layout.parse_pack_name(file)
            if pack_id is not None and pack_id not in packs:
                with contextlib.suppress(UnreachableError):
                    found[pack_id] = status_of(os.path.join(directory, file)).st_size
    return found


def remove_parity(store_path: str, pack_ids: Iterable[PackId]) -> None:
    """Remove the parity of packs that are gone."""
    for pack_id in pack_ids:
        path = parity_path(store_path, pack_id)
        with store_faults("remove", path):
            durable.remove_file(path)
