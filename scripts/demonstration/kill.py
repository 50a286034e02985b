"""Kills a training reliably in the middle of writing a file.

A kill at a random time rarely hits, since writing a checkpoint takes some milliseconds. So the
process is stopped as soon as its file is short. Then the file is checked again, and the process is
killed only if the file is still partial. A process that was quicker continues.
"""

import os
import signal
import subprocess
import time

__all__ = ["kill_inside_write"]

_LOOK_EVERY_S = 0.0002
_WRITTEN_MIN = 0.3
"""Fraction of the file that must be written: half a file is clearer evidence than none."""
_STOP_WITHIN_S = 5.0


def kill_inside_write(
    process: subprocess.Popen[bytes], path: str, whole_bytes: int, *, timeout_s: float
) -> int | None:
    """Kill the process while it writes the file; return the length of the partial file.

    Args:
        process: The writer, a child with a process group of its own. The group is killed, because
            ``python`` may be a script that starts the real one.
        path: The file, which the process writes again and again.
        whole_bytes: The length of the complete file.
        timeout_s: How long to watch for it.

    Returns:
        The length of the partial file; None if the process was not killed, because it ended by
        itself or never had a partial file.
    """
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s and process.poll() is None:
        if _is_partial(path, whole_bytes):
            os.killpg(process.pid, signal.SIGSTOP)
            if _has_stopped(process) and _is_partial(path, whole_bytes):
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


def _has_stopped(process: subprocess.Popen[bytes]) -> bool:
    """Wait until SIGSTOP has taken effect; until then the process may still write."""
    deadline_s = time.monotonic() + _STOP_WITHIN_S
    while time.monotonic() < deadline_s and process.poll() is None:
        if os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOHANG) is not None:
            return True
        time.sleep(_LOOK_EVERY_S)
    return False
