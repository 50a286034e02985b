"""How a store's bytes break down, compared with its input."""

import os
from pathlib import Path

import numpy as np
import pytest

from ciuic.catalog import latest_snapshot
from ciuic.report.amounts import Breakdown
from ciuic.report.breakdown import break_down
from ciuic.store.store import open_store
from tests.kit.box import Box
from tests.kit.damage import erase_headers
from tests.kit.tensors import npy, npz, safetensors, saved, torch_zip, typed

KIB = 1024
MIB = 1024 * KIB


def weighed(box: Box) -> Breakdown:
    with open_store(str(box.store)) as store:
        newest = latest_snapshot(store)
        return break_down(store, newest.id if newest else None)


def test_files_are_recognized_by_their_first_bytes(box: Box) -> None:
    large = os.urandom(100 * KIB)
    files = {
        "a.pt": ("torch.save", saved("state.pt")),
        "a.bin": ("torch.save", torch_zip([large])),
        "__0_0.distcp": ("distcp", saved("part.distcp")),
        "a.npz": ("npz", npz({"a": large})),
        "a.npy": ("npy", npy(large)),
        "a.gguf": ("gguf", saved("state.gguf")),
        "a.h5": ("hdf5", saved("state.h5")),
        "a.keras": ("keras", saved("state.keras")),
        "a.st": ("safetensors", safetensors({"a": large})),
        "a.zip": ("other", b"PK\x03\x04" + large),
        "cut.zip": ("other", b"PK\x03\x04" + b"\xff" * 100 + large),
        "log": ("other", os.urandom(100 * KIB)),
        "tiny.npy": ("small", npy(b"123")),
        "empty": ("small", b""),
    }
    for name, (_, data) in files.items():
        (box.source / name).write_bytes(data)
    box.take()
    found = weighed(box)

    wanted: dict[str, tuple[int, int]] = {}
    for kind, data in files.values():
        count, size_bytes = wanted.get(kind, (0, 0))
        wanted[kind] = count + 1, size_bytes + len(data)
    assert {kind: (one.count, one.plain_bytes) for kind, one in found.kinds.items()} == wanted
    assert found.unknown_count == 0
    assert found.kinds["other"].ratio == pytest.approx(1.0, abs=0.01)


