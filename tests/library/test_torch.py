"""The library with the real torch: every element type, and training that resumes bit for bit."""

import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ciuic import SnapshotManager
from tests.kit.chance import drawn_seed
from tests.kit.program import ciuic

torch = pytest.importorskip("torch", reason="torch is not installed")

TRAINING = Path(__file__).with_name("training.py")
KILLS = 4 if os.environ.get("CIUIC_LONG") else 2
DTYPES = sorted(
    {value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str
)
PACKED = {torch.quint4x2, torch.quint2x4}
QUANTIZED = {torch.qint8, torch.quint8, torch.qint32, *PACKED}
WITHOUT_BYTES = {
    value for value in DTYPES if re.fullmatch(r"torch\.(u?int[1-7]|bits\dx\d)", str(value))
}
STORABLE = [value for value in DTYPES if value not in QUANTIZED | WITHOUT_BYTES]


@pytest.fixture
def manager(tmp_path):
    with SnapshotManager(tmp_path / "store") as made:
        yield made


def bits(tensor: "torch.Tensor") -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().cpu()
    return bytes(plain.untyped_storage())[plain.storage_offset() * plain.element_size() :][
        : plain.numel() * plain.element_size()
    ]


def same(left: object, right: object) -> bool:
    if isinstance(left, torch.Tensor):
        return (
            isinstance(right, torch.Tensor)
            and (left.dtype, left.shape) == (right.dtype, right.shape)
            and bits(left) == bits(right)
        )
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


def test_the_element_types_of_this_torch_are_covered():
    assert len(STORABLE) >= 20
    assert {torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2fnuz} <= set(STORABLE)
    assert {torch.complex32, torch.complex128, torch.bool, torch.uint64} <= set(STORABLE)


@pytest.mark.parametrize("dtype", STORABLE, ids=str)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_tensors_of_every_element_type_come_back(manager, dtype, tmp_path):
    item_bytes = torch.empty(0, dtype=dtype).element_size()
    raw = np.random.default_rng(1).integers(0, 2 if dtype is torch.bool else 256, 24 * item_bytes)
    tensor = torch.from_numpy(raw.astype(np.uint8)).view(dtype)
    state = {
        "plain": tensor,
        "matrix": tensor.view(4, 6),
        "empty": tensor[:0].view(0, 5),
        "scalar": tensor[:1].view(()),
        "transposed": tensor.view(4, 6).T,
        "strided": tensor[1::3],
    }

    manager.save_snapshot(state, epoch=1, wait=True)
    back = manager.load_latest_snapshot()["model_state_dict"]

    for key, value in state.items():
        assert back[key].dtype == dtype
        assert back[key].shape == value.shape
    for key in ("plain", "matrix", "empty", "scalar"):
        assert same(back[key], state[key])
    assert bits(back["transposed"].T) == bits(state["plain"])
    assert bits(back["strided"]) == b"".join(bits(tensor[at : at + 1]) for at in range(1, 24, 3))
    done = ciuic(
        "--store", manager._path, "restore", "-s", "latest", "-p", "/state", "-d", tmp_path
    )
    assert done.code == 0, done.err
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    loaded = safetensors.load_file(tmp_path / "state" / "weights.safetensors")
    assert bits(loaded["matrix"]) == bits(state["matrix"])
    assert set(loaded) == set(state)


@pytest.mark.parametrize("dtype", sorted(PACKED | WITHOUT_BYTES, key=str), ids=str)
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_an_element_type_without_plain_bytes_is_refused_by_name(manager, dtype):
    try:
        tensor = torch.empty(4, dtype=dtype)
    except RuntimeError:
        tensor = torch._empty_affine_quantized([4], scale=1.0, zero_point=0, dtype=dtype)
    with pytest.raises(TypeError, match=r"model\['layers'\]\[0\]\['w'\] cannot be stored"):
        manager.save_snapshot({"layers": [{"w": tensor}]})


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: torch.eye(3).to_mkldnn(), "of the layout torch._mkldnn"),
        (lambda: torch.empty(3, device="meta"), "without data"),
        (lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), "a nested tensor"),
        (torch.nn.UninitializedParameter, "UninitializedParameter"),
        (lambda: torch.empty(3, dtype=torch.qint8), "quantized tensor without a scale"),
        (
            lambda: torch.masked.masked_tensor(torch.ones(1), torch.tensor([True])),
            "not a plain tensor",
        ),
    ],
    ids=["layout", "meta", "nested", "uninitialized", "scale", "subclass"],
)
@pytest.mark.filterwarnings("ignore")
def test_a_tensor_without_plain_bytes_is_refused_by_name(manager, make, what):
    with pytest.raises(TypeError) as caught:
        manager.save_snapshot({}, {"state": {0: make()}})

    assert "optimizer['state'][0] cannot be stored" in str(caught.value)
    assert what in str(caught.value)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_tensor_that_is_nested_at_the_second_save_is_refused_by_name(manager):
    manager.save_snapshot({"w": torch.ones(2)})
    with pytest.raises(TypeError, match=r"^model\['w'\] cannot be stored: it is a nested tensor"):
        manager.save_snapshot({"w": torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])})


