"""A training program, or the process that writes for it, is killed at any moment."""

import os
import random
import select
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ciuic import SnapshotManager
from tests.kit.chance import drawn_seed

KILLS = 12
PROGRAM = """\
import sys, numpy as np
from ciuic import SnapshotManager
store, first = sys.argv[1], int(sys.argv[2])
manager = SnapshotManager(store, max_snapshots=2)
weights = np.random.default_rng(0).normal(size=500_000).astype(np.float32)
print("writer", flush=True)
for epoch in range(first, first + 1000):
    weights[:] = np.random.default_rng(epoch).normal(size=len(weights))
    handle = manager.save_snapshot({"w": weights}, {"m": weights * 2}, epoch)
    print("staged", epoch, manager._writer._process.pid, flush=True)
    handle.wait()
    print("durable", epoch, flush=True)
"""


def check(store: Path, durable: int, staged: int) -> None:
    """The newest snapshot loads, is no older than the last that was reported, and is right."""
    with SnapshotManager(store, max_snapshots=2) as manager:
        latest = manager.load_latest_snapshot()
        assert latest is not None
        assert latest.skipped == {}
        epoch = latest["epoch"]
        assert durable <= epoch <= staged
        expected = np.random.default_rng(epoch).normal(size=500_000).astype(np.float32)
        assert np.array_equal(latest["model_state_dict"]["w"], expected)
        assert np.array_equal(latest["optimizer_state_dict"]["m"], expected * 2)
        assert manager.verify()["ok"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("victim", ["training", "writer"])
def test_a_process_that_is_killed_at_a_random_moment_costs_only_its_save(tmp_path, victim):
    chance = random.Random(drawn_seed())
    store = tmp_path / "store"
    durable = -1
    for number in range(KILLS):
        first = 1000 * number
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, store, str(first)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        saves = chance.randint(1, 3)
        pid, staged = 0, first - 1
        with process.stdout:
            for line in process.stdout:
                word, *values = line.split()
                if word == "durable":
                    durable = int(values[0])
                elif word == "staged":
                    staged, pid = int(values[0]), int(values[1])
                    if staged - first >= saves:
                        break
            try:
                process.wait(chance.uniform(0, 0.4))
            except subprocess.TimeoutExpired:
                os.kill(process.pid if victim == "training" else pid, signal.SIGKILL)
            rest = process.stdout.read() if victim == "writer" else ""
        for line in rest.splitlines():
            word, *values = line.split()
            if word == "durable":
                durable = int(values[0])
            elif word == "staged":
                staged = int(values[0])
        if victim == "training":
            process.kill()
        process.wait()

        # A training program that is not killed at once goes on saving.
        check(store, durable, first + 999 if victim == "training" else max(staged, durable) + 1)


def test_the_last_staged_state_survives_the_training_program(tmp_path):
    program = (
        "import os, signal, sys, numpy as np; from ciuic import SnapshotManager\n"
        "manager = SnapshotManager(sys.argv[1])\n"
        "manager.save_snapshot({'w': np.arange(3_000_000.)}, epoch=1)\n"
        "print(manager._writer._process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "store"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    writer = int(done.stdout)
    try:
        handle = os.pidfd_open(writer)
    except ProcessLookupError:
        pass
    else:
        assert select.select([handle], [], [], 60)[0], "the writer ends by itself"
        os.close(handle)

    with SnapshotManager(tmp_path / "store") as manager:
        latest = manager.load_latest_snapshot()
    assert latest is not None
    assert latest["model_state_dict"]["w"][-1] == 2_999_999
