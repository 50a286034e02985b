"""A real ciuicd beside programs that need the processors waits, says so, and still ends."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from ciuic.control import request_snapshot, request_status
from ciuic.snapshot.pace.pressure import RESOURCES, Pressure
from tests.kit.daemon import Daemon, Machine, wait_until
from tests.kit.disk_waits import JOB, counted_waits, start_waiting
from tests.kit.strace import strace

MIB = 1024 * 1024
HAS_PSI = Pressure({name: [f"/proc/pressure/{name}"] for name in RESOURCES}).is_known

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
    pytest.mark.skipif(not HAS_PSI, reason="this kernel has no pressure-stall information"),
]

CALLS = "preadv,preadv2,pread64"
SLOW_DISK = strace(CALLS, "-D", inject="delay_enter=20000")
"""Each block takes 20 ms, so that the snapshot lasts for some measurements."""
SLOWER_DISK = strace(CALLS, "-D", inject="delay_enter=80000")
"""The snapshot lasts longer than the search for trainings, which takes seconds if all is busy."""


@pytest.fixture
def busy() -> Iterator[None]:
    """Run more programs than there are processors, at the lowest priority: one always waits."""
    spin = "import os\nos.nice(19)\nwhile True: pass"
    count = 3 * len(os.sched_getaffinity(0))
    spinning = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(count)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def first_report(machine: Machine, daemon: Daemon) -> dict[str, Any]:
    def report() -> dict[str, Any] | None:
        status = request_status(str(machine.store))
        found: dict[str, Any] | None = None if status is None else status["last_report"]
        return found

    wait_until("the first snapshot is taken", lambda: report() is not None)
    found = report()
    assert found is not None
    return found


@pytest.fixture
def slow(machine: Machine) -> Machine:
    (machine.source / "model.bin").write_bytes(os.urandom(40 * MIB))
    return machine


def test_a_scheduled_snapshot_waits_for_other_programs_and_says_how_long(
    slow: Machine, busy: None
) -> None:
    slow.configure(io_priority="none", pressure_limit="1%")
    daemon = slow.launch(wrapper=SLOW_DISK)
    report = first_report(slow, daemon)

    assert 0 < report["waited_s"] < report["total_s"]
    daemon.wait_for_log("of it waiting for other programs")

    asked = request_snapshot(str(slow.store), base=True)
    assert asked is not None
    assert asked["kind"] == "base"
    assert asked["waited_s"] == 0, "a user waits for it"
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.log()


def test_with_a_limit_of_0_nothing_waits(slow: Machine, busy: None) -> None:
    slow.configure(io_priority="none", pressure_limit="0")
    daemon = slow.launch(wrapper=SLOW_DISK)
    assert first_report(slow, daemon)["waited_s"] == 0
    assert daemon.stop() == 0


@pytest.fixture
def counted() -> Iterator[None]:
    """Skip the test unless the kernel counts disk waits."""
    yield from counted_waits()


WHILE_READING = """\
seen = [0, 0.0]
def read_by(pid):
    try:
        with open(f"/proc/{{pid}}/io") as file:
            return int(file.readline().split()[1])
    except OSError:
        return 0
def is_on():
    with open("/proc/{pid}/task/{pid}/children") as file:
        read_bytes = sum(map(read_by, file.read().split()))
    now = time.monotonic()
    if read_bytes > seen[0] + 100_000:
        seen[:] = [read_bytes, now]
    return now - seen[1] < 0.12
"""
"""A training that waits for the disk only while the process of a snapshot reads from it."""
OURS = """
import sys, psutil
from ciuic.snapshot.pace import disk_waits
every = disk_waits.training_processes
ours = psutil.Process({pid})
ours_now = lambda: {{one.pid for one in ours.children()}}
disk_waits.training_processes = lambda: sorted(ours_now() & {{*every()}})
from ciuicd.__main__ import main
sys.exit(main(sys.argv[4:]))
"""
"""The daemon of a machine without the trainings of other tests. Its own command follows."""


@pytest.mark.root
@pytest.mark.parametrize("is_job", [True, False], ids=["a training", "another program"])
def test_without_pressure_information_a_snapshot_slows_down_for_the_disk_waits_of_a_training(
    slow: Machine, counted: None, is_job: bool
) -> None:
    nothing = slow.directory / "nothing"
    nothing.mkdir()
    hide = ("unshare", "-m", "sh", "-c", 'mount --bind "$0" /proc/pressure && exec "$@"')
    slow.configure(io_priority="none", pressure_limit="5%")
    ours = (sys.executable, "-c", OURS.format(pid=os.getpid()))
    daemon = slow.launch(wrapper=(*hide, str(nothing), *SLOWER_DISK, *ours))
    condition = WHILE_READING.format(pid=daemon.process.pid)
    job = start_waiting(
        slow.directory / "job", variables=JOB if is_job else {}, condition=condition
    )
    try:
        report = first_report(slow, daemon)
    finally:
        job.kill()
        job.communicate()
    assert (report["waited_s"] > 0.2) is is_job
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.log()
