"""Timelines and comparisons for the API and the page."""

import contextlib
import math
import os
import threading
from collections.abc import Sequence
from typing import Final

from ciuic.errors import CiuicError, UsageError
from ciuic.guard.logs.paths import log_files
from ciuic.maintain.scrub.pack_health import health
from ciuic.model import SnapshotSummary
from ciuic.store.place.keys import is_url
from ciuic.store.store import Store
from ciuic.system.clock import Clock
from ciuic.timeline.compare import Compared, compare, read_all
from ciuic.timeline.curve import Point
from ciuic.timeline.logs import fields_of
from ciuic.timeline.placing import Offsets, PlacedLogs
from ciuic.timeline.timeline import Timeline, make_timeline
from ciuic.web.history.turns import Turns, go_on
from ciuic.web.models import (
    ChangedFiles,
    ComparedSnapshot,
    Configuration,
    Marker,
    Metric,
    SnapshotComparison,
    TimelineAnswer,
)
from ciuic.web.reading import Reading, snapshot_answer
from ciuic.web.shown import meant, sent
from ciuic.web.snapshots import Listed

__all__ = ["COMPARED_MAX", "Timelines", "compared_answer", "finite"]

COMPARED_MAX: Final = 12
_CURVES_MAX: Final = 20
_KEPT_MAX: Final = 4
_PLACED_MAX: Final = 2000
"""The most snapshots for which is kept what logs say: a megabyte for 1,000 and ten fields."""
_SETTLED_NS: Final = 10_000_000_000
_Key = tuple[object, ...]
_Identity = tuple[bytes, int, int, int, int, int]


class Timelines:
    """Answers questions about the course of a training. Any thread may call it.

    Args:
        reading: Reads the store.
        logs: Logs of training programs, or patterns that name several.
        clock: Tells whether a log has changed lately.

    Attributes:
        turns: Of the requests that read logs.
    """

    def __init__(self, reading: Reading, logs: Sequence[bytes], clock: Clock) -> None:
        self.turns = Turns()
        self._reading = reading
        self._clock = clock
        self._logs = tuple(logs)
        self._offsets = Offsets()
        self._lock = threading.Lock()
        self._listed: Listed | None = None
        self._kept: dict[_Key, TimelineAnswer] = {}
        self._placed_lock = threading.Lock()
        self._placed_kept: tuple[Listed, tuple[_Identity, ...], PlacedLogs] | None = None

    def prepare(self) -> None:
        """Begin to read the logs, so that the first request need not wait for all of it."""
        # In a bucket, this would send requests that may be needless.
        if self._logs and not is_url(self._reading.store_path):
            # A daemon: it must not keep the server from ending.
            threading.Thread(target=self._prepare, daemon=True, name="timeline").start()

    def _prepare(self) -> None:
        # The overview, which is usually the first page, waits for that.
        self._reading.settle()
        with contextlib.suppress(CiuicError, OSError):  # a request gets the error
            self.timeline()
            self.compare(["latest"])

    def timeline(self, field: str = "") -> TimelineAnswer:
        """Return the curve of a field with all snapshots; empty: the loss, or the first metric.

        An answer is kept while neither the logs nor the snapshots change, and no check finds more.
        """
        paths = log_files(self._logs)
        with self._lock, self._reading.opened() as store:
            listed = self._reading.listed(store)
            if listed is not self._listed:
                self._listed = listed
                self._kept.clear()
            checks = health(store, is_asked=False)
            key = (
                field,
                checks.is_known,
                checks.unchecked,
                checks.lost_chunks,
                *map(_identity, paths),
            )
            if key in self._kept:
                return self._kept[key]
            fields = list(dict.fromkeys(name for path in paths for name in fields_of(path)))
            found = make_timeline(
                store,
                listed.snapshots,
                paths,
                field=meant(field, fields) or None,
                offsets=self._offsets,
                read=lambda _size_bytes, _path: go_on(),
            )
            answer = _timeline(found, fields, checks.unchecked if checks.is_known else None)
            while len(self._kept) >= _KEPT_MAX:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = answer
            return answer

    def compare(self, names: Sequence[str]) -> SnapshotComparison:
        """Compare snapshots, except for their tensors.

        Raises:
            UsageError: There is none, or there are too many.
        """
        if not 1 <= len(names) <= COMPARED_MAX:
            raise UsageError(
                f"a comparison has 1 to {COMPARED_MAX} snapshots, not {len(names)}",
                hint="Name them as id=ID&id=ID.",
            )
        paths = log_files(self._logs)
        with self._reading.opened() as store:
            listed = self._reading.listed(store)
            chosen: list[SnapshotSummary] = [self._reading.find(store, name) for name in names]
            logs = self._placed(store, listed, chosen, paths)
            found = compare(store, chosen, paths, tensors=False, logs=logs, check=go_on)
        return SnapshotComparison(
            snapshots=[compared_answer(listed, one) for one in found.snapshots]
        )

    def _placed(
        self, store: Store, listed: Listed, chosen: Sequence[SnapshotSummary], paths: list[bytes]
    ) -> PlacedLogs:
        """Return what logs say at some snapshots, if possible from an earlier call.

        The logs of a training that goes on are read at these snapshots alone: what would be kept
        of all others would be wrong with the next line.
        """
        identities = tuple(map(_identity, paths))
        with self._placed_lock:
            kept = self._placed_kept
            if kept is not None and kept[0] is listed and kept[1] == identities:
                return kept[2]
            newest_ns = max((changed_ns for *_, changed_ns in identities), default=0)
            is_settled = self._clock.now_ns() - newest_ns > _SETTLED_NS
            if not is_settled or len(listed.snapshots) > _PLACED_MAX:
                return read_all(store, chosen, paths, offsets=self._offsets, check=go_on)
            found = read_all(store, listed.snapshots, paths, offsets=self._offsets, check=go_on)
            self._placed_kept = listed, identities, found
            return found


