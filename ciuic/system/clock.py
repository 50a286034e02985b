"""The only module that reads the system's clocks.

All other code takes a ``Clock``, so that tests set the time and never sleep.
"""

import contextlib
import time
from datetime import UTC, datetime
from typing import Protocol

__all__ = [
    "Clock",
    "SystemClock",
    "cpu_time_ns",
    "from_local_text",
    "is_future",
    "local_time_text",
    "natural_period",
    "rfc3339",
    "unix_seconds",
]

_NS = 1_000_000_000
_FUTURE_NS = 60 * _NS
_PERIODS = {"hour": "%Y-%m-%d %H:00", "day": "%Y-%m-%d", "week": "%G-W%V", "month": "%Y-%m"}


class Clock(Protocol):
    """A source of time."""

    def now_ns(self) -> int:
        """Return the wall clock in nanoseconds since 1970-01-01 UTC; setting it makes it jump."""
        ...

    def monotonic_s(self) -> float:
        """Return the seconds since a fixed moment; they never decrease."""
        ...

    def sleep(self, duration_s: float) -> None:
        """Block this thread for a time."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_ns(self) -> int:
        """See ``Clock``."""
        return time.time_ns()

    def monotonic_s(self) -> float:
        """See ``Clock``."""
        return time.monotonic()

    def sleep(self, duration_s: float) -> None:
        """See ``Clock``."""
        time.sleep(duration_s)


def cpu_time_ns(process_id: int) -> int:
    """Return how long the threads of a process have used a processor.

    Raises:
        OSError: There is no such process.
    """
    # The clock of a process has a number that is made of the process ID: clock_getcpuclockid(3).
    return time.clock_gettime_ns((~process_id << 3) | 2)


def local_time_text(taken_ns: int) -> str:
    """Format a time as ``YYYY-mm-dd HH:MM:SS`` in local time, the form in lists."""
    return datetime.fromtimestamp(taken_ns // _NS).strftime("%Y-%m-%d %H:%M:%S")


def rfc3339(taken_ns: int) -> str:
    """Format a time as RFC 3339 in UTC with microseconds and offset, the form in JSON documents."""
    moment = datetime.fromtimestamp(taken_ns // _NS, tz=UTC)
    return moment.replace(microsecond=taken_ns % _NS // 1000).isoformat(timespec="microseconds")


def is_future(moment_ns: int, now_ns: int) -> bool:
    """Return whether a recorded time is in the future: the clock was ahead then, or is behind now.

    A difference of up to a minute is ignored: clocks are often corrected by seconds.
    """
    return moment_ns > now_ns + _FUTURE_NS


def natural_period(taken_ns: int, unit: str) -> str:
    """Return the calendar hour, day, week (ISO 8601) or month in UTC of a time, as text.

    A time outside the calendar's range is a period of its own.
    """
    try:
        moment = datetime.fromtimestamp(taken_ns // _NS, tz=UTC)
    except (OverflowError, ValueError, OSError):
        return f"{taken_ns} ns"
    return moment.strftime(_PERIODS[unit])


def from_local_text(text: str) -> int | None:
    """Return the last nanosecond of the time that a text names; None if it names no time.

    ``2026-06-15 14:30`` is the end of that minute and a date the end of that day, so that a time
    copied from a list finds the snapshot that the list shows. A time without an offset is local
    time.
    """
    for pattern, width_s in (("%Y-%m-%d", 86_400), ("%Y-%m-%d %H:%M", 60), ("%Y-%m-%dT%H:%M", 60)):
        with contextlib.suppress(ValueError):
            return _seconds(datetime.strptime(text, pattern)) * _NS + width_s * _NS - 1
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    whole = _seconds(moment.replace(microsecond=0)) * _NS
    if moment.microsecond:
        return whole + moment.microsecond * 1000 + 999
    return whole + _NS - 1


def unix_seconds(text: str) -> float | None:
    """Return the seconds since 1970 that an ISO 8601 time means; None if it is none.

    A time without an offset is local time.
    """
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _seconds(moment: datetime) -> int:
    """Return seconds since 1970; for years that the C library cannot convert, as if in UTC."""
    try:
        return int(moment.timestamp())
    except (ValueError, OverflowError, OSError):
        return int(moment.replace(tzinfo=UTC).timestamp())
