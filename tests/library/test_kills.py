"""A training program, or the process that writes for it, is killed at any moment."""

import os
import random
import select
import signal
import subprocess
import sys

import pytest

from ciuic import SnapshotManager
from tests.kit.chance import drawn_seed
from tests.kit.kills import EPOCHS, VICTIMS, kill_once

KILLS = 12


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("victim", VICTIMS)
def test_a_process_that_is_killed_at_a_random_moment_costs_only_its_save(tmp_path, victim):
    chance = random.Random(drawn_seed())
    durable = -1
    for number in range(KILLS):
        durable = kill_once(tmp_path / "store", chance, victim, EPOCHS * number, durable)


def test_the_last_staged_state_survives_the_training_program(tmp_path):
    program = (
        "import os, signal, sys, numpy as np; from ciuic import SnapshotManager\n"
        "manager = SnapshotManager(sys.argv[1])\n"
        "manager.save_snapshot({'w': np.arange(3_000_000.)}, epoch=1)\n"
        "print(manager._saves.writer_pid, flush=True)\n"
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
