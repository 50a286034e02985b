"""The library, with its store in a bucket of a real S3 server."""

import json
import re

import numpy as np
import pytest

from ciuic import Layer, SnapshotManager
from ciuic.catalog import find_snapshot, list_snapshots
from ciuic.errors import SnapshotNotFoundError, StoreError
from ciuic.maintain.label import set_pinned
from ciuic.system.clock import SystemClock
from ciuic.training import saving
from ciuic.training.retention.planning import Rules
from ciuic.training.retention.replacing import commit_weights
from tests.kit import faulty_proxy as faults
from tests.kit.ceph import SECRET_KEY
from tests.kit.machine import Machine
from tests.kit.place_contract import keys
from tests.kit.program import ciuic
from tests.kit.saved_layers import leave_partial, save_here

pytestmark = [pytest.mark.slow, pytest.mark.root]

GROUPS = [Layer("first", "w"), Layer("second", "b")]


@pytest.fixture
def reach(proxy, server, tmp_path, monkeypatch):
    """The library's machine reaches the bucket through the proxy."""
    environ = {**server.environment, "AWS_ENDPOINT_URL": proxy.endpoint}
    for name, value in {**environ, "XDG_CACHE_HOME": str(tmp_path / "own")}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def elsewhere(server, address, tmp_path):
    return Machine(address, server, server.endpoint, tmp_path / "elsewhere")


def state(step):
    return {"w": np.full(200_000, step, dtype=np.float32), "b": np.arange(step, dtype=np.int64)}


@pytest.mark.usefixtures("reach")
def test_states_are_saved_to_a_bucket_and_loaded_on_another_machine(
    address, elsewhere, tmp_path, monkeypatch
):
    with SnapshotManager(address, max_snapshots=2) as manager:
        ids = [manager.save_snapshot(state(step), epoch=0, step=step).wait() for step in range(4)]
        manager.pin(ids[2])
        last = manager.save_snapshot(state(9), epoch=0, step=9).wait()
        assert {saved.id for saved in manager.list()} == {ids[2], ids[3], last}
        assert manager.verify()["ok"]

    # Snapshots that are too old are forgotten, and their data is still there.
    assert elsewhere.ids() == {ids[2], ids[3], last}
    assert elsewhere.verify().ok
    assert keys(elsewhere.place(), "leases") == []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    with SnapshotManager(address) as manager:
        loaded = manager.load_latest_snapshot()
        np.testing.assert_array_equal(loaded["model_state_dict"]["w"], state(9)["w"])
        np.testing.assert_array_equal(
            manager.load_snapshot(2)["model_state_dict"]["b"], state(2)["b"]
        )
        with pytest.raises(SnapshotNotFoundError):
            manager.load_snapshot(0)


def three(step):
    """Return parameters of three groups."""
    return {**state(step), "c": np.full(50_000, step)}


def announced_and_committed(requests):
    """Return the leases and manifests that were created, in order, with the ID in each name."""
    found = [
        re.search(r"/(leases|snapshots)/.*(cs-[0-9a-f]+)", request)
        for request in requests
        if request.startswith("PUT ")
    ]
    return [match.groups() for match in found if match]


@pytest.mark.usefixtures("reach")
def test_each_layer_in_a_bucket_has_a_lease_and_a_commit_in_its_order(address, elsewhere, proxy):
    layers = [Layer("first", "w"), Layer("second", "b", every=10)]
    with SnapshotManager(address, layers=layers, max_snapshots=2) as manager:
        begin = len(proxy.requests)
        manager.save_snapshot(three(1), {"m": np.ones(9)}, step=1).wait()
        requests = proxy.requests[begin:]
        for step in (5, 8):
            last = manager.save_snapshot({**three(step), "b": np.arange(1)}, step=step).wait()
        assert [(one.step, one.complete) for one in manager.list()] == [(8, True), (5, True)]
        with pytest.warns(RuntimeWarning, match="the layer second is of step 1"):
            loaded = manager.load_latest_snapshot()
        assert loaded.layers == {"first": (8, last), "second": (1, last), "rest": (8, last)}
        np.testing.assert_array_equal(loaded["model_state_dict"]["w"], state(8)["w"])
        np.testing.assert_array_equal(loaded["model_state_dict"]["b"], np.arange(1))
        assert manager.verify()["ok"]
    assert elsewhere.verify().ok
    assert keys(elsewhere.place(), "leases") == []
    # Three incomplete snapshots, and the complete one: each is announced, and then committed.
    found = announced_and_committed(requests)
    assert [what for what, _ in found] == ["leases", "snapshots"] * 4
    assert [one for _, one in found[::2]] == [one for _, one in found[1::2]]
    assert len(set(found)) == 8


