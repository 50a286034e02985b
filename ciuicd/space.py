"""Giving up reflink copies when their disk runs short of space.

A reflink copy costs nothing when it is made, and grows with every block that the training
overwrites later. The training must not find a full disk because of it.
"""

import contextlib
import logging
import threading
from collections.abc import Iterable
from typing import Final

from ciuic.errors import CiuicError
from ciuic.source.freeze.places import frozen_snapshots, remove_copies
from ciuic.store.directory.find import read_header
from ciuic.system.clock import Clock
from ciuic.system.free_space import COPIES_RESERVE, is_short_of_space
from ciuic.system.workers.asking import ask

__all__ = ["Space"]

_log = logging.getLogger(__name__)

_LOOK_S: Final = 60.0


class Space:
    """Removes the reflink copies of the oldest snapshot where space is short, once a minute.

    Only one snapshot at a time: btrfs frees the space in the background.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._look_s = clock.monotonic_s()
        self._asking: dict[bytes, threading.Thread] = {}

    def free_space(self, store_path: str, roots: Iterable[bytes], *, bucket_id: str = "") -> None:
        """Give up reflink copies below ``roots`` where space is short, if a minute has passed.

        A root whose file system does not answer within two seconds is left out until it does.

        Args:
            store_path: The store's directory. If it is gone, its reflink copies stay.
            roots: Where to look.
            bucket_id: The ID of a store in a bucket; empty: it is in the directory.
        """
        now_s = self._clock.monotonic_s()
        if now_s < self._look_s:
            return
        self._look_s = now_s + _LOOK_S
        for root in filter(self._is_short, roots):
            with contextlib.suppress(OSError, CiuicError):
                store_id = bucket_id or read_header(store_path).store_id
                _give_up_oldest(store_id, root)

    def _is_short(self, root: bytes) -> bool:
        """Return whether space is known to be short where a root is."""
        if root in self._asking and self._asking[root].is_alive():
            return False
        answer = [False]

        def look() -> None:
            with contextlib.suppress(OSError):
                answer[0] = is_short_of_space(root, COPIES_RESERVE)

        self._asking[root] = ask(look)
        return answer[0]


def _give_up_oldest(store_id: str, root: bytes) -> None:
    for area, snapshots in frozen_snapshots(store_id, [root]):
        gone = remove_copies(store_id, [root], keep=len(snapshots) - 1) if snapshots else []
        if gone:
            _log.warning("space is short: removed the reflink copies of %s in %s", gone[0], area)