def test_elements_are_all_of_the_tensors_and_the_rest_is_headers(box: Box) -> None:
    random = np.random.default_rng(1)
    floats = random.standard_normal(900_000).astype("<f4").tobytes()
    zeros = bytes(3 * MIB)
    data = typed(
        {
            "w": ("F32", [900_000], floats),
            "h": ("BF16", [3 * MIB // 2], zeros),
            "b": ("F32", [2], bytes(8)),
            "q": ("Q", [5], bytes(5)),
        }
    )
    (box.source / "a.st").write_bytes(data)
    (box.source / "a.pt").write_bytes(saved("state.pt"))
    (box.source / "broken.st").write_bytes(data[:-1])
    box.take()
    found = weighed(box).elements

    tensors = {name: (one.count, one.plain_bytes) for name, one in found.items()}
    assert tensors["F32"] == (2 + 2, len(floats) + 8 + 120_000 + 20)
    assert tensors["BF16"] == (1 + 1, len(zeros) + 120_000)
    assert tensors["unknown"] == (1, 5 + len(data) - 1)
    assert sum(one.plain_bytes for one in found.values()) == sum(
        one.stat().st_size for one in box.source.iterdir()
    )
    assert found["BF16"].ratio is not None
    assert found["BF16"].ratio > 100
    assert found["F32"].ratio == pytest.approx(1.2, abs=0.1)


def test_shared_chunks_count_once_and_kinds_add_up_to_the_store(box: Box) -> None:
    rng = np.random.default_rng(7)
    shared = rng.standard_normal(500_000).astype("<f4").tobytes()
    own = rng.standard_normal(100_000).astype("<f4").tobytes()
    for name in ("a.st", "b.st", "c.st"):
        tensors = {"w": ("F32", [500_000], shared), "h": ("F16", [200_000], own)}
        (box.source / name).write_bytes(typed(tensors))
    (box.source / "one").write_bytes(own[:1000])
    (box.source / "two").write_bytes(own[:1000])
    box.take()
    found = weighed(box)

    codecs = sum(one.stored_bytes for name, one in found.codecs.items() if name != "metadata")
    kinds = sum(one.stored_bytes for one in found.kinds.values())
    assert 0.999 * codecs < kinds <= codecs
    types = sum(one.stored_bytes for one in found.elements.values())
    assert types == found.kinds["safetensors"].stored_bytes
    assert found.elements["F32"].stored_bytes > found.elements["F16"].stored_bytes > 0


def test_kinds_add_up_to_the_groups_of_the_same_snapshot_with_delta_bases(box: Box) -> None:
    weights = np.random.default_rng(8).standard_normal(300_000).astype("<f4")
    for step in (100, 200):
        weights[:100] += step
        (box.source / "w.npy").write_bytes(npy(weights.tobytes()))
        box.take()
    found = weighed(box)
    grouped = box.ciuic("stats", "--by", "kind", "-s", "latest", "--json").document["groups"]

    assert found.chains.deltas, "the second snapshot was meant to hold deltas"
    kinds = sum(one.stored_bytes for one in found.kinds.values())
    assert kinds == sum(one["stored_bytes"] for one in grouped)
    assert kinds > found.chains.own_bytes, "delta bases are counted"


def test_codecs_are_those_of_all_packs(box: Box) -> None:
    noise, text = os.urandom(MIB), b"text " * 100_000
    (box.source / "noise").write_bytes(noise)
    (box.source / "text").write_bytes(text)
    box.take()
    (box.source / "text").unlink()
    box.take()
    found = weighed(box)

    assert found.codecs["raw"].plain_bytes >= MIB
    assert found.codecs["zstd"].plain_bytes >= len(text)
    assert found.codecs["metadata"].count > 0
    stored = sum(one.stored_bytes for one in found.codecs.values())
    packs = sum(one.stat().st_size for one in (box.store / "packs").iterdir())
    assert 0.99 * packs < stored < packs
    assert {kind: one.count for kind, one in found.kinds.items()} == {"other": 1}


def test_a_snapshot_without_differences_costs_what_it_takes(box: Box) -> None:
    (box.source / "a").write_bytes(os.urandom(3 * MIB))
    (box.source / "again").write_bytes((box.source / "a").read_bytes())
    for number in range(200):
        (box.source / f"small{number}").write_bytes(os.urandom(100))
    box.take()
    chains = weighed(box).chains

    assert (chains.chunks, chains.deltas, chains.depth_max) == (206, 0, 0)
    assert chains.depth_mean == 0.0
    assert 3 * MIB < chains.read_bytes < 3 * MIB + 200 * 200, "what is shared counts once"
    assert chains.read_bytes == chains.own_bytes == chains.alone_bytes
    assert chains.read_cost == 1.0


def test_an_empty_store_weighs_nothing(box: Box) -> None:
    found = weighed(box)
    assert found.snapshot_id is None
    assert found.as_json()["kinds"] == []
    assert found.chains.read_cost is None


def test_unreadable_parts_are_counted_and_the_rest_is_measured(box: Box) -> None:
    data = os.urandom(2 * MIB)
    (box.source / "a").write_bytes(data)
    (box.source / "b").write_bytes(os.urandom(MIB))
    box.take()
    erase_headers(box.store, data[MIB:])
    found = weighed(box)
    assert found.unknown_count == 1
    assert found.chains.chunks == 2
    assert found.kinds["other"].count == 2


def test_progress_is_reported(box: Box, tmp_path: Path) -> None:
    (box.source / "a").write_bytes(b"one")
    (box.source / "b").write_bytes(b"three")
    box.take()
    told: list[tuple[int, int, str]] = []
    with open_store(str(box.store)) as store:
        newest = latest_snapshot(store)
        assert newest is not None
        break_down(
            store,
            newest.id,
            progress=lambda files, size, path: told.append((files, size, os.fsdecode(path))),
        )
    assert told == [(0, 0, str(tmp_path / "source/a")), (1, 3, str(tmp_path / "source/b"))]