@pytest.mark.usefixtures("reach")
def test_a_writer_killed_between_two_layers_leaves_the_first_in_the_bucket(address, elsewhere):
    with SnapshotManager(address, layers=GROUPS) as manager:
        whole = manager.save_snapshot(three(1), step=1).wait()
    left = [leave_partial(address, 2, count, GROUPS, three) for count in (1, 2)]

    with elsewhere.opened() as store:
        found = {one.id: one for one in list_snapshots(store)}
        assert find_snapshot(store, "latest").id == find_snapshot(store, "latest-valid").id == whole
    assert found[whole].is_complete
    assert not found[left[0]].is_complete
    assert elsewhere.verify().ok
    # Each killed writer was in a session of its own, in which it would have committed.
    assert len(keys(elsewhere.place(), "leases")) == 2
    with SnapshotManager(address, layers=GROUPS) as manager:
        assert manager.load_latest_snapshot().snapshot_id == whole
        for partial, names in zip(left, ({"w"}, {"w", "b"}), strict=True):
            part = manager.load_snapshot(partial)["model_state_dict"]
            assert set(part) == names
            np.testing.assert_array_equal(part["w"], state(2)["w"])
        with pytest.warns(RuntimeWarning, match="layer rest is of step 1"):
            filled = manager.load_latest_snapshot(channel="weights", fill_layers=True)
        assert filled.layers["second"] == (2, left[1])
        # The next save removes the rest of the saves that were cut short.
        newest = manager.save_snapshot(three(3), step=3).wait()
        assert {one.id for one in manager.list()} == {whole, newest}
    assert elsewhere.verify().ok


@pytest.mark.usefixtures("reach")
def test_a_layer_that_a_prune_takes_between_two_commits_is_stored_again(
    address, elsewhere, server, monkeypatch
):
    layers = [Layer("first", "w"), Layer("second", "c", every=100)]
    SnapshotManager(address).close()
    saver = saving.Saver(address, SystemClock())
    save_here(saver, three(1), 1, layers, 10**18)
    more = {**elsewhere.environ, "AWS_ENDPOINT_URL": server.endpoint}
    opened = []

    def open_after_a_prune(wait_s):
        opened.append(None)
        if len(opened) == 2:
            with elsewhere.opened(write=True) as store:
                store.trash.forget([one.id for one in list_snapshots(store)], 10**18)
            pruned = ciuic("--store", address, "prune", "--trash", "0", "--json", more=more)
            assert json.loads(pruned.out)["removed"]["packs"] > 0, pruned
        return saving.Saver._open_to_add(saver, wait_s)

    monkeypatch.setattr(saver, "_open_to_add", open_after_a_prune)
    saved = save_here(saver, three(2), 2, layers, 10**18 + 1)

    assert elsewhere.ids() == {saved.id}
    assert elsewhere.verify().ok
    with SnapshotManager(address) as manager:
        loaded = manager.load_latest_snapshot()
    # Nothing is left of step 1: the layer is stored as a part of this step.
    assert loaded.layers == dict.fromkeys(("first", "second", "rest"), (2, saved.id))
    np.testing.assert_array_equal(loaded["model_state_dict"]["c"], three(2)["c"])


def moments(step):
    """Return the part that only a resumed run needs: most of the bytes of a state."""
    return {"m": np.random.default_rng(step).normal(size=300_000)}


def kept(manager):
    """Return the step and the channel of each snapshot."""
    return [(one.step, one.channel) for one in manager.list()]


@pytest.mark.usefixtures("reach")
def test_older_states_in_a_bucket_keep_their_weights_alone(
    address, elsewhere, proxy, server, tmp_path, monkeypatch
):
    """Each of them is replaced in a session of its own, and a prune removes its optimizer."""
    with SnapshotManager(address) as manager:
        for step in range(3):
            manager.save_snapshot(state(step), moments(step), step=step).wait()
    begin = len(proxy.requests)
    with SnapshotManager(address, max_snapshots=3, keep_optimizer=1) as manager:
        manager.save_snapshot(state(3), moments(3), step=3).wait()
        assert kept(manager) == [(3, "full"), (2, "weights"), (1, "weights")]
        found = announced_and_committed(proxy.requests[begin:])
        assert [what for what, _ in found] == ["leases", "snapshots"] * 3
        assert [one for _, one in found[::2]] == [one for _, one in found[1::2]]
        assert manager.verify()["ok"]
    assert keys(elsewhere.place(), "leases") == []

    more = {**elsewhere.environ, "AWS_ENDPOINT_URL": server.endpoint}
    pruned = ciuic("--store", address, "prune", "--trash", "0", "--json", more=more)
    assert json.loads(pruned.out)["removed"]["packs"] > 0, pruned
    assert elsewhere.verify().ok
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    with SnapshotManager(address) as manager:
        older = manager.load_snapshot(1)
        np.testing.assert_array_equal(older["model_state_dict"]["w"], state(1)["w"])
        assert "optimizer_state_dict" not in older
        newest = manager.load_latest_snapshot()["optimizer_state_dict"]
        np.testing.assert_array_equal(newest["m"], moments(3)["m"])


