"""The training of ``train.py``, which saves its state with ``SnapshotManager`` instead of a file.

It can be stopped in any way and started again with the same command. It resumes from the newest
intact state, and computes the same bits as the first run would have.
"""

import argparse
import importlib
import json
import os
import sys
from typing import Any

import numpy as np

from ciuic import SnapshotManager

__all__ = ["main"]

# train.py, which the demonstration copies beside this file; type checkers don't find it.
train: Any = importlib.import_module("train")

EVERY = 50  # steps between two saves


def _begin(manager: SnapshotManager, characters: int) -> Any:
    """Return the training of the newest state, or an untrained one."""
    latest = manager.load_latest_snapshot()
    if latest is None:
        return train.Training.start(characters, seed=1)
    print(f"resumed from {latest.snapshot_id} at step {latest['step']}")
    moments = latest["optimizer_state_dict"]
    random = np.random.Generator(np.random.PCG64())
    random.bit_generator.state = latest["extra"]
    return train.Training(
        latest["model_state_dict"], moments["mean"], moments["square"], random, latest["step"]
    )


def main() -> int:
    """Train up to a step; log each step once its state is copied, if it is to be saved."""
    parser = argparse.ArgumentParser(description="train a character model, and save its state")
    parser.add_argument("store", help="the directory of the snapshots")
    parser.add_argument("--steps", type=int, default=1_000_000, help="stop after this step")
    arguments = parser.parse_args()
    data, alphabet = train.corpus()
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "log.jsonl")
    with (
        SnapshotManager(arguments.store, max_snapshots=5) as manager,
        open(path, "a", buffering=1, encoding="utf-8") as log,
    ):
        training = _begin(manager, len(alphabet))
        said = ""
        log.write(json.dumps({"event": "start", "step": training.step}) + "\n")
        while training.step < arguments.steps:
            loss = training.advance(data)
            if training.step % EVERY == 0:
                manager.save_snapshot(
                    training.weights,
                    {"mean": training.mean, "square": training.square},
                    step=training.step,
                    extra=training.random.bit_generator.state,
                )
            log.write(json.dumps({"step": training.step, "loss": loss}) + "\n")
            said = f": loss {loss:.4f}"
    print(f"trained up to step {training.step}{said}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
