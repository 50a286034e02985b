"""The interface of the daemon's metrics: it counts nothing unless the configuration asks for it."""

from typing import Protocol

from ciuic.config.settings import Settings
from ciuic.errors import CiuicError
from ciuic.snapshot.report import TakeReport
from ciuic.system.clock import Clock

__all__ = ["Meter", "meter_of"]


class Meter(Protocol):
    """Counts what happens; the main thread alone calls it."""

    def note_snapshot(self, report: TakeReport) -> None:
        """Count a snapshot that was taken, and show its figures."""
        ...

    def note_failure(self, error: CiuicError, *, is_snapshot: bool) -> None:
        """Count a failure."""
        ...

    def is_due(self) -> bool:
        """Return whether the file should be written again although nothing happened."""
        ...

    def write(self, settings: Settings, *, next_due_ns: int | None, is_taking: bool) -> None:
        """Look into the store and write the file; a failure is one line in the log.

        Args:
            settings: Where the file is, and what is expected.
            next_due_ns: When the next snapshot is due; None: the daemon is paused.
            is_taking: A snapshot begins: the store is left alone, and the file says so.
        """
        ...


class _NoMeter:
    """Counts nothing: the package for Prometheus takes memory and a tenth of a second."""

    def note_snapshot(self, report: TakeReport) -> None:
        """See ``Meter``."""

    def note_failure(self, error: CiuicError, *, is_snapshot: bool) -> None:
        """See ``Meter``."""

    def is_due(self) -> bool:
        """See ``Meter``."""
        return False

    def write(self, settings: Settings, *, next_due_ns: int | None, is_taking: bool) -> None:
        """See ``Meter``."""


def meter_of(settings: Settings, clock: Clock) -> Meter:
    """Return the meter that the configuration asks for."""
    if not settings.metrics_file:
        return _NoMeter()
    from ciuicd.metrics.gauges import Metrics

    return Metrics(clock)
