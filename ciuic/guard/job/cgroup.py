"""A cgroup (version 2) of a job's own: limits, pausing all processes at once, out-of-memory kills.

Only the kernel's files are used. The cgroup is made below the one of this process, or below the
nearest one above it that lets controllers be passed on: a cgroup with processes of its own cannot.
"""

import contextlib
import os
import re
from collections.abc import Mapping
from typing import Final

from ciuic.guard.job.processes import is_running
from ciuic.system.clock import Clock

__all__ = ["Cgroup", "NoCgroup", "create_cgroup", "oom_kills_of_machine"]

_KIND: Final = "cgroup2"
_MEMORY: Final = "memory"
_FREEZE_S: Final = 10.0
_POLL_S: Final = 0.005
_OWN: Final = re.compile(r"ciuic-.*-([0-9]{1,10})")
_NAME: Final = re.compile(r"[^A-Za-z0-9_.-]")


class NoCgroup(Exception):  # noqa: N818 - a reason, which the caller reports or accepts
    """There can be no cgroup; the message is a clause that says why."""


class Cgroup:
    """A cgroup that was made for a job.

    Attributes:
        path: Its directory.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    @property
    def freezer(self) -> str:
        """The file that freezes (1) and thaws (0) every process in it."""
        return f"{self.path}/cgroup.freeze"

    def enter(self) -> None:
        """Move this process into the cgroup: for a child before it runs its program."""
        self._write("cgroup.procs", "0")

    def pids(self) -> list[int]:
        """Return the processes in it and in the cgroups below it."""
        found: list[int] = []
        for place, _, _ in os.walk(self.path):
            with contextlib.suppress(OSError), open(f"{place}/cgroup.procs", "rb") as file:
                found += map(int, file.read().split())
        return found

    def freeze(self, clock: Clock) -> bool:
        """Stop every process; returns whether all stand still. A process in the kernel may not."""
        self._write("cgroup.freeze", "1")
        end_s = clock.monotonic_s() + _FREEZE_S
        while self._events("cgroup.events").get("frozen") != 1:
            if clock.monotonic_s() > end_s:
                return False
            clock.sleep(_POLL_S)
        return True

    def thaw(self) -> None:
        """Let every process go on."""
        self._write("cgroup.freeze", "0")

    def oom_kills(self) -> int:
        """Return how many processes the kernel killed because the memory was used up."""
        return self._events("memory.events").get("oom_kill", 0)

    def remove(self) -> bool:
        """Remove the cgroup if no process is left in it; returns whether it is gone."""
        for place, _, _ in os.walk(self.path, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(place)
        return not os.path.exists(self.path)

    def _events(self, name: str) -> dict[str, int]:
        with contextlib.suppress(OSError, ValueError), open(f"{self.path}/{name}") as file:
            return {key: int(value) for key, value in (line.split() for line in file)}
        return {}

    def _write(self, name: str, text: str) -> None:
        # Without O_CREAT, so that a wrong path makes no file.
        fd = os.open(f"{self.path}/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)


def create_cgroup(name: str, limits: Mapping[str, str]) -> Cgroup:
    """Make a cgroup for a job.

    Args:
        name: The name of the job.
        limits: File -> text, as ``memory.max`` -> ``1073741824``.

    Raises:
        NoCgroup: It cannot be made, or cannot have a limit.
    """
    needed = {file.partition(".")[0] for file in limits}
    why = "this system has no cgroups of version 2"
    # Tells an out-of-memory kill from any other SIGKILL. A parent with processes cannot have it.
    wanted = needed | {_MEMORY}
    for parent in _parents():
        lacking = _pass_on(parent, wanted) and _pass_on(parent, needed)
        if lacking:
            why = lacking
            continue
        _sweep(parent)
        made = Cgroup(f"{parent}/ciuic-{_NAME.sub('_', name)[:64]}-{os.getpid()}")
        try:
            os.mkdir(made.path)
        except OSError as error:
            why = f"a cgroup cannot be made in {parent}: {os.strerror(error.errno or 0)}"
            continue
        try:
            for file, text in limits.items():
                made._write(file, text)
        except OSError as error:
            made.remove()
            reason = os.strerror(error.errno or 0)
            raise NoCgroup(f"the kernel refuses {file} = {text}: {reason}") from error
        return made
    raise NoCgroup(why)


def oom_kills_of_machine() -> int:
    """Return how many processes the kernel has killed since its start for lack of memory."""
    try:
        with open("/proc/vmstat") as file:
            counts = dict(line.split() for line in file)
        return int(counts.get("oom_kill", 0))
    except OSError:
        return 0


def _sweep(parent: str) -> None:
    """Remove the empty cgroups of jobs whose ciuic was killed."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            match = _OWN.fullmatch(entry.name)
            if match is not None and not is_running(int(match[1])):
                # The kernel refuses to remove one that has processes.
                Cgroup(entry.path).remove()


def _pass_on(parent: str, needed: set[str]) -> str:
    """Let the cgroups below have controllers; returns why not, or an empty text."""
    try:
        with open(f"{parent}/cgroup.controllers") as file:
            there = set(file.read().split())
        with open(f"{parent}/cgroup.subtree_control") as file:
            passed_on = set(file.read().split())
        lacking = sorted(needed - there)
        if lacking:
            return f"the controller '{lacking[0]}' is not available to cgroups of version 2"
        for controller in sorted(needed - passed_on):
            Cgroup(parent)._write("cgroup.subtree_control", f"+{controller}")
    except OSError as error:
        return f"{parent} cannot pass controllers on: {os.strerror(error.errno or 0)}"
    return ""


def _parents() -> list[str]:
    """Return the cgroup of this process and those above it."""
    try:
        with open("/proc/self/cgroup") as file:
            own = next((line[3:].strip() for line in file if line.startswith("0::")), None)
        with open("/proc/self/mountinfo") as file:
            mounts = [line.split() for line in file]
    except OSError:
        return []
    found = [(fields[3], fields[4]) for fields in mounts if fields[fields.index("-") + 1] == _KIND]
    if own is None or not found:
        return []
    root, place = found[0]
    inner = own.removeprefix(root.rstrip("/")).strip("/")
    parts = inner.split("/") if inner and ".." not in inner.split("/") else []
    return ["/".join([place, *parts[:count]]) for count in range(len(parts), -1, -1)]
