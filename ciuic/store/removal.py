"""Taking packs away that nobody needs, while other work goes on.

Giving back the blocks of 64 MiB takes tens of milliseconds, for which nobody but who needs their
room has to wait: so packs go beside the writing of new ones, and in any order. What must come
before is the caller's affair: what was needed of them durably lies elsewhere, and the catalog has
durably forgotten them.
"""

import contextlib
import os
from collections.abc import Callable, Container, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Final

from ciuic import durable
from ciuic.errors import UnreachableError
from ciuic.store import layout
from ciuic.store.faults import store_faults
from ciuic.store.files import status_of
from ciuic.store.parity import parity_path
from ciuic.store.sweep import pack_path
from ciuic.store.writer import sync_packs

__all__ = ["Removals", "orphaned_parity", "remove_parity", "unlink_pack"]

_REMOVERS: Final = 4
_WAITING_MAX: Final = 1000


class Removals:
    """Packs of one store that are on their way out; its write lock is held.

    Used as a context: all that was added is gone when it ends without an error, durably.
    """

    def __init__(self, store_path: str) -> None:
        self._store_path = store_path
        self._pool = ThreadPoolExecutor(_REMOVERS, "remove")
        self._first: Future[None] | None = None
        self._running: dict[bytes, Future[None]] = {}
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
        """Do this first, while the caller goes on; before any pack is added.

        No pack goes before it has come to its end, and none at all if it fails: whoever waits then
        gets its error.
        """
        self._first = self._pool.submit(work)

    def add(self, names: Sequence[bytes]) -> None:
        """Begin to remove packs that the catalog does not know any more.

        Raises:
            StoreError: One that was added before can't be removed.
        """
        for name in names:
            self._is_durable = False
            while len(self._running) >= _WAITING_MAX:
                self.make_way(next(iter(self._running)))
            self.make_way(name)
            self._running[name] = self._pool.submit(self._remove, name)

    def make_way(self, name: bytes) -> None:
        """A pack of this name may come: none that was added before can be taken for it.

        A pack is named for what it holds, so one that goes may come again.

        Raises:
            StoreError: The old one can't be removed.
        """
        going = self._running.pop(name, None)
        if going is not None:
            going.result()

    def wait(self) -> None:
        """All that was added is gone, and its room is there.

        Raises:
            StoreError: One of them can't be removed, or what they began with has failed.
        """
        if self._first is not None:
            self._first.result()
        for name in list(self._running):
            self.make_way(name)

    def finish(self) -> None:
        """As ``wait``, and it is durable.

        Raises:
            StoreError: It is not.
        """
        self.wait()
        if not self._is_durable:
            sync_packs(self._store_path)
            self._is_durable = True

    def _remove(self, name: bytes) -> None:
        if self._first is not None:
            self._first.result()
        unlink_pack(self._store_path, name)


def unlink_pack(store_path: str, name: bytes) -> None:
    """Remove a pack, and then its parity, which is worth nothing without it."""
    path = pack_path(store_path, name)
    with store_faults("remove", path):
        durable.remove_file(path)
    remove_parity(store_path, [name])


def orphaned_parity(store_path: str, packs: Container[bytes]) -> dict[bytes, int]:
    """Parity of packs that are not there, and its bytes: left where a removal was cut short."""
    directory = os.path.join(store_path, layout.PARITY)
    found: dict[bytes, int] = {}
    with store_faults("list", directory):
        if not os.path.isdir(directory):
            return found
        with os.scandir(directory) as entries:
            for entry in entries:
                name = layout.parse_pack_name(entry.name)
                if name is not None and name not in packs:
                    with contextlib.suppress(UnreachableError):
                        found[name] = status_of(entry.path).st_size
    return found


def remove_parity(store_path: str, names: Iterable[bytes]) -> None:
    """Remove parity of packs that are not there any more."""
    for name in names:
        path = parity_path(store_path, name)
        with store_faults("remove", path):
            durable.remove_file(path)
