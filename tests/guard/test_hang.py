"""A job that hangs: when it counts as hung, and what the guard does."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciuic.guard.job.gpus import Gpus
from ciuic.guard.job.idle import Idleness
from ciuic.guard.job.processes import descendants
from ciuic.guard.rules.language import parse_rule
from tests.kit.box import Box
from tests.kit.clock import ManualClock
from tests.kit.daemon import wait_until
from tests.kit.jobs import Run, state
from tests.kit.program import environment

PROGRAM = """
import os, subprocess, sys
if sys.argv[1:]:
    os.read(0, 1)
    sys.exit()
inner, outer = os.pipe()
worker = subprocess.Popen([sys.executable, __file__, "worker"], stdin=inner, start_new_session=True)
print("ready", flush=True)
for line in sys.stdin:
    command, _, number = line.strip().partition(" ")
    if command == "read":
        left = int(number)
        with open("/dev/zero", "rb", buffering=0) as file:
            while left:
                left -= len(file.read(min(left, 65536)))
    elif command == "work":
        begin = os.times()
        while (now := os.times()).user + now.system < begin.user + begin.system + float(number):
            sum(range(1000))
    elif command == "spin":
        print("spinning", flush=True)
        while True:
            pass
    elif command == "fork":
        more = subprocess.Popen(["sleep", "1000"])  # so cheap that only its presence counts
    print("done", flush=True)
