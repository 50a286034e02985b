"""The Trainer of Hugging Face: a callback that saves, and a checkpoint for its own resume."""

import contextlib
import dataclasses
import json
import os
import random
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import transformers

from ciuic.training.manager import SnapshotManager
from ciuic.training.values.pickles import refuse_pickles

__all__ = ["SnapshotCallback", "checkpoint"]


class SnapshotCallback(transformers.TrainerCallback):  # type: ignore[misc]
    """Saves after the steps that the manager's schedule names.

    Use it in place of the Trainer's own checkpoints: ``TrainingArguments(save_strategy="no")``.

    Args:
        manager: Saves the snapshots, and says when; the caller closes it.
    """

    def __init__(self, manager: SnapshotManager) -> None:
        self._manager = manager

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save if it is due; ask the Trainer to end if the program is preempted."""
        extra = {"trainer_state": dataclasses.asdict(state)}
        self._manager.step(
            state.global_step,
            kwargs["model"],
            kwargs["optimizer"],
            state.epoch,
            scheduler=kwargs["lr_scheduler"],
            extra=extra,
        )
        if self._manager.should_stop:
            control.should_training_stop = True


@contextlib.contextmanager
def checkpoint(manager: SnapshotManager) -> Iterator[str | None]:
    """Give the latest snapshot as a checkpoint of the Trainer, in a temporary directory.

    Pass it to ``Trainer.train(resume_from_checkpoint=...)``: the Trainer restores everything, and
    skips the batches that it has seen.

    Yields:
        The directory; None without a snapshot.

    Raises:
        TypeError: The state of an object has a pickle.
    """
    latest = manager.load_latest_snapshot(channel="full")
    if latest is None:
        yield None
        return
    refuse_pickles(
        dict(latest),
        "checkpoint",
        "the Trainer cannot resume from it; manager.load_latest_snapshot() returns the other values"
        " as well",
    )
    state = latest["extra"]["trainer_state"]
    with tempfile.TemporaryDirectory(prefix="ciuic-") as above:
        directory = os.path.join(above, f"checkpoint-{state['global_step']}")
        os.mkdir(directory)
        with open(os.path.join(directory, "trainer_state.json"), "w", encoding="utf-8") as file:
            json.dump(state, file)
        latest.restore_rng()
        generators = {
            "python": random.getstate(),
            "numpy": np.random.get_state(),
            "cpu": torch.random.get_rng_state(),
        }
        for name, value in (
            ("pytorch_model.bin", latest["model_state_dict"]),
            ("optimizer.pt", latest["optimizer_state_dict"]),
            ("scheduler.pt", latest["scheduler_state_dict"]),
            ("rng_state.pth", generators),
        ):
            torch.save(value, os.path.join(directory, name))
        yield directory
