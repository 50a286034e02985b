"""A real ciuicd whose wall clock jumps."""

import os
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

from ciuic.control import request_done, request_status
from tests.kit.daemon import Machine, wait_until

BIN = Path(sys.executable).parent
HOUR_NS = 3600 * 10**9

CLOCK = """
import os, time
real = time.time_ns
def shifted():
    with open({path!r}) as file:
        return real() + int(file.read() or 0)
time.time_ns = shifted
"""
"""The interpreter loads this before the daemon. A file says how far the wall clock is off."""


class ShiftedClock:
    """The wall clock of a daemon, which uses it if ``environ`` is in its environment."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "shift"
        self.shift(0)
        hook = directory / "hook"
        hook.mkdir()
        (hook / "sitecustomize.py").write_text(CLOCK.format(path=str(self._file)))
        self.environ = {"PYTHONPATH": str(hook)}

    def shift(self, by_ns: int) -> None:
        """Set the clock to the real time plus this duration."""
        next_file = self._file.with_name("next-shift")
        next_file.write_text(str(by_ns))
        next_file.rename(self._file)


def times_taken(machine: Machine) -> list[int]:
    return sorted(one.taken_ns for one in machine.snapshots())


def look(machine: Machine) -> None:
    """Have the daemon look at the clock; return once it has taken every snapshot that is due."""
    # The daemon answers the second request after the turn that the first one began.
    for _ in range(2):
        assert request_done(str(machine.store), "resume") is not None
        wait_until("it is idle", lambda: state_of(machine) == "idle")


def state_of(machine: Machine) -> str:
    status = request_status(str(machine.store))
    return "" if status is None else str(status["state"])


def test_a_clock_that_jumps_costs_no_snapshot_and_causes_no_flood(
    machine: Machine, tmp_path: Path
) -> None:
    clock = ShiftedClock(tmp_path)
    # The start is as far from the next full hour as possible.
    now_ns = time.time_ns()
    base_ns = -(now_ns % HOUR_NS) + HOUR_NS // 4
    clock.shift(base_ns)
    machine.configure(snapshot_interval="1h")
    daemon = machine.start(clock.environ)
    daemon.wait_for_log("no warnings")
    look(machine)
    assert len(times_taken(machine)) == 1

    # The clock goes five hours forward, as after a suspend: one snapshot serves all of them.
    clock.shift(base_ns + 5 * HOUR_NS)
    look(machine)
    wait_until("the missed one is taken", lambda: len(times_taken(machine)) == 2)
    look(machine)
    assert len(times_taken(machine)) == 2

    # The clock goes back ten hours. All snapshots are now from the future, and each hour still gets
    # its own.
    for hours in (-10, -9, -8):
        clock.shift(base_ns + hours * HOUR_NS)
        look(machine)
        wanted = 13 + hours
        wait_until("this hour has one", lambda wanted=wanted: len(times_taken(machine)) == wanted)
        look(machine)
        assert len(times_taken(machine)) == wanted

    # The clock goes back to the right time, whose hour already has a snapshot.
    clock.shift(base_ns)
    look(machine)
    assert len(times_taken(machine)) == 5

    # The clock goes a century forward. The retention policy forgets all snapshots except the
    # newest, and none is removed.
    earlier = {one.id for one in machine.snapshots()}
    clock.shift(base_ns + 100 * 365 * 24 * HOUR_NS)
    look(machine)
    daemon.wait_for_log(f"'ciuic --config {machine.config} forget --undo ID' can bring them back")
    assert len(times_taken(machine)) == 1
    clock.shift(base_ns)
    look(machine)
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.log()
    undo = [BIN / "ciuic", "--config", machine.config, "forget", "--undo", *sorted(earlier)]
    subprocess.run(undo, check=True, stdout=subprocess.DEVNULL)
    assert earlier <= {one.id for one in machine.snapshots()}


def test_the_hours_that_a_change_to_summer_time_repeats_or_leaves_out_have_their_snapshots(
    machine: Machine, tmp_path: Path
) -> None:
    """Each moment is half past an hour of UTC, around both changes of central Europe in 2026."""
    clock = ShiftedClock(tmp_path)
    zone = "CET-1CEST,M3.5.0,M10.5.0/3"
    moments = [f"2026-{day}T0{hour}:30+00:00" for day in ("03-29", "10-25") for hour in range(3)]
    local = ["03-29 01", "03-29 03", "03-29 04", "10-25 02", "10-25 02", "10-25 03"]
    machine.configure(snapshot_interval="1h")
    daemon = None
    for count, moment in enumerate(moments, 1):
        wanted_ns = round(datetime.fromisoformat(moment).timestamp()) * 10**9
        clock.shift(wanted_ns - time.time_ns())
        daemon = daemon or machine.start({**clock.environ, "TZ": zone})
        look(machine)
        wait_until("the hour has one", lambda count=count: len(times_taken(machine)) == count)
        look(machine)
        assert len(times_taken(machine)) == count, moment
    assert daemon is not None
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.log()
    listed = subprocess.run(
        [BIN / "ciuic", "--config", machine.config, "list", "--machine-readable"],
        check=True,
        env={**os.environ, "TZ": zone},
        capture_output=True,
        text=True,
    )
    lines = sorted(listed.stdout.splitlines(), key=lambda line: line.split("|")[1])
    assert [line.split("|")[1][5:13] for line in lines] == local
