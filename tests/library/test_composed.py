"""Sparse and quantized tensors: stored as plain ones, exact to the bit."""

import json

import pytest

from ciuic import Layer, SnapshotManager
from ciuic.errors import CorruptionError
from ciuic.training.values.structure import StructureWriter, read_structure
from tests.kit.program import ciuic

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:(torch.quant|Sparse|quantize)")

MATRIX = torch.tensor([[0.0, -0.0, float("nan"), 3.0], [0.0, 0.0, 1e-45, 0.0]] * 2)


def bits(tensor):
    return tensor.contiguous().view(torch.uint8).tolist()


def sparse_tensors():
    repeated = torch.sparse_coo_tensor([[0, 0, 2], [1, 1, 0]], [1.0, 2.0, -0.0], (3, 3))
    made = {
        "coo": MATRIX.to_sparse(),
        "repeated": repeated,
        "hybrid": torch.sparse_coo_tensor([[0, 2]], torch.randn(2, 5), (3, 5)),
        "parameter": torch.nn.Parameter(MATRIX.to(torch.bfloat16).to_sparse()),
        "complex": torch.eye(3, dtype=torch.complex128).to_sparse(),
        "empty": torch.sparse_coo_tensor(size=(0, 3)),
        "scalar": torch.tensor(4.0).to_sparse(),
        "csr": MATRIX.to_sparse_csr(),
        "csc": MATRIX.to_sparse_csc(),
        "bsr": MATRIX.to_sparse_bsr((2, 2)),
        "bsc": MATRIX.to_sparse_bsc((2, 2)),
    }
    narrow = made["csr"]
    made["narrow"] = torch.sparse_csr_tensor(
        narrow.crow_indices().int(), narrow.col_indices().int(), narrow.values(), narrow.shape
    )
    return made


def quantized_tensors():
    plain = torch.arange(24.0).reshape(4, 6)
    scales, points = torch.tensor([0.1, 0.2, 0.3, 0.7]), torch.tensor([0, 1, -2, 3])
    return {
        "quint8": torch.quantize_per_tensor(plain, 0.1, 3, torch.quint8),
        "qint8": torch.quantize_per_tensor(plain, 1 / 3, -3, torch.qint8),
        "qint32": torch.quantize_per_tensor(plain, 1e-7, 0, torch.qint32),
        "rows": torch.quantize_per_channel(plain, scales, points, 0, torch.qint8),
        "columns": torch.quantize_per_channel(plain.T, scales, points, 1, torch.qint8),
        "floats": torch.quantize_per_channel(plain, scales, scales, 0, torch.quint8),
        "strided": torch.quantize_per_tensor(plain, 0.5, 1, torch.qint8).T,
    }


def parts(tensor):
    if tensor.is_quantized:
        more = (
            [tensor.q_scale(), tensor.q_zero_point()]
            if tensor.qscheme() == torch.per_tensor_affine
            else [
                tensor.q_per_channel_scales().tolist(),
                tensor.q_per_channel_zero_points().tolist(),
                tensor.q_per_channel_axis(),
            ]
        )
        return [bits(tensor.int_repr()), *more]
    if tensor.layout is torch.sparse_coo:
        return [bits(tensor._indices()), bits(tensor._values()), tensor.is_coalesced()]
    is_rows = tensor.layout in {torch.sparse_csr, torch.sparse_bsr}
    compressed = tensor.crow_indices() if is_rows else tensor.ccol_indices()
    plain = tensor.col_indices() if is_rows else tensor.row_indices()
    return [bits(compressed), bits(plain), bits(tensor.values()), compressed.dtype]


@pytest.mark.parametrize("make", [sparse_tensors, quantized_tensors])
def test_sparse_and_quantized_tensors_come_back_to_the_bit(tmp_path, make):
    state = make()
    with SnapshotManager(tmp_path / "store") as manager:
        # Twice: the second save uses the plan of the first.
        for step in range(2):
            manager.save_snapshot({}, {"state": [state]}, step=step).wait()
        with torch.inference_mode():
            back = manager.load_latest_snapshot()["optimizer_state_dict"]["state"][0]
        assert manager.verify()["ok"]
    assert list(back) == list(state)
    for name, tensor in state.items():
        found = back[name]
        kind = found.dtype, found.layout, found.shape, found.is_quantized
        assert kind == (tensor.dtype, tensor.layout, tensor.shape, tensor.is_quantized), name
        assert parts(found) == parts(tensor.detach()), name


def test_a_quantized_model_goes_on_as_it_was(tmp_path):
    def made():
        torch.manual_seed(3)
        module = torch.nn.Module()
        module.register_buffer(
            "weight", torch.quantize_per_tensor(torch.randn(40, 40), 0.05, 2, torch.qint8)
        )
        return module

    module = made()
    with SnapshotManager(tmp_path / "store", layers=[Layer("w", "weight")]) as manager:
        manager.save_snapshot(module).wait()
        other = made()
        other.weight = torch.quantize_per_tensor(torch.zeros(40, 40), 0.05, 2, torch.qint8)
        manager.load_latest_snapshot(model=other)
    assert parts(other.weight) == parts(module.weight)
    out = tmp_path / "out"
    done = ciuic(
        "--store", tmp_path / "store", "restore", "-s", "latest", "-p", "/state", "-d", out
    )
    assert done.code == 0
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    loaded = safetensors.load_file(next(out.rglob("w.safetensors")))
    assert bits(loaded["weight.values"]) == bits(module.weight.int_repr())


@pytest.mark.parametrize(
    "change",
    [
        {"coalesced": 3},
        {"layout": "sparse_none"},
        {"layout": "strided"},
        {"shape": [1, 1]},
        {"parts": {}},
        {"$": "torch.quantized", "dtype": "qint8", "scale": 1.0, "zero_point": 0},
        {"$": "torch.quantized", "dtype": "load"},
    ],
)
def test_parts_that_do_not_go_together_are_damage_and_run_nothing(change):
    arrays = []

    def add(tensor, _):
        arrays.append(tensor)
        return {"$": "torch.Tensor", "at": len(arrays) - 1}

    written = StructureWriter(add).write(torch.eye(3).to_sparse(), ("w",))
    hostile = json.loads(json.dumps({**written, **change}))
    with pytest.raises(CorruptionError):
        read_structure(hostile, lambda one: arrays[one["at"]])
