"""The integrations, without their frameworks; tests/frameworks trains with the real ones."""

import shutil
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from ciuic import Layer, SnapshotManager
from ciuic.errors import UsageError
from ciuic.integrations import accelerate
from tests.kit.saved_layers import leave_partial


@pytest.fixture
def snapshot_io(monkeypatch):
    """The plugin of Lightning, with base classes that are empty."""
    for name, bases in {
        "lightning": (),
        "lightning.pytorch": ("Callback",),
        "lightning.pytorch.plugins": (),
        "lightning.pytorch.plugins.io": ("CheckpointIO",),
    }.items():
        module = ModuleType(name)
        for base in bases:
            setattr(module, base, type(base, (), {}))
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "ciuic.integrations.lightning", raising=False)
    from ciuic.integrations.lightning import SnapshotIO

    yield SnapshotIO
    del sys.modules["ciuic.integrations.lightning"]


def checkpoint(step: int) -> dict[str, object]:
    return {
        "state_dict": {"w": np.full(3, float(step))},
        "optimizer_states": [{"m": np.zeros(3)}],
        "epoch": 0,
        "global_step": step,
        "loops": {"fit": step},
    }


def test_lightning_goes_on_with_the_latest_checkpoint_of_its_own_run(tmp_path, snapshot_io):
    with SnapshotManager(tmp_path, run="a") as first, SnapshotManager(tmp_path, run="b") as second:
        one, other = snapshot_io(first), snapshot_io(second)
        one.save_checkpoint(checkpoint(500), "any.ckpt")
        first.wait()
        assert other.latest is None
        other.save_checkpoint(checkpoint(7), "any.ckpt")
        second.wait()

        assert (one.latest, other.latest) == ("step-500.ckpt", "step-7.ckpt")
        found = other.load_checkpoint(other.latest)
        assert found["loops"] == {"fit": 7}
        assert found["state_dict"]["w"][0] == 7


def test_lightning_loads_a_step_that_was_saved_again_as_it_was_saved_last(tmp_path, snapshot_io):
    with SnapshotManager(tmp_path) as manager:
        plugin = snapshot_io(manager)
        plugin.save_checkpoint(checkpoint(500), "any.ckpt")
        manager.wait()
        assert plugin.latest == "step-500.ckpt"
        plugin.save_checkpoint(checkpoint(500) | {"loops": {"fit": "again"}}, "any.ckpt")
        manager.wait()

        assert plugin.load_checkpoint("step-500.ckpt")["loops"] == {"fit": "again"}


def test_lightning_refuses_weights_alone_and_states_of_another_program(tmp_path, snapshot_io):
    with SnapshotManager(tmp_path) as manager:
        manager.save_snapshot({"w": np.zeros(3)}, step=1, channel="weights")
        manager.save_snapshot({"w": np.zeros(3)}, step=2, wait=True)
        for step in (1, 2):
            with pytest.raises(UsageError, match="no full state that this plugin saved"):
                snapshot_io(manager).load_checkpoint(f"step-{step}.ckpt")


def test_lightning_goes_on_with_the_newest_checkpoint_that_is_complete_and_undamaged(
    tmp_path, snapshot_io
):
    layers = [Layer("first", "w"), Layer("second", "b")]
    store = tmp_path / "store"
    with SnapshotManager(store, layers=layers) as manager:
        snapshot_io(manager).save_checkpoint(checkpoint(1), "any.ckpt")
        manager.wait()
        sound = {path.name for path in (store / "packs").iterdir()}
        snapshot_io(manager).save_checkpoint(checkpoint(2), "any.ckpt")
        manager.wait()
    for path in (store / "packs").iterdir():
        if path.name not in sound:
            path.unlink()
    shutil.rmtree(store / "parity")
    leave_partial(store, 3, 1, layers, lambda step: {"w": np.full(9, step), "b": np.ones(9)})

    with SnapshotManager(store, layers=layers) as manager:
        plugin = snapshot_io(manager)
        with pytest.warns(RuntimeWarning, match="1 snapshot could not be loaded"):
            latest = plugin.latest
        assert latest == "step-1.ckpt"
        assert plugin.load_checkpoint(latest)["loops"] == {"fit": 1}


class Counter:
    """An object with a state."""

    def __init__(self, value: int) -> None:
        self.value = value

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["value"]


def accelerator(*registered: Counter) -> SimpleNamespace:
    return SimpleNamespace(
        _models=[Counter(1)],
        _optimizers=[Counter(2)],
        _schedulers=[Counter(3)],
        _custom_objects=list(registered),
        scaler=None,
        unwrap_model=lambda model: model,
    )


def test_an_accelerator_with_other_objects_is_refused_by_name(tmp_path):
    with SnapshotManager(tmp_path) as manager:
        accelerate.save(manager, accelerator(Counter(4)), step=1).wait()
        same = accelerator(Counter(0))
        assert accelerate.load_latest(manager, same)["step"] == 1
        assert same._custom_objects[0].value == 4
        for other, what in (
            (accelerator(), "different numbers of registered: 1 and 0"),
            (accelerator(Counter(8), Counter(9)), "different numbers of registered: 1 and 2"),
        ):
            with pytest.raises(UsageError, match=what):
                accelerate.load_latest(manager, other)
            assert [one.value for one in other._custom_objects] == [8, 9][
                : len(other._custom_objects)
            ]


def test_an_accelerator_gives_no_object_a_pickle(tmp_path):
    with SnapshotManager(tmp_path, pickle_leaves=["*"]) as manager:
        accelerate.save(manager, accelerator(Counter(4), Counter({range(3)})), step=1).wait()
        same = accelerator(Counter(0), Counter(1))
        with pytest.raises(
            TypeError, match=r"registered\['1'\].* is a pickle of a 'builtins.range'"
        ):
            accelerate.load_latest(manager, same)
    assert [one.value for one in same._custom_objects] == [0, 1]
