"""Many snapshots at short intervals, with schedules, rules, alerts and metrics: nothing grows.

Each run of the tests takes a few snapshots, and with CIUIC_LONG=1 a thousand.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from ciuic.control import request_status
from ciuic.errors import UnresponsiveError
from tests.kit.daemon import REPOSITORY, Daemon, Machine, wait_until
from tests.kit.program import CIUIC, ciuic, environment

LONG = bool(os.environ.get("CIUIC_LONG"))
WARM, COUNT = (200, 800) if LONG else (3, 6)
GROWTH_BYTES_MAX = (4 if LONG else 24) * 1024**2
DEADLINE_S = 7200.0 if LONG else 120.0

TRAINING = """
import json, os, sys, time
step = 0
while not os.path.exists(sys.argv[1] + "/stop"):
    step += 1
    with open(sys.argv[1] + "/log.jsonl", "a") as log:
        log.write(json.dumps({"step": step, "loss": 1 / step, "gpu_util": 90}) + chr(10))
    with open(sys.argv[1] + "/next", "wb") as file:
        file.write(os.urandom(200_000))
    os.rename(sys.argv[1] + "/next", sys.argv[1] + f"/checkpoint-{step % 5}.bin")
    time.sleep(0.2)
"""


class Size(NamedTuple):
    """The memory, descriptors and threads of a process."""

    memory_bytes: int
    descriptors: int
    threads: int


def size_of(process: psutil.Process) -> Size:
    return Size(process.memory_info().rss, process.num_fds(), process.num_threads())


def configure(machine: Machine, interval: str, heard: Path) -> None:
    machine.config.write_text(
        f"snapshot_dir = {machine.store}\nscrub_budget = 0\ndrill_interval = 0\ntrash = 0\n"
        "io_priority = none\n"  # on a busy machine, a thousand snapshots would not end otherwise
        f"snapshot_interval = {interval}\nretention_policy = last:20\n"
        f"metrics_file = {machine.directory / 'ciuic.prom'}\n"
        f"[schedule checkpoints]\nsnapshot_paths = {machine.source}\n"
        f"[schedule twin]\nsnapshot_paths = {machine.source}\nretention_policy = last:5\n"
        f"[alert all]\ntype = command\ncommand = cat >> {heard}\n"
        "[rule rising]\nwhen = loss rises more than 15% for 3 steps\nthen = alert\n"
    )


def taken(daemon: Daemon) -> int:
    return daemon.log().count(": snapshot cs-")


def is_idle(machine: Machine) -> bool:
    try:
        status = request_status(str(machine.store))
    except UnresponsiveError:  # other programs use the processors
        return False
    return status is not None and status["state"] == "idle" and not status["upkeep"]["doing"]


def take_some(machine: Machine, daemon: Daemon, count: int, heard: Path) -> None:
    """Have the schedules take snapshots every second until there are ``count`` more."""
    wanted = taken(daemon) + count
    configure(machine, "1s", heard)
    daemon.signal(signal.SIGHUP)
    wait_until("the snapshots", lambda: taken(daemon) >= wanted, deadline_s=DEADLINE_S)
    reloads = daemon.log().count("reloaded ")
    configure(machine, "365d", heard)
    daemon.signal(signal.SIGHUP)
    daemon.wait_for_log("reloaded ", reloads + 1)
    wait_until("it is idle", lambda: is_idle(machine))
    there = machine.store / "snapshots"
    wait_until("most are pruned", lambda: len(os.listdir(there)) < 600, deadline_s=DEADLINE_S)
    wait_until("it is idle", lambda: is_idle(machine))


@pytest.fixture
def guard(machine: Machine) -> Iterator[subprocess.Popen[bytes]]:
    """Guard a training that logs and saves, by ``ciuic run``."""
    program = [sys.executable, "-c", TRAINING, str(machine.source)]
    log = machine.source / "log.jsonl"
    log.touch()
    configure(machine, "365d", machine.directory / "heard")
    assert ciuic("--config", machine.config, "init").code == 0
    with (machine.directory / "guard.log").open("wb") as output:
        running = subprocess.Popen(
            [*CIUIC, "--config", machine.config, "run", "--log", str(log), "--", *program],
            env=environment(),
            stdout=output,
            stderr=output,
        )
    yield running
    (machine.source / "stop").touch()
    assert running.wait(120) == 0, (machine.directory / "guard.log").read_text()


def test_nothing_grows_with_the_number_of_snapshots(
    machine: Machine, guard: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    heard = machine.directory / "heard"
    state = tmp_path / "state"
    state.mkdir()
    daemon = machine.start({"STATE_DIRECTORY": str(state)})
    process, guarding = psutil.Process(daemon.process.pid), psutil.Process(guard.pid)
    take_some(machine, daemon, WARM, heard)
    before, guard_before = size_of(process), size_of(guarding)

    take_some(machine, daemon, COUNT, heard)

    def has_let_go() -> bool:
        now, its = size_of(process), size_of(guarding)
        few = now.descriptors <= before.descriptors and now.threads <= before.threads
        return few and its.descriptors <= guard_before.descriptors

    try:
        wait_until("descriptors and threads are as few as before", has_let_go)
    finally:
        after, guard_after = size_of(process), size_of(guarding)
        print(f"{taken(daemon)} snapshots; daemon {before} -> {after}")
        print(f"guard {guard_before} -> {guard_after}")
    assert after.memory_bytes - before.memory_bytes <= GROWTH_BYTES_MAX
    assert guard_after.memory_bytes - guard_before.memory_bytes <= GROWTH_BYTES_MAX
    alert = subprocess.run(
        [sys.executable, "-m", "ciuicd", "--config", machine.config, "--alert"],
        cwd=REPOSITORY,
        env={**os.environ, "STATE_DIRECTORY": str(state)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (alert.returncode, heard.exists()) == (0, False), alert.stderr
    assert "Traceback" not in daemon.log()

    # Forgotten snapshots are pruned, so the store has the kept snapshots and little else.
    assert daemon.stop() == 0
    outside = {path.name for path in machine.directory.iterdir()}
    assert outside == {
        "ciuic.conf",
        "ciuic.prom",
        "daemon-0.log",
        "guard.log",
        "source",
        "state",
        "store",
    }
    assert ciuic("--config", machine.config, "prune").code == 0
    snapshots = machine.snapshots()
    assert len(snapshots) <= 26
    files = [path for path in machine.store.rglob("*") if path.is_file()]
    print(f"{len(files)} files in the store, {len(snapshots)} snapshots")
    assert len(files) < 400
