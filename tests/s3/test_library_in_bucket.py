"""The library, with its store in a bucket of a real S3 server."""

import numpy as np
import pytest

from ciuic import Layer, SnapshotManager
from ciuic.errors import SnapshotNotFoundError, StoreError
from tests.kit import faulty_proxy as faults
from tests.kit.ceph import SECRET_KEY
from tests.kit.machine import Machine
from tests.kit.place_contract import keys

pytestmark = [pytest.mark.slow, pytest.mark.root]


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

    # What is too old is forgotten, and its data is still there.
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


@pytest.mark.usefixtures("reach")
def test_layers_in_a_bucket_are_saved_with_the_entire_snapshot(address, elsewhere):
    layers = [Layer("first", "w"), Layer("second", "b", every=10)]
    with SnapshotManager(address, layers=layers, max_snapshots=2) as manager:
        for step in (1, 5, 8):
            last = manager.save_snapshot({**state(step), "b": np.arange(99)}, step=step).wait()
        assert [(one.step, one.complete) for one in manager.list()] == [(8, True), (5, True)]
        with pytest.warns(RuntimeWarning, match="the layer second is of step 1"):
            loaded = manager.load_latest_snapshot()
        assert loaded.layers == {"first": (8, last), "second": (1, last)}
        np.testing.assert_array_equal(loaded["model_state_dict"]["w"], state(8)["w"])
        np.testing.assert_array_equal(loaded["model_state_dict"]["b"], np.arange(99))
        assert manager.verify()["ok"]
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
