"""Delivering a message: attempts with back-off, in a process of its own.

The guard never waits for a server, and a message still goes out when the guard has ended. The
process is a new interpreter that leads a session of its own, so that Ctrl-C does not reach it. It
waits for the end of the process that delivers the message before, about the same fault to the same
channel: the end of a fault must not arrive before its beginning, which would never end.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import MutableMapping, Sequence
from typing import Final

from ciuic.guard.alerts.channels import Channel
from ciuic.guard.alerts.message import Message
from ciuic.guard.alerts.send import NotSent, send
from ciuic.system.clock import Clock, SystemClock

__all__ = ["deliver", "start_delivery"]

_FIRST_S: Final = 1.0
_LONGEST_S: Final = 300.0
_GIVE_UP_S: Final = 2 * 3600.0
_PROGRAM: Final = """\
import sys
sys.path[:] = {path!a}
from ciuic.guard.alerts.deliver import main
main()
"""


def deliver(
    channel: Channel,
    message: Message,
    clock: Clock,
    *,
    give_up_s: float = _GIVE_UP_S,
    before: int = -1,
) -> str | None:
    """Send a message; try again until it is handed over or the time is up.

    Args:
        channel: The channel.
        message: The message.
        clock: The clock.
        give_up_s: The time for all of it. It includes the wait for the process before: otherwise
            the processes of a channel that is down would wait for each other, more and more.
        before: A handle of the process whose end comes first (pidfd).

    Returns:
        None if it was handed over, else a clause that says why not.
    """
    end_s = clock.monotonic_s() + give_up_s
    if before >= 0:
        ends = select.poll()  # select refuses descriptors above 1023
        ends.register(before, select.POLLIN)
        ends.poll(give_up_s * 1000)
    wait_s = _FIRST_S
    while True:
        try:
            send(channel, message)
        except NotSent as error:
            if error.is_final or clock.monotonic_s() + wait_s > end_s:
                return str(error)
        else:
            return None
        clock.sleep(wait_s)
        wait_s = min(2 * wait_s, _LONGEST_S)


def start_delivery(
    channels: Sequence[Channel], message: Message, last: MutableMapping[tuple[str, str], int]
) -> list[int]:
    """Start a process for each channel that wants the message; returns their IDs.

    Args:
        channels: The channels.
        message: The message.
        last: For the name of a channel and the key of a fault, a handle of the last process
            (pidfd). Updated.
    """
    started = []
    for channel in channels:
        if message.event != "test" and not channel.wants(message.severity):
            continue
        values = [channel.name, channel.type, channel.least, dict(channel.values)]
        about = (channel.name, message.key)
        before = last.get(about, -1)
        handles = () if before < 0 else (before,)
        # Without the current directory: the modules of a training program are there.
        program = _PROGRAM.format(path=[place for place in sys.path if place])
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=handles,
        )
        last.pop(about, None)
        with contextlib.suppress(OSError):  # not more important than the message itself
            last[about] = os.pidfd_open(process.pid)
        for handle in handles:
            os.close(handle)
        assert process.stdin is not None  # noqa: S101 - for the type checker
        process.stdin.write(json.dumps([values, message.encoded().decode(), before]).encode())
        process.stdin.close()
        process.returncode = 0  # the guard reaps all of its children
        started.append(process.pid)
    return started


def main() -> None:
    """Run the process that delivers one message to one channel."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    (name, kind, least, values), encoded, before = json.loads(sys.stdin.buffer.read())
    os.close(0)
    os.open(os.devnull, os.O_RDONLY)
    channel = Channel(name, kind, least, values)
    why = deliver(channel, Message.decoded(encoded.encode()), SystemClock(), before=before)
    if why is not None:
        sys.stderr.write(f"ciuic: the alert {name} was not delivered: {why}\n")
