"""``layers``: groups of parameters that become durable one after the other."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic import Layer, SnapshotManager
from ciuic.catalog import find_snapshot, list_snapshots
from ciuic.errors import CorruptionError, SnapshotNotFoundError, StoreFullError, UsageError
from ciuic.ids import SnapshotId
from ciuic.store.records.layout import pack_name
from ciuic.store.records.recipe_nodes import iter_pieces
from ciuic.store.store import Store, open_store
from ciuic.system.clock import SystemClock
from ciuic.training import saving
from ciuic.training.layers import commits
from ciuic.training.layers.groups import group_of
from ciuic.view.locator import Locator
from tests.format import reader
from tests.kit.clock import ManualClock
from tests.kit.damage import flip_byte
from tests.kit.program import ciuic
from tests.kit.saved_layers import Here, leave_partial, save_here

load_file = pytest.importorskip(
    "safetensors.numpy", reason="safetensors is not installed"
).load_file

LAYERS = [Layer("attention", r"attn"), Layer("mlp", r"mlp\.")]


def model(step: int) -> dict[str, np.ndarray]:
    """Return parameters of three groups, different at each step."""
    chance = np.random.default_rng(step)
    return {
        "h.0.attn.w": chance.normal(size=9_000),
        "h.0.mlp.w": chance.normal(size=9_000),
        "h.1.attn.w": chance.normal(size=(30, 30)),
        "norm": chance.normal(size=9_000),
    }


def save(manager: SnapshotManager, step: int, **more: object) -> SnapshotId:
    optimizer = {"m": np.full(2_000, step / 8)}
    return manager.save_snapshot(model(step), optimizer, step, step=step, **more).wait()


def equal(found: object, step: int, *names: str) -> bool:
    return all(np.array_equal(found["model_state_dict"][name], model(step)[name]) for name in names)


def test_each_layer_has_a_file_that_safetensors_reads(tmp_path):
    store = tmp_path / "store"
    with SnapshotManager(store, layers=LAYERS) as manager:
        newest = save(manager, 8)
        state = manager.load_latest_snapshot()
        assert equal(state, 8, *model(8))
        assert list(state["model_state_dict"]) == list(model(8))
        assert state.layers == dict.fromkeys(("attention", "mlp", "rest"), (8, newest))
        assert [one.complete for one in manager.list()] == [True]
        assert manager.verify()["ok"]
    ciuic("--store", store, "restore", "-s", newest, "-p", "/state", "-d", tmp_path / "out")
    weights = next((tmp_path / "out").rglob("weights"))
    found = {path.stem: set(load_file(path)) for path in weights.iterdir()}
    assert found == {
        "attention": {"h.0.attn.w", "h.1.attn.w"},
        "mlp": {"h.0.mlp.w"},
        "rest": {"norm"},
    }


def test_a_save_that_is_cut_leaves_its_first_layers_and_all_pass_them_over(tmp_path):
    store = tmp_path / "store"
    with SnapshotManager(store, layers=LAYERS) as manager:
        whole = save(manager, 1)
    partial = leave_partial(store, 2, 2, LAYERS, model)
    listed = ciuic("--store", store, "list", "--json").document
    assert {one["id"] for one in listed if not one["complete"]} >= {partial}
    assert {one["id"] for one in listed if one["complete"]} == {whole}
    assert all(("partial" in one["tags"]) is not one["complete"] for one in listed)
    assert ciuic("--store", store, "verify", "--all", "--checksum").code == 0
    with open_store(str(store)) as opened:
        for text in ("latest", "latest-valid", "2999-01-01"):
            assert find_snapshot(opened, text).id == whole
        assert find_snapshot(opened, partial).id == partial
    assert reader.Store(str(store)).latest() == whole
    # The last complete snapshot is protected, whatever other snapshots there are.
    assert ciuic("--store", store, "forget", whole).code == 2

    with SnapshotManager(store, max_snapshots=1, layers=LAYERS) as manager:
        assert manager.load_latest_snapshot()["step"] == 1
        with pytest.raises(SnapshotNotFoundError):
            manager.load_snapshot(2)
        state = manager.load_snapshot(partial)
        assert set(state["model_state_dict"]) == {"h.0.attn.w", "h.0.mlp.w", "h.1.attn.w"}
        assert equal(state, 2, *state["model_state_dict"])
        assert state.layers == {"attention": (2, partial), "mlp": (2, partial)}
        assert not manager.retention_plan().removed
        # The next save removes the rest of the one that was cut short.
        newest = save(manager, 3)
        assert [one.id for one in manager.list()] == [newest]


@pytest.mark.parametrize("metrics", [{"curve": np.arange(9)}, [np.arange(9)], np.arange(9)])
def test_a_cut_save_loads_without_metrics_that_it_does_not_hold(tmp_path, metrics):
    partial = leave_partial(tmp_path, 2, 1, LAYERS, model, metrics)
    with SnapshotManager(tmp_path, layers=LAYERS) as manager:
        state = manager.load_snapshot(partial)
        assert set(state["model_state_dict"]) == {"h.0.attn.w", "h.1.attn.w"}
        assert state["step"] == 2
        assert state["metrics"] is None


def test_a_cut_save_in_an_empty_store_leaves_a_store_without_a_latest_snapshot(tmp_path):
    partial = leave_partial(tmp_path, 2, 1, LAYERS, model)
    with SnapshotManager(tmp_path, layers=LAYERS) as manager:
        assert manager.load_latest_snapshot() is None
        assert set(manager.load_snapshot(partial)["model_state_dict"]) == {
            "h.0.attn.w",
            "h.1.attn.w",
        }
    assert reader.Store(str(tmp_path)).latest() is None
    done = ciuic("--store", tmp_path, "show", "latest")
    assert done.code != 0
    assert "no snapshot" in done.err


def test_missing_layers_come_from_the_newest_older_snapshot_that_has_them(tmp_path):
    with SnapshotManager(tmp_path, layers=LAYERS) as manager:
        whole = save(manager, 1)
    partial = leave_partial(tmp_path, 2, 1, LAYERS, model)
    with SnapshotManager(tmp_path, layers=LAYERS) as manager:
        # A full state comes first, because a partial one has no optimizer.
        assert manager.load_latest_snapshot(fill_layers=True)["step"] == 1
        target = model(7)
        with pytest.warns(RuntimeWarning, match=f"layer mlp is of step 1 .{whole}"):
            state = manager.load_latest_snapshot(channel="weights", fill_layers=True)
        assert equal(state, 2, "h.0.attn.w", "h.1.attn.w")
        assert equal(state, 1, "h.0.mlp.w", "norm")
        assert (state["step"], state.snapshot_id) == (2, partial)
        assert state.layers == {"attention": (2, partial), "mlp": (1, whole), "rest": (1, whole)}
        assert set(state["model_state_dict"]) == set(target)


def test_a_damaged_layer_is_filled_only_if_the_caller_allows_it(tmp_path):
    with SnapshotManager(tmp_path, layers=LAYERS) as manager:
        first = save(manager, 1)
        second = save(manager, 2)
        with open_store(str(tmp_path)) as store:
            damage(store, second, b"mlp.safetensors")
        with pytest.warns(RuntimeWarning, match=f"that of {first} .* step 1.: {second}: "):
            state = manager.load_latest_snapshot()
        assert (state["step"], list(state.skipped)) == (1, [second])
        with pytest.warns(RuntimeWarning, match="is of several steps"):
            state = manager.load_latest_snapshot(fill_layers=True)
        assert (state["step"], state.skipped) == (2, {})
        assert equal(state, 2, "h.0.attn.w", "h.1.attn.w", "norm")
        assert equal(state, 1, "h.0.mlp.w")
        assert state.layers["mlp"] == (1, first)
        assert state["optimizer_state_dict"]["m"][0] == 2 / 8
        with pytest.raises(CorruptionError):
            manager.load_snapshot(2)
        with pytest.warns(RuntimeWarning):
            assert manager.load_snapshot(2, fill_layers=True).layers["mlp"].step == 1


def damage(store: Store, snapshot_id: SnapshotId, name: bytes) -> None:
    """Damage the first chunk of a layer, and its parity."""
    entry = Locator(store, store.manifest(snapshot_id)).locate(b"/state/weights/" + name).entry
    piece = next(iter_pieces(store.reader.node, entry))
    for found in os.scandir(os.path.join(store.path, "parity")):
        if not found.name.endswith(".json"):
            os.unlink(found.path)
    place = store.reader.places([piece.id])[piece.id]
    pack = Path(store.path) / "packs" / pack_name(place.pack_id)
    flip_byte(pack, place.offset_bytes + place.frame_bytes - 1)


def test_a_layer_of_another_form_fills_nothing(tmp_path):
    with SnapshotManager(tmp_path, layers=LAYERS) as manager:
        other = model(1) | {"h.0.mlp.w": np.zeros(9_000, np.float32)}
        manager.save_snapshot(other, {"m": np.zeros(3)}, step=1).wait()
    leave_partial(tmp_path, 2, 1, LAYERS, model)
    with (
        SnapshotManager(tmp_path, layers=LAYERS) as manager,
        pytest.raises(CorruptionError, match="lacks the file weights/mlp"),
    ):
        manager.load_latest_snapshot(channel="weights", fill_layers=True)


def test_a_layer_with_a_cadence_is_stored_when_its_steps_have_passed(tmp_path):
    layers = [Layer("attention", "attn"), Layer("mlp", "mlp", every=10)]
    with SnapshotManager(tmp_path, layers=layers) as manager:
        ids = {step: save(manager, step) for step in (10, 15, 19, 20, 24)}
        steps = {}
        for step in ids:
            if step in {10, 20}:
                state = manager.load_snapshot(step)
            else:
                with pytest.warns(RuntimeWarning, match="layer mlp is of step"):
                    state = manager.load_snapshot(step)
            steps[step] = state.layers["mlp"].step
            assert equal(state, step, "h.0.attn.w", "norm")
            assert equal(state, steps[step], "h.0.mlp.w")
        assert steps == {10: 10, 15: 10, 19: 10, 20: 20, 24: 20}
        # A run that went back to an earlier step stores it, and one whose tensors differ.
        save(manager, 12)
        assert manager.load_snapshot(12).layers["mlp"].step == 12
        other = model(13) | {"h.0.mlp.w": np.ones(77)}
        manager.save_snapshot(other, step=13).wait()
        assert manager.load_snapshot(13)["model_state_dict"]["h.0.mlp.w"].shape == (77,)
        assert manager.verify()["ok"]


def test_the_size_stays_flat_and_old_states_are_reduced_with_layers(tmp_path):
    with SnapshotManager(tmp_path, max_snapshots=3, keep_optimizer=1, layers=LAYERS) as manager:
        for step in range(12):
            save(manager, step)
        assert [(one.step, one.channel) for one in manager.list()] == [
            (11, "full"),
            (10, "weights"),
            (9, "weights"),
        ]
        assert equal(manager.load_snapshot(9), 9, *model(9))
    packs = sum(path.stat().st_size for path in (tmp_path / "packs").iterdir())
    assert packs < 6 * 3 * 80_000


def test_a_frozen_layer_is_neither_copied_nor_hashed_until_the_next_full_snapshot(tmp_path):
    SnapshotManager(tmp_path).close()
    clock = ManualClock()
    here = Here(saving.Saver(str(tmp_path), clock), [Layer("mlp", "mlp", frozen=True)])
    frozen = model(1)["h.0.mlp.w"]
    notes, copied = [], []
    for step in (1, 2, 3, 4):
        # The parameter that is declared frozen changes at step 2, and the save does not see it.
        weights = model(step) | {"h.0.mlp.w": frozen if step < 2 else frozen + 1}
        saved, was_copied = here.save(weights, step, clock.now_ns())
        notes.append(saved.notes)
        copied.append(was_copied)
        clock.advance(3_600.0 if step != 2 else 13 * 3_600.0)
    here.close()
    assert copied == [True, False, True, False]
    assert [bool(said) for said in notes] == [False, False, True, False]
    assert "the layer mlp is declared frozen, but it has changed" in notes[2][0]
    with SnapshotManager(tmp_path) as manager:
        for step, added in {1: 0, 2: 0, 3: 1, 4: 1}.items():
            state = manager.load_snapshot(step)
            assert np.array_equal(state["model_state_dict"]["h.0.mlp.w"], frozen + added)
            assert equal(state, step, "h.0.attn.w", "norm")
            assert state.layers["mlp"] == (step, state.snapshot_id)
        assert manager.verify()["ok"]


def test_a_frozen_layer_that_changes_in_place_is_old_until_it_is_looked_at(tmp_path):
    """With the writer's process, and a full snapshot earlier than the training expects."""
    weights = model(1)
    frozen = weights["h.0.mlp.w"]
    wanted = {2: frozen.copy()}
    layers = [Layer("mlp", "mlp", frozen=True)]
    with SnapshotManager(tmp_path, layers=layers) as manager:
        first = manager.save_snapshot(weights, step=1).wait()
        frozen += 1
        manager.save_snapshot(weights, step=2).wait()
        # Without the last full snapshot, the next one is full. This is known too late for a copy.
        assert ciuic("--store", tmp_path, "forget", first).code == 0
        wanted[3] = wanted[2]
        manager.save_snapshot(weights, step=3).wait()
        wanted[4] = frozen.copy()
        manager.save_snapshot(weights, step=4)
        with pytest.warns(RuntimeWarning, match="mlp is declared frozen, but it has changed"):
            manager.wait()
        wanted[5] = wanted[4]
        frozen += 1
        manager.save_snapshot(weights, step=5).wait()
        for step, expected in wanted.items():
            state = manager.load_snapshot(step)
            assert np.array_equal(state["model_state_dict"]["h.0.mlp.w"], expected)
        assert manager.verify()["ok"]
    # A new training program may have other parameters, so its first save looks at them.
    with SnapshotManager(tmp_path, layers=layers) as manager:
        manager.save_snapshot(weights, step=6)
        with pytest.warns(RuntimeWarning, match="mlp is declared frozen, but it has changed"):
            manager.wait()
        state = manager.load_snapshot(6)
        assert np.array_equal(state["model_state_dict"]["h.0.mlp.w"], frozen)


