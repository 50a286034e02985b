"""Kills a training in the middle of writing a file, for certain.

A kill at a random time rarely hits: writing a checkpoint takes some milliseconds. So the process
is stopped as soon as its file is seen to be cut short, looked at while it stands still, and
killed only if part of a file is what there is. A process that was quicker runs on.
"""

import os
import signal
import subprocess
import time

__all__ = ["kill_inside_write"]

_LOOK_EVERY_S = 0.0002
_WRITTEN_MIN = 0.3
"""Fraction of the file that must be written already: nobody argues about half a file."""
_STOP_WITHIN_S = 5.0


def kill_inside_write(
    process: subprocess.Popen[bytes], path: str, whole_bytes: int, *, timeout_s: float
) -> int | None:
    """Kill the process while the file is shorter than it will be; returns how long it is then.

    Args:
        process: The writer, a child that leads a process group of its own; what is killed is
            the group, because ``python`` may be a script that starts the real one.
        path: The file, which the process writes again and again.
        whole_bytes: Its length when it is whole.
        timeout_s: How long to watch for it.

    Returns:
        The length of the half-written file; None if the process ended by itself
        or was never caught, and then it was not killed.
    """
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s and process.poll() is None:
        if _is_partial(path, whole_bytes):
            os.killpg(process.pid, signal.SIGSTOP)
            if _stands_still(process) and _is_partial(path, whole_bytes):
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return os.stat(path).st_size
            os.killpg(process.pid, signal.SIGCONT)
        time.sleep(_LOOK_EVERY_S)
    return None


def _is_partial(path: str, whole_bytes: int) -> bool:
    try:
        return whole_bytes * _WRITTEN_MIN < os.stat(path).st_size < whole_bytes
    except FileNotFoundError:
        return False


def _stands_still(process: subprocess.Popen[bytes]) -> bool:
    """Wait until SIGSTOP has taken effect; until then the process may go on writing."""
    deadline_s = time.monotonic() + _STOP_WITHIN_S
    while time.monotonic() < deadline_s and process.poll() is None:
        if os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOHANG) is not None:
            return True
        time.sleep(_LOOK_EVERY_S)
    return False
