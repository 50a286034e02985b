"""Frozen copies make room: they are given up before anything else on their disk suffers.

A frozen copy costs nothing when it is made, and grows with every block that is overwritten after.
Whoever writes those blocks is the training, which must not find a full disk for the sake of it.
"""

import contextlib
import logging
from collections.abc import Iterable
from typing import Final

from ciuic.capture.frozen import frozen_snapshots, give_up, is_short_of_space
from ciuic.clock import Clock
from ciuic.errors import CiuicError
from ciuic.store.header import read_header

__all__ = ["Space"]

_log = logging.getLogger(__name__)

_LOOK_S: Final = 60.0


class Space:
    """Looks once a minute; each time the oldest snapshot of a short disk loses its frozen copies.

    One at a time, since the space comes back in the background on btrfs.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._look_s = clock.monotonic_s()

    def make_room(self, store_path: str, roots: Iterable[bytes]) -> None:
        """Give up frozen copies where space runs short, if it is time to look."""
        now_s = self._clock.monotonic_s()
        if now_s < self._look_s:
            return
        self._look_s = now_s + _LOOK_S
        for root in roots:
            with contextlib.suppress(OSError, CiuicError):
                if is_short_of_space(root):
                    _give_up_oldest(read_header(store_path).store_id, root)


def _give_up_oldest(store_id: str, root: bytes) -> None:
    for area, snapshots in frozen_snapshots(store_id, [root]):
        gone = give_up(store_id, [root], keep=len(snapshots) - 1) if snapshots else []
        if gone:
            _log.warning("little space is left: gave up frozen copies of %s in %s", gone[0], area)