def test_a_frozen_layer_that_the_store_has_lost_is_stored_again_without_a_copy(tmp_path):
    weights = model(1)
    layers = [Layer("mlp", "mlp", frozen=True)]
    with SnapshotManager(tmp_path, layers=layers) as manager:
        saved = manager.save_snapshot(weights, step=1).wait()
        with open_store(str(tmp_path)) as store:
            damage(store, saved, b"mlp.safetensors")
        assert ciuic("--store", tmp_path, "scrub").code == 4
        manager.save_snapshot(weights, step=2).wait()
        assert not manager._saves._stager.has_copied_frozen
        state = manager.load_snapshot(2)
        assert np.array_equal(state["model_state_dict"]["h.0.mlp.w"], weights["h.0.mlp.w"])


def test_a_full_disk_keeps_the_layers_that_fit_and_no_others_for_long(tmp_path, monkeypatch):
    """In this process: the third commit of each attempt finds the disk full."""
    SnapshotManager(tmp_path).close()
    take = commits.take_from_memory

    def limited(store, request, **more):
        if len(request.stored) >= 2:
            raise StoreFullError("the disk is full")
        return take(store, request, **more)

    monkeypatch.setattr(commits, "take_from_memory", limited)
    saver = saving.Saver(str(tmp_path), SystemClock())
    for step in (1, 2):
        with pytest.raises(StoreFullError):
            save_here(saver, model(step), step, LAYERS, 10**18 + step)
    with open_store(str(tmp_path)) as store:
        left = list_snapshots(store)
    assert left
    assert all("step-2" in one.tags and not one.is_complete for one in left)