@pytest.mark.parametrize("left_bytes", [0, 40])
@pytest.mark.parametrize("saved", [0, 1])
@pytest.mark.parametrize(
    "view", [lambda base: base, lambda base: base[500:], lambda base: base[::2]]
)
def test_a_tensor_whose_storage_was_freed_or_cut_is_refused_by_name(
    manager, view, left_bytes, saved
):
    base = torch.arange(1000.0)
    state = {"w": view(base)}
    for _ in range(saved):
        manager.save_snapshot(state, wait=True)

    base.untyped_storage().resize_(left_bytes)

    with pytest.raises(TypeError, match=r"^model\['w'\] cannot be stored: it has no memory"):
        manager.save_snapshot(state)


def test_views_with_pending_operations_are_stored_by_their_values(manager):
    number = torch.tensor([1 + 2j, 3 - 4j])
    state = {"conj": number.conj(), "neg": number.conj().imag, "expanded": torch.ones(1).expand(5)}

    manager.save_snapshot(state, wait=True)

    back = manager.load_latest_snapshot()["model_state_dict"]
    assert back["conj"].tolist() == [1 - 2j, 3 + 4j]
    assert back["neg"].tolist() == [-2.0, 4.0]
    assert back["expanded"].tolist() == [1.0] * 5


def test_a_model_with_tied_weights_is_stored_once_and_stays_tied(manager):
    model = torch.nn.ModuleDict(
        {"embed": torch.nn.Embedding(500, 300), "head": torch.nn.Linear(300, 500, bias=False)}
    )
    model["head"].weight = model["embed"].weight

    manager.save_snapshot(model, wait=True)

    back = manager.load_latest_snapshot()["model_state_dict"]
    assert back["head.weight"] is back["embed.weight"]
    assert same(back["head.weight"], model["head"].weight.detach())
    assert manager.list()[0].stored_bytes < 500 * 300 * 4 * 1.2
    assert manager.list()[0].logical_bytes > 500 * 300 * 4 * 2


def optimizers(parameters: list["torch.nn.Parameter"]) -> list["torch.optim.Optimizer"]:
    return [
        torch.optim.Adam(parameters, amsgrad=True),
        torch.optim.AdamW(parameters, fused=True),
        torch.optim.SGD(parameters, momentum=0.9),
        torch.optim.SGD(parameters, lr=0.1),
        torch.optim.RMSprop(parameters, centered=True),
        torch.optim.Adagrad(parameters),
        torch.optim.LBFGS(parameters),
        torch.optim.NAdam(parameters),
    ]


def test_optimizers_and_schedulers_come_back_as_torch_gives_them(manager):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    for optimizer in optimizers(list(model.parameters())):

        def closure(optimizer: "torch.optim.Optimizer" = optimizer) -> "torch.Tensor":
            optimizer.zero_grad()
            loss = model(torch.randn(5, 3)).pow(2).sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        schedulers = {
            "cosine": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10),
            "steps": torch.optim.lr_scheduler.MultiStepLR(optimizer, [5, 9]),
            "plateau": torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer),
            "lambda": torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch),
        }
        manager.save_snapshot(model, optimizer, 1, scheduler=schedulers, wait=True)

        loaded = manager.load_latest_snapshot()

        assert same(loaded["model_state_dict"], model.state_dict())
        assert loaded["model_state_dict"]._metadata == model.state_dict()._metadata
        assert same(loaded["optimizer_state_dict"], optimizer.state_dict())
        for name, scheduler in schedulers.items():
            assert loaded["scheduler_state_dict"][name] == scheduler.state_dict()
        manager.load_latest_snapshot(model=model, optimizer=optimizer)


def test_other_values_of_torch_come_back(manager):
    extra = {
        "size": torch.Size([2, 3]),
        "dtype": torch.bfloat16,
        "device": torch.device("cuda", 1),
        "tensor": torch.arange(5),
        "array": np.arange(5),
    }

    manager.save_snapshot({}, extra=extra, wait=True)

    back = manager.load_latest_snapshot()["extra"]
    for key in ("size", "dtype", "device"):
        assert type(back[key]) is type(extra[key])
        assert back[key] == extra[key]
    assert same(back["tensor"], extra["tensor"])
    assert isinstance(back["array"], np.ndarray)


