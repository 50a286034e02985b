"""What the daemon knows, as metrics in a text file for Prometheus.

The node exporter collects such a file (``--collector.textfile.directory``), and
``ciuicd --serve-metrics`` serves it. Names and units follow Prometheus' conventions: times are
seconds since 1970, so that a file that is no longer written shows its age.
"""

import contextlib
import logging
import os
from collections.abc import Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

import ciuic
from ciuic.catalog import list_snapshots
from ciuic.config.opening import open_configured
from ciuic.config.settings import Settings
from ciuic.copy.record import standings
from ciuic.drill.drill import last_drill
from ciuic.errors import CiuicError
from ciuic.maintain.scrub.pack_health import health
from ciuic.model import SnapshotSummary
from ciuic.report.growth import full_in_s
from ciuic.snapshot.report import TakeReport
from ciuic.store.store import Store
from ciuic.system import durable
from ciuic.system.clock import Clock
from ciuic.system.free_space import free_space
from ciuicd.taking import newest_taken_ns

__all__ = ["Metrics"]

_log = logging.getLogger(__name__)

_NS: Final = 1e9
_AGAIN_S: Final = 300.0
_MODE: Final = 0o644
"""The node exporter is another user."""


class Metrics:
    """Counts what happens and writes the file; the main thread alone uses it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._write_s = clock.monotonic_s()
        self._failed_path = ""
        self._registry = CollectorRegistry()
        self._gauges: dict[str, Gauge] = {}
        self._schedules: set[str] = set()
        self._set("info", "The version of the daemon.", 1, version=ciuic.__version__)
        self._snapshots = Counter(
            "ciuic_snapshots",
            "Snapshots that this daemon tried to take, by outcome: ok, warnings, failed.",
            ["outcome"],
            registry=self._registry,
        )
        for outcome in ("ok", "warnings", "failed"):
            self._snapshots.labels(outcome)
        self._errors = self._counter("errors", "Failures of the daemon by kind.", "kind")
        self._new = self._counter("new_bytes", "Bytes of files that the store did not have.")
        self._stored = self._counter("stored_bytes", "Bytes that snapshots added to the store.")
        self._waited = self._counter("waited_seconds", "How long snapshots waited for others.")

    def note_snapshot(self, report: TakeReport) -> None:
        """See ``Meter``."""
        self._snapshots.labels("warnings" if report.trouble_count else "ok").inc()
        self._new.inc(report.new_bytes)
        self._stored.inc(report.stored_bytes)
        self._waited.inc(report.waited_s)
        durations = {**report.phases_s, "total": report.total_s, "freeze": report.freeze_s}
        for phase, duration_s in {**durations, "waiting": report.waited_s}.items():
            what = "How long a phase of the last snapshot took; total has all of them."
            self._set("snapshot_duration_seconds", what, duration_s, phase=phase)
        for name, what, value in (
            ("logical_bytes", "The size of the files in the last snapshot.", report.logical_bytes),
            ("snapshot_read_bytes", "Bytes that the last snapshot read.", report.read_bytes),
            ("snapshot_new_bytes", "New bytes of files in the last snapshot.", report.new_bytes),
            ("snapshot_stored_bytes", "Bytes that the last one added.", report.stored_bytes),
            ("snapshot_files", "Files in the last snapshot.", report.files),
            ("snapshot_warnings", "Warnings of the last snapshot.", report.trouble_count),
        ):
            self._set(name, what, value)

    def note_failure(self, error: CiuicError, *, is_snapshot: bool) -> None:
        """See ``Meter``."""
        self._errors.labels(error.kind).inc()
        if is_snapshot:
            self._snapshots.labels("failed").inc()

    def is_due(self) -> bool:
        """See ``Meter``."""
        return self._clock.monotonic_s() >= self._write_s

    def write(self, settings: Settings, *, next_due_ns: int | None, is_taking: bool) -> None:
        """See ``Meter``."""
        self._write_s = self._clock.monotonic_s() + _AGAIN_S
        self._set("paused", "1: no scheduled snapshots.", int(next_due_ns is None))
        if next_due_ns is not None:
            what = "When the next snapshot is due."
            self._set("next_snapshot_timestamp_seconds", what, next_due_ns / _NS)
        what = "How often snapshots are due."
        self._set("snapshot_interval_seconds", what, settings.snapshot_interval_s)
        self._drop_schedules({schedule.schedule for schedule in settings.schedules})
        for schedule in settings.schedules:
            what = "How often snapshots of a schedule are due."
            every_s = schedule.snapshot_interval_s
            self._set("schedule_interval_seconds", what, every_s, schedule=schedule.schedule)
        what = "When these metrics were written."
        self._set("metrics_timestamp_seconds", what, self._clock.now_ns() / _NS)
        self._set("taking", "1: a snapshot is being taken.", int(is_taking))
        if not is_taking:
            with (
                contextlib.suppress(CiuicError, OSError),
                open_configured(settings, patient=False) as store,
            ):
                self._look(store)
                self._look_at_schedules(settings)
                self._look_at_copies(store, settings)
        path = settings.metrics_file
        try:
            durable.write_whole(
                path,
                generate_latest(self._registry),
                temporary_directory=os.path.dirname(path),
                mode=_MODE,
            )
        except OSError as error:
            if self._failed_path != path:
                self._failed_path = path
                _log.error("the metrics cannot be written to %s: %s", path, error.strerror)
        else:
            self._failed_path = ""

    def _look(self, store: Store) -> None:
        snapshots = list_snapshots(store)
        what = "Snapshots in the store."
        self._set("listed_snapshots", what, len(snapshots))
        now_ns = self._clock.now_ns()
        newest_ns = max(
            (snapshot.taken_ns for snapshot in snapshots if snapshot.taken_ns <= now_ns),
            default=None,
        )
        if newest_ns is not None:
            what = "When the newest snapshot began."
            self._set("last_success_timestamp_seconds", what, newest_ns / _NS)
        self._look_at_health(store)
        if store.bucket is None:
            self._look_at_space(store, snapshots)

    def _look_at_schedules(self, settings: Settings) -> None:
        what = "When the newest snapshot that serves a schedule began."
        for schedule in settings.schedules:
            newest_ns = newest_taken_ns(schedule, self._clock)
            if newest_ns is not None:
                name = "schedule_last_success_timestamp_seconds"
                self._set(name, what, newest_ns / _NS, schedule=schedule.schedule)

    def _look_at_copies(self, store: Store, settings: Settings) -> None:
        for name in ("copy_missing_snapshots", "copy_behind_seconds", "copy_damaged_snapshots"):
            if name in self._gauges:
                self._gauges[name].clear()  # a reload may have removed copies
        for copy in standings(store, settings.copy_addresses, self._clock.now_ns()):
            what = "Snapshots that a copy lacks."
            self._set("copy_missing_snapshots", what, copy.missing, copy=copy.name)
            what = "How long ago the oldest of them was taken."
            self._set("copy_behind_seconds", what, copy.behind_s, copy=copy.name)
            what = "Snapshots of a copy that miss chunks, as far as its last run knows."
            self._set("copy_damaged_snapshots", what, copy.damaged, copy=copy.name)

    def _look_at_health(self, store: Store) -> None:
        self._look_at_checks(store)
        drill = last_drill(store)
        if drill is not None:
            self._set("drill_timestamp_seconds", "When the last drill ended.", drill.done_ns / _NS)
            self._set("drill_ok", "1: the last drill succeeded.", int(not drill.outcome))
            what = "How long the restore of the last drill took."
            self._set("drill_restore_seconds", what, drill.restore_s)
            self._set("drill_restored_bytes", "What it restored.", drill.restored_bytes)

    def _look_at_checks(self, store: Store) -> None:
        found = health(store, is_asked=False)
        if found.packs:
            share = 1.0 - found.unchecked / found.packs
            self._set("verified_ratio", "Share of the packs that were read and checked.", share)
        if found.oldest_ns is not None:
            what = "When the pack was checked whose last check is the oldest; all have one."
            self._set("verified_since_timestamp_seconds", what, found.oldest_ns / _NS)
        what = "Packs that are known to be damaged or gone."
        self._set("damaged_packs", what, len(found.damaged))
        what = "Manifests and marks that are known to be damaged or gone."
        self._set("damaged_documents", what, len(found.documents))
        self._set("lost_chunks", "Chunks that no pack and no parity has.", found.lost_chunks)

    def _look_at_space(self, store: Store, snapshots: Sequence[SnapshotSummary]) -> None:
        space = free_space(store.path)
        what = "Free space of the store's file system."
        self._set("store_free_bytes", what, space.available_bytes)
        self._set("store_size_bytes", "Size of that file system.", space.total_bytes)
        now_ns = self._clock.now_ns()
        left_s = full_in_s(snapshots, space.available_bytes, now_ns)
        if left_s is not None:
            what = "When the store's file system is full, if the store grows as in the last week."
            self._set("store_full_timestamp_seconds", what, now_ns / _NS + left_s)

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(f"ciuic_{name}", what, labels, registry=self._registry)

    def _drop_schedules(self, present: set[str]) -> None:
        """Drop the metrics of schedules that a reload has removed: they would seem to be late."""
        for schedule in self._schedules - present:
            for name in ("schedule_interval_seconds", "schedule_last_success_timestamp_seconds"):
                with contextlib.suppress(KeyError):
                    self._gauges[name].remove(schedule)
        self._schedules = present

    def _set(self, name: str, what: str, value: float, **labels: str) -> None:
        gauge = self._gauges.get(name)
        if gauge is None:
            gauge = Gauge(f"ciuic_{name}", what, list(labels), registry=self._registry)
            self._gauges[name] = gauge
        (gauge.labels(**labels) if labels else gauge).set(value)
