"""After a snapshot that met files in flux: wait for their writers, then ask for one more.

So that the hour has a whole checkpoint in it, and not only the half that was there on the hour.
Events say when to look (``ciuicd.watch``); a lease says whether a file is still being written.

What bounds it:
    - One wait at a time, of half an interval and ten minutes at most. A snapshot that is due comes
      first, and begins anew.
    - One follow-up for each snapshot. A further one only for files that were not waited for yet,
      within the same time, and ``_FOLLOW_UPS_MAX`` in all.
    - A file that nobody closed in all that time (a log) is told once. As long as it is the same
      file and in flux, later waits don't last for its sake; should it be closed, they notice.

All of it belongs to the daemon's main thread; only ``shown`` is read by others.
"""

import logging
import os
import stat
from collections.abc import Callable
from typing import Any, Final

from ciuic.capture.holders import find_holders
from ciuic.capture.kernel import has_writer
from ciuic.clock import Clock, rfc3339
from ciuic.model import TakeReport, path_text
from ciuic.units import format_duration, format_files
from ciuicd.schedule import covers
from ciuicd.watch import ClosingWatch

__all__ = ["TAG", "FollowUps", "Scope", "is_being_written"]

TAG: Final = "follow-up"
"""What a follow-up snapshot is tagged with."""

Scope = tuple[tuple[bytes, ...], tuple[str, ...]]
"""Roots and patterns of a snapshot."""

_WAIT_MAX_S: Final = 600.0
_FOLLOW_UPS_MAX: Final = 3
# Whoever closes a checkpoint may be about to open it again, for its index or its directory.
_SETTLE_S: Final = 2.0
_LOOK_S: Final = 30.0
_LOOK_WITHOUT_EVENTS_S: Final = 5.0
# However often events come.
_LOOK_APART_S: Final = 0.5
_NAMED_MAX: Final = 5
_NS: Final = 1_000_000_000
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_log = logging.getLogger(__name__)

_Identity = tuple[int, int]
_Looks = tuple[int, int, int, int, int]


def is_being_written(path: bytes, before: _Looks | None) -> tuple[bool, _Looks | None]:
    """Whether somebody has the file open for writing, and how the file looks now.

    Where no lease tells (a file of another user, a network file system), a file that looks as it
    did ``before`` counts as finished. So does a file that is gone: renamed, most likely.
    """
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return False, None
        fd = os.open(path, _OPEN)
    except OSError:
        return False, None
    try:
        status = os.fstat(fd)
        writer = has_writer(fd)
    finally:
        os.close(fd)
    times = (status.st_mtime_ns, status.st_ctime_ns)
    now = (status.st_dev, status.st_ino, status.st_size, *times)
    return (now != before if writer is None else writer), now


class _Wait:
    """One wait for the writers of some files.

    Attributes:
        open: Those that somebody was still writing at the last look.
        seen: All that this snapshot and its follow-ups have waited for.
        look_s: When to look next.
        quiet_s: Since when nobody has been writing; None while somebody is.
    """

    def __init__(
        self,
        report: TakeReport,
        scope: Scope | None,
        roots: tuple[bytes, ...],
        paths: frozenset[bytes],
        *,
        now_s: float,
        deadline_s: float,
        wake: Callable[[], None],
    ) -> None:
        self.report = report
        self.scope = scope
        self.roots = roots
        self.paths = paths
        self.seen = paths
        self.began_s = now_s
        self.deadline_s = deadline_s
        self.follow_ups = 0
        self.open = set(paths)
        self.looks: dict[bytes, _Looks | None] = {}
        self.looked_s = now_s
        self.look_s = now_s
        self.quiet_s: float | None = None
        self.watch = ClosingWatch(paths, wake)

    def look(self) -> None:
        """See which files somebody is still writing."""
        self.open = set()
        for path in self.paths:
            being_written, self.looks[path] = is_being_written(path, self.looks.get(path))
            if being_written:
                self.open.add(path)

    def identity(self, path: bytes) -> _Identity | None:
        """Which file it was at the last look."""
        looks = self.looks.get(path)
        return None if looks is None else looks[:2]


