"""The alerts of one job: one message when a fault begins, and one when it ends."""

import contextlib
import os
from collections.abc import Sequence
from typing import Final, Literal

from ciuic.guard.alerts.channels import Channel
from ciuic.guard.alerts.message import Message
from ciuic.system.clock import Clock, rfc3339

__all__ = ["Alerts", "test_message"]

_WAIT_S: Final = 10.0
_POLL_S: Final = 0.02


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

    def began(
        self,
        fault: str,
        severity: Literal["warning", "critical"],
        text: str,
        **facts: str | int | None,
    ) -> None:
        """Report a fault, unless its beginning was reported already."""
        if fault not in self._open:
            self._open.add(fault)
            self._send("began", fault, severity, text, facts)

    def ended(self, fault: str, severity: Literal["warning", "critical"], text: str) -> None:
        """Report the end of a fault, if its beginning was reported."""
        if fault in self._open:
            self._open.remove(fault)
            self._send("ended", fault, severity, text, {})

    def wait(self) -> None:
        """Wait a few seconds for the last messages: systemd ends what outlives its service."""
        end_s = self._clock.monotonic_s() + _WAIT_S
        for pid in self.started:
            with contextlib.suppress(ChildProcessError):
                while not os.waitpid(pid, os.WNOHANG)[0] and self._clock.monotonic_s() < end_s:
                    self._clock.sleep(_POLL_S)

    def _send(
        self,
        event: Literal["began", "ended"],
        fault: str,
        severity: Literal["warning", "critical"],
        text: str,
        facts: dict[str, str | int | None],
    ) -> None:
        if not self._channels:
            return
        from ciuic.guard.alerts.deliver import start_delivery

        host = os.uname().nodename
        key = f"ciuic/{host}/{self._job}/{os.getpid()}/{fault}"
        moment = rfc3339(self._clock.now_ns())
        message = Message(event, severity, key, text, host, moment, {"job": self._job, **facts})
        self.started.update(start_delivery(self._channels, message))


def test_message(clock: Clock) -> Message:
    """Return a message that says that it is a test."""
    host = os.uname().nodename
    text = "this is a test message of 'ciuic doctor --test-alerts'; nothing is wrong"
    return Message("test", "warning", f"ciuic/{host}/test", text, host, rfc3339(clock.now_ns()))
