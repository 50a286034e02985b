"""Snapshots of files of tensors: a tensor that occurs twice is stored once."""

import random
from pathlib import Path

import numpy as np
import pytest

from ciuic.codec import probing
from ciuic.codec.plan import Plan
from ciuic.store.directory.create import create_store
from ciuic.store.records.header import FIXED
from ciuic.store.records.recipe_nodes import iter_pieces
from ciuic.store.store import open_store
from tests.kit.box import Box
from tests.kit.clock import ManualClock
from tests.kit.tensors import npy, npz, safetensors, saved, torch_zip, typed

KIB = 1024
MIB = 1024 * KIB
dice = random.Random(7)
TENSORS = {
    "embed": dice.randbytes(3 * MIB + 12_345),
    "head": dice.randbytes(700_001),
    "norm": dice.randbytes(64 * KIB),
}
TOTAL = sum(len(one) for one in TENSORS.values())
HEADERS_BYTES = 8 * KIB
"""The most that a file may cost whose tensors are all known."""

FILES = {
    "safetensors": safetensors(TENSORS),
    "longer header": safetensors(TENSORS, note="x" * 1000),
    "other order": safetensors(dict(reversed(TENSORS.items()))),
    "npz": npz(TENSORS),
    "npz, other order": npz(dict(reversed(TENSORS.items()))),
    "torch": torch_zip(list(TENSORS.values())),
    "torch, longer name": torch_zip(list(TENSORS.values()), stem="checkpoint-of-step-10000"),
    "torch, longer pickle": torch_zip(list(TENSORS.values()), pickle=b"p" * 5000),
    "distributed": b"".join(torch_zip([one]) for one in TENSORS.values()),
}


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


def pieces(box: Box, path: Path) -> list[int]:
    """Lengths of a file's pieces."""
    with open_store(str(box.store)) as store:
        entry = box.entries()[bytes(path)]
        return [one.length_bytes for one in iter_pieces(store.reader.node, entry)]


@pytest.mark.parametrize("first", ["safetensors", "torch", "npz"])
def test_a_tensor_is_stored_once_whatever_file_it_is_in(box: Box, first: str) -> None:
    (box.source / "first").write_bytes(FILES[first])
    assert box.take().new_bytes >= TOTAL
    for name, data in FILES.items():
        (box.source / name).write_bytes(data)
        report = box.take()
        assert report.new_bytes <= HEADERS_BYTES, name
        assert len(data) <= report.read_bytes <= len(data) + 2 * HEADERS_BYTES
    (box.source / "alone.npy").write_bytes(npy(TENSORS["embed"]))
    assert box.take().new_bytes <= HEADERS_BYTES
    for name, data in FILES.items():
        assert box.read(box.source / name) == data
    assert box.verify().ok


@pytest.mark.parametrize(
    "name", ["state.pt", "part.distcp", "state.npz", "state.safetensors", "state.gguf"]
)
def test_files_of_real_libraries_come_back_whole_or_cut_short(tmp_path: Path, name: str) -> None:
    box = Box(tmp_path, chunk_bytes=16 * KIB)
    data = saved(name)
    written = {}
    for cut in (0, 1, 22, 5000, len(data) // 2):
        path = box.source / f"{cut}-{name}"
        written[path.name] = data[: len(data) - cut]
        path.write_bytes(written[path.name])
    box.take()
    box.restore(to=tmp_path / "out")
    back = tmp_path / "out" / "source"
    assert {one.name: one.read_bytes() for one in back.iterdir()} == written
    assert box.verify().ok


def test_tensors_are_cut_at_their_ends_and_other_files_are_not(box: Box) -> None:
    lengths = [len(one) for one in TENSORS.values()]
    path = box.source / "model.safetensors"
    path.write_bytes(FILES["safetensors"])
    other = box.source / "model.bin"
    other.write_bytes(b"\xff" + FILES["safetensors"])
    box.take()
    header = len(FILES["safetensors"]) - TOTAL
    assert pieces(box, path) == [header, *[MIB] * 3, lengths[0] - 3 * MIB, *lengths[1:]]
    assert pieces(box, other) == [MIB] * 3 + [len(FILES["safetensors"]) + 1 - 3 * MIB]


def test_a_store_of_the_fixed_rule_cuts_as_ever(tmp_path: Path) -> None:
    box = Box(tmp_path)
    box.store = tmp_path / "older"
    create_store(str(box.store), ManualClock(), chunking=FIXED)
    path = box.source / "model.safetensors"
    path.write_bytes(FILES["safetensors"])
    box.take()
    assert pieces(box, path) == [MIB] * 3 + [len(FILES["safetensors"]) - 3 * MIB]
    assert box.read(path) == FILES["safetensors"]


def test_the_width_of_numbers_comes_from_the_header(box: Box) -> None:
    """Quantized weights: the header gives one width, and ciuic must guess the other."""
    old = dice.randbytes(MIB)
    new = bytearray(old)
    for at in dice.sample(range(1, MIB), MIB // 50):
        new[at] = dice.randrange(256)
    stored = {}
    for element in ("U8", "Q8"):
        for data in (old, bytes(new)):
            path = box.source / f"{element}.safetensors"
            path.write_bytes(typed({"w": (element, [MIB], bytes([len(stored)]) + data[1:])}))
            stored[element] = box.take().stored_bytes
            assert box.read(path) == path.read_bytes()
    assert stored["U8"] < 0.95 * stored["Q8"]


@pytest.mark.parametrize(("element", "tried"), [("BF16", {2}), ("Q16", {2, 4})])
def test_widths_that_a_header_tells_are_not_probed(
    box: Box, monkeypatch: pytest.MonkeyPatch, element: str, tried: set[int]
) -> None:
    weights = np.random.default_rng(3).normal(0, 0.02, MIB // 2).astype("<f4")
    data = (weights.view("<u4") >> 16).astype("<u2").tobytes()
    widths = set()

    def noted(sample: bytes, width: int, skip: int = 0) -> Plan:
        widths.add(width)
        return plan(sample, width, skip)

    plan = probing.plan
    monkeypatch.setattr(probing, "plan", noted)
    (box.source / "m.safetensors").write_bytes(typed({"w": (element, [len(data) // 2], data)}))
    assert box.take().stored_bytes < 0.75 * len(data)
    assert widths == tried
