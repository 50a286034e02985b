"""What share of the processors systemd gives ciuic.slice while a snapshot is taken.

The slice has CPUWeight=idle: beside a training that uses all processors, it gets next to nothing.
That is right for a snapshot of a schedule, for a while. For one that somebody waits for, and for
one that takes too long, the slice has the weight of earlier versions until the snapshot ends.
"""

import contextlib
import logging
import os
import subprocess
import threading
from collections.abc import Iterator
from typing import Final

from ciuic.system.clock import Clock

__all__ = ["ProcessorShare"]

_log = logging.getLogger(__name__)

_SLICE: Final = "ciuic.slice"
_IDLE: Final = "idle"
_RAISED: Final = "10"
_TIMEOUT_S: Final = 5.0


class ProcessorShare:
    """Changes the weight of the slice that this process is in, if systemd has started it there.

    Args:
        cgroups: The kernel's file of this process's control groups.
    """

    def __init__(self, cgroups: str = "/proc/self/cgroup") -> None:
        self._is_ours = "INVOCATION_ID" in os.environ and _is_in_slice(cgroups)
        self._lock = threading.Lock()
        self._is_raised = False
        self._clock: Clock | None = None
        self._until_s = 0.0

    @contextlib.contextmanager
    def until_end(self, clock: Clock, longest_s: float) -> Iterator[None]:
        """Have the slice idle for some time of the block at most; 0: not at all."""
        if not self._is_ours:
            yield
            return
        self._clock, self._until_s = clock, clock.monotonic_s() + longest_s
        try:
            self.look(must_stop=False)
            yield
        finally:
            self._clock = None
            with self._lock:
                if self._is_raised and _set_weight(_IDLE):
                    self._is_raised = False

    def look(self, *, must_stop: bool) -> None:
        """Raise the weight if the time is over, or the snapshot is to end soon; called often."""
        clock = self._clock
        if clock is None or not (must_stop or clock.monotonic_s() >= self._until_s):
            return
        with self._lock:
            if self._clock is None:
                return
            # Once: an administrator's weight stays, and a systemd that fails is not asked again.
            self._clock = None
            self._is_raised = self._is_raised or (_is_idle() and _set_weight(_RAISED))


def _is_in_slice(cgroups: str) -> bool:
    with contextlib.suppress(OSError), open(cgroups, encoding="utf-8", errors="replace") as file:
        return any(f":/{_SLICE}/" in line for line in file)
    return False


def _is_idle() -> bool:
    # systemd prints a number: 0 stands for idle.
    return _systemctl("show", "--value", "--property", "CPUWeight", _SLICE) in {_IDLE, "0"}


def _set_weight(weight: str) -> bool:
    return _systemctl("set-property", "--runtime", _SLICE, f"CPUWeight={weight}") is not None


def _systemctl(*words: str) -> str | None:
    """Return what systemctl prints; None and a line in the log if it fails."""
    try:
        done = subprocess.run(
            ["systemctl", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        _log.warning("the weight of %s stays as it is: %s", _SLICE, error)
        return None
    return done.stdout.strip()
