"""The results of scrubs, as lines for ``ciuic status`` and ``ciuic stats``."""

from collections.abc import Iterator

from ciuic.maintain.scrub.pack_health import Health
from ciuic.system.clock import SystemClock
from ciuic.units import (
    counted,
    format_duration,
    inflected,
)

__all__ = ["check_lines"]


def check_lines(checks: Health) -> Iterator[tuple[str, str]]:
    """Yield up to two lines, each a key and a text; none for an empty store without damage."""
    if checks.packs:
        yield _checked(checks)
    if checks.is_damaged:
        yield "damaged", f"{checks.damage}: 'ciuic repair' shows what can be repaired"


def _checked(checks: Health) -> tuple[str, str]:
    if checks.oldest_ns is None:
        unread = f"{checks.unchecked:,} of {counted(checks.packs, 'pack')}"
        were = inflected(checks.unchecked, "was", "were")
        written = inflected(checks.unchecked, "it was written", "they were written")
        what = f"{unread} {were} not read since {written}: 'ciuic scrub' reads them now"
        return "checked", what
    age_s = max(0.0, (SystemClock().now_ns() - checks.oldest_ns) / 1e9)
    return "checked", f"every pack was read within the last {format_duration(age_s)}"
