"""Changes are tracked in files of tensors: reused and read ranges fit the cuts."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciuic.store.directory.create import create_store
from ciuic.store.directory.find import read_header
from ciuic.store.records.header import FIXED, Header
from ciuic.store.records.layout import HEADER
from ciuic.store.store import open_store
from tests.filesystems.test_tracked_snapshots import box_on, slices, unlike
from tests.kit.box import Box, settle
from tests.kit.filesystems import Disk, disk
from tests.kit.tensors import safetensors, torch_zip

KIB = 1024
MIB = 1024 * KIB
BLOCK = 4096

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture(params=["xfs", "btrfs"])
def cow_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """A file system on which ciuic can freeze files."""
    with disk(request.param, tmp_path) as made:
        yield made


def tensors(seed: int) -> dict[str, bytes]:
    """Return two large tensors and some small ones."""
    dice = random.Random(seed)
    sizes = {"a": 2 * MIB + 1000, "b": 300 * KIB, "c": 90, "d": 5000, "e": 777_777}
    return {name: dice.randbytes(size) for name, size in sizes.items()}


def write_at(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def test_a_file_of_tensors_may_change_in_place_grow_and_be_rewritten(
    cow_disk: Disk,
) -> None:
    box = box_on(cow_disk, chunk_bytes=256 * KIB)
    path = box.source / "model.safetensors"
    content = safetensors(tensors(1))
    path.write_bytes(content)
    box.take()
    settle()

    write_at(path, MIB + 5, b"changed")
    report = box.take()
    assert report.new_bytes <= 16 * BLOCK
    assert report.read_bytes <= report.new_bytes + 4 * KIB
    assert unlike(box) == []
    assert slices(box) > 0
    settle()

    with path.open("ab") as file:
        file.write(b"behind the last tensor" * 1000)
    report = box.take()
    assert report.new_bytes < 256 * KIB
    assert unlike(box) == []
    settle()

    path.write_bytes(safetensors(tensors(1), note="a longer header" * 100))
    report = box.take()
    # ciuic reads the whole file. The store has all its chunks except the one with a changed slice.
    assert report.read_bytes >= len(content)
    assert report.new_bytes <= 256 * KIB + 8 * KIB
    assert unlike(box) == []
    settle()

    report = box.take(base=True)
    assert report.trouble == ()
    assert (unlike(box), slices(box)) == ([], 0)
    assert box.verify().ok


def test_headers_of_a_tracked_file_may_change_and_lie(cow_disk: Disk) -> None:
    box = box_on(cow_disk, chunk_bytes=64 * KIB)
    path = box.source / "model.safetensors"
    content = safetensors(tensors(2))
    path.write_bytes(content)
    box.take()
    for at, data in ((0, b"\xff" * 8), (0, content[:8]), (100, b"}"), (100, content[100:101])):
        settle()
        write_at(path, at, data)
        report = box.take()
        assert report.new_bytes <= 64 * KIB
        assert (report.trouble, unlike(box)) == ((), [])
        settle()
        report = box.take(base=True)
        assert (report.trouble, unlike(box)) == ((), [])


def recut(box: Box) -> None:
    """Change the store's header to cut by tensor. Its recipes still follow the fixed rule."""
    with open_store(str(box.store)) as store:
        old = store.header
    other = box.directory / "other"
    create_store(str(other), box.clock, chunk_bytes=old.chunking.size_bytes)
    chunking = read_header(str(other)).chunking
    new = Header(old.format, old.required, old.store_id, old.created, chunking)
    (box.store / HEADER).write_bytes(new.encode())


@pytest.mark.parametrize("base", [False, True])
def test_recipes_of_another_chunking_are_reused_and_never_reported_as_wrong(
    cow_disk: Disk, *, base: bool
) -> None:
    home = cow_disk.path / "home"
    home.mkdir()
    box = Box(home)
    box.store = home / "older"
    create_store(str(box.store), box.clock, chunk_bytes=64 * KIB, chunking=FIXED)
    box.configure()
    files = {"model.safetensors": safetensors(tensors(3))}
    files["model.pt"] = torch_zip(list(tensors(4).values()))
    for name, data in files.items():
        (box.source / name).write_bytes(data)
    box.take()
    recut(box)
    settle()
    write_at(box.source / "model.safetensors", MIB, b"changed")

    report = box.take(base=base)

    assert report.trouble == ()
    assert unlike(box) == []
    if not base:
        assert report.new_bytes <= 16 * BLOCK
        settle()
        assert box.take(base=True).trouble == ()
        assert unlike(box) == []
    assert slices(box) == 0
    assert box.verify().ok
