"""States with layers: a save that is cut between two of them, and one in this process."""

import os
import signal

import pytest

from ciuic import SnapshotManager
from ciuic.snapshot.memory import MemoryRequest
from ciuic.snapshot.memory_files import MemoryFile
from ciuic.training import client
from ciuic.training.retention.planning import Rules
from ciuic.training.staging.buffer import StagingBuffer
from ciuic.training.staging.stage import Stager

__all__ = ["Here", "leave_partial", "save_here"]


def leave_partial(store, step, count, layers, model, metrics=None):
    """Save a state, and kill the writer once ``count`` layers of it are durable.

    Args:
        store: The store's directory or URL.
        step: The step of the state.
        count: The number of layers.
        layers: All layers.
        model: Returns the parameters of a step.
        metrics: The metrics of the state.

    Returns:
        The incomplete snapshot that is left.
    """
    program = (
        "import os, signal\n"
        "from ciuic.training.layers import commits\n"
        "from ciuic.training.writer import main\n"
        "take, taken = commits.take_from_memory, []\n"
        "def limited(*args, **more):\n"
        f"    if len(taken) == {count}: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    taken.append(take(*args, **more))\n"
        "    return taken[-1]\n"
        "commits.take_from_memory = limited\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        changed = client._PROGRAM.replace("from ciuic.training.writer import main\n", program)
        patch.setattr(client, "_PROGRAM", changed)
        manager = SnapshotManager(store, layers=layers)
        with pytest.raises(Exception, match=f"was killed by signal {int(signal.SIGKILL)}"):
            manager.save_snapshot(
                model(step), {"m": [step]}, step, step=step, metrics=metrics
            ).wait()
        found = [one for one in manager.list() if not one.complete]
        manager.close()
    # The snapshots of one save have one time: the last one has the most layers.
    return max(found, key=lambda one: (one.taken_ns, one.logical_bytes)).id


class Here:
    """Saves states in this process, as a training program and its writer do.

    Args:
        saver: The side of the writer.
        layers: The groups of the parameters.
        directory: The directory of a rank, as a prefix of names.
        rules: What stays; None: nine snapshots.
    """

    def __init__(self, saver, layers, directory="", rules=None):
        self._saver, self._layers, self._directory = saver, layers, directory
        self._rules = rules or Rules(9)
        self._buffer = StagingBuffer()
        self._stager = Stager(self._buffer, layers)
        self._until_ns = 0

    def save(self, weights, step, now_ns):
        """Save a state; returns what the writer answers, and whether frozen layers were copied."""
        sections = {"model_state_dict": weights, "step": step, "epoch": 0, "metrics": None}
        staged = self._stager.stage(sections, copies_frozen=now_ns >= self._until_ns)
        copied = self._stager.has_copied_frozen
        request = MemoryRequest(self._files(staged), now_ns, ("full", f"step-{step}"))
        saved = self._saver.save(
            request, "full", self._rules, tuple(self._layers), copied_frozen=copied
        )
        self._until_ns = saved.frozen_until_ns
        return saved, copied

    def close(self):
        """Give the memory back."""
        self._buffer.close()

    def _files(self, staged):
        memory = self._buffer.reserve(0)
        return tuple(
            MemoryFile(
                os.fsencode(self._directory + file.name),
                tuple(bytes(memory[at : at + length]) for at, length in file.parts),
            )
            for file in staged
        )


def save_here(saver, weights, step, layers, taken_ns, directory="", rules=None):
    """Save one state in this process: see ``Here``."""
    here = Here(saver, layers, directory, rules)
    try:
        return here.save(weights, step, taken_ns)[0]
    finally:
        here.close()