class FollowUps:
    """What the daemon remembers of files in flux.

    Args:
        clock: Tells how long has been waited.
        wake: Called on another thread when ``is_due`` may have become true.

    Attributes:
        shown: What ``ciuic status`` says of the wait; None when there is none.
    """

    def __init__(self, clock: Clock, wake: Callable[[], None]) -> None:
        self._clock = clock
        self._wake = wake
        self._wait: _Wait | None = None
        self._never_closed: dict[bytes, _Identity] = {}
        self._told_problem = False
        self.shown: dict[str, Any] | None = None

    @property
    def next_look_s(self) -> float | None:
        """When to ask ``is_due`` again, on the monotonic clock; None: nothing is awaited."""
        return None if self._wait is None else min(self._wait.look_s, self._wait.deadline_s)

    @property
    def scope(self) -> Scope | None:
        """Of the snapshot that is due; None for what the configuration says."""
        return None if self._wait is None else self._wait.scope

    def consider(
        self,
        report: TakeReport,
        scope: Scope | None,
        roots: tuple[bytes, ...],
        *,
        interval_s: float,
    ) -> None:
        """A snapshot of these roots has been taken that is no follow-up: wait if it needs one."""
        if self._wait is not None:
            if not covers(roots, self._wait.roots):
                return
            self.drop()
        flux = frozenset(report.flux)
        self._never_closed = {
            path: identity for path, identity in self._never_closed.items() if path in flux
        }
        if flux:
            now_s = self._clock.monotonic_s()
            deadline_s = now_s + min(interval_s / 2, _WAIT_MAX_S)
            self._begin(report, scope, roots, flux, deadline_s)

    def is_due(self) -> bool:
        """Look, if it is time to; whether the follow-up is to be taken now."""
        wait, now_s = self._wait, self._clock.monotonic_s()
        if wait is None:
            return False
        if wait.watch.take_note():
            wait.look_s = min(wait.look_s, wait.looked_s + _LOOK_APART_S)
        is_over = now_s >= wait.deadline_s
        if now_s < wait.look_s and not is_over:
            return False
        wait.look()
        wait.looked_s = now_s
        self._show(wait)
        is_someone_done = len(wait.open) < len(wait.paths)
        if is_someone_done and not self._awaited(wait):
            settle_s = min(_SETTLE_S, (wait.deadline_s - wait.began_s) / 4)
            if wait.quiet_s is None:
                wait.quiet_s = now_s
            if is_over or now_s - wait.quiet_s >= settle_s:
                return True
            wait.look_s = wait.quiet_s + settle_s
            return False
        wait.quiet_s = None
        often_s = _LOOK_S if wait.watch.is_complete else _LOOK_WITHOUT_EVENTS_S
        wait.look_s = now_s + min(often_s, max(wait.deadline_s - wait.began_s, 1.0) / 4)
        if is_over:
            self._tell_unclosed(wait)
            if is_someone_done:
                return True
            self.drop()
        return False

    def taken(self, report: TakeReport) -> None:
        """The follow-up that was due has been taken; perhaps it met others in flux."""
        wait = self._wait
        self.drop()
        if wait is None:
            return
        fresh = frozenset(report.flux) - wait.seen
        in_time = self._clock.monotonic_s() < wait.deadline_s
        if fresh and in_time and wait.follow_ups + 1 < _FOLLOW_UPS_MAX:
            self._begin(report, wait.scope, wait.roots, fresh, wait.deadline_s)
            if self._wait is not None:
                self._wait.seen = wait.seen | fresh
                self._wait.follow_ups = wait.follow_ups + 1

    def drop(self) -> None:
        """Wait no longer; harmless when nothing is awaited."""
        if self._wait is not None:
            self._wait.watch.close()
        self._wait = self.shown = None

    def _begin(
        self,
        report: TakeReport,
        scope: Scope | None,
        roots: tuple[bytes, ...],
        flux: frozenset[bytes],
        deadline_s: float,
    ) -> None:
        now_s = self._clock.monotonic_s()
        self._wait = wait = _Wait(
            report, scope, roots, flux, now_s=now_s, deadline_s=deadline_s, wake=self._wake
        )
        wait.look()
        wait.look_s = now_s + min(_LOOK_APART_S, (deadline_s - now_s) / 4)
        self._show(wait)
        if wait.watch.problem is not None and not self._told_problem:
            self._told_problem = True
            _log.warning(
                "files in flux are looked at every %s, since there are no events of them: %s",
                format_duration(_LOOK_WITHOUT_EVENTS_S),
                wait.watch.problem,
            )
        awaited = sorted(wait.paths - self._excused(wait))
        if awaited:
            _log.info(
                "%s in flux in %s, a follow-up snapshot comes when closed, within %s: %s",
                format_files(len(awaited)),
                report.id,
                format_duration(deadline_s - now_s),
                _named(awaited),
            )

    def _excused(self, wait: _Wait) -> set[bytes]:
        """Files that an earlier wait has waited for in vain."""
        return {
            path
            for path in wait.paths
            if path in self._never_closed and self._never_closed[path] == wait.identity(path)
        }

    def _awaited(self, wait: _Wait) -> set[bytes]:
        return wait.open - self._excused(wait)

    def _tell_unclosed(self, wait: _Wait) -> None:
        unclosed = sorted(self._awaited(wait))
        for path in unclosed:
            identity = wait.identity(path)
            if identity is not None:
                self._never_closed[path] = identity
        if unclosed:
            _log.warning(
                "%s still in flux after %s, not waited for any longer: %s",
                format_files(len(unclosed)),
                format_duration(self._clock.monotonic_s() - wait.began_s),
                _named(unclosed, wait),
            )

    def _show(self, wait: _Wait) -> None:
        left_s = max(0.0, wait.deadline_s - self._clock.monotonic_s())
        self.shown = {
            "after": wait.report.id,
            "files": len(wait.paths),
            "open": len(wait.open),
            "until": rfc3339(self._clock.now_ns() + int(left_s * _NS)),
        }


def _named(paths: list[bytes], wait: _Wait | None = None) -> str:
    """The first few, and how many more there are; with who is writing them if asked for."""
    some = paths[:_NAMED_MAX]
    inodes = [wait.identity(path) if wait is not None else None for path in some]
    holders = find_holders([one for one in inodes if one is not None]) if any(inodes) else {}
    texts = [
        f"{path_text(path)} ({holders[inode]})" if inode in holders else path_text(path)
        for path, inode in zip(some, inodes, strict=True)
    ]
    more = len(paths) - len(some)
    return ", ".join(texts) + (f" and {more} more" if more > 0 else "")
