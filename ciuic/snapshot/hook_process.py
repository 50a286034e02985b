"""Run one hook: a shell command with a time limit, whose output is passed on.

``/bin/sh -c`` runs the command with the rights of this process, in a process group of its own. When
its time is up, the whole group is killed. So is every process that has left the group (setsid):
a variable in its environment identifies it.
"""

import contextlib
import os
import select
import signal
from collections.abc import Callable
from typing import Final

from ciuic.errors import CancelledError
from ciuic.system.clock import Clock
from ciuic.units import format_duration

__all__ = ["Say", "kill_run", "run_hook"]

_SHELL: Final = "/bin/sh"
_POLL_S: Final = 0.05
_GRACE_S: Final = 1.0
"""Time between asking a hook to end and killing it."""
_BLOCK_BYTES: Final = 64 * 1024
_BLOCKS_MAX: Final = 16
_LINES_MAX: Final = 200
_LINE_BYTES_MAX: Final = 1000
_MARK: Final = b"CIUIC_HOOK_RUN"
"""The variable that identifies the processes of a hook, even after they have left its group."""
_ROUNDS_MAX: Final = 50

Say = Callable[[str], None]
"""Receives the output of a hook, line by line."""


def run_hook(
    command: str,
    environ: dict[bytes, bytes],
    *,
    timeout_s: float,
    clock: Clock,
    cancelled: Callable[[], bool],
    say: Say,
    began: Callable[[bytes], None] = lambda _token: None,
) -> str | None:
    """Run a shell command; returns None if it succeeded, else a clause that says what happened.

    Background processes of the command keep running, unless its time ran out. ``began`` receives
    the name of this run, for ``kill_run``, as soon as the command runs.

    Raises:
        CancelledError: ``cancelled`` returned true; the command was killed.
    """
    token = os.urandom(16).hex().encode()
    mark = _MARK + b"=" + token
    reading, writing = os.pipe()
    output = _Output(reading, say)
    try:
        try:
            pid = _spawn(command, environ | {_MARK: token}, writing)
        except OSError as error:
            return f"cannot be run: {os.strerror(error.errno or 0)}"
        finally:
            os.close(writing)
        os.set_blocking(reading, False)
        try:
            began(token)
            if not _wait(pid, output, clock.monotonic_s() + timeout_s, clock, cancelled):
                _kill(pid, mark, clock)
                return f"took longer than {format_duration(timeout_s)} and was killed"
        except BaseException:
            _kill(pid, mark, clock)
            raise
        output.finish()
        return _failure(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), output.last)
    finally:
        os.close(reading)


def _spawn(command: str, environ: dict[bytes, bytes], output_fd: int) -> int:
    return os.posix_spawn(
        _SHELL,
        [_SHELL, "-c", command],
        environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, output_fd, 1),
            (os.POSIX_SPAWN_DUP2, output_fd, 2),
        ],
        setpgroup=0,
        # The daemon blocks signals in all threads but one; Python ignores these two.
        setsigmask=[],
        setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
    )


def _wait(
    pid: int, output: "_Output", end_s: float, clock: Clock, cancelled: Callable[[], bool]
) -> bool:
    """Pass on output until the hook ends; returns False if its time is up.

    Raises:
        CancelledError: ``cancelled`` returned true.
    """
    while not _has_ended(pid):
        if cancelled():
            raise CancelledError("the snapshot was interrupted in its hook 'before'")
        if clock.monotonic_s() >= end_s:
            return False
        output.wait()
    return True


def _has_ended(pid: int) -> bool:
    """Return whether a child has ended, without reaping it, so that its ID is not reused."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _failure(code: int, last: str) -> str | None:
    """Describe how a hook failed, with the last line of its output; None if it succeeded."""
    if code == 0:
        return None
    how = f"failed with exit status {code}" if code > 0 else f"was killed by signal {-code}"
    return f"{how}: {last}" if last else how


def _kill(pid: int, mark: bytes, clock: Clock) -> None:
    """End the process group, first with SIGTERM, then with SIGKILL; then kill escaped processes."""
    end_s = clock.monotonic_s() + _GRACE_S
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGTERM)
        while not _has_ended(pid) and clock.monotonic_s() < end_s:
            select.select([], [], [], _POLL_S)
        os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    _kill_escaped(mark)


def kill_run(token: bytes) -> None:
    """Kill the processes of a run whose own process was killed."""
    _kill_escaped(_MARK + b"=" + token)


def _kill_escaped(mark: bytes) -> None:
    """Kill all processes with the mark, repeatedly, because they may fork meanwhile."""
    for _ in range(_ROUNDS_MAX):
        names = [name for name in os.listdir("/proc") if name.isdigit()]
        killed = [_kill_if_marked(int(name), mark) for name in names]
        if not any(killed):
            return


def _kill_if_marked(pid: int, mark: bytes) -> bool:
    """Kill a process that has the mark, by descriptor: another process may get its ID meanwhile."""
    try:
        process_fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            is_marked = mark in file.read().split(b"\0")
        if is_marked:
            signal.pidfd_send_signal(process_fd, signal.SIGKILL)
        return is_marked
    except OSError:
        return False
    finally:
        os.close(process_fd)


class _Output:
    """Passes on the output of a hook in whole lines, up to a number and a length of lines.

    Args:
        fd: The pipe, which must not block.
        say: Receives the lines.

    Attributes:
        last: The last line that was not empty.
    """

    def __init__(self, fd: int, say: Say) -> None:
        self.last = ""
        self._fd = fd
        self._say = say
        self._line = b""
        self._lines_left = _LINES_MAX
        self._is_open = True

    def wait(self) -> None:
        """Wait a moment for output, and pass it on."""
        if select.select([self._fd] if self._is_open else [], [], [], _POLL_S)[0]:
            self._take()

    def finish(self) -> None:
        """Pass on the rest of the output, including a last line without a line end."""
        self._take()
        self._pass_on(self._line)
        self._line = b""

    def _take(self) -> None:
        # Bounded: a background process of the hook may write without end.
        for _ in range(_BLOCKS_MAX):
            try:
                data = os.read(self._fd, _BLOCK_BYTES)
            except BlockingIOError:
                return
            if not data:
                self._is_open = False
                return
            *lines, self._line = (self._line + data).split(b"\n")
            for line in lines:
                self._pass_on(line)
            self._line = self._line[-_LINE_BYTES_MAX:]

    def _pass_on(self, line: bytes) -> None:
        text = line[:_LINE_BYTES_MAX].decode("utf-8", "backslashreplace").rstrip()
        if not text:
            return
        self.last = text
        if self._lines_left:
            self._lines_left -= 1
            self._say(text if self._lines_left else "... further output is omitted")
