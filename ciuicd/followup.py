"""Follow-up snapshots: wait until files that were being written are closed, then ask for another.

Without a follow-up, a checkpoint that was half written at the full hour would not be complete in
any snapshot of that hour. Events say when to look (``ciuicd.watch``); a lease says whether a file
is still being written.

Bounds:
    - One wait at a time, of half an interval, and ten minutes at most. A scheduled snapshot goes
      first and starts a new wait.
    - One follow-up for each snapshot. There are further follow-ups only for files that were not
      awaited yet, within the same time, and ``_FOLLOW_UPS_MAX`` in total.
    - A file that stays open for the whole wait (a log) is logged once. While the same file is
      being written, later waits do not last longer because of it, but they notice if it is closed.

Only the daemon's main thread uses this module; other threads may read ``shown``.
"""

import logging
import os
import stat
from collections.abc import Callable
from typing import Final

from ciuic.control import Document
from ciuic.model import ExcludeRules, covers, path_text
from ciuic.snapshot.report import TakeReport
from ciuic.source.writers import find_holders
from ciuic.system.clock import Clock, rfc3339
from ciuic.system.kernel import has_writer
from ciuic.units import format_duration, format_files, listed
from ciuicd.watch import ClosingWatch

__all__ = ["TAG", "FollowUps", "Scope", "is_being_written"]

TAG: Final = "follow-up"
"""The tag of follow-up snapshots."""

Scope = tuple[tuple[bytes, ...], ExcludeRules]
"""Roots and exclude rules of a snapshot."""

_WAIT_MAX_S: Final = 600.0
_FOLLOW_UPS_MAX: Final = 3
# A program that closes a checkpoint may open it again, for its index or its directory.
_SETTLE_S: Final = 2.0
_LOOK_S: Final = 30.0
_LOOK_WITHOUT_EVENTS_S: Final = 5.0
# Events may come more often than this.
_LOOK_APART_S: Final = 0.5
_NAMED_MAX: Final = 5
_NS: Final = 1_000_000_000
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_log = logging.getLogger(__name__)

_Identity = tuple[int, int]
_Looks = tuple[int, int, int, int, int]


def is_being_written(path: bytes, before: _Looks | None) -> tuple[bool, _Looks | None]:
    """Return whether a program has the file open for writing, and the file's identity and times.

    Where a lease is not possible (a file of another user, a network file system), a file that
    looks as it did ``before`` counts as closed. So does a missing file: it was probably renamed.
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
        open: Files that were still being written at the last look.
        seen: All files that this snapshot and its follow-ups waited for.
        look_s: When to look next.
        quiet_s: Since when no file has been written to; None while a file is being written.
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
        """Check which files are still being written."""
        self.open = set()
        for path in self.paths:
            being_written, self.looks[path] = is_being_written(path, self.looks.get(path))
            if being_written:
                self.open.add(path)

    def identity(self, path: bytes) -> _Identity | None:
        """Return device and inode of the file at the last look."""
        looks = self.looks.get(path)
        return None if looks is None else looks[:2]


class FollowUps:
    """The daemon's wait for files that are being written.

    Args:
        clock: Tells the time.
        wake: Called on another thread when ``is_due`` may have become true.

    Attributes:
        shown: The wait as ``ciuic status`` shows it; None without a wait.
    """

    def __init__(self, clock: Clock, wake: Callable[[], None]) -> None:
        self._clock = clock
        self._wake = wake
        self._wait: _Wait | None = None
        self._never_closed: dict[bytes, _Identity] = {}
        self._told_problem = False
        self.shown: Document | None = None

    @property
    def next_look_s(self) -> float | None:
        """When to ask ``is_due`` again, on the monotonic clock; None without a wait."""
        return None if self._wait is None else min(self._wait.look_s, self._wait.deadline_s)

    @property
    def scope(self) -> Scope | None:
        """The scope of the follow-up; None: that of the configuration."""
        return None if self._wait is None else self._wait.scope

    def consider(
        self,
        report: TakeReport,
        scope: Scope | None,
        roots: tuple[bytes, ...],
        *,
        interval_s: float,
    ) -> None:
        """Start a wait if this snapshot of ``roots`` needs a follow-up, and is none itself."""
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
        """Look at the files if it is time to; return whether to take the follow-up now."""
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
        is_any_closed = len(wait.open) < len(wait.paths)
        if is_any_closed and not self._awaited(wait):
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
            self._log_unclosed(wait)
            if is_any_closed:
                return True
            self.drop()
        return False

    def taken(self, report: TakeReport) -> None:
        """End the wait after its follow-up; start another for files that this one found open."""
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
        """End the wait; harmless without one."""
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
                "polling open files every %s because the system refused to watch them: %s",
                format_duration(_LOOK_WITHOUT_EVENTS_S),
                wait.watch.problem,
            )
        awaited = sorted(wait.paths - self._excused(wait))
        if awaited:
            _log.info(
                "%s being written in %s; waiting up to %s for them to be closed before a follow-up"
                " snapshot: %s",
                format_files(len(awaited)),
                report.id,
                format_duration(deadline_s - now_s),
                _named(awaited),
            )

    def _excused(self, wait: _Wait) -> set[bytes]:
        """Return the files that stayed open for a whole earlier wait."""
        return {
            path
            for path in wait.paths
            if path in self._never_closed and self._never_closed[path] == wait.identity(path)
        }

    def _awaited(self, wait: _Wait) -> set[bytes]:
        return wait.open - self._excused(wait)

    def _log_unclosed(self, wait: _Wait) -> None:
        unclosed = sorted(self._awaited(wait))
        for path in unclosed:
            identity = wait.identity(path)
            if identity is not None:
                self._never_closed[path] = identity
        if unclosed:
            _log.warning(
                "%s still being written after %s; gave up waiting: %s",
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
    """Return the first few paths, and how many more there are; for a wait, with their writers."""
    some = paths[:_NAMED_MAX]
    inodes = [wait.identity(path) if wait is not None else None for path in some]
    holders = find_holders([inode for inode in inodes if inode is not None]) if any(inodes) else {}
    texts = [
        f"{path_text(path)} ({holders[inode]})" if inode in holders else path_text(path)
        for path, inode in zip(some, inodes, strict=True)
    ]
    return listed(texts, len(paths))