def test_layers_that_make_no_sense_are_refused(tmp_path):
    for wrong in (
        lambda: Layer("a/b", "x"),
        lambda: Layer("rest", "x"),
        lambda: Layer("", "x"),
        lambda: Layer("a", "("),
        lambda: Layer("a", "x", every=0),
        lambda: Layer("a", "x", every=3, frozen=True),
        lambda: SnapshotManager(tmp_path, layers=[Layer("a", "x"), Layer("a", "y")]),
    ):
        with pytest.raises(UsageError):
            wrong()


@given(st.lists(st.sampled_from("abc"), max_size=3), st.text("abc.", max_size=5))
def test_a_parameter_belongs_to_the_first_layer_whose_pattern_it_has(patterns, name):
    layers = [Layer(f"n{at}", pattern) for at, pattern in enumerate(patterns)]
    wanted = next((f"n{at}" for at, pattern in enumerate(patterns) if pattern in name), "rest")
    assert group_of(layers, name) == wanted


def test_a_writer_that_is_killed_at_any_moment_leaves_snapshots_that_load(tmp_path):
    """Every listed snapshot can be loaded after a kill, and the newest complete one is found."""
    program = (
        "import sys, numpy as np; from ciuic import Layer, SnapshotManager\n"
        "layers = [Layer('a', 'a'), Layer('b', 'b')]\n"
        "manager = SnapshotManager(sys.argv[1], max_snapshots=2, layers=layers)\n"
        "for step in range(int(sys.argv[2]), 10_000):\n"
        "    weights = {name: np.full(50_000, step) for name in 'abc'}\n"
        "    handle = manager.save_snapshot(weights, {'m': np.full(9, step)}, step=step)\n"
        "    print(manager._saves.writer_pid, flush=True)\n"
        "    handle.wait()\n"
    )
    for number in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", program, tmp_path, str(number * 1000)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for _ in range(2 + number):
            pid = int(process.stdout.readline())
        os.kill(pid, signal.SIGKILL)
        process.communicate()
        with SnapshotManager(tmp_path, layers=[Layer("a", "a"), Layer("b", "b")]) as manager:
            for one in manager.list():
                state = manager.load_snapshot(one.id)
                assert all(
                    (found == one.step).all() for found in state["model_state_dict"].values()
                )
                assert one.complete is ("optimizer_state_dict" in state)
            latest = manager.load_latest_snapshot()
            assert latest is None or set(latest["model_state_dict"]) == set("abc")


