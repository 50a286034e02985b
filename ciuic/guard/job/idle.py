"""Whether a job is idle: its processes use no processor and no GPU, and move no data.

A training that waits for data is not idle as long as any data comes, and one that waits for a
processor is not idle either. A collective of NCCL that hangs is not idle, because it spins: a rule
``no step for TIME`` finds it.
"""

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from ciuic.guard.job.gpus import Gpus
from ciuic.guard.rules.language import Rule
from ciuic.guard.rules.watching import Finding
from ciuic.system.clock import Clock
from ciuic.units import counted, format_duration

__all__ = ["Idleness"]

_LOOK_S: Final = 10.0
_LOOKS: Final = 4
"""How often to look within the time of a rule, at least."""
_GAP_S: Final = 60.0
"""After a longer time without a look, ciuic itself was stopped: the time starts again."""
_CPU_SHARE: Final = 0.01
"""Of one processor, for each process: torchrun and ranks that wait for each other use 0.002."""
_CPU_SLACK_S: Final = 0.02
"""Two ticks of the kernel's clock."""
_BYTES_PER_S: Final = 16 * 1024
"""The processes of torchrun exchange less than 1 KiB a second while a job hangs."""
_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class _Reading:
    """What the processes of a job have done so far, each with its own figures."""

    moment_s: float
    cpu_s: dict[int, float]
    moved_bytes: dict[int, int]
    lines: int


class Idleness:
    """The rules ``job idle for TIME`` over one job.

    Args:
        rules: All rules of the job; others than these are left out.
        clock: Tells the time.
        gpus: The GPUs.
    """

    def __init__(self, rules: Sequence[Rule], clock: Clock, gpus: Gpus | None = None) -> None:
        self._rules = [rule for rule in rules if rule.idle_s]
        self._clock = clock
        self._gpus = gpus
        shortest_s = min((rule.idle_s for rule in self._rules), default=0.0)
        self._look_s = min(_LOOK_S, shortest_s / _LOOKS)
        self._last: _Reading | None = None
        self._since_s = 0.0
        self._fired: list[Rule] = []

    def poll(
        self,
        members: Callable[[], Collection[int]],
        *,
        lines: int,
        step: int | None,
        is_paused: bool,
    ) -> list[Finding]:
        """Look at the processes if it is time; returns the rules that fired or whose fault ended.

        Args:
            members: Returns the processes of the job.
            lines: How many lines the job has logged so far.
            step: The newest step.
            is_paused: ciuic has paused the job: the time starts again afterwards.
        """
        now_s = self._clock.monotonic_s()
        last = self._last
        if not self._rules or (last is not None and now_s - last.moment_s < self._look_s):
            return []
        if is_paused:
            self._last = None
            return []
        pids = members()
        current = self._last = _read(pids, now_s, lines)
        if last is None or now_s - last.moment_s > _GAP_S:
            self._since_s = now_s
            return []
        if self._is_active(last, current):
            self._since_s = now_s
            ended, self._fired = self._fired, []
            return [Finding(rule, step, True) for rule in ended]
        idle_s = now_s - self._since_s
        found = []
        for rule in self._rules:
            if idle_s >= rule.idle_s and rule not in self._fired:
                self._fired.append(rule)
                hangs = self._gpus is not None and self._gpus.hangs
                found.append(Finding(rule, step, what=_what(idle_s, pids, driver_hangs=hangs)))
        return found

    def _is_active(self, last: _Reading, current: _Reading) -> bool:
        if current.lines != last.lines or current.cpu_s.keys() != last.cpu_s.keys():
            return True
        elapsed_s = current.moment_s - last.moment_s
        cpu_s = sum(current.cpu_s.values()) - sum(last.cpu_s.values())
        if cpu_s > _CPU_SHARE * elapsed_s * len(current.cpu_s) + _CPU_SLACK_S:
            return True
        moved_bytes = sum(current.moved_bytes.values()) - sum(last.moved_bytes.values())
        if moved_bytes > _BYTES_PER_S * elapsed_s:
            return True
        states = _states(current.cpu_s)
        # Runnable: it waits for a processor. Stopped: its user did that, with Ctrl-Z or a debugger.
        if "R" in states or (states and set(states) <= set("Tt")):
            return True
        if self._gpus is None:
            self._gpus = Gpus()
        return self._gpus.work_for(current.cpu_s)


def _read(pids: Collection[int], now_s: float, lines: int) -> _Reading:
    cpu_s, moved_bytes = {}, {}
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                # See proc(5): the time of all threads, in user and in system mode.
                fields = file.read().rpartition(b")")[2].split()
            cpu_s[pid] = (int(fields[11]) + int(fields[12])) * _TICK_S
            moved_bytes[pid] = _moved_bytes(pid)
        except OSError:  # it has ended
            cpu_s.pop(pid, None)
    return _Reading(now_s, cpu_s, moved_bytes, lines)


def _moved_bytes(pid: int) -> int:
    """Return what a process has read and written, pages of mapped files included."""
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            counts = dict(line.split(b": ") for line in file.read().splitlines())
    except PermissionError:  # a process with other rights
        return 0
    return sum(int(counts[name]) for name in (b"rchar", b"wchar", b"read_bytes"))


def _states(pids: Collection[int]) -> list[str]:
    """Return the state of each thread."""
    found = []
    for pid in pids:
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/stat", "rb") as file:
                    found.append(file.read().rpartition(b")")[2].split()[0].decode())
        except OSError:
            continue
    return found


def _what(idle_s: float, pids: Collection[int], *, driver_hangs: bool) -> str:
    blocked = _states(pids).count("D")
    processes = counted(len(pids), "process", "processes")
    text = f"for {format_duration(idle_s)}, its {processes} used no processor and no GPU"
    text += ", moved no data and logged nothing"
    if driver_hangs:
        text += "; NVIDIA's driver does not answer"
    return text + (f"; {counted(blocked, 'thread')} of them wait for a disk" if blocked else "")
