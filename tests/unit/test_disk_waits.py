"""The time that processes of trainings wait for the disk: real processes on the real kernel."""

import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from ciuic.snapshot.pace.disk_waits import DiskWaits
from ciuic.snapshot.pace.pacer import Pacer
from ciuic.source.trainings import training_processes
from ciuic.system.clock import SystemClock
from tests.kit.clock import ManualClock
from tests.kit.daemon import wait_until
from tests.kit.disk_waits import JOB, counted_waits, start_waiting

MIB = 1024 * 1024
IN_A_THREAD = "threading.Thread(target=wait, daemon=True).start(); time.sleep(600)"

pytestmark = pytest.mark.root


@pytest.fixture(autouse=True)
def no_trainings_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests may run trainings at the same time, which wait for the disk too."""

    def search() -> list[int]:
        ours = {child.pid for child in psutil.Process().children()}
        return [pid for pid in training_processes() if pid in ours]

    monkeypatch.setattr("ciuic.snapshot.pace.disk_waits.training_processes", search)


@pytest.fixture
def counted() -> Iterator[None]:
    """Skip the test unless the kernel counts disk waits."""
    yield from counted_waits()


@contextmanager
def running(process: subprocess.Popen[bytes]) -> Iterator[int]:
    try:
        yield process.pid
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("begin", ["wait()", IN_A_THREAD], ids=["first thread", "another thread"])
def test_a_job_that_waits_for_the_disk_counts_and_other_programs_do_not(
    tmp_path: Path, counted: None, begin: str
) -> None:
    clock = ManualClock(0)
    waits = DiskWaits(clock)
    assert waits.is_known
    job = start_waiting(tmp_path / "job", variables=JOB, begin=begin)
    other = start_waiting(tmp_path / "other", variables={}, begin=begin)
    with running(job) as pid, running(other) as other_pid:
        assert waits.waited_us() == {}, "a short snapshot does not look for trainings"
        clock.advance(0.25)
        wait_until("it has waited", lambda: waited_us(waits, pid) >= 200_000)
        assert not waited_us(waits, other_pid)
    assert not waited_us(waits, pid), "it has ended"


def waited_us(waits: DiskWaits, pid: int) -> int:
    """Return the wait of the thread of a process that has waited longest."""
    found = waits.waited_us().items()
    return max((us for (_, name), us in found if name.startswith(f"{pid}/")), default=0)


def test_each_thread_of_a_training_counts_by_itself(tmp_path: Path, counted: None) -> None:
    several = "[threading.Thread(target=wait, daemon=True).start() for _ in range(4)]"
    clock = ManualClock(0)
    waits = DiskWaits(clock)
    waits.waited_us()
    clock.advance(0.25)
    job = start_waiting(tmp_path / "job", variables=JOB, begin=f"{several}; time.sleep(600)")
    with running(job) as pid:

        def how_many_waited() -> int:
            found = waits.waited_us().items()
            return sum(us > 0 for (_, name), us in found if name.startswith(f"{pid}/"))

        wait_until("two have waited", lambda: how_many_waited() >= 2)


def test_a_search_for_trainings_that_gets_stuck_stops_no_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that holds the lock of its memory map blocks every reader of its maps."""
    clock, goes_on, searches = ManualClock(0), threading.Event(), []

    def search() -> list[int]:
        searches.append(1)
        goes_on.wait(60)
        return [os.getpid()]

    monkeypatch.setattr("ciuic.snapshot.pace.disk_waits.training_processes", search)
    waits = DiskWaits(clock)
    for _ in range(5):
        assert waits.waited_us() == {}
        clock.advance(31)
    assert len(searches) == 1, "one search at a time"
    goes_on.set()
    wait_until("it was found", lambda: ("io", f"{os.getpid()}/{os.getpid()}") in waits.waited_us())


def test_a_program_that_has_loaded_a_training_library_is_a_training(tmp_path: Path) -> None:
    library = tmp_path / "libtorch_cpu.so"
    library.write_bytes(bytes(mmap.PAGESIZE))
    program = (
        "import mmap, sys\n"
        "with open(sys.argv[1], 'rb') as file:\n"
        "    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n"
        "print(flush=True)\nsys.stdin.read()\n"
    )
    for path, is_training in ((library, True), (tmp_path / "libplain.so", False)):
        path.write_bytes(bytes(mmap.PAGESIZE))
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with running(process) as pid:
            assert process.stdout is not None
            process.stdout.readline()
            assert (pid in training_processes()) is is_training
    assert os.getpid() not in training_processes()


class Contended(SystemClock):
    """A clock on which the training waits for the disk, except while the reader sleeps.

    Args:
        switch: A file that exists while the reader reads.
    """

    def __init__(self, switch: Path) -> None:
        super().__init__()
        self._switch = switch
        switch.touch()

    def sleep(self, duration_s: float) -> None:
        self._switch.unlink(missing_ok=True)
        super().sleep(duration_s)
        self._switch.touch()


def read(pacer: Pacer, clock: SystemClock, blocks: int) -> float:
    """Read blocks of 1 MiB in 10 ms each; return the total time."""
    began_s = clock.monotonic_s()
    for _ in range(blocks):
        end_s = clock.monotonic_s() + 0.01
        while clock.monotonic_s() < end_s:
            pass
        pacer.pace(MIB, lambda: None)
    return clock.monotonic_s() - began_s


def test_readers_slow_down_while_a_job_waits_for_the_disk_because_of_them(
    tmp_path: Path, counted: None
) -> None:
    switch = tmp_path / "switch"
    condition = f"is_on = lambda: os.path.exists({str(switch)!r})"
    for variables, slows_down in (({}, False), (JOB, True)):
        clock = Contended(switch)
        pacer = Pacer([DiskWaits(clock)], clock, limit=0.1, minimum_rate_bytes=20 * MIB)
        job = start_waiting(tmp_path / "job", variables=variables, condition=condition)
        with running(job):
            took_s = read(pacer, clock, 200)
        assert (pacer.waited_s > 0.2) is slows_down
        # At the lowest rate, 200 MiB take 10 s, and a busy machine makes each pause longer. A rate
        # that is halved again and again would take minutes.
        assert took_s < 2 + 10 + 48
