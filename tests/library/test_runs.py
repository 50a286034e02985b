"""Several runs in one store: each keeps and loads its own snapshots."""

import numpy as np
import pytest

from ciuic import SnapshotManager
from ciuic.errors import SnapshotNotFoundError, UsageError
from ciuic.training.finding import run_of
from tests.kit.clock import ManualClock
from tests.kit.program import ciuic


def test_runs_neither_remove_nor_load_each_other_s_snapshots(tmp_path):
    store = tmp_path / "store"
    names = (None, "a", "b")
    managers = {name: SnapshotManager(store, max_snapshots=2, run=name) for name in names}
    newest = {}
    for step in (1, 2, 3):
        for number, (name, manager) in enumerate(managers.items()):
            if (name, step) != ("b", 3):
                state = {"w": np.full(1_000, 10.0 * step + number)}
                newest[name] = manager.save_snapshot(state, epoch=0, step=step)
    for handle in newest.values():
        handle.wait()

    found = {(saved.run, saved.step) for saved in managers["a"].list()}
    assert found == {(None, 3), (None, 2), ("a", 3), ("a", 2), ("b", 2), ("b", 1)}
    for name, manager in managers.items():
        assert manager.load_latest_snapshot().snapshot_id == newest[name].id
    assert managers["b"].load_snapshot("epoch-0")["model_state_dict"]["w"][0] == 22
    assert managers["a"].load_snapshot(2)["model_state_dict"]["w"][0] == 21
    with pytest.raises(SnapshotNotFoundError, match="step 3 of the run b"):
        managers["b"].load_snapshot(3)
    other = managers["b"].load_snapshot(newest["a"].id)
    assert other["model_state_dict"]["w"][0] == 31
    for manager in managers.values():
        manager.close()

    with SnapshotManager(store, run="c") as manager:
        assert manager.load_latest_snapshot() is None
    printed = ciuic("--store", store, "list", "--json")
    assert sum("run-a" in one["tags"] for one in printed.document) == 2


@pytest.mark.parametrize("name", ["a,b", "a|b", "a\n", "x" * 1_000])
def test_a_name_that_can_be_no_tag_is_refused_and_no_store_is_made(tmp_path, name):
    with pytest.raises(UsageError, match="can't be a tag"):
        SnapshotManager(tmp_path / "store", run=name)
    assert not (tmp_path / "store").exists()


def test_the_name_of_a_distributed_checkpoint_is_no_run():
    assert run_of(("full", "run-a", "step-3")) == "a"
    assert run_of(("full", "step-3")) is None
    assert run_of(("dcp", "run-5")) is None


def test_two_managers_of_one_run_save_and_count_together(tmp_path):
    with SnapshotManager(tmp_path, max_snapshots=3) as one, SnapshotManager(tmp_path) as other:
        for step in range(1, 8):
            manager = one if step % 2 else other
            manager.save_snapshot({"w": np.full(1_000, float(step))}, step=step, wait=True)
        # At the same time, beside each other.
        weights = {"w": np.ones(1_000)}
        handles = [both.save_snapshot(weights, channel="weights") for both in (one, other)]
        assert len({handle.wait() for handle in handles}) == 2

        assert [saved.step for saved in one.list() if saved.channel == "full"] == [7, 6, 5]
        assert other.load_latest_snapshot()["model_state_dict"]["w"][0] == 7
        assert one.verify()["ok"]


def test_a_clock_that_goes_back_changes_neither_the_latest_snapshot_nor_which_stay(tmp_path):
    hour_ns = 3_600 * 10**9
    with SnapshotManager(tmp_path, max_snapshots=2) as manager:
        now_ns = manager._clock.now_ns()
        for step, back_ns in enumerate([0, 2 * hour_ns, hour_ns, 3 * hour_ns]):
            manager._clock = ManualClock(now_ns - back_ns)
            manager.save_snapshot({"w": np.full(1_000, float(step))}, step=step, wait=True)

        assert [saved.step for saved in manager.list()] == [3, 2]
        assert manager.load_latest_snapshot()["step"] == 3
