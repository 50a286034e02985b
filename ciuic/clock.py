"""The only module that asks what time it is.

Everything else is handed a ``Clock``, so that a test decides what time it is and no test sleeps.
"""

import contextlib
import time
from datetime import UTC, datetime
from typing import Protocol

__all__ = [
    "Clock",
    "SystemClock",
    "from_local_text",
    "is_future",
    "local_time_text",
    "natural_period",
    "rfc3339",
]

_NS = 1_000_000_000
_FUTURE_NS = 60 * _NS
_PERIODS = {"hour": "%Y-%m-%d %H:00", "day": "%Y-%m-%d", "week": "%G-W%V", "month": "%Y-%m"}


class Clock(Protocol):
    """Where the time comes from."""

    def now_ns(self) -> int:
        """Wall clock: nanoseconds since 1970-01-01 UTC; may jump when the clock is set."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        ...

    def sleep(self, duration_s: float) -> None:
        """Let this thread rest."""
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


def local_time_text(taken_ns: int) -> str:
    """``YYYY-mm-dd HH:MM:SS`` in local time: what people and their scripts read in a list."""
    return datetime.fromtimestamp(taken_ns // _NS).strftime("%Y-%m-%d %H:%M:%S")


def rfc3339(taken_ns: int) -> str:
    """RFC 3339 in UTC with microseconds and offset, the form in JSON documents."""
    moment = datetime.fromtimestamp(taken_ns // _NS, tz=UTC)
    return moment.replace(microsecond=taken_ns % _NS // 1000).isoformat(timespec="microseconds")


def is_future(moment_ns: int, now_ns: int) -> bool:
    """Whether the clock was ahead when a moment was noted, or is behind now.

    By up to a minute it counts as right: nobody wonders at a clock that is set back by seconds.
    """
    return moment_ns > now_ns + _FUTURE_NS


def natural_period(taken_ns: int, unit: str) -> str:
    """The natural hour, day, week (ISO 8601) or month in UTC that a moment lies in, as text.

    A moment that no calendar has is a period of its own.
    """
    try:
        moment = datetime.fromtimestamp(taken_ns // _NS, tz=UTC)
    except (OverflowError, ValueError, OSError):
        return f"{taken_ns} ns"
    return moment.strftime(_PERIODS[unit])


def from_local_text(text: str) -> int | None:
    """Nanoseconds for a time that a person wrote, the last instant it can mean; None if it is none.

    ``2026-06-15 14:30`` means up to the end of that minute, a date the end of that day: somebody
    who asks for the snapshot of that time means one that a list shows with that time.
    A time without an offset is local time.
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


def _seconds(moment: datetime) -> int:
    """Seconds since 1970; for a year that the C library can't convert, one that is far enough."""
    try:
        return int(moment.timestamp())
    except (ValueError, OverflowError, OSError):
        return int(moment.replace(tzinfo=UTC).timestamp())
