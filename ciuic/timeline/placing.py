"""Where snapshots are in logs: at which step, and what had been logged by then."""

import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.ids import SnapshotId
from ciuic.model import Entry, SnapshotSummary
from ciuic.store.store import Store
from ciuic.timeline.logs import Log, last_moment, open_log, read_log
from ciuic.timeline.moments import Moment, Moments
from ciuic.timeline.states import step_of
from ciuic.timeline.stored import Beginnings, end_of
from ciuic.view.locator import Locator

__all__ = [
    "BY_LOG",
    "BY_STATE",
    "BY_STORED",
    "BY_TIME",
    "Offsets",
    "Place",
    "PlacedLogs",
    "read_logs",
]

BY_STATE = "state"
"""The snapshot holds its step itself."""
BY_LOG = "log"
"""The log in the snapshot ends there."""
BY_STORED = "stored"
"""The same, but the log now begins in another way: it has been started over."""
BY_TIME = "time"
"""The lines of the log have times."""


class Place(NamedTuple):
    """The place of a snapshot in a log.

    Attributes:
        step: The step of the snapshot.
        log: The log; None if no log has the step.
        moment: What it had said by then; None if no log has the step.
        by: ``BY_STATE``, ``BY_LOG``, ``BY_STORED`` or ``BY_TIME``.
    """

    step: int
    log: Log | None
    moment: Moment | None
    by: str


class Offsets:
    """The logs in snapshots, and their ends. They are kept: a snapshot never changes."""

    def __init__(self) -> None:
        self._known: dict[tuple[SnapshotId, bytes], Entry | None] = {}
        self._ends: dict[tuple[SnapshotId, bytes, tuple[str, ...]], Moment | None] = {}

    def get(self, store: Store, summary: SnapshotSummary, path: bytes) -> Entry | None:
        """Return the log in a snapshot; None if that does not have it."""
        key = summary.id, path
        if key not in self._known:
            self._known[key] = _stored(store, summary, path)
        return self._known[key]

    def end(
        self, store: Store, summary: SnapshotSummary, path: bytes, fields: Sequence[str]
    ) -> Moment | None:
        """Return what the log in a snapshot had said at its end; None if it cannot be read."""
        key = summary.id, path, tuple(fields)
        if key not in self._ends:
            self._ends[key] = None
            entry = self.get(store, summary, path)
            with contextlib.suppress(CorruptionError, UnknownFormatError):
                if entry is not None:
                    self._ends[key] = last_moment(end_of(store, entry), fields)
        return self._ends[key]


class PlacedLog(NamedTuple):
    """A log that was read with the moments of some snapshots.

    Attributes:
        log: The log.
        lengths: Its length in each snapshot that holds the beginning of it.
        ends: How the log ends in each snapshot that holds another one at its place.
    """

    log: Log
    lengths: dict[SnapshotId, int]
    ends: dict[SnapshotId, Moment | None]


class PlacedLogs:
    """Logs that were read with the moments of some snapshots."""

    def __init__(self, placed: Sequence[PlacedLog]) -> None:
        self._placed = placed

    @property
    def logs(self) -> list[Log]:
        """The logs."""
        return [one.log for one in self._placed]

    def place(self, summary: SnapshotSummary) -> Place | None:
        """Return the place of one of the snapshots; None if nothing says where it is."""
        own = step_of(summary)
        for log, lengths, ends in self._placed:
            if own is not None:
                moment = log.at_step.get(own)
                if moment is not None:
                    return Place(own, log, moment, BY_STATE)
                continue
            length = lengths.get(summary.id)
            for by, moment in (
                (BY_LOG, None if length is None else log.at_offset.get(length)),
                (BY_STORED, ends.get(summary.id)),
                (BY_TIME, log.at_time.get(summary.taken_ns)),
            ):
                if moment is not None:
                    return Place(moment.step, log, moment, by)
        return None if own is None else Place(own, None, None, BY_STATE)


def read_logs(
    store: Store,
    snapshots: Sequence[SnapshotSummary],
    logs: Sequence[tuple[bytes, Sequence[str]]],
    *,
    offsets: Offsets,
    curves: bool = True,
    read: Callable[[int, bytes], None],
) -> PlacedLogs:
    """Read logs, and find what they had said when snapshots were taken.

    Args:
        store: An open store.
        snapshots: The snapshots.
        logs: The paths, each with the fields to read.
        offsets: What is known from earlier calls.
        curves: See ``read_log``.
        read: Called with the bytes that were read so far of a log.

    Raises:
        UsageError: A log cannot be read.
    """
    unplaced = [snapshot for snapshot in snapshots if step_of(snapshot) is None]
    steps = {step for step in map(step_of, snapshots) if step is not None}
    times_ns = {one.taken_ns for one in unplaced}

    def placed(path: bytes, fields: Sequence[str]) -> PlacedLog:
        lengths, ends = _in_snapshots(store, unplaced, path, fields, offsets)
        moments = Moments(times_ns, set(lengths.values()), steps)
        log = read_log(
            path, fields, moments, curves=curves, read=lambda size_bytes: read(size_bytes, path)
        )
        return PlacedLog(log, lengths, ends)

    return PlacedLogs([placed(*one) for one in logs])


def _in_snapshots(
    store: Store,
    snapshots: Sequence[SnapshotSummary],
    path: bytes,
    fields: Sequence[str],
    offsets: Offsets,
) -> tuple[dict[SnapshotId, int], dict[SnapshotId, Moment | None]]:
    """Return the length of a log in each snapshot, or how another one at its place ends there."""
    lengths: dict[SnapshotId, int] = {}
    ends: dict[SnapshotId, Moment | None] = {}
    with open_log(path) as file:
        beginnings = Beginnings(store, file)
        for snapshot in snapshots:
            entry = offsets.get(store, snapshot, path)
            if entry is not None and beginnings.has(entry):
                lengths[snapshot.id] = entry.size_bytes
            elif entry is not None:
                ends[snapshot.id] = offsets.end(store, snapshot, path, fields)
    return lengths, ends


def _stored(store: Store, summary: SnapshotSummary, path: bytes) -> Entry | None:
    if not any(path.startswith(root.rstrip(b"/") + b"/") for root in summary.roots):
        return None
    try:
        found = Locator(store, store.manifest(summary.id)).find(path)
    except (CorruptionError, UnknownFormatError):
        return None
    return found.entry if found is not None and found.entry.is_file else None
