"""Works for a child process that is started: it imports this module to find them."""

import contextlib
import logging
import os
import signal
import sys
import threading
from pathlib import Path

from ciuic.errors import BusyError
from ciuic.snapshot.hook_process import run_hook
from ciuic.system.clock import SystemClock
from ciuicd.jobs.child import Child

__all__ = [
    "ThreadedWork",
    "Work",
    "ends",
    "fails",
    "has_a_bug",
    "runs_a_hook",
    "says",
    "tells",
    "waits",
]


class Work:
    """Says who does it."""

    def __init__(self, value: object) -> None:
        self.value = value

    def do(self, _child: Child) -> dict[str, object]:
        places = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd") if int(name) > 2]
        opened = []
        for place in places:
            with contextlib.suppress(OSError):  # of the listing itself
                opened.append(os.readlink(place))
        return {
            "value": self.value,
            "pid": os.getpid(),
            "parent": os.getppid(),
            "environ": dict(os.environ),
            "nice": os.getpriority(os.PRIO_PROCESS, 0),
            "open": [one for one in opened if one != os.devnull],
            "command": Path("/proc/self/cmdline").read_bytes(),
            "encoding": sys.getfilesystemencoding(),
        }


class ThreadedWork:
    """Needs a second thread."""

    @staticmethod
    def do(_child: Child) -> int:
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.append(threading.active_count()))
        thread.start()
        thread.join()
        return found[0]


def tells(child: Child) -> str:
    """Tell a few documents."""
    for number in range(3):
        child.tell({"number": number, "path": "\udcff"})
    return "x" * 300_000


def says(_child: Child) -> None:
    """Log, and write to standard error."""
    logging.getLogger("tests").info("one")
    print("two", file=sys.stderr)
    logging.getLogger("tests").warning("three %d", 3)


def fails(_child: Child) -> None:
    """Raise an expected error."""
    raise BusyError("it is held", hint="Wait.")


def has_a_bug(_child: Child) -> None:
    """Raise another one."""
    raise ValueError("seven")


def ends(_child: Child) -> None:
    """End the process without an answer."""
    os._exit(3)


def runs_a_hook(_child: Child) -> list[str]:
    """Return the descriptors that a hook has."""
    said: list[str] = []
    # More than one command: a shell may become the last one, which has its listing open.
    command = "ls /proc/$$/fd; true"
    environ = dict(os.environb)
    failure = run_hook(
        command,
        environ,
        timeout_s=60,
        clock=SystemClock(),
        cancelled=lambda: False,
        say=said.append,
    )
    return said if failure is None else [failure]


def waits(child: Child) -> None:
    """Tell the process, and wait for a signal."""
    child.tell({"pid": os.getpid()})
    signal.pause()