@pytest.mark.usefixtures("reach")
@pytest.mark.parametrize("how", ["pinned", "reduced", "forgotten"])
def test_a_state_that_another_process_has_changed_between_two_sessions_is_not_reduced(
    address, elsewhere, monkeypatch, how
):
    saver = saving.Saver(address, SystemClock())
    rules = Rules(9, keep_optimizer=1)
    SnapshotManager(address).close()
    first = save_here(saver, three(1), 1, [], 10**18)
    opened = []

    def open_after_a_change(wait_s):
        opened.append(None)
        if len(opened) == 2:
            with elsewhere.opened(write=True) as store:
                full = store.manifest(first.id).summary
                if how == "pinned":
                    set_pinned(store, first.id, pinned=True)
                if how == "reduced":
                    commit_weights(store, full, SystemClock())
                if how != "pinned":
                    store.trash.forget([first.id], 10**18)
        return saving.Saver._open_to_add(saver, wait_s)

    monkeypatch.setattr(saver, "_open_to_add", open_after_a_change)
    saved = save_here(saver, three(2), 2, [], 10**18 + 1, rules=rules)

    assert len(opened) == 2
    assert saved.notes == ()
    with SnapshotManager(address) as manager:
        older = {"pinned": [(1, "full")], "reduced": [(1, "weights")], "forgotten": []}[how]
        assert kept(manager) == [(2, "full"), *older]
        assert manager.load_latest_snapshot()["step"] == 2
    assert elsewhere.verify().ok


@pytest.mark.usefixtures("reach")
def test_a_writer_killed_before_it_forgets_a_state_that_it_has_reduced_leaves_no_double(
    address, elsewhere
):
    with SnapshotManager(address) as manager:
        for step in range(2):
            manager.save_snapshot(state(step), {"m": np.ones(9)}, step=step).wait()
    with elsewhere.opened(write=True) as store:
        commit_weights(store, list_snapshots(store)[1], SystemClock())
    with SnapshotManager(address, keep_optimizer=1) as manager:
        # Both states of step 0 are of one time.
        assert sorted(kept(manager), reverse=True) == [(1, "full"), (0, "weights"), (0, "full")]
        manager.save_snapshot(state(2), {"m": np.ones(9)}, step=2).wait()
        assert kept(manager) == [(2, "full"), (1, "weights"), (0, "weights")]
        np.testing.assert_array_equal(
            manager.load_snapshot(0)["model_state_dict"]["w"], state(0)["w"]
        )
    assert elsewhere.verify().ok


@pytest.mark.usefixtures("reach")
def test_a_save_that_the_server_refuses_is_an_error_and_the_next_one_works(
    address, elsewhere, proxy
):
    def refused(request, forward):
        is_pack = request.method == "PUT" and "/packs/" in request.path
        return (
            faults.status(507, "QuotaExceeded")(request, forward) if is_pack else forward(request)
        )

    with SnapshotManager(address) as manager:
        first = manager.save_snapshot(state(1), epoch=0, step=1).wait()
        proxy.always(refused)
        with pytest.raises(StoreError) as caught:
            manager.save_snapshot(state(2), epoch=0, step=2).wait()
        proxy.always(None)
        assert SECRET_KEY not in str(caught.value)
        assert len(keys(elsewhere.place(), "snapshots")) == 1
        second = manager.save_snapshot(state(3), epoch=0, step=3).wait()

    assert elsewhere.ids() == {first, second}
    assert elsewhere.verify().ok


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.usefixtures("reach")
def test_a_distributed_checkpoint_is_saved_and_loaded(address, elsewhere):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import torch.distributed.checkpoint as dcp

    from ciuic.dcp import CiuicReader, CiuicWriter

    saved = {"w": torch.arange(100_000, dtype=torch.float32), "step": 7}
    dcp.save(saved, storage_writer=CiuicWriter(address), no_dist=True)
    assert len(elsewhere.ids()) == 1
    found = {"w": torch.zeros(100_000), "step": 0}

    dcp.load(found, storage_reader=CiuicReader(address), no_dist=True)

    assert torch.equal(found["w"], saved["w"])
    assert found["step"] == 7
    assert elsewhere.verify().ok
