"""Loading into objects: a load reads into their tensors, with the same result as torch."""

import os
import shutil
import warnings

import numpy as np
import pytest

from ciuic import SnapshotManager
from ciuic.errors import CorruptionError, ResourceError
from ciuic.store.format.frame import FRAME_BYTES_MAX
from ciuic.store.packs.open_packs import OpenPacks
from ciuic.store.records.kinds import DATA
from ciuic.store.store import open_store
from ciuic.training.loading.files import StateFiles
from ciuic.training.loading.state import load
from tests.kit.damage import flip_byte, packs

torch = pytest.importorskip("torch", reason="torch is not installed")

WIDTH = 300
"""A matrix of it has a chunk of its own."""


class Transposing(torch.nn.Linear):
    """Changes the state while it is loaded, as a module does for a state of an older version."""

    def _load_from_state_dict(self, state_dict, prefix, *rest):
        state_dict[prefix + "weight"] = state_dict[prefix + "weight"].t()
        super()._load_from_state_dict(state_dict, prefix, *rest)


def net(seed: int, kind: type = torch.nn.Linear) -> "torch.nn.Module":
    torch.manual_seed(seed)
    return torch.nn.Sequential(kind(WIDTH, WIDTH), torch.nn.ReLU(), kind(WIDTH, WIDTH))


def stepped(model: "torch.nn.Module") -> "torch.optim.Optimizer":
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, WIDTH)).sum().backward()
    optimizer.step()
    return optimizer


def hooked(seed: int) -> "torch.nn.Module":
    model = net(seed)

    def transpose(_module, state, *_):
        state["2.weight"] = state["2.weight"].t()

    model.register_load_state_dict_pre_hook(transpose)
    return model


def tied(seed: int) -> "torch.nn.Module":
    model = net(seed)
    model[2].weight = model[0].weight
    return model