"""
"""A training that does what it is told. A worker of it waits for ever."""


class Told:
    """A running training with a guard that looks at it; the clock is the test's."""

    def __init__(self, directory: Path, *rules: str) -> None:
        program = directory / "train.py"
        program.write_text(PROGRAM)
        self.process = subprocess.Popen(
            [sys.executable, program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        self.answered()
        self.clock = ManualClock()
        made = [parse_rule(f"rule-{at}", {"when": when}) for at, when in enumerate(rules)]
        self.idleness = Idleness(made, self.clock, Gpus())
        self.lines = 0
        self.is_paused = False

    @property
    def pids(self) -> list[int]:
        return [self.process.pid, *descendants(self.process.pid)]

    def answered(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        print(command, file=self.process.stdin, flush=True)
        self.answered()

    def sleeps(self) -> None:
        """Return once none of its threads wants a processor."""
        wait_until(
            "it sleeps",
            lambda: (
                {Path(f"/proc/{pid}/stat").read_text().split()[2] for pid in self.pids} == {"S"}
            ),
        )

    def after(self, duration_s: float) -> list[str]:
        """Let the guard look after a time; return the rules that fired, ``-NAME`` for an end."""
        self.clock.advance(duration_s)
        found = self.idleness.poll(
            lambda: self.pids, lines=self.lines, step=7, is_paused=self.is_paused
        )
        return ["-" * one.is_end + one.rule.name for one in found]

    def close(self) -> None:
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    running = Told(tmp_path, "job idle for 6s", "job is idle for 12s", "no step for 1s")
    running.sleeps()
    assert running.after(0) == []
    yield running
    running.close()


def test_a_job_that_does_nothing_is_found_once_by_each_rule(told: Told) -> None:
    assert told.after(5) == []
    assert told.after(2) == ["rule-0"]
    assert [told.after(2) for _ in range(3)] == [[], [], ["rule-1"]]
    assert told.after(5) == []
    told.tell("work 0.6")
    told.sleeps()
    assert told.after(5) == ["-rule-0", "-rule-1"]
    assert [told.after(3), told.after(3)] == [[], ["rule-0"]]


@pytest.mark.parametrize("command", ["read 1000000", "work 0.5", "fork"])
def test_a_job_that_waits_for_data_or_works_a_little_is_not_idle(told: Told, command: str) -> None:
    """Here it reads 1 MB, or works for half a second, or starts a process, in 5 seconds."""
    for _ in range(4):
        told.tell(command)
        told.sleeps()
        assert told.after(5) == []
    assert [told.after(5), told.after(2)] == [[], ["rule-0"]]


def test_a_line_in_a_log_is_progress(told: Told) -> None:
    for _ in range(4):
        told.lines += 1
        assert told.after(5) == []


def test_little_use_of_a_processor_is_idleness(told: Told) -> None:
    """Such as that of a launcher that checks its workers ten times a second."""
    told.tell("work 0.05")
    told.tell("read 10000")
    told.sleeps()
    assert told.after(5) == []
    assert told.after(2) == ["rule-0"]


def test_a_job_that_waits_for_a_processor_is_not_idle(told: Told) -> None:
    """It wants to run, and cannot."""
    told.tell("spin")
    worker = told.pids[1]
    reads = Idleness([parse_rule("a", {"when": "job idle for 6s"})], told.clock, Gpus())

    def look(duration_s: float) -> list[object]:
        told.clock.advance(duration_s)
        pids = [told.process.pid, worker]
        return list(reads.poll(lambda: pids, lines=0, step=None, is_paused=False))

    # So long that its share of the processor in that time is small.
    assert look(0) == []
    for _ in range(3):
        assert look(59) == []


@pytest.mark.parametrize("number", [signal.SIGSTOP])
def test_a_job_that_its_user_stopped_is_not_idle(told: Told, number: signal.Signals) -> None:
    for pid in told.pids:
        os.kill(pid, number)
    wait_until("it is stopped", lambda: {state(pid) for pid in told.pids} == {"stopped"})
    assert [told.after(5) for _ in range(4)] == [[]] * 4
    for pid in told.pids:
        os.kill(pid, signal.SIGCONT)


def test_the_time_counts_anew_after_a_pause_and_after_ciuic_was_stopped(told: Told) -> None:
    assert told.after(5) == []
    told.is_paused = True
    assert [told.after(5), told.after(5)] == [[], []]
    told.is_paused = False
    assert [told.after(5), told.after(5)] == [[], []]
    assert told.after(3600) == []
    assert [told.after(5), told.after(2)] == [[], ["rule-0"]]


def test_without_a_driver_there_is_no_gpu_and_no_error() -> None:
    gpus = Gpus()

    assert gpus.count == 0 or Path("/proc/driver/nvidia").exists()
    assert not gpus.work_for([])


LIBRARY = """
class NVMLError(Exception): pass
class _Of:
    def __init__(self, **given): self.__dict__.update(given)
def nvmlInit(): pass
def nvmlDeviceGetCount(): return 3
def nvmlDeviceGetHandleByIndex(number): return number
def nvmlDeviceGetComputeRunningProcesses(device):
    if device == 0: raise NVMLError("lost")
    return [_Of(pid=PIDS[device])]
def nvmlDeviceGetUtilizationRates(device): return _Of(gpu=BUSY[device])
"""


@pytest.mark.parametrize(
    ("pids", "busy", "works"),
    [
        ((0, 1, os.getpid()), (0, 90, 0), False),  # another program's process
        ((0, 1, os.getpid()), (0, 0, 3), True),
        ((0, 1, 2**22 + 7), (0, 0, 3), True),  # a container's: the ID means nothing here
        ((0, 1, os.getpid()), (9, 0, 0), False),
    ],
)
def test_a_gpu_counts_if_the_job_uses_it(monkeypatch, tmp_path, pids, busy, works) -> None:
    """With a module in place of NVIDIA's, because these machines have no GPU."""
    (tmp_path / "pynvml.py").write_text(f"PIDS, BUSY = {pids!r}, {busy!r}\n{LIBRARY}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    try:
        gpus = Gpus()
        assert gpus.count == 3
        assert gpus.work_for({os.getpid()}) == works
    finally:
        sys.modules.pop("pynvml", None)


STUCK = """
import threading
class NVMLError(Exception): pass
ANSWERS = threading.Event()
def nvmlInit(): AT == "start" and ANSWERS.wait()
def nvmlDeviceGetCount(): return 1
def nvmlDeviceGetHandleByIndex(number): return number
def nvmlDeviceGetComputeRunningProcesses(device):
    ANSWERS.wait()
    return []
"""


@pytest.mark.parametrize("at", ["start", "question"])
def test_a_driver_that_does_not_answer_stops_no_rule(told, monkeypatch, tmp_path, at) -> None:
    """With a module in place of NVIDIA's, which blocks like the driver of a failed GPU."""
    (tmp_path / "pynvml.py").write_text(f"AT = {at!r}\n{STUCK}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    try:
        gpus = Gpus(answer_s=1.0)
        assert gpus.hangs == (at == "start")
        assert not gpus.work_for({os.getpid()})
        assert gpus.hangs
        threads = set(threading.enumerate())
        assert not any(gpus.work_for({os.getpid()}) for _ in range(5))
        assert set(threading.enumerate()) <= threads, "nothing is asked until it answers"
        idleness = Idleness([parse_rule("a", {"when": "job idle for 6s"})], told.clock, gpus)
        found = []
        for _ in range(4):
            told.clock.advance(5)
            found += idleness.poll(lambda: told.pids, lines=0, step=None, is_paused=False)
        assert [one.rule.name for one in found] == ["a"]
        assert "NVIDIA's driver does not answer" in found[0].what

        sys.modules["pynvml"].ANSWERS.set()
        wait_until("an answer comes", lambda: not gpus.hangs)
        assert not gpus.work_for({os.getpid()})
        assert gpus.count == 1
        assert not gpus.hangs
    finally:
        sys.modules.pop("pynvml", None)


HANGS = """
import os, sys
place = sys.argv[1]
print("started", flush=True)
if os.path.exists(f"{place}/again"):
    sys.exit(0)
open(f"{place}/again", "w").close()
with open(f"{place}/gate") as gate:  # nothing comes
    gate.read()
while not os.path.exists(f"{place}/stop"):
    pass
"""


@pytest.fixture
def hangs(tmp_path: Path) -> list[str]:
    (tmp_path / "train.py").write_text(HANGS)
    os.mkfifo(tmp_path / "gate")
    return [sys.executable, str(tmp_path / "train.py"), str(tmp_path)]


def test_a_hang_is_one_message_and_its_end_another(tmp_path: Path, hangs: list[str]) -> None:
    """Without any log."""
    config = tmp_path / "ciuic.conf"
    config.write_text("[rule stuck]\nwhen = job idle for 1s\n")
    with Run("--config", config, "run", "--job", "j", "--", *hangs) as run:
        run.waits_for("critical: job j: stuck: for 1")
        (tmp_path / "gate").write_text("go on")
        run.waits_for("job j: stuck ended")
        (tmp_path / "stop").touch()
        assert run.end() == 0
    assert run.err.count("critical") == 1, run.err
    assert "its 1 process used no processor and no GPU, moved no data and logged nothing" in run.err


def test_a_hanging_job_can_be_ended_and_started_again(box: Box, tmp_path, hangs) -> None:
    (box.source / "a").write_bytes(b"a")
    with box.config.open("a") as file:
        file.write("[rule stuck]\nwhen = job idle for 1s\nthen = run kill -KILL $CIUIC_JOB_PID\n")
    done = box.ciuic("run", "--restart", "1", "--", *hangs)

    assert done.code == 0, done.err
    assert done.out == "started\nstarted\n"
    assert "was killed by signal 9 (SIGKILL)" in done.err
    (taken,) = box.snapshots()
    assert taken.tags == ("emergency",), "a hang makes no snapshot suspect"


def test_no_step_can_come_while_a_job_is_paused(tmp_path: Path) -> None:
    from ciuic.guard.rules.watching import Watching

    watching = Watching([parse_rule("a", {"when": "no step for 10m"})])
    assert watching.time_passed(0.0) == []
    assert watching.time_passed(500.0, is_paused=True) == []
    assert watching.time_passed(1000.0) == []
    assert len(watching.time_passed(1100.0)) == 1
