"""Changes are tracked in files cut by content: ciuic reads few bytes and misses no change."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciuic.snapshot.read import recipe_reuse
from ciuic.store.records.header import CONTENT
from tests.filesystems.test_tracked_snapshots import box_on, slices, unlike
from tests.filesystems.test_tracked_tensors import write_at
from tests.kit.box import settle
from tests.kit.filesystems import Disk, disk

KIB = 1024
MIB = 1024 * KIB
BLOCK = 4096
CHUNK = 64 * KIB

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture(params=["xfs", "btrfs"])
def cow_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """A file system on which ciuic can freeze files."""
    with disk(request.param, tmp_path) as made:
        yield made


def test_a_write_in_place_stores_its_blocks_and_a_full_snapshot_cuts_the_file_again(
    cow_disk: Disk,
) -> None:
    box = box_on(cow_disk, chunk_bytes=CHUNK, chunking=CONTENT)
    path = box.source / "memory.bin"
    path.write_bytes(random.Random(1).randbytes(4 * MIB))
    box.take()
    for at in (5, MIB + 5, 3 * MIB):
        settle()
        write_at(path, at, b"changed")
        report = box.take()
        assert report.new_bytes <= 4 * BLOCK
        assert report.read_bytes <= report.new_bytes + 4 * KIB
        assert (report.trouble, unlike(box)) == ((), [])
    assert slices(box) > 0
    settle()
    report = box.take(base=True)
    assert (report.trouble, unlike(box), slices(box)) == ((), [], 0)
    assert report.new_bytes <= 3 * 4 * CHUNK
    assert box.verify().ok


def test_appended_chunks_are_found_again_when_the_start_of_the_file_is_removed(
    cow_disk: Disk,
) -> None:
    box = box_on(cow_disk, chunk_bytes=CHUNK, chunking=CONTENT)
    path = box.source / "train.log"
    parts = [random.Random(one).randbytes(MIB + 77 * one) for one in range(4)]
    path.write_bytes(parts[0])
    box.take()
    for part in parts[1:]:
        settle()
        with path.open("ab") as file:
            file.write(part)
        report = box.take()
        assert report.new_bytes <= len(part) + BLOCK
        assert report.read_bytes <= len(part) + 2 * BLOCK
    settle()
    whole = b"".join(parts)
    path.write_bytes(whole[300_001:])
    report = box.take()
    assert (report.trouble, unlike(box)) == ((), [])
    # The new chunks are the one at the new start, and two or three at the end of each part.
    assert report.new_bytes <= 12 * CHUNK
    settle()
    report = box.take(base=True)
    assert (report.trouble, unlike(box)) == ((), [])


def test_a_full_snapshot_finds_a_change_that_tracking_missed(
    cow_disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = box_on(cow_disk, chunk_bytes=CHUNK, chunking=CONTENT)
    path = box.source / "memory.bin"
    path.write_bytes(random.Random(2).randbytes(2 * MIB))
    box.take()
    settle()
    write_at(path, MIB, b"changed")
    monkeypatch.setattr(recipe_reuse, "changed_ranges", lambda *_: [])
    report = box.take(base=True)
    assert [one.path for one in report.trouble] == [os.fsencode(path)]
    assert "missed a change" in report.trouble[0].what
    assert unlike(box) == []
