"""``ciuic run`` in a process of its own, its output, and the processes of its job."""

import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from tests.kit.daemon import wait_until
from tests.kit.program import CIUIC, environment

__all__ = ["WITHOUT_CGROUP", "Run", "state"]

WITHOUT_CGROUP = (
    "unshare",
    "-m",
    "sh",
    "-c",
    "for place in $(awk '/ - cgroup2 / {print $5}' /proc/self/mountinfo); do umount \"$place\";"
    ' done; exec "$@"',
    "sh",
)
"""A wrapper, for root: a system without cgroups of version 2."""


class Run:
    """A running ``ciuic run`` or ``ciuic watch``; a context manager that kills leftover processes.

    Args:
        arguments: The arguments of ``ciuic``.
        wrapper: A program to run it under, and its arguments.
    """

    def __init__(self, *arguments: str | Path, wrapper: Sequence[str] = ()) -> None:
        self.process = subprocess.Popen(
            [*wrapper, *CIUIC, *arguments],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid
        self._out: list[str] = []
        self._err: list[str] = []
        self._threads = [
            threading.Thread(target=lambda to=to, stream=stream: to.extend(stream), daemon=True)
            for to, stream in (
                (self._out, self.process.stdout),
                (self._err, self.process.stderr),
            )
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._join()
        for thread, stream in zip(
            self._threads, (self.process.stdout, self.process.stderr), strict=True
        ):
            assert stream is not None
            # Closing would wait forever for a thread that reads from a leftover process.
            if not thread.is_alive():
                stream.close()

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.process.poll() is not None

    @property
    def out(self) -> str:
        """What it has written to stdout so far."""
        return "".join(self._out)

    @property
    def err(self) -> str:
        """What it has written to stderr so far."""
        return "".join(self._err)

    def waits_for(self, text: str) -> None:
        """Return once a text is on stdout or stderr."""
        wait_until(
            f"{text!r} is said; so far: {self.out}{self.err}",
            lambda: text in self.out + self.err or self.process.poll() is not None,
        )
        if self.process.poll() is not None:
            self.end()
        assert text in self.out + self.err, self.out + self.err

    def send(self, number: signal.Signals) -> None:
        """Send a signal to ciuic alone."""
        self.process.send_signal(number)

    def end(self) -> int:
        """Wait for the end; returns the exit status, negative for a signal."""
        code = self.process.wait(timeout=120)
        self._join()
        assert "Traceback" not in self.err, self.err
        return code

    def _join(self) -> None:
        # A leftover process may hold the pipes open.
        for thread in self._threads:
            thread.join(timeout=5)


def state(pid: int) -> str:
    """Return the state of a process: ``frozen``, ``stopped``, ``gone`` or ``running``."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
        groups = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return "gone"
    letter = text.rpartition(")")[2].split()[0]
    if letter in "ZX":
        return "gone"
    if letter == "T":
        return "stopped"
    own = next((line[3:] for line in groups if line.startswith("0::")), "/")
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for fields in mounts:
        if fields[fields.index("-") + 1] == "cgroup2" and own.strip("/"):
            events = Path(fields[4] + own) / "cgroup.events"
            if events.exists() and "frozen 1" in events.read_text():
                return "frozen"
    return "running"
