"""How far the tensors of one snapshot moved since another one."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Final

from ciuic.model import path_text
from ciuic.report.tensors import FileTensors, diff_tensors, relative
from ciuic.store.records.manifest import Manifest
from ciuic.store.store import Store
from ciuic.timeline.compare import Moves, TensorKey
from ciuic.view.diff import Change

__all__ = ["compare_tensors"]

_TENSORS_MAX: Final = 100_000


def compare_tensors(
    store: Store,
    before: Manifest,
    after: Manifest,
    *,
    done: Callable[[int, int], None],
    changed: Callable[[Change], None],
) -> Moves:
    """Compare the tensors in all files that differ.

    Args:
        store: An open store.
        before: The older snapshot.
        after: The newer one.
        done: Called with the number of tensors of a file that are done, and of all of them.
        changed: Called with each path that differs.
    """
    collected = _Collected()
    for change, comparison in diff_tensors(store, before, after):
        changed(change)
        if comparison is not None:
            collected.add(change.path, comparison(done))
    return collected.moves()


class _Collected:
    """Adds up the changes of the tensors of files."""

    def __init__(self) -> None:
        self._distances: dict[TensorKey, float | None] = {}
        self._counts: Counter[str] = Counter()
        self._apart = self._length = 0.0

    def add(self, path: bytes, tensors: FileTensors | None) -> None:
        """Add the tensors of a file; None: it has none."""
        if tensors is None:
            return
        self._counts["?"] += bool(tensors.what)
        self._counts["same"] += tensors.same
        for change in tensors.changes:
            if change.sign != "M":
                self._counts[change.sign] += 1
                continue
            distance = change.distance
            share = None if distance is None else relative(distance)
            if distance is not None and share is not None:
                self._apart += distance.apart_squared
                self._length += distance.before_squared
            if len(self._distances) < _TENSORS_MAX:
                self._distances[path_text(path), change.name] = share

    def moves(self) -> Moves:
        """Return the sums."""
        together = math.sqrt(self._apart / self._length) if self._length > 0 else None
        if together is not None and not math.isfinite(together):
            together = None
        counts = self._counts
        return Moves(
            self._distances, counts["same"], counts["+"], counts["-"], counts["?"], together
        )
