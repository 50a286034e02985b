"""How much of the last version of a file is read to find out whether a delta pays."""

import os
from pathlib import Path

import numpy as np
import pytest

from ciuic.store.packs.reader import StoreReader
from ciuic.store.records.kinds import DATA
from ciuic.store.records.recipe_nodes import iter_pieces
from ciuic.store.store import open_store
from tests.kit.box import Box
from tests.kit.tensors import torch_zip

KIB = 1024
SIZE = 128 * KIB


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of all chunks of file content that were decoded."""
    lengths: list[int] = []

    def noted(reader: StoreReader, name: bytes, *, kind: int) -> bytes | memoryview:
        data = chunk(reader, name, kind=kind)
        if kind == DATA:
            lengths.append(len(data))
        return data

    chunk = StoreReader.chunk
    monkeypatch.setattr(StoreReader, "chunk", noted)
    return lengths


def tensors(seed: int, count: int) -> list[bytes]:
    dice = np.random.default_rng(seed)
    return [dice.normal(0, 0.02, SIZE // 4).astype("<f4").tobytes() for _ in range(count)]


def moved(tensor: bytes) -> bytes:
    """Every number changes a little."""
    return (np.frombuffer(tensor, "<u4") + 1).tobytes()


def deltas(box: Box, path: Path) -> int:
    """How many chunks of a file are differences."""
    entry = box.entries()[os.fsencode(path)]
    with open_store(str(box.store)) as store:
        chains = [store.reader.chain(one.id) for one in iter_pieces(store.reader.node, entry)]
    return sum(len(one or ()) > 1 for one in chains)


def test_only_a_part_of_a_file_without_similar_version_is_compared(
    box: Box, read: list[int]
) -> None:
    path = box.source / "last.pt"
    path.write_bytes(torch_zip(tensors(1, 60)))
    box.take()
    path.write_bytes(torch_zip(tensors(2, 60)))
    read.clear()
    box.take()
    looks = read.count(SIZE)
    assert 4 <= looks <= 30
    assert deltas(box, path) == 0
    assert box.verify().ok


def test_headers_of_the_last_version_are_read_without_its_tensors(
    box: Box, read: list[int]
) -> None:
    path = box.source / "last.pt"
    path.write_bytes(torch_zip(tensors(1, 60)))
    box.take()
    path.write_bytes(torch_zip(tensors(1, 59) + tensors(2, 1)))
    read.clear()
    box.take()
    assert read.count(SIZE) <= 1


def test_similar_parts_are_found_behind_parts_that_are_not_similar(box: Box) -> None:
    path = box.source / "last.pt"
    unlike, like = tensors(1, 30), tensors(3, 60)
    path.write_bytes(torch_zip(unlike + like))
    box.take()
    path.write_bytes(torch_zip(tensors(2, 30) + [moved(one) for one in like]))
    box.take()
    assert deltas(box, path) >= 45
    assert box.read(path) == path.read_bytes()


def test_a_large_tensor_that_is_like_nothing_is_looked_at_here_and_there(
    box: Box, read: list[int]
) -> None:
    path = box.source / "last.pt"
    size = 1024 * KIB
    path.write_bytes(torch_zip([b"".join(tensors(1, 40 * size // SIZE))]))
    box.take()
    path.write_bytes(torch_zip([b"".join(tensors(2, 40 * size // SIZE))]))
    read.clear()
    box.take()
    assert 1 <= read.count(size) <= 20
