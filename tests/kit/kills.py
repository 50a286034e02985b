"""A training program or its writer is killed at a random moment; then its store is checked."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from ciuic import SnapshotManager
from ciuic.store.store import open_store

__all__ = ["VICTIMS", "kill_once"]

VICTIMS = ("training", "writer")
EPOCHS = 30
"""How many a program saves if nothing ends it: it survives a writer killed between two saves."""
PROGRAM = """\
import sys, numpy as np
from ciuic import Layer, SnapshotManager
store, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
layers = [Layer("first", "w")]
manager = SnapshotManager(store, max_snapshots=3, keep_optimizer=1, layers=layers)
weights = np.random.default_rng(0).normal(size=500_000).astype(np.float32)
for epoch in range(first, last):
    weights[:] = np.random.default_rng(epoch).normal(size=len(weights))
    handle = manager.save_snapshot({"w": weights, "last": weights[:9]}, {"m": weights * 2}, epoch)
    print("staged", epoch, manager._saves.writer_pid, flush=True)
    handle.wait()
    print("durable", epoch, flush=True)
"""


def kill_once(store: Path, chance: random.Random, victim: str, first: int, durable: int) -> int:
    """Start the program, kill it or its writer after some saves, and check the store.

    Args:
        store: The store; it may have snapshots of earlier runs.
        chance: Draws the moment.
        victim: One of ``VICTIMS``.
        first: The first epoch of the program; it has at most ``EPOCHS`` of them.
        durable: The last epoch that an earlier run has reported as durable; -1: none.

    Returns:
        The last epoch that was reported as durable.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, store, str(first), str(first + EPOCHS)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    saves = chance.randint(1, 3)
    pid, staged = 0, first - 1
    assert process.stdout is not None
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
    last = first + EPOCHS - 1 if victim == "training" else max(staged, durable) + 1
    _check(store, durable, last)
    return durable


def _check(store: Path, durable: int, staged: int) -> None:
    """The newest snapshot loads, is right, and is no older than the last one that was reported."""
    with SnapshotManager(store, max_snapshots=3, keep_optimizer=1) as manager:
        latest = manager.load_latest_snapshot()
        assert latest is not None
        assert latest.skipped == {}, latest.skipped
        epoch = latest["epoch"]
        assert durable <= epoch <= staged, (durable, epoch, staged)
        expected = np.random.default_rng(epoch).normal(size=500_000).astype(np.float32)
        assert np.array_equal(latest["model_state_dict"]["w"], expected)
        assert np.array_equal(latest["optimizer_state_dict"]["m"], expected * 2)
        # The writer of a killed program may still be running: the lock keeps it out.
        with open_store(str(store), write=True, wait_s=120):
            for listed in manager.list():
                older = manager.load_snapshot(listed.id)
                drawn = np.random.default_rng(older["epoch"]).normal(size=500_000)
                assert np.array_equal(older["model_state_dict"]["w"], drawn.astype(np.float32))
                # An incomplete snapshot may have only the first layer.
                assert not listed.complete or "last" in older["model_state_dict"]
        assert manager.verify()["ok"]
