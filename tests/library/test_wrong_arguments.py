"""A wrong argument of the library is refused in one sentence, with a hint, before it acts."""

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ciuic import Best, EverySteps, Layer, SnapshotManager, Younger
from ciuic.errors import StoreError, UsageError


def refused(call: Callable[..., object], *arguments: object) -> UsageError:
    with pytest.raises(UsageError) as caught:
        call(*arguments)
    error = caught.value
    assert "\n" not in error.message + error.hint
    assert len(error.message) < 200
    assert error.hint
    return error


CONSTRUCTOR: dict[str, dict[str, Any]] = {
    "save_dir=b'": {"save_dir": b"/tmp/x"},
    "save_dir=''": {"save_dir": ""},
    "save_dir=None": {"save_dir": None},
    "save_dir='a\\x00b'": {"save_dir": "a\0b"},
    "keep='loss'": {"keep": "loss"},
    "keep=['loss']": {"keep": ["loss"]},
    "keep=Best(": {"keep": Best("loss")},
    "keep=None": {"keep": None},
    "layers='attn'": {"layers": "attn"},
    "layers=['attn']": {"layers": ["attn"]},
    "layers=Layer(": {"layers": Layer("a", "a")},
    "run=5": {"run": 5},
    "run=''": {"run": ""},
    "interval=True": {"interval": True},
    "interval=[1]": {"interval": [1]},
    "full_every='5'": {"full_every": "5"},
    "full_every=1.5": {"full_every": 1.5},
    "weights_every=array([1., 1.])": {"weights_every": np.ones(2)},
    "preemption_grace=[]": {"preemption_grace": []},
    "rank_timeout=b'": {"rank_timeout": b"1", "ranks": "torchrun"},
    "if_busy=['skip']": {"if_busy": ["skip"]},
    "pickle_leaves=5": {"pickle_leaves": 5},
    "pickle_leaves='*'": {"pickle_leaves": "*"},
}


@pytest.mark.parametrize("shown", CONSTRUCTOR)
def test_a_wrong_argument_of_the_constructor_is_named(shown: str, tmp_path: Path) -> None:
    arguments = {"save_dir": tmp_path / "store"} | CONSTRUCTOR[shown]
    assert shown in refused(lambda: SnapshotManager(**arguments)).message
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Best(5),  # type: ignore[arg-type]
        lambda: Best(""),
        lambda: Best("a", mode=[]),  # type: ignore[arg-type]
        lambda: EverySteps("5"),  # type: ignore[arg-type]
        lambda: Younger(None),  # type: ignore[arg-type]
        lambda: Younger([1]),  # type: ignore[arg-type]
        lambda: Layer(5, "a"),  # type: ignore[arg-type]
        lambda: Layer("a", 5),  # type: ignore[arg-type]
        lambda: Layer("a", "("),
        lambda: Layer("a", "a", every="5"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_argument_of_a_policy_or_layer_is_refused(make: Callable[[], object]) -> None:
    refused(make)


def test_wrong_arguments_of_the_methods_are_refused(tmp_path: Path) -> None:
    with SnapshotManager(tmp_path, full_every=1) as manager:
        manager.save_snapshot({"w": np.ones(3)}, {}, 0, step=1, wait=True)
        wrong: Any
        for wrong in (None, 5.5, b"x", [], True, np.ones(2), -1):
            for call in (
                manager.load_snapshot,
                manager.verify if wrong is not None else manager.pin,
                manager.pin,
                lambda ref: manager.diff(1, ref),
            ):
                assert "does not name a snapshot" in refused(call, wrong).message
        for wrong in ("x", ["full"], 5):
            for call in (
                lambda channel: manager.load_latest_snapshot(channel=channel),
                lambda channel: manager.retention_plan(channel=channel),
                lambda channel: manager.save_snapshot({}, channel=channel),
            ):
                assert "neither 'full' nor" in refused(call, wrong).message
        for wrong in ("5", 5.5, -1, None):
            for call in (manager.should_save, lambda step: manager.step(step, {})):
                assert "is not a whole number" in refused(call, wrong).message
        handle = manager.save_snapshot({"w": np.ones(3)}, {}, 0, step=2)
        for wrong in ("5", True, float("nan"), []):
            assert "is not a number of seconds" in refused(handle.wait, wrong).message
        assert handle.wait(float("inf")) == handle.wait(np.int64(60))  # type: ignore[arg-type]
        manager.pin(2, pinned=np.bool_(True))  # type: ignore[arg-type]
        assert manager.list()[0].pinned


@pytest.mark.parametrize("run", [None, "a"])
def test_an_unknown_name_of_a_snapshot_may_be_a_tag(run: str | None, tmp_path: Path) -> None:
    with SnapshotManager(tmp_path, run=run) as manager:
        manager.save_snapshot({"w": np.ones(3)}, {}, 0, step=1, wait=True)
        for call in (manager.load_snapshot, manager.pin):
            error = refused(call, "nonesuch")
            whose = "" if run is None else " of the run a"
            assert f"and no snapshot{whose} has this tag" in error.message
            assert "a tag" in error.hint


def test_numbers_of_numpy_are_good_for_policies(tmp_path: Path) -> None:
    keep = [Best("loss"), Younger(np.int64(5))]  # type: ignore[arg-type]
    with SnapshotManager(tmp_path, keep=keep) as manager:
        for step, loss in enumerate([np.float32(2), np.array([1.5]), None, "unknown", 1]):
            metrics = {"loss": loss}
            manager.save_snapshot({"w": np.ones(3)}, {}, 0, step=step, metrics=metrics, wait=True)
        assert [found.step for found in manager.list()] == [4, 3, 2, 1, 0]


def test_a_store_that_cannot_be_made_needs_another_directory() -> None:
    with pytest.raises(StoreError) as caught:
        SnapshotManager("/sys/ciuic-store")
    assert "chown" not in caught.value.hint
    assert "Choose a directory" in caught.value.hint


def test_wrong_arguments_of_the_checkpoint_writer_and_reader_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from ciuic.dcp import CiuicReader, CiuicWriter

    wrong: Any
    for wrong in (b"x", "", None, 5):
        assert "save_dir=" in refused(CiuicWriter, wrong).message
        assert "save_dir=" in refused(CiuicReader, wrong).message
    assert "ref=5" in refused(CiuicReader, tmp_path, 5).message
    for one in (CiuicWriter(tmp_path), CiuicReader(tmp_path)):
        assert "checkpoint_id=5" in refused(one.reset, 5).message


def test_a_program_whose_current_directory_was_removed_saves_to_an_absolute_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of a notebook begins with the current directory, as an empty text."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    with contextlib.chdir(gone):
        gone.rmdir()
        assert "was removed" in refused(lambda: SnapshotManager("store")).message
        with SnapshotManager(tmp_path / "store") as manager:
            manager.save_snapshot({"w": np.ones(3)}, epoch=4, wait=True)
            latest = manager.load_latest_snapshot()
    assert latest is not None
    assert latest["epoch"] == 4
