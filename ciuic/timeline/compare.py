"""Snapshots beside each other: what they logged, their sizes, and what the others changed."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ciuic.documents import Document
from ciuic.model import SnapshotSummary
from ciuic.store.records.manifest import Manifest
from ciuic.store.store import Store
from ciuic.timeline.configuration import (
    FILES_MAX,
    ConfigurationChange,
    compare_configuration,
    is_configuration,
)
from ciuic.timeline.logs import fields_of
from ciuic.timeline.placing import Offsets, PlacedLogs, read_logs
from ciuic.timeline.states import metrics_of
from ciuic.view.diff import Change, diff

__all__ = [
    "Against",
    "Compared",
    "Comparison",
    "Moves",
    "TensorKey",
    "compare",
    "compare_contents",
    "read_all",
]

TensorKey = tuple[str, str]
"""The path of a file, and the name of a tensor in it."""


class Moves(NamedTuple):
    """How the tensors of one snapshot differ from those of the first.

    Attributes:
        distances: How far each tensor moved, as a share of its length (L2); None: it is unknown,
            because it was zero, is not finite, or has another shape.
        same: Tensors that are equal, in files that differ.
        added: New ones.
        removed: Those that are gone.
        unread: Tensors and files that cannot be read.
        distance: All compared tensors together; None: nothing could be compared.
    """

    distances: dict[TensorKey, float | None]
    same: int
    added: int
    removed: int
    unread: int
    distance: float | None

    def as_json(self) -> Document:
        """Return the member ``tensors`` of a snapshot in ``ciuic compare --json``."""
        return {
            "moved": len(self.distances),
            "same": self.same,
            "added": self.added,
            "removed": self.removed,
            "unread": self.unread,
            "relative_distance": self.distance,
        }


class Against(NamedTuple):
    """What changed from the first snapshot to another one.

    Attributes:
        files: How many paths, by the sign of their change.
        moves: The tensors; None: they were not compared.
        configuration: Configuration files that differ.
    """

    files: Counter[str]
    moves: Moves | None
    configuration: list[ConfigurationChange]


class Compared(NamedTuple):
    """A snapshot in a comparison.

    Attributes:
        snapshot: The snapshot.
        step: The step; None: nothing says so.
        epoch: The epoch, if the library saved one.
        metrics: What had been logged by then, and what the snapshot holds itself.
        against: What changed from the first snapshot; None for the first.
    """

    snapshot: SnapshotSummary
    step: int | None
    epoch: float | None
    metrics: dict[str, float]
    against: Against | None


class Comparison(NamedTuple):
    """Some snapshots. The first is what the others are compared with."""

    snapshots: list[Compared]

    def tensors(self) -> list[tuple[TensorKey, list[float | None]]]:
        """Return how far tensors moved, those first that moved farthest in any snapshot.

        The distances are in the order of the snapshots; None: it is equal, or unknown.
        """
        moves = [
            snapshot.against.moves if snapshot.against else None for snapshot in self.snapshots
        ]
        keys = dict.fromkeys(key for found in moves if found for key in found.distances)
        rows = [
            (key, [found.distances.get(key) if found else None for found in moves]) for key in keys
        ]
        rows.sort(key=lambda row: -max([one for one in row[1] if one is not None], default=-1.0))
        return rows


def read_all(
    store: Store,
    snapshots: Sequence[SnapshotSummary],
    paths: Sequence[bytes],
    *,
    offsets: Offsets,
    check: Callable[[], None] = lambda: None,
) -> PlacedLogs:
    """Read all fields of logs at some snapshots.

    Args:
        store: An open store.
        snapshots: The snapshots.
        paths: The logs.
        offsets: What is known from earlier calls.
        check: Called again and again; it may raise an error to end this.

    Raises:
        UsageError: A log cannot be read.
    """
    wanted = [(path, fields_of(path)) for path in paths]
    return read_logs(
        store, snapshots, wanted, offsets=offsets, curves=False, read=lambda _size, _path: check()
    )


def compare(
    store: Store,
    snapshots: Sequence[SnapshotSummary],
    paths: Sequence[bytes] = (),
    *,
    tensors: bool = True,
    logs: PlacedLogs | None = None,
    done: Callable[[int, int], None] = lambda _done, _total: None,
    check: Callable[[], None] = lambda: None,
) -> Comparison:
    """Compare snapshots with the first of them.

    Args:
        store: An open store.
        snapshots: The snapshots.
        paths: Logs that say what had been logged.
        tensors: Compare the tensors too, which reads the files that differ.
        logs: What ``read_all`` returned for these logs and snapshots; None: it is called.
        done: Called with how many tensors of a file are compared, and how many it has.
        check: See ``read_all``.

    Raises:
        UsageError: A log cannot be read.
        CorruptionError: A manifest or a tree is damaged.
    """
    if logs is None:
        logs = read_all(store, snapshots, paths, offsets=Offsets(), check=check)
    manifests = [store.manifest(snapshot.id) for snapshot in snapshots]
    found: list[Compared] = []
    for summary, manifest in zip(snapshots, manifests, strict=True):
        check()
        state, place = metrics_of(store, summary), logs.place(summary)
        metrics: dict[str, float] = {}
        if place is not None and place.log is not None and place.moment is not None:
            pairs = zip(place.log.fields, place.moment.values, strict=True)
            metrics = {name: value for name, value in pairs if value is not None}
        if state is not None:
            metrics |= state.metrics
        step = None if place is None else place.step
        if step is None and state is not None:
            step = state.step
        against = None
        if found:
            against = compare_contents(
                store, manifests[0], manifest, tensors=tensors, done=done, check=check
            )
        epoch = metrics.pop("epoch", None) if state is None else state.epoch
        found.append(Compared(summary, step, epoch, metrics, against))
    return Comparison(found)


def compare_contents(
    store: Store,
    before: Manifest,
    after: Manifest,
    *,
    tensors: bool,
    done: Callable[[int, int], None],
    check: Callable[[], None],
) -> Against:
    """Return what changed from one manifest to another; ``check``: see ``read_all``."""
    files: Counter[str] = Counter()
    changes: list[Change] = []
    moves = None
    if tensors:
        # Imported here: numpy takes 13 MB, and the page compares no tensors in its own process.
        from ciuic.timeline.moves import compare_tensors

        moves = compare_tensors(
            store, before, after, done=done, changed=lambda one: _note(one, files, changes)
        )
    else:
        for change in diff(store, before, after):
            check()
            _note(change, files, changes)
    return Against(files, moves, compare_configuration(store, before, after, changes))


def _note(change: Change, files: Counter[str], changes: list[Change]) -> None:
    files[change.sign] += 1
    # Not all of them: two runs may differ in each of 100,000 files.
    if len(changes) < FILES_MAX and is_configuration(change):
        changes.append(change)
