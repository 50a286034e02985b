"""A child process of the daemon as its parent sees it: what it says, whether it goes on, its end.

The parent never waits for a child that hangs: it looks again twenty times a second. While the
daemon runs, a child that makes no progress for half an hour is a line in the log, and the daemon's
status and systemd's watchdog know it. When the daemon ends, the child has 45 seconds, which is less
than the unit's TimeoutStopSec, and is killed then. Work that needs longer says so, such as a hook.
"""

import contextlib
import logging
import mmap
import os
import signal
from collections.abc import Callable
from typing import Final, cast

from ciuic.documents import Document
from ciuic.errors import ChildDiedError
from ciuic.system.clock import Clock, cpu_time_ns
from ciuic.units import format_duration
from ciuicd.jobs.pipe import ReadEnd
from ciuicd.jobs.steps import Steps
from ciuicd.logs.forwarding import log_forwarded
from ciuicd.notify import STALLED_S

__all__ = [
    "BEAT",
    "BEGUN",
    "DONE",
    "END",
    "ENDS_WITHIN_S",
    "FAILED",
    "HURRY",
    "LOGGED",
    "NEEDS",
    "SIGNALED",
    "STOP",
    "TOLD",
    "Watched",
]

_log = logging.getLogger(__name__)

# Kinds of messages.
DONE: Final = "done"
FAILED: Final = "failed"
LOGGED: Final = "logged"
NEEDS: Final = "needs"
TOLD: Final = "told"
# Places in the shared memory.
STOP: Final = 0
END: Final = 1
BEAT: Final = 2
HURRY: Final = 3
BEGUN: Final = 4

ENDS_WITHIN_S: Final = 45.0
"""How long the work may take to stop after the daemon was asked to end."""
_POLL_S: Final = 0.05
_KILLED_S: Final = 5.0
"""A killed process ends at once, unless it waits for a device that does not answer."""
SIGNALED: Final = 128
"""A shell adds this to the number of the signal that killed a process."""


class Watched:
    """Watches one child until its end.

    Args:
        pid: The child.
        answers: What it sends; closed in the end.
        shared: The memory that both have.
        clock: Tells the time.
        counts_processor_time: Work that computes makes progress, even if it asks nothing.
    """

    def __init__(
        self,
        pid: int,
        answers: ReadEnd,
        shared: mmap.mmap,
        clock: Clock,
        *,
        counts_processor_time: bool,
    ) -> None:
        self._pid = pid
        self._answers = answers
        self._shared = shared
        self._clock = clock
        self._counts_processor_time = counts_processor_time
        self._status: int | None = None
        self._answer: tuple[str, object] | None = None
        # Not what the memory has now: the child may have run before this process does.
        self._seen = (0, 0)
        self._progress_s = clock.monotonic_s()
        self._has_complained = False
        self._needs_until_s = 0.0
        self._ending_s: float | None = None
        self._killed_s: float | None = None

    def outcome(
        self,
        *,
        is_cancelled: Callable[[], bool],
        is_ending: Callable[[], bool],
        must_hurry: Callable[[], bool],
        note_progress: Callable[[], None],
        told: Callable[[Document], None],
    ) -> Steps[object]:
        """Wait for the end of the child, and return what its work returned; see ``in_child``.

        Each step takes 50 ms, or less if the child says something.
        """
        try:
            while not self._has_ended() and not self._is_hopeless():
                for kind, value in self._answers.messages(_POLL_S):
                    self._take(kind, value, told)
                if self._has_progressed():
                    note_progress()
                self._shared[STOP] |= is_cancelled()
                self._shared[HURRY] |= must_hurry()
                self._end_in_time(is_ending=is_ending())
                yield
            for kind, value in self._answers.rest():
                self._take(kind, value, told)
        except BaseException:
            # An interrupt, a mistake of a caller, or no further step: the work must not go on.
            self._kill()
            raise
        finally:
            self._answers.close()
        if self._answer is None:
            raise self._died()
        kind, value = self._answer
        if kind == FAILED:
            raise cast("BaseException", value)
        return value

    def _take(self, kind: str, value: object, told: Callable[[Document], None]) -> None:
        if kind == TOLD:
            told(cast("Document", value))
        elif kind == LOGGED:
            log_forwarded(cast("Document", value))
        elif kind == NEEDS:
            self._needs_until_s = self._clock.monotonic_s() + cast("float", value)
        else:
            self._answer = kind, value

    def _has_ended(self) -> bool:
        if self._status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self._status = status if pid else None
        return self._status is not None

    def _is_hopeless(self) -> bool:
        """Return whether the child outlives even SIGKILL, because the kernel waits for a device."""
        killed_s = self._killed_s
        return killed_s is not None and self._clock.monotonic_s() > killed_s + _KILLED_S

    def _has_progressed(self) -> bool:
        """Return whether the work went on since the last call; complain once if it hangs."""
        now_s = self._clock.monotonic_s()
        used_ns = 0
        if self._counts_processor_time:
            with contextlib.suppress(OSError):
                used_ns = cpu_time_ns(self._pid)
        seen = (self._shared[BEAT], used_ns)
        if seen != self._seen:
            self._seen, self._progress_s = seen, now_s
            return True
        if now_s - self._progress_s > STALLED_S and not self._has_complained:
            self._has_complained = True
            _log.error(
                "the daemon's process that does the work, %d, has made no progress for %s: it may"
                " wait for a disk that does not answer. 'systemctl restart ciuicd' ends it",
                self._pid,
                format_duration(now_s - self._progress_s),
            )
        return False

    def _end_in_time(self, *, is_ending: bool) -> None:
        """Tell the child that the daemon ends; kill it if it has not ended in time."""
        if not is_ending:
            return
        self._shared[END] = True
        now_s = self._clock.monotonic_s()
        if self._ending_s is None:
            self._ending_s = now_s
        late_s = max(self._ending_s + ENDS_WITHIN_S, self._needs_until_s)
        if self._killed_s is None and now_s > late_s:
            self._killed_s = now_s
            os.kill(self._pid, signal.SIGKILL)

    def _kill(self) -> None:
        """Kill the child, and wait for its end for a moment."""
        if self._has_ended():
            return
        os.kill(self._pid, signal.SIGKILL)
        self._killed_s = self._clock.monotonic_s()
        while not self._has_ended() and not self._is_hopeless():
            self._clock.sleep(_POLL_S)

    def _died(self) -> ChildDiedError:
        """Return the error of a child that ended without an answer, or does not end."""
        code = -signal.SIGKILL if self._status is None else os.waitstatus_to_exitcode(self._status)
        if self._killed_s is not None and self._ending_s is not None:
            took = format_duration(self._killed_s - self._ending_s)
            how = f"was killed: it did not end in {took}, although the daemon ends"
            hint = "If a disk does not answer, the kernel's log says so (journalctl -k)."
        else:
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit status {code}"
            hint = (
                "If the machine ran out of memory, the kernel's log says so (journalctl -k); free"
                " some or lower buffer_memory."
            )
        error = ChildDiedError(f"the daemon's process that did the work {how}", hint=hint)
        error.exit_status = SIGNALED - code if code < 0 else code or error.exit_status
        return error
