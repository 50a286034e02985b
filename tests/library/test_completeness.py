"""One warning names each part that a state lacks or a training has not loaded, and no other."""

import random
import warnings

import numpy as np
import pytest

from ciuic import SnapshotManager

torch = pytest.importorskip("torch", reason="torch is not installed")


class Loader:
    """A data loader with a state."""

    def __init__(self) -> None:
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Training:
    """The objects of a training program, as it makes them at its start."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = torch.nn.Linear(4, 4)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 10)
        self.scaler = torch.amp.GradScaler("cpu")
        self.loader = Loader()

    def train(self) -> None:
        self.optimizer.zero_grad()
        self.scaler.scale(self.model(torch.randn(2, 4)).square().mean()).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()

    def save(self, manager: SnapshotManager, step: int, **more: object) -> None:
        parts = {"scheduler": self.scheduler, "scaler": self.scaler, "dataloader": self.loader}
        given = {"optimizer": self.optimizer, **parts, **more}
        manager.save_snapshot(self.model, step=step, **given).wait()


@pytest.fixture
def store(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def saved(store):
    """A store with the state of a training that had every part."""
    with SnapshotManager(store) as manager:
        training = Training()
        training.train()
        training.save(manager, 1)
    return store


def said(act) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
    return caught


def test_a_state_without_optimizer_scheduler_and_place_says_so_once(store):
    training = Training()
    training.train()
    with SnapshotManager(store) as manager:
        caught = said(lambda: manager.save_snapshot(training.model, wait=True))
        again = said(lambda: manager.save_snapshot(training.model, wait=True))

    assert [str(one.message) for one in caught] == [
        "ciuic: a training that goes on from this state will differ: it has no optimizer (give"
        " optimizer, or optimizer={} if there is none); it has neither epoch nor step"
    ]
    assert caught[0].filename == __file__
    assert again == []
    assert len(manager_list(store)) == 2, "the state is saved in any case"


@pytest.mark.parametrize("is_step", [False, True])
def test_a_scheduler_that_is_not_saved_is_noticed_by_its_optimizer(store, is_step):
    training = Training()
    objects = (training.model, {"first": training.optimizer})
    with SnapshotManager(store, full_every=1) as manager:
        if is_step:
            caught = said(lambda: manager.step(1, *objects))
        else:
            caught = said(lambda: manager.save_snapshot(*objects, epoch=1))

    assert len(caught) == 1
    assert "a scheduler changes the optimizer's learning rate" in str(caught[0].message)
    assert "no optimizer" not in str(caught[0].message)
    assert caught[0].filename == __file__


def test_a_warning_that_is_an_error_does_not_cost_the_state(store):
    manager = SnapshotManager(store)
    with pytest.raises(RuntimeWarning, match="no optimizer"):
        manager.save_snapshot(Training().model, epoch=1)
    manager.close()
    assert len(manager_list(store)) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        lambda made: {"model": made.model, "channel": "weights"},
        lambda made: {"model": made.model, "optimizer": {}, "epoch": 0},
        lambda made: {"model": {"w": np.ones(3)}, "step": 1},
        lambda made: {"model": made.model},
        lambda made: {"model": made.model.requires_grad_(requires_grad=False), "step": 1},
        lambda made: {
            "model": {"net": made.model, "opt": made.optimizer},
            "epoch": 0,
            "scheduler": {},
        },
        lambda made: {
            "model": made.model,
            "extra": {"o": made.optimizer.state_dict(), "s": [made.scheduler.state_dict()]},
        },
        lambda made: {
            "model": made.model,
            "optimizer": torch.optim.SGD(made.model.parameters()),
            "epoch": 0,
        },
    ],
    ids=["weights", "none", "arrays", "untrained", "frozen", "one-dict", "extra", "no-scheduler"],
)
def test_a_state_that_lacks_nothing_says_nothing(store, arguments):
    with SnapshotManager(store) as manager:
        manager.save_snapshot(wait=True, **arguments(Training()))


def test_a_training_that_ignores_the_loaded_state_says_which_parts(saved):
    training = Training()
    with SnapshotManager(saved) as manager:
        latest = manager.load_latest_snapshot(model=training.model)
        assert "optimizer_state_dict" in latest, "a look is no use of it"
        training.train()
        caught = said(lambda: training.save(manager, 2))
        training.train()
        again = said(lambda: training.save(manager, 3))

    assert [str(one.message) for one in caught] == [
        f"ciuic: this training does not go on as {latest.snapshot_id} was saved:"
        " optimizer_state_dict was not loaded; scheduler_state_dict was not loaded;"
        " scaler_state_dict was not loaded; dataloader_state_dict was not loaded;"
        " random numbers were drawn without a call of restore_rng() of the loaded state"
    ]
    assert caught[0].filename == __file__
    assert again == []


def test_a_training_that_loads_everything_hears_nothing(saved):
    training = Training()
    with SnapshotManager(saved) as manager:
        epoch_of_a_first_look = manager.load_latest_snapshot()["step"]
        latest = manager.load_latest_snapshot(model=training.model, optimizer=training.optimizer)
        training.scheduler.load_state_dict(latest["scheduler_state_dict"])
        training.scaler.load_state_dict(latest.get("scaler_state_dict"))
        training.loader.load_state_dict(dict(latest)["dataloader_state_dict"])
        latest.restore_rng()
        training.train()
        training.save(manager, epoch_of_a_first_look + 1)


def test_parts_that_the_training_no_longer_has_are_not_missed(saved):
    """Without random numbers in between, their generators are not missed either."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    with SnapshotManager(saved) as manager:
        latest = manager.load_latest_snapshot(model=model)
        assert latest["optimizer_state_dict"]
        manager.save_snapshot(model, optimizer, step=2, wait=True)


def test_a_look_at_a_state_is_no_resumption(saved):
    training = Training()
    with SnapshotManager(saved) as manager:
        assert manager.load_latest_snapshot()["step"] == 1
        training.train()
        training.save(manager, 2)


def test_going_back_to_an_older_state_in_a_training_is_no_resumption(saved):
    training = Training()
    with SnapshotManager(saved) as manager:
        training.save(manager, 2)
        manager.load_latest_snapshot(model=training.model)
        training.train()
        training.save(manager, 3)


@pytest.mark.parametrize(
    "draw",
    [random.random, np.random.random, lambda: torch.randn(1)],
    ids=["python", "numpy", "torch"],
)
def test_each_generator_is_noticed_when_it_is_drawn_from(store, draw):
    with SnapshotManager(store) as manager:
        manager.save_snapshot({"w": np.ones(3)}, epoch=1, wait=True)
    with SnapshotManager(store) as manager:
        assert manager.load_latest_snapshot()["model_state_dict"]
        draw()
        caught = said(lambda: manager.save_snapshot({"w": np.ones(3)}, epoch=2, wait=True))
    assert len(caught) == 1
    assert "restore_rng()" in str(caught[0].message)


def manager_list(store):
    with SnapshotManager(store) as manager:
        return manager.list()
