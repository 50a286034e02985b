"""Values that only pickle can store: refused by name unless allowed, and never opened by a load."""

import json
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from ciuic import PickledLeaf, SnapshotManager
from ciuic.errors import UsageError
from ciuic.training.values.pickles import refuse_pickles
from tests.kit.program import ciuic

WEIGHTS = {"w": np.arange(5.0)}
LOADS = """\
import sys
from ciuic import SnapshotManager
with SnapshotManager(sys.argv[1]) as manager:
    for leaf in manager.load_latest_snapshot()["extra"].values():
        print(leaf.kind, len(leaf.data))
"""


class Environment:
    """A value without a state: only pickle can store it."""

    def __init__(self, seed: int) -> None:
        self.seed = seed


KIND = f"{__name__}.Environment"
LEAF = PickledLeaf("some.Class", b"data")


class Leaves:
    """Its pickle makes a file when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return leave, (str(self.path),)


def leave(path: str) -> Leaves:
    Path(path).touch()
    return Leaves(Path(path))


def test_a_value_that_was_not_allowed_is_refused_and_the_message_says_what_would_allow_it(tmp_path):
    extra = {"env": Environment(1), "other": Environment(2)}
    with SnapshotManager(tmp_path, pickle_leaves=["extra['env']"]) as manager:
        with pytest.raises(TypeError) as caught:
            manager.save_snapshot(WEIGHTS, epoch=1, extra=extra)
        assert f"extra['other'] cannot be stored: it is a {KIND}" in str(caught.value)
        assert """pickle_leaves=["extra['other']"] would store it as a pickle""" in str(
            caught.value
        )
        assert manager.list() == []

    with SnapshotManager(tmp_path, pickle_leaves=["extra['*']"]) as manager:
        assert manager.save_snapshot(WEIGHTS, epoch=1, extra=extra, wait=True).id


def test_a_load_returns_bytes_and_runs_no_code_until_the_program_asks_for_it(tmp_path):
    store, trace = tmp_path / "store", tmp_path / "trace"
    with SnapshotManager(store, pickle_leaves=["extra['*']"]) as manager:
        extra = {"env": Environment(7), "code": Leaves(trace)}
        manager.save_snapshot(WEIGHTS, epoch=1, extra=extra, wait=True)
        loaded = manager.load_latest_snapshot()
        assert manager.verify()["ok"]

    leaf = loaded["extra"]["env"]
    assert type(leaf) is PickledLeaf
    assert leaf.data == pickle.dumps(extra["env"])
    assert "Environment" in repr(leaf)
    assert not trace.exists()
    assert leaf.load().seed == 7
    loaded["extra"]["code"].load()
    assert trace.exists(), "otherwise this test proves nothing"


def test_a_program_without_the_class_loads_the_state(tmp_path):
    with SnapshotManager(tmp_path, pickle_leaves=["extra['env']"]) as manager:
        manager.save_snapshot(WEIGHTS, epoch=1, extra={"env": Environment(7)}, wait=True)
    done = subprocess.run(
        [sys.executable, "-c", LOADS, tmp_path], capture_output=True, text=True, check=True, cwd="/"
    )
    assert done.stdout.startswith(f"{KIND} ")


def test_each_pickle_is_a_file_of_its_own_that_the_commands_show(tmp_path):
    store = tmp_path / "store"
    extra = {"a b": Environment(1), "a/b": Environment(2), "..": Environment(3), 4: Environment(4)}
    with SnapshotManager(store, pickle_leaves=["extra[*]"]) as manager:
        manager.save_snapshot(WEIGHTS, epoch=1, extra=extra, wait=True)
        found = manager.load_latest_snapshot()["extra"]
    assert [found[key].load().seed for key in extra] == [1, 2, 3, 4]

    done = ciuic(
        "--store", store, "restore", "-s", "latest", "-p", "/state", "-d", tmp_path / "out"
    )
    assert done.code == 0, done.err
    files = sorted((tmp_path / "out/state/pickles").iterdir())
    assert len(files) == 4
    assert sorted(pickle.loads(file.read_bytes()).seed for file in files) == [1, 2, 3, 4]
    state = json.loads((tmp_path / "out/state/state.json").read_text())["state"]["extra"]
    assert state["$"] == "dict"
    assert state["items"][0][1] == {
        "$": "pickle",
        "file": "pickles/extra.a.b.pickle",
        "class": KIND,
    }


def test_a_loaded_pickle_is_saved_again_as_it_is(tmp_path):
    trace = tmp_path / "trace"
    with SnapshotManager(tmp_path / "store", pickle_leaves=["extra['code']"]) as manager:
        manager.save_snapshot(WEIGHTS, epoch=1, extra={"code": Leaves(trace)}, wait=True)
        first = manager.load_latest_snapshot()["extra"]
        manager.save_snapshot(WEIGHTS, epoch=2, extra=first, wait=True)
        assert manager.load_latest_snapshot()["extra"] == first
    assert not trace.exists()
    with (
        SnapshotManager(tmp_path / "store") as manager,
        pytest.raises(TypeError, match=r"extra\['code'\] cannot be stored: it is a"),
    ):
        manager.save_snapshot(WEIGHTS, epoch=2, extra=first)


def test_the_same_plan_serves_states_with_other_pickles(tmp_path):
    with SnapshotManager(tmp_path, pickle_leaves=["extra['env']"]) as manager:
        for step in range(4):
            extra = {"env": Environment(10**step), "other": np.full(3, step)}
            manager.save_snapshot(WEIGHTS, step=step, extra=extra, wait=True)
        for step in range(4):
            found = manager.load_snapshot(step)["extra"]
            assert found["env"].load().seed == 10**step
            assert found["other"][0] == step


def test_what_pickle_refuses_is_refused_by_name(tmp_path):
    with SnapshotManager(tmp_path, pickle_leaves=["extra*"]) as manager:
        with pytest.raises(TypeError, match=r"extra\['f'\] cannot be stored, not even as a pickle"):
            manager.save_snapshot(WEIGHTS, epoch=1, extra={"f": lambda: 1})
        assert manager.list() == []


@pytest.mark.parametrize("wrong", ["extra['env']", [3]])
def test_patterns_that_are_no_list_of_names_are_refused(tmp_path, wrong):
    with pytest.raises(UsageError, match="is not a list of names"):
        SnapshotManager(tmp_path / "store", pickle_leaves=wrong)
    assert not (tmp_path / "store").exists()


def test_patterns_may_come_from_a_generator(tmp_path):
    names = (name for name in ["extra['env']"])
    with SnapshotManager(tmp_path, pickle_leaves=names) as manager:
        manager.save_snapshot({}, {}, extra={"env": Environment(5)}, wait=True)
        assert manager.load_latest_snapshot()["extra"]["env"].load().seed == 5


def test_weights_alone_keep_the_pickles_of_the_model(tmp_path):
    model = {"w": np.arange(5.0), "config": Environment(3)}
    optimizer = {"m": np.arange(9.0), "code": Environment(4)}
    with SnapshotManager(tmp_path, keep_optimizer=1, pickle_leaves=["*"]) as manager:
        for step in (1, 2):
            manager.save_snapshot(model, optimizer, step=step, wait=True)
        old = manager.load_snapshot(1)
    assert "optimizer_state_dict" not in old
    assert old["model_state_dict"]["config"].load().seed == 3
    listed = ciuic("--store", tmp_path, "ls", old.snapshot_id, "/state/pickles").out
    assert "model.config.pickle" in listed
    assert "optimizer" not in listed


def test_an_object_is_not_given_a_pickle(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed")

    class Model(torch.nn.Linear):
        def get_extra_state(self):
            return {"env": Environment(5)}

        def set_extra_state(self, state):
            raise AssertionError(f"it got {state}")

    with SnapshotManager(tmp_path, pickle_leaves=["model['_extra_state']*"]) as manager:
        manager.save_snapshot(Model(2, 2), {}, epoch=1, wait=True)
        with pytest.raises(TypeError) as caught:
            manager.load_latest_snapshot(model=Model(2, 2))
        assert "model['_extra_state']['env'] is a pickle of a " in str(caught.value)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            state = manager.load_latest_snapshot()["model_state_dict"]
    assert state["_extra_state"]["env"].load().seed == 5


@pytest.mark.parametrize("state", [{"a": {3, LEAF}}, {"a": [LEAF]}, {"a": {LEAF: 1}}])
def test_an_object_is_not_given_a_pickle_in_any_container(state):
    with pytest.raises(TypeError, match=r"optimizer\['a'\]\[.*\] is a pickle of a 'some.Class'"):
        refuse_pickles(state, "optimizer")


def test_a_refusal_says_what_to_do_where_there_is_no_object():
    with pytest.raises(TypeError, match=r"which no load opens: replace it first$"):
        refuse_pickles({"a": [LEAF]}, "state", "replace it first")


def test_the_class_that_a_snapshot_names_for_a_pickle_cannot_write_to_the_terminal():
    hostile = PickledLeaf("x\x1b[2J\n", b"")
    with pytest.raises(TypeError) as caught:
        refuse_pickles(hostile, "extra")
    for text in (str(caught.value), repr(hostile)):
        assert text.isprintable()