def compared_answer(listed: Listed, one: Compared) -> ComparedSnapshot:
    """Return the document of a snapshot in a comparison."""
    return ComparedSnapshot(
        snapshot=snapshot_answer(listed, one.snapshot),
        step=one.step,
        epoch=finite(one.epoch),
        metrics=[
            Metric(name=sent(name), value=finite(value)) for name, value in one.metrics.items()
        ],
        changed_files=_changed(one),
        configuration=_configuration(one),
    )


def _timeline(found: Timeline, fields: list[str], unchecked_packs: int | None) -> TimelineAnswer:
    return TimelineAnswer(
        field=None if found.field is None else sent(found.field),
        fields=[sent(name) for name in fields],
        curves=[_pairs(curve) for curve in found.curves[-_CURVES_MAX:]],
        left_out_curves=max(0, len(found.curves) - _CURVES_MAX),
        not_finite=found.not_finite,
        unchecked_packs=unchecked_packs,
        markers=[
            Marker(
                id=one.snapshot.id,
                taken=one.snapshot.as_json()["taken"],
                state=one.state,
                pinned=one.snapshot.pinned,
                tags=[os.fsencode(tag) for tag in one.snapshot.tags],
                logical_bytes=one.snapshot.logical_bytes,
                step=one.step,
                value=finite(one.value),
                placed_by=one.placed_by or None,
            )
            for one in found.markers
        ],
    )


def _pairs(curve: Sequence[Point]) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in curve]


def finite(value: float | None) -> float | None:
    """Return a value as JSON can hold it."""
    return value if value is not None and math.isfinite(value) else None


def _changed(one: Compared) -> ChangedFiles | None:
    if one.against is None:
        return None
    counts = one.against.files
    return ChangedFiles(
        added=counts["+"],
        removed=counts["-"],
        changed=counts["M"] + counts["T"],
        metadata=counts["m"],
    )


def _configuration(one: Compared) -> list[Configuration]:
    if one.against is None:
        return []
    return [
        Configuration(
            path=file.path,
            diff=[line.encode() for line in file.lines],
            what=os.fsencode(file.what),
        )
        for file in one.against.configuration
    ]


def _identity(path: bytes) -> _Identity:
    try:
        status = os.stat(path)
    except OSError:
        return path, 0, 0, 0, 0, 0
    # A log that is overwritten may get its size and its time of modification back, as by rsync.
    return (
        path,
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_ctime_ns,
        status.st_mtime_ns,
    )
