"""The daemon's status as lines for ``ciuic status``.

The daemon may be of another version, so any field may be missing or of another type.
"""

from collections.abc import Iterator

from ciuic.documents import Document
from ciuic.system.clock import from_local_text, local_time_text
from ciuic.units import (
    format_bytes,
    format_duration,
    format_files,
    freed_in_words,
)

__all__ = ["daemon_lines"]


def daemon_lines(daemon: Document, *, is_damaged: bool = False) -> Iterator[tuple[str, str]]:
    """Yield lines about the daemon, each a key and a text.

    Args:
        daemon: Its status.
        is_damaged: Damage is known, even if the last scrub of the daemon came before.
    """
    yield "daemon", f"{daemon.get('state')}, process {daemon.get('pid')}, {daemon.get('config')}"
    yield from _obstacle_lines(daemon)
    schedules = daemon.get("schedules")
    if isinstance(schedules, list) and len(schedules) > 1:
        yield from _schedule_lines(schedules)
    else:
        interval_s = daemon.get("snapshot_interval_s")
        if isinstance(interval_s, (int, float)):
            only = schedules[0] if isinstance(schedules, list) and schedules else None
            yield "takes", _takes_text(only if isinstance(only, dict) else daemon)
        if isinstance(daemon.get("next"), str):
            yield "next", _local(daemon["next"])
    progress = daemon.get("progress")
    if isinstance(progress, dict):
        yield "now", _progress_text(progress)
    stalled_s = daemon.get("stalled_s")
    if isinstance(stalled_s, (int, float)):
        yield "hangs", f"the work has made no progress for {format_duration(stalled_s)}"
    awaited = daemon.get("follow_up")
    if isinstance(awaited, dict):
        yield (
            "awaits",
            f"{awaited.get('open')} of the files in flux ({awaited.get('files')}) in"
            f" {awaited.get('after')} to be closed, for a follow-up snapshot, until"
            f" {_local(str(awaited.get('until')))}",
        )
    upkeep = daemon.get("upkeep")
    if isinstance(upkeep, dict):
        yield from _upkeep_lines(upkeep, is_damaged=is_damaged)
    for what in daemon.get("hook_trouble") or ():
        yield "hook", f"{what}, at the last snapshot"
    error = daemon.get("last_error")
    if isinstance(error, dict):
        yield "failed", f"{error.get('message')} ({_local(str(error.get('time')))})"


def _obstacle_lines(daemon: Document) -> Iterator[tuple[str, str]]:
    """Yield why the daemon takes no scheduled snapshots, and what helps."""
    blocked = daemon.get("blocked")
    if isinstance(blocked, dict):
        since = _local(str(blocked.get("time")))
        yield "blocked", f"{blocked.get('message')}, since {since}. {blocked.get('hint') or ''}"
    elif daemon.get("replaced"):
        yield "upgrade", "ciuic was changed on disk, and the daemon is about to start again from it"
    if daemon.get("paused"):
        yield "paused", "no scheduled snapshots until 'ciuic resume'"


def _schedule_lines(schedules: list[object]) -> Iterator[tuple[str, str]]:
    for schedule in schedules:
        if isinstance(schedule, dict):
            parts = [
                f"{schedule.get('name')}: {_takes_text(schedule)}",
                f"next {_local(str(schedule.get('next')))}",
            ]
            if isinstance(schedule.get("newest"), str):
                parts.append(f"newest of {_local(schedule['newest'])}")
            error = schedule.get("last_error")
            if isinstance(error, dict):
                parts.append(f"failed: {error.get('message')}")
            yield "takes", ", ".join(parts)


def _takes_text(one: Document) -> str:
    roots = ", ".join(map(str, one.get("snapshot_paths") or ()))
    interval_s = one.get("snapshot_interval_s")
    every = format_duration(interval_s) if isinstance(interval_s, (int, float)) else "?"
    why = f" ({one['interval_why']})" if isinstance(one.get("interval_why"), str) else ""
    return f"{roots} every {every}{why}"


def _progress_text(progress: Document) -> str:
    """Return how far the daemon's snapshot is."""
    parts = [str(progress.get("state"))]
    files, size_bytes = progress.get("files"), progress.get("bytes")
    if isinstance(files, int) and isinstance(size_bytes, int):
        parts += [format_files(files), format_bytes(size_bytes)]
    rate = progress.get("rate_bytes")
    if isinstance(rate, (int, float)):
        parts.append(f"slowed to {format_bytes(int(rate))}/s because other programs wait")
    if "path" in progress:
        parts.append(str(progress["path"]))
    return ", ".join(parts)


def _upkeep_lines(upkeep: Document, *, is_damaged: bool) -> Iterator[tuple[str, str]]:
    """Yield the task between two snapshots, and the last result of each task."""
    if upkeep.get("doing"):
        yield "now", f"{upkeep['doing']}, until the next snapshot is due"
    for what in ("forget", "prune", "scrub", "drill"):
        last = upkeep.get(what)
        if not isinstance(last, dict):
            continue
        when = f" ({_local(str(last.get('time')))})"
        if "error" in last:
            yield what, f"failed: {last['error']}{when}"
        elif what == "forget":
            yield (
                what,
                f"{len(last.get('forgotten') or ())} forgotten, {last.get('kept')} kept{when}",
            )
        elif what == "prune":
            yield what, f"{freed_in_words(int(last.get('freed_bytes') or 0))}{when}"
        elif what == "drill":
            outcome = last.get("outcome") or "every chosen file came back as it was"
            yield what, f"{outcome}{when}"
        else:
            spent = format_duration(float(upkeep.get("scrubbed_today_s") or 0))
            found = "there is damage" if is_damaged or not last.get("ok") else "no damage"
            yield what, f"{found}, {spent} today{when}"


def _local(moment: str) -> str:
    """Convert a time of a JSON document to local time; return any other text unchanged."""
    moment_ns = from_local_text(moment)
    return moment if moment_ns is None else local_time_text(moment_ns)
