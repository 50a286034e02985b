"""Accelerate: everything that an Accelerator has prepared, as one snapshot."""

from typing import Any

from ciuic.errors import UsageError
from ciuic.training.handle import SaveHandle
from ciuic.training.loading.state import LoadedState
from ciuic.training.manager import SnapshotManager
from ciuic.training.values.pickles import refuse_pickles

__all__ = ["load_latest", "save"]


def save(manager: SnapshotManager, accelerator: Any, step: int, **more: Any) -> SaveHandle:
    """Save the models, optimizers, schedulers and registered objects of an Accelerator.

    Args:
        manager: Saves the snapshot.
        accelerator: Its objects, as ``prepare`` and ``register_for_checkpointing`` got them.
        step: The step.
        more: Further arguments of ``SnapshotManager.save_snapshot``.
    """
    models, others = _objects(accelerator)
    optimizers = others.pop("optimizers")
    return manager.save_snapshot(models, optimizers, step=step, scheduler=others, **more)


def load_latest(manager: SnapshotManager, accelerator: Any) -> LoadedState | None:
    """Load the latest full state into the objects of an Accelerator; None without a snapshot.

    Call ``restore_rng`` of the result last.

    Raises:
        UsageError: The snapshot has a different number of schedulers, scalers or registered
            objects.
        TypeError: The state of one has a pickle.
    """
    models, others = _objects(accelerator)
    latest = manager.load_latest_snapshot(
        channel="full", model=models, optimizer=others["optimizers"]
    )
    if latest is None:
        return None
    saved = latest.get("scheduler_state_dict", {})
    kinds = ("schedulers", "scaler", "registered")
    for kind in kinds:
        count = len(saved.get(kind, ()))
        if count != len(others[kind]):
            raise UsageError(
                f"{latest.snapshot_id} and the Accelerator have different numbers of {kind}:"
                f" {count} and {len(others[kind])}",
                hint="Prepare and register the same objects as when it was saved, in this order.",
            )
    for kind in kinds:
        refuse_pickles(saved.get(kind), kind)
    for kind in kinds:
        for name, target in others[kind].items():
            target.load_state_dict(saved[kind][name])
    return latest


def _objects(accelerator: Any) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    def numbered(objects: Any) -> dict[str, Any]:
        return {str(number): found for number, found in enumerate(objects)}

    models = numbered([accelerator.unwrap_model(model) for model in accelerator._models])
    scaler = [] if accelerator.scaler is None else [accelerator.scaler]
    return models, {
        "optimizers": numbered(accelerator._optimizers),
        "schedulers": numbered(accelerator._schedulers),
        "scaler": numbered(scaler),
        "registered": numbered(accelerator._custom_objects),
    }
