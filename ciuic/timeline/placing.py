"""Where snapshots are in logs: at which step, and what had been logged by then."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.ids import SnapshotId
from ciuic.model import SnapshotSummary
from ciuic.store.store import Store
from ciuic.timeline.logs import Log, Moment, Moments, read_log
from ciuic.timeline.states import step_of
from ciuic.view.locator import Locator

__all__ = ["BY_LOG", "BY_STATE", "BY_TIME", "Offsets", "Place", "PlacedLogs", "read_logs"]

BY_STATE = "state"
"""The snapshot holds its step itself."""
BY_LOG = "log"
"""The log in the snapshot ends there."""
BY_TIME = "time"
"""The lines of the log have times."""


class Place(NamedTuple):
    """The place of a snapshot in a log.

    Attributes:
        step: The step of the snapshot.
        log: The log; None if no log has the step.
        moment: What it had said by then; None if no log has the step.
        by: ``BY_STATE``, ``BY_LOG`` or ``BY_TIME``.
    """

    step: int
    log: Log | None
    moment: Moment | None
    by: str


class Offsets:
    """How long a log was when snapshots were taken. It is kept: a snapshot never changes."""

    def __init__(self) -> None:
        self._known: dict[tuple[SnapshotId, bytes], int | None] = {}

    def get(self, store: Store, summary: SnapshotSummary, path: bytes) -> int | None:
        """Return the length of the log in a snapshot; None if that does not have it."""
        key = summary.id, path
        if key not in self._known:
            self._known[key] = _length_bytes(store, summary, path)
        return self._known[key]


class PlacedLogs(NamedTuple):
    """Logs that were read with the moments of some snapshots.

    Attributes:
        logs: The logs.
        lengths: For each log, its length in each snapshot that holds it.
    """

    logs: list[Log]
    lengths: list[dict[SnapshotId, int | None]]

    def place(self, summary: SnapshotSummary) -> Place | None:
        """Return the place of one of the snapshots; None if nothing says where it is."""
        own = step_of(summary)
        for log, lengths in zip(self.logs, self.lengths, strict=True):
            if own is not None:
                moment = log.at_step.get(own)
                if moment is not None:
                    return Place(own, log, moment, BY_STATE)
                continue
            length = lengths.get(summary.id)
            for by, moment in (
                (BY_LOG, None if length is None else log.at_offset.get(length)),
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
    read: Callable[[int, bytes], None],
) -> PlacedLogs:
    """Read logs, and find what they had said when snapshots were taken.

    Args:
        store: An open store.
        snapshots: The snapshots.
        logs: The paths, each with the fields to read.
        offsets: Lengths of logs that are known from earlier calls.
        read: Called with the bytes that were read so far of a log.

    Raises:
        UsageError: A log can't be read.
    """
    unplaced = [one for one in snapshots if step_of(one) is None]
    steps = {step for step in map(step_of, snapshots) if step is not None}
    times_ns = {one.taken_ns for one in unplaced}
    found, all_lengths = [], []
    for path, fields in logs:
        lengths = {one.id: offsets.get(store, one, path) for one in unplaced}
        sizes = {size for size in lengths.values() if size is not None}

        def so_far(size_bytes: int, at: bytes = path) -> None:
            read(size_bytes, at)

        found.append(read_log(path, fields, Moments(times_ns, sizes, steps), read=so_far))
        all_lengths.append(lengths)
    return PlacedLogs(found, all_lengths)


def _length_bytes(store: Store, summary: SnapshotSummary, path: bytes) -> int | None:
    if not any(path.startswith(root.rstrip(b"/") + b"/") for root in summary.roots):
        return None
    try:
        found = Locator(store, store.manifest(summary.id)).find(path)
    except (CorruptionError, UnknownFormatError):
        return None
    return found.entry.size_bytes if found is not None and found.entry.is_file else None