def flat(seed: int) -> "torch.nn.Module":
    """Return a model whose matrices share half of their memory."""
    model = net(seed)
    memory = torch.zeros(WIDTH * WIDTH * 3 // 2)
    half = WIDTH * WIDTH // 2
    for module, begin in ((model[0], 0), (model[2], half)):
        module.weight.data = memory[begin : begin + 2 * half].view(WIDTH, WIDTH)
    return model


def within(seed: int) -> "torch.nn.Module":
    """Return a model in which a small tensor is part of a matrix that is loaded after it."""
    model = net(seed)
    model[0].bias.data = model[2].weight.data[7]
    return model


def turned(seed: int) -> "torch.nn.Module":
    model = net(seed)
    model[0].weight.data = model[0].weight.data.t()
    return model


OTHERS = {
    "plain": net,
    "hook": hooked,
    "own way of loading": lambda seed: net(seed, Transposing),
    "tied": tied,
    "overlapping": flat,
    "a part of a later one": within,
    "not contiguous": turned,
    "another type": lambda seed: net(seed).half(),
    "dict": lambda seed: {"net": net(seed)},
}


@pytest.fixture
def manager(tmp_path):
    with SnapshotManager(tmp_path / "store") as made:
        yield made


def test_a_load_reads_to_the_tensors_of_the_objects(manager):
    model = net(1)
    optimizer = stepped(model)
    manager.save_snapshot(model, optimizer, 0, wait=True)
    other = net(2)
    other_optimizer = stepped(other)
    parameters = list(other.parameters())
    moments = other_optimizer.state[parameters[0]]["exp_avg"]

    loaded = manager.load_latest_snapshot(model=other, optimizer=other_optimizer)

    assert all(left is right for left, right in zip(other.parameters(), parameters, strict=True))
    assert all(map(torch.equal, other.parameters(), model.parameters()))
    at = loaded["model_state_dict"]["0.weight"].data_ptr()
    assert at == parameters[0].data_ptr()
    assert other_optimizer.state[parameters[0]]["exp_avg"].data_ptr() == moments.data_ptr()
    for saved, found in zip(optimizer.state.values(), other_optimizer.state.values(), strict=True):
        assert saved.keys() == found.keys()
        assert all(torch.equal(saved[name], found[name]) for name in saved)
    assert not loaded["model_state_dict"]["0.weight"].requires_grad


def test_the_hook_of_an_optimizer_gets_tensors_that_are_not_its_own(manager):
    manager.save_snapshot(net(1), stepped(net(1)), wait=True)
    model = net(2)
    optimizer = stepped(model)
    moments = optimizer.state[next(model.parameters())]["exp_avg"]
    before = moments.clone()
    seen = []
    optimizer.register_load_state_dict_pre_hook(
        lambda own, _: seen.append(own.state[next(model.parameters())]["exp_avg"].clone())
    )

    manager.load_latest_snapshot(model=model, optimizer=optimizer)

    assert torch.equal(seen[0], before)


@pytest.mark.filterwarnings("ignore:ciuic. the model differs from the one.*another type")
def test_any_module_holds_what_torch_would_put_there(manager):
    saved = net(1)
    manager.save_snapshot(saved, {}, wait=True, step=1)
    manager.save_snapshot({"net": saved}, wait=True, step=2)
    for name, make in OTHERS.items():
        step = 2 if name == "dict" else 1
        expected, found = make(3), make(3)
        state = manager.load_snapshot(step)["model_state_dict"]

        read = manager.load_snapshot(step, model=found)["model_state_dict"]

        if name == "dict":
            expected, found, state, read = expected["net"], found["net"], state["net"], read["net"]
        begins = sorted(read[key].data_ptr() for key in ("0.weight", "2.weight"))
        assert begins[1] - begins[0] >= read["0.weight"].nbytes, f"{name}: one memory for two"
        expected.load_state_dict(state)
        for left, right in zip(expected.parameters(), found.parameters(), strict=True):
            assert torch.equal(left, right), name


def test_of_tensors_that_share_memory_the_one_that_torch_loads_last_counts(manager):
    """This also holds if they were separate, and in another order, when they were saved."""

    def made(*names: str) -> "torch.nn.ModuleDict":
        model = torch.nn.ModuleDict({name: torch.nn.Linear(WIDTH, WIDTH) for name in names})
        if names == ("b", "a"):
            model["a"].weight = model["b"].weight
        return model

    manager.save_snapshot(made("a", "b"), wait=True)
    expected, found = made("b", "a"), made("b", "a")

    expected.load_state_dict(manager.load_latest_snapshot()["model_state_dict"])
    manager.load_latest_snapshot(model=found)

    assert torch.equal(expected["a"].weight, found["a"].weight)


@pytest.mark.parametrize("change", ["dense", "sparse"])
def test_deltas_are_read_to_the_tensors(manager, tmp_path, change):
    model = net(1)
    for step in range(4):
        manager.save_snapshot(model, {}, step=step, wait=True)
        with torch.no_grad():
            for weight in (model[0].weight, model[2].weight):
                if change == "dense":
                    weight.mul_(1.0001)
                else:
                    weight[7, step] += 1
    manager.save_snapshot(model, step=4, wait=True)
    other = net(2)

    with open_store(str(tmp_path / "store")) as store:
        summary = store.manifest(manager.list()[0].id).summary
        pieces, _ = StateFiles(store, summary)._pieces_of("weights.safetensors")
        places = store.reader.places([piece.id for piece in pieces])
        assert any(place.delta_bases for place in places.values())
    manager.load_latest_snapshot(model=other)

    assert all(map(torch.equal, other.parameters(), model.parameters()))


@pytest.mark.parametrize("has_parity", [True, False])
def test_a_damaged_state_is_repaired_or_an_older_one_is_loaded_over_it(tmp_path, has_parity):
    store = tmp_path / "store"
    older, newer, target = net(1), net(2), net(3)
    with SnapshotManager(store) as manager:
        manager.save_snapshot(older, {}, step=1, wait=True)
        before = set(packs(store))
        manager.save_snapshot(newer, step=2, wait=True)
        for pack in set(packs(store)) - before:
            flip_byte(pack, pack.stat().st_size // 2)
        if not has_parity:
            shutil.rmtree(store / "parity")

        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            loaded = manager.load_latest_snapshot(model=target)

        assert len(told) == (0 if has_parity else 1)
        assert loaded["step"] == (2 if has_parity else 1)
        expected = newer if has_parity else older
        assert all(map(torch.equal, target.parameters(), expected.parameters()))


def test_a_load_that_finds_nothing_undamaged_says_what_the_objects_hold(tmp_path):
    store = tmp_path / "store"
    with SnapshotManager(store) as manager:
        manager.save_snapshot(net(1), wait=True)
        shutil.rmtree(store / "parity")
        for pack in packs(store):
            flip_byte(pack, pack.stat().st_size // 2)

        with pytest.raises(CorruptionError) as caught:
            manager.load_latest_snapshot(model=net(2))

        assert "may hold a part of a damaged state" in caught.value.hint


@pytest.mark.parametrize("where", ["nowhere", "cuda:9"])
def test_a_device_that_does_not_work_is_named_and_no_snapshot_counts_as_damaged(manager, where):
    manager.save_snapshot(net(1), {}, 0, wait=True)
    with pytest.raises(ResourceError, match=f"map_location='?{where}"):
        manager.load_latest_snapshot(map_location=where)
    state = manager.load_latest_snapshot(map_location="cpu")
    assert state.skipped == {}


def test_a_chunk_is_read_straight_only_if_it_hashes_to_its_id(manager, tmp_path, monkeypatch):
    manager.save_snapshot({"w": np.random.default_rng(1).normal(size=50_000)}, wait=True)
    store_path = tmp_path / "store"
    with open_store(str(store_path)) as store:
        summary = store.manifest(manager.list()[0].id).summary
        pieces, _ = StateFiles(store, summary)._pieces_of("weights.safetensors")
        piece = max(pieces, key=lambda one: one.length_bytes)
        (place,) = store.reader.places([piece.id]).values()
        out = memoryview(bytearray(piece.length_bytes))
        assert not store.reader.read_into(piece.id, out), "the reader was not told of it"
        store.reader.prepare_reads({piece.id: place})
        assert store.reader.read_into(piece.id, out)
        plain = bytes(out)
        assert not store.reader.read_into(piece.id, out[:-8])

        long = place._replace(frame_bytes=FRAME_BYTES_MAX + 1)
        store.reader.prepare_reads({piece.id: long})
        with monkeypatch.context() as patch:
            patch.setattr(OpenPacks, "view", lambda *_: pytest.fail("this much may be no memory"))
            assert not store.reader.read_into(piece.id, out)
        wrong = place._replace(offset_bytes=place.offset_bytes + 1)
        store.reader.prepare_reads({piece.id: wrong})
        assert not store.reader.read_into(piece.id, out)
        # A sound chunk, but the wrong one.
        other = next(one for one in pieces if one.id != piece.id)
        store.reader.prepare_reads({other.id: place._replace(length_bytes=len(out))})
        assert not store.reader.read_into(other.id, out)

        (pack,) = [one for one in packs(store_path) if place.pack_id.hex() in one.name]
        flip_byte(pack, place.offset_bytes + place.frame_bytes - 9)
        store.reader.prepare_reads({piece.id: place})
        assert not store.reader.read_into(piece.id, out)
        assert bytes(store.reader.chunk(piece.id, kind=DATA)) == plain, "parity repairs it"


def test_a_header_that_promises_more_than_its_file_has_is_refused(manager, tmp_path, monkeypatch):
    manager.save_snapshot({"w": np.zeros(10)}, wait=True)
    real = StateFiles.bytes_of

    def promising(self, name, begin=0, end=None):
        data = real(self, name, begin, end)
        return np.frombuffer(
            data.tobytes().replace(b"[0,80]", b"[0,9" + b"0" * 12 + b"]"), np.uint8
        )

    monkeypatch.setattr(StateFiles, "bytes_of", promising)
    with open_store(str(tmp_path / "store")) as store:
        summary = store.manifest(manager.list()[0].id).summary
        with pytest.raises(CorruptionError, match="shorter than its header says"):
            load(store, summary, skipped={}, place=lambda tensor: tensor)


def test_one_thread_is_enough(manager, monkeypatch):
    """A machine may allow a single processor."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    model, other = net(1), net(2)
    manager.save_snapshot(model, wait=True)

    manager.load_latest_snapshot(model=other)

    assert all(map(torch.equal, other.parameters(), model.parameters()))
