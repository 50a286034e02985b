"""The daemon takes the emergency snapshot of a failed job before any other."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciuic.control import request_status
from tests.kit.daemon import Machine, wait_until
from tests.kit.program import CIUIC, environment


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    found = Machine(tmp_path)
    yield found
    found.close()


def ask(machine: Machine, tag: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*CIUIC, "--config", machine.config, "snapshot", "--tag", tag],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def is_taking(machine: Machine) -> bool:
    status = request_status(str(machine.store))
    return status is not None and status["state"] == "taking"


def test_an_emergency_snapshot_precedes_a_request_and_a_scheduled_snapshot_that_has_begun(
    machine: Machine,
) -> None:
    """A hook holds the scheduled snapshot until the emergency snapshot has cancelled it."""
    gate = machine.directory / "gate"
    machine.configure(before=f"while [ ! -e {gate} ]; do sleep 0.05; done", hook_timeout="10m")
    daemon = machine.start()
    wait_until("the scheduled snapshot has begun", lambda: is_taking(machine))
    with ask(machine, "user") as user, ask(machine, "emergency") as emergency:
        daemon.wait_for_log("a snapshot was cancelled because an emergency snapshot goes first")
        gate.touch()
        assert (emergency.wait(120), user.wait(120)) == (0, 0)
    assert [one.tags for one in machine.snapshots()] == [("user",), ("emergency",)]


def test_an_emergency_snapshot_is_incremental_however_old_the_last_full_one_is(
    machine: Machine,
) -> None:
    machine.configure(base_interval="1s")
    daemon = machine.start()
    daemon.wait_for_log("snapshot cs-")
    (first,) = machine.snapshots()
    old_ns = first.taken_ns + 2 * 10**9
    wait_until("the full snapshot is old", lambda: time.time_ns() > old_ns)
    assert ask(machine, "emergency").wait(120) == 0
    assert ask(machine, "user").wait(120) == 0
    assert [one.kind for one in machine.snapshots()] == ["base", "delta", "base"]
