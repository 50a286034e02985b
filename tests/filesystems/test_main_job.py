"""Snapshots and restores on real file systems, on a full store, and on a read-only store."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.box import Box, settle
from tests.kit.filesystems import Disk, disk
from tests.kit.program import Outcome, ciuic
from tests.kit.trees import Photo, data_ranges, differences, photograph

MIB = 1024 * 1024

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture(params=["ext4", "xfs", "btrfs"])
def mounted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """An empty file system of each kind."""
    with disk(request.param, tmp_path) as made:
        yield made


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Disk]:
    """A small file system."""
    with disk("ext4", tmp_path, size_mib=24) as made:
        yield made


class Store:
    """A store on one file system, a source there or elsewhere, and the command line."""

    def __init__(self, store: Path, source: Path, config: Path) -> None:
        self.store, self.source, self.config = store, source, config
        source.mkdir(exist_ok=True)
        config.write_text(f"snapshot_paths = {source}\nsnapshot_dir = {store}\nbase_interval = 0\n")

    def run(self, *arguments: str | Path, code: int = 0) -> Outcome:
        outcome = ciuic("--config", self.config, *arguments)
        assert outcome.code == code, (arguments, outcome.err)
        return outcome

    def restore(self, snapshot: str, out: Path) -> dict[bytes, Photo]:
        self.run("restore", "-s", snapshot, "-p", self.source, "-d", out)
        return photograph(out / self.source.name)


def fill(source: Path) -> None:
    """Write a training directory that has every kind of file that this file system supports."""
    (source / "runs" / "a").mkdir(parents=True)
    (source / "runs" / "model.pt").write_bytes(os.urandom(9 * MIB + 77))
    (source / "runs" / "zeros.bin").write_bytes(bytes(2 * MIB))
    with (source / "runs" / "sparse").open("wb") as file:
        file.truncate(40 * MIB)
        for offset in (0, 7 * MIB + 4096, 33 * MIB):
            file.seek(offset)
            file.write(os.urandom(65_536))
    for number in range(200):
        (source / "runs" / "a" / f"step {number}.log").write_bytes(b"loss %d\n" % number * number)
    os.link(source / "runs" / "model.pt", source / "best.pt")
    (source / "latest").symlink_to("runs/model.pt")
    os.mkfifo(source / "pipe")
    (source / "runs" / "model.pt").chmod(0o4750)
    os.setxattr(source / "runs" / "a", "user.tag", b"value")
    os.utime(source / "runs" / "zeros.bin", ns=(-1, -1_234_567_891))
    os.chown(source / "runs" / "a" / "step 1.log", 1234, 5678)
    subprocess.run(["sync", "-f", source], check=True)


def stretches(path: Path) -> tuple[tuple[int, int], ...]:
    """Sync a file; return the ranges of its data, between its holes."""
    subprocess.run(["sync", "-f", path], check=True)
    with path.open("rb") as file:
        return data_ranges(file.fileno(), path.stat().st_size)


def test_the_main_job_runs_on_every_kind_of_file_system(mounted: Disk, tmp_path: Path) -> None:
    place = Store(mounted.path / "store", mounted.path / "source", tmp_path / "ciuic.conf")
    fill(place.source)
    settle()
    before = photograph(place.source)
    place.run("init")
    first = place.run("snapshot", "--json").document
    assert [one["id"] for one in place.run("list", "--json").document] == [first["id"]]
    place.run("verify", "--checksum")
    out = mounted.path / "out"
    assert differences(before, place.restore("latest", out)) == []
    for name in ("sparse", "zeros.bin"):
        assert stretches(out / "source" / "runs" / name) == stretches(place.source / "runs" / name)
    second = place.run("snapshot", "--json").document
    assert (second["read_bytes"], second["new_bytes"]) == (0, 0)
    # A torn checkpoint, as a killed training leaves one.
    os.truncate(place.source / "runs" / "model.pt", 5 * MIB)
    with (place.source / "runs" / "sparse").open("r+b") as file:
        file.seek(7 * MIB + 4096)
        file.write(b"torn")
    options = ("-p", place.source, "--overwrite", "--json")
    report = place.run("restore", "-s", first["id"], *options).document
    assert report["failed"] == []
    # the restore writes sparse and model.pt, and links best.pt to the new model.pt
    assert report["written_files"] == 3
    assert report["cloned_bytes"] >= 4 * MIB  # each change also costs the chunks around it
    assert differences(before, photograph(place.source)) == []
    again = place.run("restore", "-s", first["id"], *options).document
    assert again["written_files"] == 0
    place.run("verify", "--all", "--checksum")


def test_a_store_survives_being_unmounted(mounted: Disk, tmp_path: Path) -> None:
    place = Store(mounted.path / "store", mounted.path / "source", tmp_path / "ciuic.conf")
    fill(place.source)
    before = photograph(place.source)
    place.run("init")
    taken = place.run("snapshot", "--json").document["id"]
    mounted.unmount()
    place.run("list", code=1)
    mounted.mount()
    place.run("verify", "--all", "--checksum")
    assert differences(before, place.restore(taken, mounted.path / "out")) == []
    # Device numbers may differ after a mount. That alone is no change.
    assert place.run("snapshot", "--json").document["read_bytes"] == 0


def test_a_store_on_a_read_only_mount_is_listed_verified_and_restored(
    mounted: Disk, tmp_path: Path
) -> None:
    place = Store(mounted.path / "store", tmp_path / "source", tmp_path / "ciuic.conf")
    fill(place.source)
    before = photograph(place.source, holes=False)
    place.run("init")
    place.run("snapshot")
    mounted.remount("ro")
    refused = place.run("snapshot", code=1)
    assert "Read-only file system" in refused.err
    assert len(refused.err.splitlines()) <= 2
    assert len(place.run("list", "--machine-readable").out.splitlines()) == 1
    place.run("ls", "-R", "latest")
    mounted.remount("rw")
    for name in ("catalog.sqlite", "lock.read", "lock.write"):
        (place.store / name).unlink(missing_ok=True)
    mounted.remount("ro")
    assert len(place.run("list", "--machine-readable").out.splitlines()) == 1
    place.run("stats")
    place.run("verify", "--all", "--checksum")
    place.run("restore", "-s", "latest", "-p", place.source, "-d", tmp_path / "out")
    after = photograph(tmp_path / "out" / "source", holes=False)
    assert differences(before, after) == []


@pytest.mark.parametrize("small_files", [False, True])
def test_a_store_that_fills_up_ends_the_snapshot_and_loses_nothing(
    small_disk: Disk, tmp_path: Path, small_files: bool
) -> None:
    place = Store(small_disk.path / "store", tmp_path / "source", tmp_path / "ciuic.conf")
    (place.source / "first").write_bytes(os.urandom(2 * MIB))
    place.run("init")
    first = place.run("snapshot", "--json").document["id"]
    before = photograph(place.source)
    ballast = small_disk.path / "ballast"
    ballast.write_bytes(bytes(8 * MIB))
    if small_files:
        for number in range(200):
            (place.source / f"more {number}").write_bytes(os.urandom(100_000))
    else:
        (place.source / "more").write_bytes(os.urandom(20 * MIB))
    for _ in range(2):
        outcome = place.run("snapshot", "--json", code=1)
        assert outcome.document["error"]["kind"] == "store_full"
        assert "No space left" in outcome.document["error"]["message"]
        assert "Free space" in outcome.document["error"]["hint"]
        assert len(outcome.err.splitlines()) == 2
        assert [one["id"] for one in place.run("list", "--json").document] == [first]
        place.run("verify", "--all", "--checksum")
    assert os.listdir(place.store / "tmp") == []
    out = tmp_path / "out"
    assert differences(before, place.restore(first, out)) == []
    ballast.unlink()
    (place.source / "first").unlink()
    if not small_files:
        os.truncate(place.source / "more", 6 * MIB)
    else:
        for number in range(60, 200):
            (place.source / f"more {number}").unlink()
    place.run("snapshot")
    place.run("verify", "--all", "--checksum")
    assert differences(photograph(place.source), place.restore("latest", tmp_path / "out 2")) == []


@pytest.mark.parametrize("left_kib", [0, 16, 64, 200])
def test_a_nearly_full_disk_never_makes_ciuic_commit_half_a_snapshot(
    small_disk: Disk, tmp_path: Path, left_kib: int
) -> None:
    """The disk runs full while ciuic writes a pack, the chunk index or the manifest."""
    place = Store(small_disk.path / "store", tmp_path / "source", tmp_path / "ciuic.conf")
    for number in range(150):
        (place.source / f"{number} {'x' * 100}").write_bytes(b"%d" % number)
    place.run("init")
    place.run("snapshot")
    for number in range(150):
        (place.source / f"{number} {'x' * 100}").write_bytes(b"%d again" % number)
    (place.source / "more").write_bytes(os.urandom(30_000))
    small_disk.leave_free(left_kib * 1024)
    outcome = ciuic("--config", place.config, "snapshot", "--json")
    assert outcome.code in {0, 1}, outcome.err
    count = 2 if outcome.code == 0 else 1
    assert len(place.run("list", "--json").document) == count
    place.run("verify", "--all", "--checksum")
    if outcome.code == 1:
        assert outcome.document["error"]["kind"] == "store_full"
    (small_disk.path / "ballast").unlink()
    place.run("snapshot")
    place.run("verify", "--all", "--checksum")
    after = place.restore("latest", tmp_path / "out")
    assert differences(photograph(place.source), after) == []


def test_a_store_cannot_be_created_on_a_full_disk(small_disk: Disk) -> None:
    small_disk.leave_free(0)
    store = small_disk.path / "store"
    outcome = ciuic("--store", store, "init")
    assert outcome.code == 1
    assert "No space left" in outcome.err
    (small_disk.path / "ballast").unlink()
    assert ciuic("--store", store, "init").code == 0
    assert ciuic("--store", store, "list").code == 0


@pytest.mark.parametrize("kind", ["btrfs", "xfs"])
def test_unchanged_ranges_of_a_large_file_share_their_blocks_with_the_old_one(
    kind: str, tmp_path: Path
) -> None:
    with disk(kind, tmp_path, size_mib=420) as mounted:
        box = Box(mounted.path)
        (box.source / "model").write_bytes(os.urandom(100 * MIB))
        box.take()
        with (box.source / "model").open("r+b") as file:
            file.write(b"torn")
            os.fsync(file.fileno())
        # There is too little free space for a second complete copy.
        mounted.leave_free(40 * MIB)
        report = box.restore(overwrite=True)
        assert report.cloned_bytes == 99 * MIB
        assert report.failed == []
