"""What the server last said about the packs, so that many chunks that are lost cost few requests.

A pack that is gone never comes back under its name, and a reader needs a new listing only for a
chunk that may have come since the last one: after a pack of that listing is found missing, since a
prune may have moved its chunks, after this process has added a pack, and for a snapshot that was
committed since. Besides, nothing that was said counts for longer than a few seconds.
"""

import threading
from collections.abc import Mapping
from typing import Final

from ciuic.ids import PackId
from ciuic.store.records import layout
from ciuic.system.clock import Clock, SystemClock

__all__ = ["LastAnswers"]

_VALID_S: Final = 5.0
_VALID_SHARE: Final = 10
"""A listing counts for ten times as long as it took: that of a large store takes minutes."""


class LastAnswers:
    """The last listing of the packs, and those that were missing. May be used from any thread."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._listed: Mapping[PackId, int] | None = None
        self._names: set[str] | None = None
        self._listed_until_s = 0.0
        self._outdated = 0
        self._missing: dict[PackId, float] = {}

    def begin_listing(self) -> tuple[int, float]:
        """Return what ``note_listing`` needs; called before the server is asked."""
        return self._outdated, self._clock.monotonic_s()

    def note_listing(self, begun: tuple[int, float], listed: Mapping[PackId, int]) -> None:
        """Note the packs that the server listed; the caller does not change them.

        Args:
            begun: What ``begin_listing`` returned.
            listed: The packs.
        """
        outdated, began_s = begun
        now_s = self._clock.monotonic_s()
        with self._lock:
            self._names = None
            # What came or went while the server listed may be on a page that was read before.
            is_good = outdated == self._outdated and self._missing.keys().isdisjoint(listed)
            self._listed = listed if is_good else None
            self._listed_until_s = now_s + max(_VALID_S, _VALID_SHARE * (now_s - began_s))

    def names(self) -> set[str] | None:
        """Return the names of the listed packs; None: list them again."""
        with self._lock:
            if self._listed is None or self._clock.monotonic_s() > self._listed_until_s:
                return None
            if self._names is None:
                self._names = {layout.pack_name(pack_id) for pack_id in self._listed}
            return self._names

    def note_missing(self, pack_id: PackId) -> None:
        """Note that the server does not have a pack."""
        with self._lock:
            self._missing[pack_id] = self._clock.monotonic_s() + _VALID_S
            if self._listed is not None and pack_id in self._listed:
                self._forget_listing()

    def is_missing(self, pack_id: PackId) -> bool:
        """Return whether the server has just said that it does not have a pack."""
        until_s = self._missing.get(pack_id)
        return until_s is not None and self._clock.monotonic_s() <= until_s

    def outdate(self) -> None:
        """List the packs again for the next chunk that is in none of them."""
        with self._lock:
            self._forget_listing()

    def _forget_listing(self) -> None:
        self._outdated += 1
        self._listed = self._names = None
