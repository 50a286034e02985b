"""Whatever exception leaves a save, the next one finishes."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ciuic import Best, SnapshotManager
from ciuic.errors import StoreError, UsageError
from tests.kit.chance import drawn_seed

HERE = Path(__file__).parent
HANG_S = 60


class Raises:
    """A model whose state cannot be taken."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def state_dict(self) -> dict[str, Any]:
        raise self.error


def model(value: float = 1.0) -> dict[str, np.ndarray]:
    return {"w": np.full(1000, value)}


def run(*arguments: object, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        timeout=timeout,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_save_that_ctrl_c_ends_at_any_line_leaves_a_usable_manager(tmp_path: Path) -> None:
    done = run(HERE / "interrupted_saves.py", tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("victim", [0, 1])
def test_a_save_of_ranks_that_ctrl_c_ends_at_any_line_of_one_mixes_no_two_steps(
    victim: int, tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    distance = 1 if os.environ.get("CIUIC_LONG") else 16
    first = drawn_seed() % distance
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    program = (HERE / "interrupted_ranks.py", tmp_path / "store", victim, first, distance)
    done = run(*launcher, *program, timeout=900)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) * distance > 50


WRONG: dict[str, tuple[Callable[[], dict[str, Any]], type[BaseException]]] = {
    "step that is no whole number": (lambda: {"step": np.float32(1)}, UsageError),
    "step as text": (lambda: {"step": "7"}, UsageError),
    "step below 0": (lambda: {"step": -5}, UsageError),
    "step with a fraction": (lambda: {"step": 5.5}, UsageError),
    "step that is a bool": (lambda: {"step": True}, UsageError),
    "step too large": (lambda: {"step": 10**5000}, UsageError),
    "epoch as an array": (lambda: {"epoch": np.ones(2)}, UsageError),
    "epoch of two lines": (lambda: {"epoch": "a\nb"}, UsageError),
    "channel as a list": (lambda: {"channel": ["full"]}, UsageError),
    "metric that is a list": (lambda: {"metrics": {"loss": [1, 2]}}, UsageError),
    "metric that is an array": (lambda: {"metrics": {"loss": np.ones(2)}}, UsageError),
    "metrics that are text": (lambda: {"metrics": "low"}, UsageError),
    "value that only pickle can store": (lambda: {"extra": object()}, TypeError),
    "model without a state": (lambda: {"model": 5}, TypeError),
    "Ctrl-C in the model": (lambda: {"model": Raises(KeyboardInterrupt())}, KeyboardInterrupt),
    "no memory in the model": (lambda: {"model": Raises(MemoryError())}, MemoryError),
    "a defect in the model": (lambda: {"model": Raises(ZeroDivisionError())}, ZeroDivisionError),
}


@pytest.mark.timeout(HANG_S)
@pytest.mark.parametrize("name", WRONG)
def test_the_next_save_after_one_that_failed_finishes(name: str, tmp_path: Path) -> None:
    make, error = WRONG[name]
    with SnapshotManager(tmp_path, keep=[Best("loss")]) as manager:
        manager.save_snapshot(model(), {}, 0, step=1)
        with pytest.raises(error) as caught:
            manager.save_snapshot(**{"model": model(2), "optimizer": {}, "epoch": 0} | make())
        if error is UsageError:
            assert "\n" not in caught.value.message
            assert caught.value.hint
        manager.save_snapshot(model(3), {}, 0, step=3, wait=True)
        assert [found.step for found in manager.list()] == [3, 1]
        assert (manager.load_snapshot(3)["model_state_dict"]["w"] == 3).all()


@pytest.mark.timeout(HANG_S)
def test_a_request_that_cannot_be_sent_makes_no_later_one_wait(tmp_path: Path) -> None:
    with SnapshotManager(tmp_path) as manager:
        saves = manager._saves
        for _ in range(2):
            with pytest.raises(TypeError, match="JSON"):
                saves.ask({"do": "pin", "id": object()})
        assert manager.save_snapshot(model(), {}, 0, step=1).wait(HANG_S)


@pytest.mark.timeout(HANG_S)
def test_a_forked_process_cannot_ask_the_writer_of_its_parent(tmp_path: Path) -> None:
    with SnapshotManager(tmp_path) as manager:
        manager.save_snapshot(model(), {}, 0, step=1, wait=True)
        if not (child := os.fork()):
            code = 1
            try:
                manager.verify()
            except UsageError:
                code = 7
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert manager.verify()["ok"]
    with pytest.raises(UsageError, match="is closed"):
        manager.verify()


@pytest.mark.parametrize("step", [np.int64(5), np.uint8(5), np.array(5)])
def test_a_whole_number_of_numpy_is_a_step(step: Any, tmp_path: Path) -> None:
    with SnapshotManager(tmp_path, full_every=np.int64(5), interval=np.float32(3600)) as manager:
        assert manager.step(step, model(), {}, np.int64(2), metrics={"a": np.float32(1)})
        assert manager.load_snapshot(step)["step"] == 5
        assert type(manager.load_snapshot(step)["epoch"]) is int
        assert manager.pin(step) == manager.list()[0].id
        assert (manager.list()[0].epoch, manager.list()[0].step) == (2, 5)


def test_a_whole_number_of_torch_is_a_step(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with SnapshotManager(tmp_path) as manager:
        manager.save_snapshot(model(), {}, torch.tensor(2), step=torch.tensor(5), wait=True)
        assert (manager.list()[0].epoch, manager.list()[0].step) == (2, 5)
        with pytest.raises(UsageError, match=r"step=tensor\(5\.\) is not a whole number"):
            manager.save_snapshot(model(), {}, 0, step=torch.tensor(5.0))


def test_a_traceback_shows_the_hint_once(tmp_path: Path) -> None:
    program = f"from ciuic import SnapshotManager\nSnapshotManager({str(tmp_path)!r}, run='')"
    shown = run("-c", program).stderr
    assert "run='' is not a name" in shown
    assert shown.count("None for the run without a name") == 1
    again = pickle.loads(pickle.dumps(UsageError("what", hint="Do this.")))
    assert (again.hint, again.__notes__) == ("Do this.", ["Do this."])
    assert again.after("Done", hint="And that.", done={}).__notes__ == ["Do this. And that."]
    for _ in range(2):
        with pytest.raises(UsageError) as caught:
            raise again
    assert caught.value.__notes__ == ["Do this."]
    assert not hasattr(UsageError("what"), "__notes__")
    without = pickle.loads(pickle.dumps(StoreError("what", hint="")))
    assert (without.hint, hasattr(without, "__notes__")) == ("", False)
