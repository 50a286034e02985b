"""A training program, or the process that writes for it, is killed at any moment."""

import os
import random
import select
import signal
import subprocess
import sys

import pytest

from ciuic import SnapshotManager
from ciuic.store.store import open_store
from tests.kit.chance import drawn_seed
from tests.kit.kills import EPOCHS, VICTIMS, kill_once

KILLS = 12 if os.environ.get("CIUIC_LONG") else 6
"""``scripts/crash --kills`` kills hundreds."""


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
    wait_for_end(int(done.stdout))

    with SnapshotManager(tmp_path / "store") as manager:
        latest = manager.load_latest_snapshot()
    assert latest is not None
    assert latest["model_state_dict"]["w"][-1] == 2_999_999


def test_an_interrupt_while_the_program_ends_does_not_cost_its_last_state(tmp_path):
    """Ctrl-C while Python waits for the save at exit: it ends at once, and the save goes on."""
    program = (
        "import atexit, os, signal, sys, numpy as np; from ciuic import SnapshotManager\n"
        "manager = SnapshotManager(sys.argv[1])\n"
        "print('made', flush=True); input()\n"
        "manager.save_snapshot({'w': np.arange(1_000.)}, epoch=1)\n"
        "print(manager._saves.writer_pid, flush=True)\n"
        "signal.signal(signal.SIGALRM, signal.default_int_handler)\n"
        "atexit.register(signal.setitimer, signal.ITIMER_REAL, 1.0)\n"
    )
    # A file: the other process holds a pipe open until the save has ended.
    with (
        open(tmp_path / "errors", "w") as errors,
        subprocess.Popen(
            [sys.executable, "-c", program, tmp_path / "store"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        assert process.stdout.readline() == "made\n"
        # While this process has the store, the save cannot end, and the program waits for it.
        with open_store(str(tmp_path / "store"), write=True):
            out, _ = process.communicate("\n", timeout=120)
    said = (tmp_path / "errors").read_text()
    assert said == "ciuic: interrupted; the last save goes on in another process\n"
    wait_for_end(int(out))
    with SnapshotManager(tmp_path / "store") as manager:
        assert manager.load_latest_snapshot()["epoch"] == 1


def wait_for_end(writer: int) -> None:
    try:
        handle = os.pidfd_open(writer)
    except ProcessLookupError:
        return
    assert select.select([handle], [], [], 60)[0], "the writer ends by itself"
    os.close(handle)
