"""``keep_optimizer``: older full states keep only their weights."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic import Best, EverySteps, SnapshotManager
from ciuic.catalog import list_snapshots
from ciuic.errors import CorruptionError, SnapshotNotFoundError, UnknownFormatError, UsageError
from ciuic.ids import SnapshotId
from ciuic.model import SnapshotSummary, newest_first
from ciuic.store.store import open_store
from ciuic.system.clock import SystemClock
from ciuic.training.loading import latest
from ciuic.training.retention import keeping, replacing
from ciuic.training.retention.keeping import Keeper
from ciuic.training.retention.planning import (
    Rules,
    plan_retention,
    reduced_tags,
)
from tests.kit.clock import ManualClock
from tests.kit.program import ciuic

HOUR_NS = 3_600 * 10**9


def state(step: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return 40 KB of weights, and 400 KB that only a resumed run needs."""
    chance = np.random.default_rng(step)
    return {"w": chance.normal(size=5_000)}, {"m": chance.normal(size=50_000)}


def save(manager: SnapshotManager, step: int, **more: object) -> SnapshotId:
    model, optimizer = state(step)
    return manager.save_snapshot(model, optimizer, step // 2, step=step, **more).wait()


def channels(manager: SnapshotManager) -> list[tuple[int | None, str]]:
    return [(saved.step, saved.channel) for saved in manager.list()]


def test_older_states_keep_their_weights_alone_and_the_store_gets_smaller(tmp_path):
    store = tmp_path / "store"
    with SnapshotManager(store, max_snapshots=5, keep_optimizer=2) as manager:
        ids = [save(manager, step, metrics={"loss": step / 8}) for step in range(8)]
        kinds = ["full", "full", "weights", "weights", "weights"]
        assert channels(manager) == list(zip([7, 6, 5, 4, 3], kinds, strict=True))
        # Reduced states count among the full ones, and not in the channel of the weights.
        for step in (20, 21):
            save(manager, step, channel="weights")
        assert [step for step, _ in channels(manager)] == [21, 20, 7, 6, 5, 4, 3]

        older = manager.load_snapshot(4)
        assert np.array_equal(older["model_state_dict"]["w"], state(4)[0]["w"])
        assert (older["epoch"], older["step"], older["metrics"]) == (2, 4, {"loss": 0.5})
        assert "optimizer_state_dict" not in older
        assert older.snapshot_id != ids[4]
        assert manager.load_latest_snapshot()["step"] == 7
        assert np.array_equal(
            manager.load_snapshot("epoch-3")["optimizer_state_dict"]["m"], state(7)[1]["m"]
        )
        with pytest.raises(SnapshotNotFoundError):
            manager.load_snapshot(ids[4])
        with pytest.raises(UsageError, match="no optimizer_state_dict"):
            manager.load_snapshot(4, optimizer={"m": np.zeros(3)})
        assert manager.verify()["ok"]

    # While a prune may wait: three of five states with their optimizer.
    packs = sum(path.stat().st_size for path in (store / "packs").iterdir())
    assert packs < 4 * 450_000
    assert ciuic("--store", store, "verify", "--all", "--checksum").code == 0
    listed = ciuic("--store", store, "list", "--json").document
    assert [one["id"] for one in listed if "reduced" in one["tags"]]
    out = tmp_path / "out"
    done = ciuic("--store", store, "restore", "-s", older.snapshot_id, "-p", "/state", "-d", out)
    assert done.code == 0
    assert {path.name for path in out.rglob("*.*")} == {"state.json", "weights.safetensors"}


def test_the_time_the_tags_and_the_place_are_those_of_the_full_state(tmp_path):
    with SnapshotManager(tmp_path, keep_optimizer=1, run="a", keep=[Best("loss")]) as manager:
        first = save(manager, 1, metrics={"loss": 0.5})
        with open_store(str(tmp_path)) as store:
            full = store.manifest(first).summary
        save(manager, 2, metrics={"loss": 0.75})
        with open_store(str(tmp_path)) as store:
            newest, reduced = list_snapshots(store)
    assert (newest.tags[0], reduced.taken_ns) == ("full", full.taken_ns)
    assert set(reduced.tags) == {"weights", "run-a", "epoch-0", "step-1", "loss=0.5", "reduced"}
    assert (reduced.kind, reduced.parent) == (full.kind, full.parent)
    assert newest.parent == full.id
    assert reduced.files == 2


def test_pinned_and_damaged_states_stay_complete(tmp_path):
    with SnapshotManager(tmp_path, keep_optimizer=1) as manager:
        for step in (1, 2):
            save(manager, step)
            manager.pin(step)
        save(manager, 3)
        save(manager, 4)
        assert channels(manager) == [(4, "full"), (3, "weights"), (2, "full"), (1, "full")]
        plan = manager.retention_plan()
        assert not plan.reduced
        assert not plan.removed
        manager.pin(1, pinned=False)
        manager.pin(2, pinned=False)
        plan = manager.retention_plan()
        assert [summary.tags[2] for summary in plan.reduced] == ["step-2", "step-1"]
        assert channels(manager) == [(4, "full"), (3, "weights"), (2, "full"), (1, "full")]
        save(manager, 5)
        assert {channel for _, channel in channels(manager)[1:]} == {"weights"}


class _CutError(Exception):
    """The process ends here."""


@pytest.mark.parametrize("point", ["before the commit", "after the commit", "in the trash"])
def test_a_crash_while_a_state_is_reduced_loses_nothing_and_the_next_save_ends_it(
    tmp_path, monkeypatch, point
):
    with SnapshotManager(tmp_path) as manager:
        for step in range(3):
            save(manager, step)

    def cut(*_: object) -> None:
        raise _CutError

    with open_store(str(tmp_path), write=True) as store, monkeypatch.context() as patch:
        target = {
            "before the commit": (type(store), "commit"),
            "after the commit": (type(store.trash), "forget"),
            "in the trash": (type(store.trash), "empty"),
        }[point]
        patch.setattr(*target, cut)
        with pytest.raises(_CutError):
            Keeper(SystemClock()).keep(store, "full", Rules(10, keep_optimizer=1))

    with SnapshotManager(tmp_path, keep_optimizer=1) as manager:
        assert {step for step, _ in channels(manager)} == {0, 1, 2}
        assert manager.load_latest_snapshot()["step"] == 2
        for step in range(3):
            assert np.array_equal(
                manager.load_snapshot(step)["model_state_dict"]["w"], state(step)[0]["w"]
            )
        save(manager, 3)
        wanted = [(3, "full"), (2, "weights"), (1, "weights"), (0, "weights")]
        assert channels(manager) == wanted
        assert manager.verify()["ok"]


def test_a_state_that_cannot_be_read_stays_and_keeps_no_others(tmp_path, monkeypatch):
    real = keeping.commit_weights
    with SnapshotManager(tmp_path) as manager:
        ids = [save(manager, step) for step in range(4)]

        def failing(store, full, clock):
            if full.id == ids[2]:
                raise CorruptionError("state.json is damaged")
            return real(store, full, clock)

        monkeypatch.setattr(keeping, "commit_weights", failing)
        with (
            open_store(str(tmp_path), write=True) as store,
            pytest.raises(CorruptionError, match=r"state\.json is damaged"),
        ):
            Keeper(SystemClock()).keep(store, "full", Rules(3, keep_optimizer=1))

        assert channels(manager) == [(3, "full"), (2, "full"), (1, "weights")]
        assert manager.load_snapshot(ids[2])["optimizer_state_dict"]


def test_the_url_of_a_directory_is_no_bucket(tmp_path):
    with SnapshotManager(f"file://{tmp_path}", keep_optimizer=1) as manager:
        for step in range(2):
            save(manager, step)
        assert channels(manager) == [(1, "full"), (0, "weights")]


def test_a_state_of_a_later_version_is_not_reduced(tmp_path, monkeypatch):
    with SnapshotManager(tmp_path) as manager:
        for step in range(2):
            save(manager, step)
        monkeypatch.setattr(replacing, "STATE_FORMAT", 0)
        with (
            open_store(str(tmp_path), write=True) as store,
            pytest.raises(UnknownFormatError, match="of version 1"),
        ):
            Keeper(SystemClock()).keep(store, "full", Rules(3, keep_optimizer=1))

        assert channels(manager) == [(1, "full"), (0, "full")]


def test_a_state_of_a_clock_that_was_ahead_does_not_become_the_newest(tmp_path):
    with SnapshotManager(tmp_path, keep_optimizer=1) as manager:
        now_ns = manager._clock.now_ns()
        for step, ahead_ns in enumerate([0, 2 * HOUR_NS, 1, 2, 3]):
            manager._clock = ManualClock(now_ns + ahead_ns)
            save(manager, step)
            assert manager.load_latest_snapshot()["step"] == step
            assert [found for found, _ in channels(manager)] == list(range(step, -1, -1))
        # Step 1 shows that the later steps are later.
        kinds = ["full", "weights", "weights", "full", "weights"]
        assert [channel for _, channel in channels(manager)] == kinds


def test_a_pinned_state_of_a_clock_that_was_ahead_does_not_become_the_newest(tmp_path):
    with SnapshotManager(tmp_path, max_snapshots=2) as manager:
        now_ns = manager._clock.now_ns()
        for step in range(8):
            # The clock is set back after step 2.
            ahead_ns = 24 * HOUR_NS if step <= 2 else 0
            manager._clock = ManualClock(now_ns + ahead_ns + step)
            save(manager, step)
            if step == 0:
                manager.pin(manager.list()[0].id)
            assert manager.load_latest_snapshot()["step"] == step
            steps = [found for found, _ in channels(manager)]
            assert steps == sorted(steps, reverse=True)
    # Step 2 shows that the later steps are later than the pinned one.
    assert steps == [7, 6, 2, 0]


@pytest.mark.parametrize("count", [0, -1, True, "2", 1.5])
def test_a_number_that_makes_no_sense_is_refused(tmp_path, count):
    with pytest.raises(UsageError, match="keep_optimizer="):
        SnapshotManager(tmp_path / "store", keep_optimizer=count)
    assert not (tmp_path / "store").exists()


@given(
    saves=st.lists(
        st.tuples(st.integers(0, 30), st.sampled_from([0, 0, 0, 5, 100])), min_size=1, max_size=12
    ),
    keep_count=st.integers(1, 6),
    keep_optimizer=st.integers(1, 4),
    every=st.integers(1, 10),
)
def test_which_steps_stay_does_not_depend_on_the_optimizers(
    saves, keep_count, keep_optimizer, every
):
    """If the clock was ahead, those that show the order of the saves stay as well.

    Which ones these are depends on the optimizers: a state without them has another ID.
    """
    policies = (EverySteps(every), Best("loss", 2))
    with_all = _simulated(saves, Rules(keep_count, policies))
    reduced = _simulated(saves, Rules(keep_count, policies, keep_optimizer))
    for left in (with_all, reduced):
        numbers = [int(one.tags[1].removeprefix("step-")) for one in left]
        assert numbers[0] == len(saves) - 1
        assert numbers == sorted(numbers, reverse=True)
    complete = ["full" in one.tags for one in reduced]
    assert any(complete)
    if all(ahead_s == 0 for _, ahead_s in saves):
        assert [one.tags[1:3] for one in reduced] == [one.tags[1:3] for one in with_all]
        # Fewer than requested, if a policy has released a complete one.
        assert complete[0]
        assert complete == sorted(complete, reverse=True)
        assert sum(complete) <= keep_optimizer
        if len(saves) <= keep_count:
            assert sum(complete) == min(keep_optimizer, len(saves))


def _simulated(saves: list[tuple[int, int]], rules: Rules) -> list[SnapshotSummary]:
    """Return the snapshots that stay after saves a second apart, with a clock that may be ahead."""
    left: list[SnapshotSummary] = []
    for number, (loss, ahead_s) in enumerate(saves):
        clock_ns = (1_000 + number + ahead_s) * 10**9
        tags = ("full", f"step-{number}", f"loss={float(loss)}")
        parent = left[0].id if left else None
        made = SnapshotSummary(
            id=SnapshotId(f"cs-{number:016x}"),
            kind="base",
            parent=parent,
            taken_ns=clock_ns,
            files=1,
            logical_bytes=1,
            new_bytes=1,
            stored_bytes=1,
            tags=tags,
            trouble_count=0,
            roots=(b"/state",),
        )
        left = newest_first([made, *left])
        plan = plan_retention(left, rules, clock_ns, left)
        gone = {one.id for one in (*plan.reduced, *plan.removed)}
        weights = [
            msgspec.structs.replace(
                full,
                id=SnapshotId(f"cs-f{full.id[4:]}"),
                tags=reduced_tags(full.tags),
            )
            for full in plan.reduced
        ]
        left = newest_first([*weights, *[one for one in left if one.id not in gone]])
    return left


def test_a_load_that_another_process_takes_the_data_from_loads_what_has_replaced_it(
    tmp_path, monkeypatch
):
    """A writer that outlives its program may commit, reduce and prune while the next one loads."""
    first = {"w": np.arange(200_000.0)}
    second = {"w": np.arange(200_000.0) + 1}
    with SnapshotManager(tmp_path, max_snapshots=1, keep_optimizer=1) as writing:
        writing.save_snapshot(first, {"m": first["w"] * 2}, step=1).wait()
        read_state = latest.read_state

        def read_late(store, summary, *more, **options):
            if "step-1" in summary.tags:
                writing.save_snapshot(second, {"m": second["w"] * 2}, step=2).wait()
            return read_state(store, summary, *more, **options)

        monkeypatch.setattr(latest, "read_state", read_late)
        with SnapshotManager(tmp_path) as manager:
            state = manager.load_latest_snapshot()
    assert (state["step"], state.skipped) == (2, {})
    np.testing.assert_array_equal(state["optimizer_state_dict"]["m"], second["w"] * 2)
