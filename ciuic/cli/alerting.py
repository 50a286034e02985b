"""The alerts of one job: one message when a fault begins, and one when it ends.

A fault that begins again and again would flood its readers, and each message takes a process. So
after three beginnings in ten minutes, its next messages are held back, and its last state is sent
when the ten minutes are over or the job ends. Several rules that fire at once are one message: see
``Grouping``.
"""

import contextlib
import os
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from ciuic.guard.alerts.channels import Channel
from ciuic.guard.alerts.grouping import Facts, Grouping, Notice, Severity
from ciuic.guard.alerts.message import Message
from ciuic.system.clock import Clock, rfc3339
from ciuic.units import counted

__all__ = ["Alerts", "test_message"]

_WAIT_S: Final = 10.0
_POLL_S: Final = 0.02
_REPEATS: Final = 3
_QUIET_S: Final = 600.0
_RULE: Final = "rule "


class _Held(NamedTuple):
    """The last message about a fault that was held back, and how often it began meanwhile."""

    event: Literal["began", "ended"]
    severity: Severity
    text: str
    facts: Facts
    times: int


class Alerts:
    """Sends the messages of a job, each in a process of its own.

    Args:
        channels: Where they go.
        job: The name of the job.
        clock: The time of a message.

    Attributes:
        started: The processes that deliver messages, until the guard has reaped them.
    """

    def __init__(self, channels: Sequence[Channel], job: str, clock: Clock) -> None:
        self.started: set[int] = set()
        self._channels = channels
        self._job = job
        self._clock = clock
        self._open: set[str] = set()
        self._began_s: dict[str, list[float]] = {}
        self._held: dict[str, _Held] = {}
        self._last: dict[tuple[str, str], int] = {}
        self._rules = Grouping(job, self._deliver)

    def began(
        self,
        fault: str,
        severity: Severity,
        text: str,
        **facts: str | int | None,
    ) -> None:
        """Report a fault, unless its beginning was reported already."""
        if fault not in self._open:
            self._open.add(fault)
            now_s = self._clock.monotonic_s()
            recent = [one for one in self._began_s.get(fault, ()) if now_s - one < _QUIET_S]
            self._began_s[fault] = recent
            if fault in self._held or len(recent) >= _REPEATS:
                count = self._held[fault].times + 1 if fault in self._held else 1
                self._held[fault] = _Held("began", severity, text, facts, count)
            else:
                recent.append(now_s)
                self._send("began", fault, severity, text, facts)

    def ended(self, fault: str, severity: Severity, text: str) -> None:
        """Report the end of a fault, if its beginning was reported."""
        if fault in self._open:
            self._open.remove(fault)
            if fault in self._held:
                self._held[fault] = self._held[fault]._replace(event="ended", text=text)
            else:
                self._send("ended", fault, severity, text, {})

    def idle(self) -> None:
        """Send what was held back, once the flood is over, and what rules have found.

        Called all the time: what was reported between two calls is at once.
        """
        for fault in list(self._held):
            if self._clock.monotonic_s() - self._began_s[fault][0] >= _QUIET_S:
                self._release(fault)
        self._rules.flush()

    def _release(self, fault: str) -> None:
        held = self._held.pop(fault)
        more = f"{held.text}; since then, this began {counted(held.times, 'more time')}"
        key = f"{fault} again"
        self._began_s[fault] = [self._clock.monotonic_s()]
        if held.event == "began":
            self._send("began", fault, held.severity, more, held.facts)
        else:  # its end was told before: a message of its own, which is over at once
            self._send("began", key, held.severity, more, held.facts)
            self._send("ended", key, held.severity, more, {})

    def wait(self) -> None:
        """Wait a few seconds for the last messages: systemd ends what outlives its service."""
        for fault in list(self._held):
            self._release(fault)
        self._rules.flush()
        end_s = self._clock.monotonic_s() + _WAIT_S
        for pid in self.started:
            with contextlib.suppress(ChildProcessError):
                while not os.waitpid(pid, os.WNOHANG)[0] and self._clock.monotonic_s() < end_s:
                    self._clock.sleep(_POLL_S)

    def _send(
        self,
        event: Literal["began", "ended"],
        fault: str,
        severity: Severity,
        text: str,
        facts: Facts,
    ) -> None:
        notice = Notice(event, fault, severity, text, facts)
        if fault.startswith(_RULE):
            self._rules.add(notice)
        else:
            self._rules.flush()  # what came first is told first
            self._deliver(notice)

    def _deliver(self, notice: Notice) -> None:
        if not self._channels:
            return
        from ciuic.guard.alerts.deliver import start_delivery

        host = os.uname().nodename
        key = f"ciuic/{host}/{self._job}/{os.getpid()}/{notice.fault}"
        moment = rfc3339(self._clock.now_ns())
        facts = {"job": self._job, **notice.facts}
        message = Message(notice.event, notice.severity, key, notice.text, host, moment, facts)
        self.started.update(start_delivery(self._channels, message, self._last))


def test_message(clock: Clock) -> Message:
    """Return a message that says that it is a test."""
    host = os.uname().nodename
    text = "this is a test message of 'ciuic doctor --test-alerts'; nothing is wrong"
    return Message("test", "warning", f"ciuic/{host}/test", text, host, rfc3339(clock.now_ns()))