def test_newer_weights_get_an_older_optimizer_only_on_request(tmp_path):
    with SnapshotManager(tmp_path) as manager:
        manager.save_snapshot(
            model(1), {"m": np.ones(3)}, 0, step=1, scheduler={"at": 1}, extra="old"
        ).wait()
        full = manager.list()[0].id
        newest = save(manager, 2, channel="weights")
        assert manager.load_latest_snapshot()["step"] == 1
        with pytest.warns(RuntimeWarning, match=f"the optimizer is of step 1 .{full}"):
            state = manager.load_latest_snapshot(join_optimizer=True)
        assert (state.snapshot_id, state.joined, state["step"]) == (newest, (1, full), 2)
        assert equal(state, 2, *model(2))
        assert state["optimizer_state_dict"]["m"].tolist() == [1, 1, 1]
        assert state["scheduler_state_dict"] == {"at": 1}
        assert "extra" not in state
        with pytest.raises(KeyError):
            state.restore_rng()
        with pytest.raises(UsageError, match="channel"):
            manager.load_latest_snapshot(join_optimizer=True, channel="weights")
        save(manager, 3)
        assert manager.load_latest_snapshot(join_optimizer=True).joined is None


def test_the_weights_in_place_are_the_newer_ones_when_an_optimizer_joins(tmp_path):
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(300, 300)
    optimizer = torch.optim.Adam(module.parameters())
    with SnapshotManager(tmp_path) as manager:
        module(torch.ones(300)).sum().backward()
        optimizer.step()
        manager.save_snapshot(module, optimizer, step=1).wait()
        optimizer.step()
        wanted = module.weight.detach().clone()
        manager.save_snapshot(module, optimizer, step=2, channel="weights").wait()
        other = torch.nn.Linear(300, 300)
        adam = torch.optim.Adam(other.parameters())
        with pytest.warns(RuntimeWarning, match="the optimizer is of step 1"):
            manager.load_latest_snapshot(model=other, optimizer=adam, join_optimizer=True)
    assert torch.equal(other.weight, wanted)
    assert adam.state_dict()["state"][0]["step"] == 1


def test_layers_of_rank_0_are_in_its_directory(tmp_path):
    SnapshotManager(tmp_path).close()
    saver = saving.Saver(str(tmp_path), SystemClock())
    layers = [Layer("attention", "attn"), Layer("mlp", "mlp", every=10)]
    for step in (10, 15):
        save_here(saver, model(step), step, layers, 10**18 + step, "rank-00000/")
    listed = ciuic("--store", tmp_path, "ls", "latest", "/state/rank-00000/weights")
    assert "attention.safetensors" in listed.out
    with SnapshotManager(tmp_path) as manager, pytest.warns(RuntimeWarning, match="mlp is of step"):
        state = manager.load_latest_snapshot()
    assert (state["step"], state.layers["mlp"].step) == (15, 10)
    assert equal(state, 15, "h.0.attn.w", "norm")
    assert equal(state, 10, "h.0.mlp.w")
