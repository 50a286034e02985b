"""The disk of the store becomes full while one thread fills a pack and another writes it."""

import os
import subprocess
import threading
from pathlib import Path

import pytest

from ciuic.errors import StoreFullError
from tests.kit.box import Box
from tests.kit.filesystems import tmpfs

MIB = 1024 * 1024


@pytest.mark.root
@pytest.mark.parametrize("parity", [0.0, 0.02])
def test_a_snapshot_that_fills_the_disk_commits_nothing_and_leaves_nothing(
    tmp_path: Path, parity: float
) -> None:
    large = tmp_path / "large"
    large.mkdir()
    for number in range(3):
        (large / f"{number}.bin").write_bytes(os.urandom(7 * MIB))
    with tmpfs(tmp_path / "small", size_mib=14) as small:
        box = Box(small, parity=parity)
        (box.source / "first").write_bytes(b"first")
        box.take()
        before = set(threading.enumerate())
        with pytest.raises(StoreFullError):
            box.take(large)

        assert set(threading.enumerate()) <= before
        assert len(box.snapshots()) == 1
        assert list((box.store / "tmp").iterdir()) == []
        assert box.verify().ok

        subprocess.run(["mount", "-o", "remount,size=64m", small], check=True)
        box.take(large)
        assert box.verify().ok
        for number in range(3):
            assert box.read(large / f"{number}.bin") == (large / f"{number}.bin").read_bytes()
