"""Lightning: checkpoints of a Trainer as snapshots, and a callback that saves them."""

import os
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.plugins.io import CheckpointIO

from ciuic.errors import SnapshotNotFoundError, UsageError
from ciuic.training.loading.state import LoadedState
from ciuic.training.manager import SnapshotManager

__all__ = ["SnapshotCallback", "SnapshotIO"]

_MODEL = "state_dict"
_OPTIMIZERS = "optimizer_states"


class SnapshotIO(CheckpointIO):  # type: ignore[misc]
    """Stores the checkpoints of a Trainer as snapshots: ``Trainer(plugins=[SnapshotIO(manager)])``.

    A checkpoint is found by its step, whatever its path is. ``max_snapshots`` and the policies of
    the manager decide which stay.

    Args:
        manager: Saves the snapshots; the caller closes it.
    """

    def __init__(self, manager: SnapshotManager) -> None:
        self._manager = manager
        self._found: dict[str, LoadedState] = {}
        self._loaded: LoadedState | None = None

    @property
    def latest(self) -> str | None:
        """The latest checkpoint of this run for ``Trainer.fit(ckpt_path=...)``; None: none.

        It is undamaged: each access reads it for that. It stays in memory until it is loaded or
        the next checkpoint is saved; ``load_checkpoint`` does not read it again. If the manager
        has ``ranks``, all ranks must ask for it.

        Raises:
            CorruptionError: There are checkpoints, and all are damaged.
        """
        state = self._manager.load_latest_snapshot(channel="full")
        self._found = {} if state is None else {f"step-{state['step']}.ckpt": state}
        return next(iter(self._found), None)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Begin to save a checkpoint; training may go on when this returns."""
        # A state that ``latest`` has read is older than this one, even if the step is the same.
        self._found = {}
        rest = {name: value for name, value in checkpoint.items() if name not in _PARTS}
        self._manager.save_snapshot(
            checkpoint[_MODEL],
            {_OPTIMIZERS: checkpoint.get(_OPTIMIZERS)},
            checkpoint["epoch"],
            step=checkpoint["global_step"],
            extra={"lightning": rest},
        )

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Return the checkpoint whose name has a step, as ``step-500.ckpt``, every byte checked.

        Raises:
            SnapshotNotFoundError: There is no such snapshot.
            UsageError: It has no checkpoint of Lightning, or its weights alone.
        """
        name = os.path.basename(os.fspath(path))
        step = name.removesuffix(".ckpt").rpartition("step")[2].lstrip("-=")
        if not step.isdigit():
            raise SnapshotNotFoundError(
                f"{name} does not name a step", hint="Give SnapshotIO.latest, or step-500.ckpt."
            )
        found, self._found = self._found, {}
        state = found.get(name) or self._manager.load_snapshot(int(step))
        rest = state.get("extra")
        if not isinstance(rest, dict) or "lightning" not in rest:
            raise UsageError(
                f"{state.snapshot_id} has no full state that this plugin saved",
                hint="Give SnapshotIO.latest, or read it with SnapshotManager.load_snapshot.",
            )
        self._loaded = state
        checkpoint = dict(rest["lightning"])
        checkpoint[_MODEL] = state["model_state_dict"]
        checkpoint[_OPTIMIZERS] = state["optimizer_state_dict"][_OPTIMIZERS]
        return checkpoint

    def remove_checkpoint(self, path: Any) -> None:
        """Do nothing: the manager removes checkpoints by its policies."""

    def restore_rng(self) -> bool:
        """Restore the loaded checkpoint's generator states, once.

        Returns:
            Whether there was such a checkpoint.
        """
        if self._loaded is None:
            return False
        self._loaded.restore_rng()
        self._loaded = None
        return True


_PARTS = frozenset([_MODEL, _OPTIMIZERS])


class SnapshotCallback(pl.Callback):  # type: ignore[misc]
    """Saves at the end of each epoch, or as the manager's ``interval`` says, and resumes exactly.

    Args:
        manager: Says when a save is due, if it has a schedule.
        io: The plugin of the same Trainer.
        every_epoch: Save at the end of each epoch; otherwise when the manager's schedule says so.
    """

    def __init__(
        self, manager: SnapshotManager, io: SnapshotIO, *, every_epoch: bool = True
    ) -> None:
        self._manager = manager
        self._io = io
        self._every_epoch = every_epoch

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Put the random number generators back, after everything else was restored."""
        if self._io.restore_rng() and self._every_epoch:
            # The Trainer has already begun to read, with numbers of other generators. A training
            # that goes on draws these numbers after the save at the end of the epoch.
            iter(trainer.fit_loop._data_fetcher)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Save if the manager's schedule says so."""
        if not self._every_epoch and self._manager.should_save(trainer.global_step) == "full":
            trainer.save_checkpoint(f"step-{trainer.global_step}.ckpt")

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Save at the end of each epoch."""
        if self._every_epoch:
            trainer.save_checkpoint(f"step-{trainer.global_step}.ckpt")
