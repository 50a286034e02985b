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
    """Yield one or two lines, each a key and a text; none for a store without packs."""
    if not checks.packs:
        return
    if checks.oldest_ns is None:
        unread = f"{checks.unchecked:,} of {counted(checks.packs, 'pack')}"
        were = inflected(checks.unchecked, "was", "were")
        written = inflected(checks.unchecked, "it was written", "they were written")
        yield "checked", f"{unread} {were} not read since {written}: 'ciuic scrub' reads them now"
    else:
        age_s = max(0.0, (SystemClock().now_ns() - checks.oldest_ns) / 1e9)
        yield "checked", f"every pack was read within the last {format_duration(age_s)}"
    if checks.damaged:
        packs = len(checks.damaged)
        yield (
            "damaged",
            f"{counted(packs, 'pack')}, {counted(checks.lost_chunks, 'chunk')} lost:"
            " 'ciuic repair' shows what can be repaired",
        )
