"""A disk that is full or read-only makes saves fail, but never the training."""

import os
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest

from ciuic import SnapshotManager
from ciuic.errors import ReadOnlyError, StoreFullError
from tests.kit.filesystems import Disk, disk

pytestmark = pytest.mark.root
MIB = 1024 * 1024


@pytest.fixture
def place(tmp_path):
    with disk("ext4", tmp_path / "disk", size_mib=96) as made:
        yield made


def random_mib(seed: int, size_mib: int) -> np.ndarray:
    """Return bytes that no codec makes smaller."""
    return np.random.default_rng(seed).integers(0, 256, size_mib * MIB, np.uint8)


def save(manager: SnapshotManager, step: int):
    """Begin to save 3 MiB of weights, and 14 MiB that only a resumed run needs."""
    model, optimizer = {"w": random_mib(step, 3)}, {"m": random_mib(-step % 1000 + 1000, 14)}
    return manager.save_snapshot(model, optimizer, step=step)


def used_bytes(store: Path) -> int:
    return sum(path.stat().st_size for path in store.rglob("*") if path.is_file())


def fill(place: Disk, free_mib: int) -> None:
    place.leave_free(free_mib * MIB)


def saved(manager: SnapshotManager) -> list[tuple[int | None, str]]:
    return [(found.step, found.channel) for found in manager.list()]


def test_a_full_disk_costs_the_optimizer_then_the_save_and_the_next_one_recovers(place):
    store = place.path / "store"
    with SnapshotManager(store) as manager:
        assert save(manager, 1).wait()
        fill(place, 9)
        handle = save(manager, 2)
        with pytest.warns(RuntimeWarning, match="the disk is full: cs-.* has the weights"):
            assert saved(manager) == [(2, "weights"), (1, "full")]
        assert handle.is_reduced
        assert handle.id == manager.list()[0].id
        latest = manager.load_latest_snapshot(channel="weights")
        assert latest["step"] == 2
        assert np.array_equal(latest["model_state_dict"]["w"], random_mib(2, 3))
        assert sorted(latest) == ["epoch", "metrics", "model_state_dict", "step"]
        assert manager.load_latest_snapshot()["step"] == 1

        fill(place, 0)
        before = used_bytes(store)
        for step in (3, 4):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                handle = save(manager, step)
            messages = [str(one.message) for one in caught if "ciuic" in str(one.message)]
            assert len(messages) == step - 3, messages
            assert all("a state was not saved" in message for message in messages)
        with pytest.raises(StoreFullError):
            handle.wait()
        assert handle.id is None
        # The attempts have left nothing behind that would fill the disk.
        assert used_bytes(store) <= before + MIB // 2
        assert saved(manager) == [(2, "weights"), (1, "full")]
        save(manager, 5)
        with pytest.raises(StoreFullError):
            manager.wait()

        (place.path / "ballast").unlink()
        assert save(manager, 6).wait()
        assert saved(manager) == [(6, "full"), (2, "weights"), (1, "full")]
        assert manager.verify()["ok"]


def test_the_last_save_that_found_no_space_is_raised_when_the_manager_is_closed(place):
    manager = SnapshotManager(place.path / "store")
    save(manager, 1).wait()
    fill(place, 0)
    save(manager, 2)
    with pytest.raises(StoreFullError):
        manager.close()


def test_the_oldest_snapshot_makes_room_on_a_disk_that_holds_no_further_one(place):
    with SnapshotManager(place.path / "store", max_snapshots=2) as manager:
        for step in (1, 2):
            save(manager, step).wait()
        fill(place, 6)
        handle = save(manager, 3)
        handle.wait()
        assert not handle.is_reduced
        assert saved(manager) == [(3, "full"), (2, "full")]
        assert manager.verify()["ok"]


def test_what_a_killed_writer_has_left_makes_room_for_the_weights(place, tmp_path):
    with SnapshotManager(place.path / "store") as manager:
        save(manager, 1).wait()
    shutil.copytree(place.path / "store", tmp_path / "other")
    with SnapshotManager(tmp_path / "other") as other:
        save(other, 2).wait()
    # A pack that is complete, and no snapshot: the writer was killed before the commit.
    for pack in (tmp_path / "other" / "packs").iterdir():
        if not (place.path / "store" / "packs" / pack.name).exists():
            shutil.copy(pack, place.path / "store" / "packs")
    with SnapshotManager(place.path / "store") as manager:
        assert saved(manager) == [(1, "full")]
        fill(place, 3)
        handle = save(manager, 3)
        with pytest.warns(RuntimeWarning, match="the disk is full"):
            manager.wait()
        assert handle.is_reduced
        assert saved(manager) == [(3, "weights"), (1, "full")]


def test_a_disk_that_became_read_only_ends_nothing_and_still_loads(place):
    with SnapshotManager(place.path / "store") as manager:
        save(manager, 1).wait()
        os.sync()
        place.remount("ro")
        try:
            save(manager, 2)
            with pytest.warns(RuntimeWarning, match="a state was not saved: .*[Rr]ead-only"):
                handle = save(manager, 3)
            with pytest.raises(ReadOnlyError):
                handle.wait()
            latest = manager.load_latest_snapshot()
            assert latest["step"] == 1
        finally:
            place.remount("rw")
        assert save(manager, 4).wait()
        assert saved(manager) == [(4, "full"), (1, "full")]
