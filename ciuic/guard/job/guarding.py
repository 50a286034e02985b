"""Waiting for the end of a job: signals are passed on, and rules watch its logs.

One thread does all of it, and waits for signals. So a signal never interrupts other work, and the
guard notices the end of the job at once.
"""

import os
import signal
from dataclasses import dataclass
from typing import Final, Protocol

from ciuic.guard.job.cgroup import oom_kills_of_machine
from ciuic.guard.job.command import Guarded
from ciuic.guard.job.idle import Idleness
from ciuic.guard.job.logs import JobLogs
from ciuic.guard.rules.watching import Finding
from ciuic.system.clock import Clock

__all__ = ["SIGNALS", "Ended", "Events", "block_signals", "guard", "is_asked_to_end"]

SIGNALS: Final = frozenset(
    {
        signal.SIGCHLD,
        signal.SIGCONT,
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGTERM,
        signal.SIGUSR1,
        signal.SIGUSR2,
    }
)
"""Signals that wait until the guard looks; all but the first two are passed on."""
_ENDING: Final = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGTERM})
_RESUMING: Final = _ENDING | {signal.SIGCONT, signal.SIGQUIT}
_BY_KERNEL: Final = 0x80
"""The ``si_code`` of a signal from the terminal, which every process of the group has got."""
_POLL_S: Final = 0.25
_PAUSE_NOTE_S: Final = 8 * 60.0
"""NCCL ends a job whose collective takes 10 minutes, gloo one of 30 minutes."""


class Events(Protocol):
    """Called by the guard: what its owner does about each event."""

    def fired(self, finding: Finding, *, is_paused: bool) -> None:
        """A rule fired, and the job is paused already if the rule says so and it still runs."""
        ...

    def fault_ended(self, finding: Finding) -> None:
        """The fault of a rule ended."""
        ...

    def resumed(self) -> None:
        """The user let a paused job go on."""
        ...

    def paused_long(self, duration_s: float) -> None:
        """A paused job will soon run into the time limit of its collectives."""
        ...

    def blind(self, text: str) -> None:
        """The rules cannot use a log: why."""
        ...

    def idle(self) -> None:
        """Called several times a second."""
        ...


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended.

    Attributes:
        code: Exit status; negative: the number of the signal that killed it; None: not known.
        oom_kills: How many of its processes were killed because the memory was used up.
        oom_kills_meanwhile: The same for all processes of the machine, its own among them.
        last_step: The last step that it logged; None: none.
        asked: A signal asked the guard to end the job.
    """

    code: int | None
    oom_kills: int
    last_step: int | None
    asked: bool
    oom_kills_meanwhile: int = 0

    @property
    def is_failure(self) -> bool:
        """Whether the job failed by itself."""
        return self.code != 0 and not self.asked


def block_signals() -> None:
    """Let the signals wait for ``guard``: before the job starts, so that none is lost."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def guard(job: Guarded, logs: JobLogs, idleness: Idleness, events: Events, clock: Clock) -> Ended:
    """Wait for the end of a job; ``block_signals`` was called before."""
    asked = False
    oom_kills_before = oom_kills_of_machine()
    paused_s: float | None = None
    while True:
        received = _received()
        # Ctrl-C ends the job and comes here too: note the signal before the end of the job.
        status = job.ended()
        if status is not None:
            received += _received(wait_s=0)
        asked = asked or any(one.si_signo in _ENDING for one in received)
        found = logs.poll(is_paused=job.is_paused, is_last=status is not None)
        if status is None:
            found += idleness.poll(
                job.members, lines=logs.lines, step=logs.last_step, is_paused=job.is_paused
            )
        for finding in found:
            if finding.is_end:
                events.fault_ended(finding)
                continue
            pauses = finding.rule.action == "pause" and status is None
            if pauses and not job.is_paused:
                job.pause()
                paused_s = clock.monotonic_s()
            events.fired(finding, is_paused=pauses)
        if status is not None:
            code = None if status < 0 else os.waitstatus_to_exitcode(status)
            meanwhile = oom_kills_of_machine() - oom_kills_before
            return Ended(code, job.oom_kills(), logs.last_step, asked, meanwhile)
        for one in received:
            if job.is_paused and one.si_signo in _RESUMING:
                # A frozen process handles no signal.
                job.resume()
                paused_s = None
                events.resumed()
            if one.si_signo != signal.SIGCONT and one.si_code != _BY_KERNEL:
                job.send(signal.Signals(one.si_signo))
        if asked and not job.is_own:
            return Ended(None, 0, logs.last_step, asked)
        if paused_s is not None and clock.monotonic_s() - paused_s >= _PAUSE_NOTE_S:
            events.paused_long(clock.monotonic_s() - paused_s)
            paused_s = None
        _complain(logs, events)
        events.idle()


def _complain(logs: JobLogs, events: Events) -> None:
    for text in logs.complaints():
        events.blind(text)


def is_asked_to_end(wait_s: float) -> bool:
    """Wait between two starts of a job; returns True at once if a signal asks to end."""
    return signal.sigtimedwait(_ENDING | {signal.SIGQUIT}, wait_s) is not None


def _received(wait_s: float = _POLL_S) -> list[signal.struct_siginfo]:
    """Return the signals that came, except SIGCHLD, which ends the waiting."""
    found = []
    info = signal.sigtimedwait(SIGNALS, wait_s)
    while info is not None:
        if info.si_signo != signal.SIGCHLD:
            found.append(info)
        info = signal.sigtimedwait(SIGNALS, 0)
    return found
