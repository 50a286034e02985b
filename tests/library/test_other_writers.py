"""Managers save to one store beside each other, beside commands that snapshot, and a prune."""

import os
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from ciuic import SnapshotManager
from ciuic.store.store import open_store
from tests.kit.chance import drawn_seed
from tests.kit.daemon import wait_until
from tests.kit.program import CIUIC, ciuic, environment

LIMIT_S = 120
TURNS = 4
RUNS = ("a", "b")
PROGRAM = """\
import sys, numpy as np
from ciuic import Layer, SnapshotManager
store, run, first = sys.argv[1], sys.argv[2], int(sys.argv[3])
layers = [Layer("first", "w")] if run == "b" else None
shared = np.random.default_rng(0).normal(size=200_000)
with SnapshotManager(store, max_snapshots=3, run=run, layers=layers) as manager:
    for step in range(first, first + 6):
        own = np.random.default_rng(step).normal(size=50_000)
        handle = manager.save_snapshot({"w": shared, "own": own}, step=step)
        print(manager._saves.writer_pid, flush=True)
        handle.wait()
        print("durable", step, flush=True)
"""


def weights(step: float) -> dict[str, np.ndarray]:
    return {"w": np.full(1_000, float(step))}


def test_saves_are_durable_while_another_process_adds_and_what_is_old_goes_later(tmp_path):
    with SnapshotManager(tmp_path, max_snapshots=2) as manager:
        manager.save_snapshot(weights(0), step=0, wait=True)
        with open_store(str(tmp_path), write=True, only_adds=True):
            for step in (1, 2, 3):
                handle = manager.save_snapshot(weights(step), step=step)
                assert handle.wait(LIMIT_S)
            assert manager.load_latest_snapshot()["step"] == 3
            assert [saved.step for saved in manager.list()] == [3, 2, 1, 0]
        manager.save_snapshot(weights(4), step=4, wait=True)
        assert [saved.step for saved in manager.list()] == [4, 3]
        assert manager.verify()["ok"]


def test_a_manager_that_saves_keeps_no_other_from_adding(tmp_path):
    """The second manager and a command save while the first one is in the middle of a save."""
    store, source = tmp_path / "store", tmp_path / "source"
    source.mkdir()
    (source / "file").write_bytes(b"content" * 1_000)
    with SnapshotManager(store, run="a") as one, SnapshotManager(store, run="b") as other:
        one.save_snapshot(weights(0), step=0, wait=True)
        first = one.save_snapshot({"w": np.random.default_rng(1).normal(size=8_000_000)}, step=1)
        pid = one._saves.writer_pid
        _wait_until_it_adds(store, pid)
        os.kill(pid, signal.SIGSTOP)
        try:
            assert other.save_snapshot(weights(5), step=5).wait(LIMIT_S)
            done = ciuic("--store", store, "snapshot", source, "--wait", "0")
            assert done.code == 0, done.err
            assert first.id is None, "the first one is still saving"
        finally:
            os.kill(pid, signal.SIGCONT)
        assert first.wait(LIMIT_S)
    done = ciuic("--store", store, "verify", "--all", "--checksum")
    assert done.code == 0, done.out + done.err


def _wait_until_it_adds(store: Path, pid: int) -> None:
    """Return when a process holds ``lock.add``, and has given ``lock.write`` back."""
    inodes = {name: (store / name).stat().st_ino for name in ("lock.add", "lock.write")}

    def adds() -> bool:
        held = {
            int(line.split()[5].split(":")[2])
            for line in Path("/proc/locks").read_text().splitlines()
            if "FLOCK" in line and line.split()[4] == str(pid)
        }
        return inodes["lock.add"] in held and inodes["lock.write"] not in held

    wait_until("it adds", adds)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_managers_a_command_and_a_prune_that_are_killed_at_random_lose_nothing(tmp_path):
    chance = random.Random(drawn_seed())
    store, source = tmp_path / "store", tmp_path / "source"
    source.mkdir()
    with SnapshotManager(store) as manager:
        manager.save_snapshot(weights(0), step=0, wait=True)
    durable = dict.fromkeys(RUNS, -1)
    for turn in range(TURNS):
        (source / "file").write_bytes(chance.randbytes(300_000))
        trainings = {run: _start(store, run, 10 * turn) for run in RUNS}
        commands = [
            _command(store, "snapshot", str(source)),
            _command(store, "prune", "--trash", "0"),
        ]
        victim, in_writer = chance.choice(RUNS), chance.random() < 0.5
        with ThreadPoolExecutor(len(RUNS)) as pool:
            followed = {
                run: pool.submit(
                    _follow,
                    process,
                    chance.randint(1, 4) if run == victim else 0,
                    durable[run],
                    in_writer=in_writer,
                )
                for run, process in trainings.items()
            }
        durable = {run: one.result() for run, one in followed.items()}
        for command in commands:
            if chance.random() < 0.5:
                command.send_signal(signal.SIGKILL)
            _, err = command.communicate(timeout=LIMIT_S)
            assert command.returncode in {0, -signal.SIGKILL}, err
        done = ciuic("--store", store, "verify", "--all", "--checksum")
        assert done.code == 0, done.out + done.err
        for run in RUNS:
            with SnapshotManager(store, run=run) as manager:
                latest = manager.load_latest_snapshot()
                step = -1 if latest is None else latest["step"]
                assert step >= durable[run], "what was reported as durable is there"
    assert durable["a"] >= 0
    assert durable["b"] >= 0


def _start(store: Path, run: str, first: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, store, run, str(first)],
        stdout=subprocess.PIPE,
        text=True,
    )


def _command(store: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*CIUIC, "--store", str(store), *arguments, "--wait", "2m"],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _follow(
    process: "subprocess.Popen[str]", kill_at: int, durable: int, *, in_writer: bool
) -> int:
    """Read what a training prints; kill it or its writer at a save. Returns the last durable step.

    Args:
        process: The training.
        kill_at: The number of the save; 0: none.
        durable: The last durable step of earlier trainings.
        in_writer: Kill the process that writes for it.
    """
    begun = 0
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            if line.startswith("durable"):
                durable = int(line.split()[1])
                continue
            begun += 1
            if begun == kill_at:
                os.kill(int(line) if in_writer else process.pid, signal.SIGKILL)
    process.wait(LIMIT_S)
    return durable