def test_a_wrong_model_is_refused_by_torch_s_own_message(manager):
    manager.save_snapshot(torch.nn.Linear(3, 4), wait=True)

    with pytest.raises(RuntimeError, match="Missing key"):
        manager.load_latest_snapshot(model=torch.nn.BatchNorm1d(4))
    target = torch.nn.Linear(3, 4, bias=False)
    with pytest.raises(RuntimeError, match="Unexpected key"):
        manager.load_latest_snapshot(model=target)
    with pytest.warns(RuntimeWarning, match="not in the object: bias"):
        manager.load_latest_snapshot(model=target, strict=False)


def test_parameters_that_were_renamed_resized_or_retyped_are_named(manager):
    def made(width, head, dtype=torch.float32):
        parts = {"body": torch.nn.Linear(3, 3, dtype=dtype), head: torch.nn.Linear(3, width)}
        return torch.nn.ModuleDict(parts)

    saved = made(4, "head")
    manager.save_snapshot(saved, wait=True)
    with pytest.raises(RuntimeError, match=r"size mismatch for head\.weight"):
        manager.load_latest_snapshot(model=made(5, "head"))
    other = made(5, "head", torch.bfloat16)
    kept = other["head"].weight.detach().clone()
    with pytest.warns(RuntimeWarning) as caught:
        manager.load_latest_snapshot(model=other, strict=False)
    said = str(caught[0].message)
    assert "body.weight (torch.float32 to torch.bfloat16), body.bias" in said
    assert "another shape: head.weight ((4, 3) to (5, 3)), head.bias" in said
    assert caught[0].filename == __file__
    assert torch.equal(other["head"].weight, kept)
    assert torch.equal(other["body"].weight, saved["body"].weight.bfloat16())

    renamed = made(4, "top")
    kept = renamed["top"].weight.detach().clone()
    with pytest.warns(RuntimeWarning) as caught:
        manager.load_latest_snapshot(model=renamed, strict=False)
    said = str(caught[0].message)
    assert "because the snapshot lacks them: top.weight, top.bias" in said
    assert "not in the object: head.weight, head.bias" in said
    assert torch.equal(renamed["top"].weight, kept)
    assert torch.equal(renamed["body"].weight, saved["body"].weight)
    # With strict, names must not differ, but types may: a warning says so.
    with pytest.warns(RuntimeWarning, match=r"body\.weight \(torch.float32 to torch.bfloat16\)"):
        manager.load_latest_snapshot(model=made(4, "head", torch.bfloat16))


def test_diff_names_the_tensors_that_changed(manager):
    model = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.Linear(300, 300))
    first = manager.save_snapshot(model).wait()
    with torch.no_grad():
        model[1].weight += 1
    second = manager.save_snapshot(model).wait()

    done = ciuic("--store", manager._path, "diff", "--tensors", first, second)

    assert "1.weight" in done.out
    assert "0.weight" not in done.out


def run_training(store: Path, losses: Path, *, kill_after_s: float | None = None) -> int:
    process = subprocess.Popen(
        [sys.executable, TRAINING, store, losses], env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    if kill_after_s is not None:
        try:
            process.wait(kill_after_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
    return process.wait()


def losses_in(path: Path) -> dict[int, str]:
    """Map each step to its exact loss; a step must not have two losses."""
    found: dict[int, str] = {}
    for line in path.read_text().splitlines():
        with_step = json.loads(line)
        assert found.setdefault(with_step["step"], with_step["loss"]) == with_step["loss"], line
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_that_is_killed_and_resumed_is_bit_for_bit_the_run_that_was_not(tmp_path):
    """Dropout, shuffled data, Adam and a scheduler; killed with SIGKILL at random moments."""
    began_s = time.monotonic()
    assert run_training(tmp_path / "whole", tmp_path / "whole.jsonl") == 0
    duration_s = time.monotonic() - began_s
    whole = losses_in(tmp_path / "whole.jsonl")
    chance = random.Random(drawn_seed())

    kills = 0
    for _ in itertools.count():
        late_s = chance.uniform(duration_s * 0.3, duration_s * 0.9)
        code = run_training(
            tmp_path / "killed",
            tmp_path / "killed.jsonl",
            kill_after_s=None if kills >= KILLS else late_s,
        )
        if code == 0:
            break
        assert code == -signal.SIGKILL
        kills += 1

    assert kills
    assert losses_in(tmp_path / "killed.jsonl") == whole
    with SnapshotManager(tmp_path / "killed") as killed, SnapshotManager(tmp_path / "whole") as one:
        left, right = killed.load_latest_snapshot(), one.load_latest_snapshot()
        assert left["step"] == right["step"]
        assert same(left["model_state_dict"], right["model_state_dict"])
        assert same(left["optimizer_state_dict"], right["optimizer_state_dict"])
        assert killed.verify()["ok"]
