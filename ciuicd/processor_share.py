"""Makes ciuic.slice idle (CPUWeight=idle) while a snapshot of the schedule is taken.

Beside a training that uses all processors, ten parts of a hundred are still too many: iterations
took 1.65 times as long while a snapshot was taken with CPUWeight=10, and 1.01 to 1.04 times in an
idle slice. But an idle slice gets next to nothing from a busy machine. So it is idle for a limited
time, and never for what has a time limit or what somebody waits for.

A thread of its own talks to systemd, because systemctl is in the same slice: the daemon and the
snapshot wait for none of it. A failure is a line in the log.
"""

import contextlib
import logging
import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Final

from ciuic.errors import ResourceError
from ciuic.system.clock import Clock
from ciuic.system.workers.threads import start
from ciuicd.jobs.forking import without_forks

__all__ = ["ProcessorShare"]

_log = logging.getLogger(__name__)

_SLICE: Final = "ciuic.slice"
_IDLE: Final = {"idle", "0"}
"""Versions of systemd print one or the other."""
_USUAL: Final = "10"
"""As in the unit of the slice."""
_KNOWS_IDLE: Final = 252
"""The first version of systemd that does."""
_RUNTIME: Final = "/run/systemd/"
_TIMEOUT_S: Final = 60.0
_TRIES: Final = 3
_PAUSE_S: Final = 2.0
"""systemd may be starting again."""
_END_S: Final = 10.0
"""The daemon's end may not take long. The next daemon sets the weight back if this one did not."""


class ProcessorShare:
    """Changes the weight of the slice that this process is in, if systemd has started it there.

    The main thread calls the methods; ``set_back`` any thread.

    Args:
        clock: Tells the time.
        cgroups: The kernel's file of this process's control groups.
    """

    def __init__(self, clock: Clock, cgroups: str = "/proc/self/cgroup") -> None:
        self._clock = clock
        self._is_ours = "INVOCATION_ID" in os.environ and _is_in_slice(cgroups)
        self._is_over = threading.Event()
        self._helper: threading.Thread | None = None

    def repair(self) -> None:
        """Set the weight back that a daemon has left which was killed."""
        self._begin(self._set_back)

    @contextlib.contextmanager
    def lowered(self, longest_s: float) -> Iterator[None]:
        """Have the slice idle for some time of the block at most.

        With 0 it is not idle, and never again in a longer block around this one or beside it. An
        administrator's weight stays.
        """
        if not longest_s:
            self.set_back()
            yield
            return
        is_over = self._is_over = threading.Event()
        self._begin(lambda: self._lower(is_over, longest_s))
        try:
            yield
        finally:
            is_over.set()

    def set_back(self) -> None:
        """Set the weight back before the block ends; waits for nothing."""
        self._is_over.set()

    def end(self) -> None:
        """Wait for a moment until the weight is set back."""
        if self._helper is not None:
            self._helper.join(_END_S)

    def _begin(self, work: Callable[[], None]) -> None:
        if not self._is_ours:
            return
        previous = self._helper

        def run() -> None:
            if previous is not None:
                previous.join()
            if self._is_ours:
                work()

        helper = threading.Thread(target=run, name="processor-share", daemon=True)
        try:
            start(helper)
        except ResourceError as error:
            _log.warning("the weight of %s stays as it is: %s", _SLICE, error.message)
        else:
            self._helper = helper

    def _lower(self, is_over: threading.Event, longest_s: float) -> None:
        if is_over.is_set():
            return
        has_asked = False
        try:
            if not self._knows_idle() or _properties()[0] != _USUAL:
                return
            has_asked = True
            _set_weight("idle")
            is_over.wait(longest_s)
        except (OSError, subprocess.SubprocessError) as error:
            _log.warning("%s does not become idle: %s", _SLICE, _reason(error))
        # Also after a failure: systemd may have done it nevertheless.
        if has_asked:
            self._set_back()

    def _knows_idle(self) -> bool:
        found = re.match(r"systemd (\d+)", _systemctl("--version"))
        if found is None or int(found[1]) >= _KNOWS_IDLE:
            return True
        self._is_ours = False
        _log.info(
            "%s keeps its weight while snapshots are taken: CPUWeight=idle needs systemd %d, and"
            " this is %s",
            _SLICE,
            _KNOWS_IDLE,
            found[1],
        )
        return False

    def _set_back(self) -> None:
        for left in reversed(range(_TRIES)):
            try:
                weight, drop_ins = _properties()
                # An administrator may have made the slice idle for good.
                if weight in _IDLE and any(map(_makes_idle, drop_ins)):
                    _set_weight(_USUAL)
                return
            except (OSError, subprocess.SubprocessError) as error:
                if not left:
                    _log.warning("%s may still be idle: %s", _SLICE, _reason(error))
                    return
            self._clock.sleep(_PAUSE_S)


def _is_in_slice(cgroups: str) -> bool:
    with contextlib.suppress(OSError), open(cgroups, encoding="utf-8", errors="replace") as file:
        return any(f":/{_SLICE}/" in line for line in file)
    return False


def _makes_idle(drop_in: str) -> bool:
    """Return whether a file is one that ``_set_weight`` makes, and has the slice idle."""
    if not drop_in.startswith(_RUNTIME):
        return False
    with contextlib.suppress(OSError), open(drop_in, encoding="utf-8", errors="replace") as file:
        return any(line.strip() == "CPUWeight=idle" for line in file)
    return False


def _properties() -> tuple[str, list[str]]:
    """Return the weight, and the files that change the unit."""
    names = ("--property=CPUWeight", "--property=DropInPaths")
    lines = _systemctl("show", *names, _SLICE).splitlines()
    found = dict(line.split("=", 1) for line in lines if "=" in line)
    return found.get("CPUWeight", ""), found.get("DropInPaths", "").split()


def _set_weight(weight: str) -> None:
    _systemctl("set-property", "--runtime", _SLICE, f"CPUWeight={weight}")


def _systemctl(*words: str) -> str:
    """Return what systemctl prints.

    Raises:
        OSError: It cannot be started.
        SubprocessError: It fails, or takes too long.
    """
    command = ["systemctl", *words]
    with without_forks():
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
    with process:
        try:
            printed, said = process.communicate(timeout=_TIMEOUT_S)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, printed, said)
    return printed


def _reason(error: Exception) -> str:
    said = error.stderr if isinstance(error, subprocess.CalledProcessError) else ""
    return " ".join(said.split()) or str(error)
