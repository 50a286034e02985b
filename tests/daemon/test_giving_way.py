"""A real ciuicd whose snapshots run only while no other program wants the processors."""

import contextlib
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator

import psutil
import pytest

from tests.kit.daemon import Daemon, Machine, wait_until
from tests.kit.program import CIUIC, environment
from tests.kit.strace import strace

MIB = 1024 * 1024
CALLS = "preadv,preadv2,pread64"
SLOW_DISK = strace(CALLS, "-D", inject="delay_enter=50000")
"""Each block takes 50 ms, so that the snapshot can be watched."""
NAMES = {os.SCHED_OTHER: "normal", os.SCHED_IDLE: "idle"}

can_leave_idle = pytest.mark.skipif(
    os.geteuid() != 0 and resource.getrlimit(resource.RLIMIT_NICE)[0] < 1,
    reason="this user may not leave SCHED_IDLE again",
)


@pytest.fixture
def slow(machine: Machine) -> Iterator[Machine]:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    (machine.source / "model.bin").write_bytes(os.urandom(20 * MIB))
    yield machine


def committed(machine: Machine) -> int:
    there = machine.store / "snapshots"
    return len(os.listdir(there)) if there.exists() else 0


def policies_now(daemon: Daemon) -> set[str]:
    """Return how the threads of a child of the daemon are scheduled; empty: there is none."""
    for child in psutil.Process(daemon.process.pid).children():
        with contextlib.suppress(OSError):
            names = os.listdir(f"/proc/{child.pid}/task")
            return {NAMES[os.sched_getscheduler(int(name))] for name in names}
    return set()


def policies_until_taken(machine: Machine, daemon: Daemon, count: int = 1) -> list[str]:
    """Return how the threads of a snapshot were scheduled, one after another, until its commit.

    A busy test may come too late to see how they begin.
    """
    found: list[str] = []

    def look() -> bool:
        is_taken = daemon.log().count("snapshot cs-") >= count
        now = policies_now(daemon)
        if len(now) == 1 and committed(machine) < count:
            found.extend(now - set(found[-1:]))
        return is_taken

    wait_until("the snapshot is taken", look)
    return found


@can_leave_idle
def test_a_scheduled_snapshot_gives_way_and_one_that_a_user_asks_for_does_not(
    slow: Machine,
) -> None:
    daemon = slow.launch(wrapper=SLOW_DISK)
    assert policies_until_taken(slow, daemon) in (["normal", "idle"], ["idle"])

    words = ("snapshot", "--base", "--tag", "emergency")
    with subprocess.Popen(
        [*CIUIC, "--config", slow.config, *words], env=environment(), stdout=subprocess.DEVNULL
    ) as asking:
        assert policies_until_taken(slow, daemon, 2) == ["normal"]
    assert asking.returncode == 0
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.log()


@can_leave_idle
def test_a_scheduled_snapshot_gives_way_until_a_user_waits_behind_it(slow: Machine) -> None:
    daemon = slow.launch(wrapper=SLOW_DISK)
    wait_until("it gives way", lambda: "idle" in policies_now(daemon))
    with subprocess.Popen(
        [*CIUIC, "--config", slow.config, "snapshot"],
        env=environment(),
        stdout=subprocess.DEVNULL,
    ) as asking:
        wait_until("it does no longer", lambda: policies_now(daemon) == {"normal"})
        assert committed(slow) == 0
    assert asking.returncode == 0
    assert daemon.stop() == 0


@can_leave_idle
def test_a_snapshot_that_takes_too_long_gets_its_priority_back(slow: Machine) -> None:
    slow.configure(snapshot_interval="2s")
    daemon = slow.launch(wrapper=SLOW_DISK)
    assert policies_until_taken(slow, daemon)[-2:] == ["idle", "normal"]
    assert daemon.stop() == 0


def test_hooks_do_not_give_way(machine: Machine) -> None:
    said = machine.directory / "said"
    machine.configure(before=f"chrt -p $$ >> {said}", after=f"chrt -p $$ >> {said}")
    assert machine.once().returncode == 0
    assert said.read_text().count("SCHED_OTHER") == 2
