"""The list of snapshots, kept while the store's directories do not change."""

import os
import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ciuic.catalog import list_snapshots
from ciuic.chains import SnapshotChain, snapshot_chains
from ciuic.copy.record import holders
from ciuic.ids import SnapshotId
from ciuic.model import SnapshotSummary
from ciuic.store.records import layout
from ciuic.store.store import Store
from ciuic.system.clock import Clock

__all__ = ["Listed", "SnapshotList"]

_SETTLED_NS: Final = 2_000_000_000
"""A directory that changed this recently may change again without another time."""
_Times = tuple[tuple[int, int], ...]


class Listed(NamedTuple):
    """The snapshots, newest first, with the chain, the place and the copies of each."""

    snapshots: list[SnapshotSummary]
    chains: dict[SnapshotId, SnapshotChain]
    places: dict[SnapshotId, int]
    copies: dict[str, list[str]]


class SnapshotList:
    """Lists the snapshots of one store. Any thread may call it.

    Committing, forgetting, tagging, pinning and copying each create, replace or remove a file in
    one of three directories. So one of the directories then has another time.

    Args:
        clock: Tells the time.
        copies: Returns the name and the address of each copy.
    """

    def __init__(
        self, clock: Clock, copies: Callable[[], Sequence[tuple[str, str]]] = tuple
    ) -> None:
        self._clock = clock
        self._copies = copies
        self._lock = threading.Lock()
        self._kept: tuple[_Times, Listed] | None = None

    def get(self, store: Store) -> Listed:
        """Return the list."""
        with self._lock:
            before = _times(store.path)
            if self._kept is not None and self._kept[0] == before:
                return self._kept[1]
            began_ns = self._clock.now_ns()
            found = list_snapshots(store)
            places = {summary.id: place for place, summary in enumerate(found)}
            listed = Listed(
                found, snapshot_chains(found), places, holders(store.path, self._copies())
            )
            is_settled = all(began_ns - changed_ns > _SETTLED_NS for changed_ns, _ in before)
            self._kept = (before, listed) if is_settled else None
            return listed


def _times(store_path: str) -> _Times:
    found = []
    for name in (layout.SNAPSHOTS, layout.MARKS, layout.COPIES):
        try:
            status = os.stat(os.path.join(store_path, name))
        except OSError:
            found.append((0, 0))
        else:
            found.append((status.st_mtime_ns, status.st_ino))
    return tuple(found)
