"""Rollback on real file systems: exact, fast with shared blocks, and never partial."""

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.box import Box, settle
from tests.kit.chance import drawn_seed
from tests.kit.filesystems import Disk, disk
from tests.kit.program import CIUIC, environment
from tests.kit.trees import Photo, differences, photograph

MIB = 1024 * 1024
BLOCK = 4096

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture(params=["xfs", "btrfs", "ext4"])
def mounted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """An empty file system of each kind; ext4 shares no blocks."""
    with disk(request.param, tmp_path / "disks", size_mib=600) as made:
        yield made


@pytest.fixture
def rng() -> random.Random:
    """Random numbers whose seed is printed, so that a run can be repeated."""
    seed = drawn_seed()
    return random.Random(seed)


def filled(directory: Path, rng: random.Random) -> Box:
    """Return a training directory, and a snapshot of it."""
    box = Box(directory)
    source = box.source
    (source / "runs" / "a").mkdir(parents=True)
    for number in range(30):
        name = source / "runs" / f"shard {number:02}"
        name.write_bytes(rng.randbytes(rng.choice((5, 17_000, 300_000, 2 * MIB + 5))))
    (source / "runs" / "model").write_bytes(rng.randbytes(12 * MIB + 77))
    with (source / "sparse").open("wb") as file:
        file.truncate(40 * MIB)
        for offset in (0, 7 * MIB + BLOCK, 33 * MIB):
            file.seek(offset)
            file.write(rng.randbytes(65_536))
    os.link(source / "runs" / "model", source / "best")
    os.link(source / "sparse", source / "runs" / "a" / "sparse too")
    (source / "latest").symlink_to("runs/model")
    os.mkfifo(source / "pipe")
    (source / "runs" / "model").chmod(0o4750)
    os.setxattr(source / "runs" / "shard 01", "user.tag", b"value")
    os.setxattr(source / "runs" / "a", "user.tag", b"value")
    os.chown(source / "runs" / "shard 02", 1234, 5678)
    subprocess.run(["sync", "-f", source], check=True)
    settle()
    taken = box.ciuic("snapshot")
    assert taken.code == 0, taken.err
    return box


def wreck(source: Path, rng: random.Random) -> None:
    """Damage the directory as a failed training would."""
    for path in sorted((source / "runs").glob("shard*")):
        what = rng.randrange(6)
        if what == 0:
            path.unlink()
        elif what == 1:
            os.truncate(path, rng.randrange(path.stat().st_size + 1))
        elif what == 2:
            with path.open("r+b") as file:
                file.seek(rng.randrange(path.stat().st_size + 1))
                file.write(b"torn")
        elif what == 3:
            path.write_bytes(rng.randbytes(100_000))
        elif what == 4:
            path.unlink()
            path.mkdir()
            (path / "inside").write_bytes(b"new")
    with (source / "runs" / "model").open("r+b") as file:
        file.seek(5 * MIB)
        file.write(rng.randbytes(BLOCK))
    with (source / "sparse").open("r+b") as file:
        file.seek(20 * MIB)
        file.write(b"not a hole any longer")
    (source / "best").unlink()
    (source / "latest").unlink()
    (source / "latest").write_bytes(b"a file now")
    (source / "runs" / "new").write_bytes(rng.randbytes(50_000))
    shutil.rmtree(source / "runs" / "a")


def roll_back(box: Box, *options: str | Path, code: int = 0) -> dict:
    outcome = box.ciuic(
        "restore", "-s", "latest", "-p", box.source, "--overwrite", "--delete", "--json", *options
    )
    assert outcome.code == code, outcome.err
    return outcome.document


def start_rollback(box: Box) -> subprocess.Popen[bytes]:
    command = ("restore", "-s", "latest", "-p", box.source, "--overwrite", "--delete")
    return subprocess.Popen(
        [*CIUIC, "--config", box.config, *command],
        env=environment(),
        cwd="/",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def assert_old_or_new(
    source: Path, old: dict[bytes, Photo], new: dict[bytes, Photo], *, only: str = "content"
) -> None:
    """Check that each file of the snapshot is as before the rollback or as after it."""
    for path, found in photograph(source).items():
        known = {getattr(one[path], only) for one in (old, new) if path in one}
        assert getattr(found, only) in known, path


def test_a_rollback_gives_exactly_the_snapshot(mounted: Disk, rng: random.Random) -> None:
    box = filled(mounted.path, rng)
    before = photograph(box.source)
    wreck(box.source, rng)
    report = roll_back(box)
    assert report["failed"] == []
    assert differences(before, photograph(box.source)) == []
    if mounted.kind != "ext4":
        assert report["cloned_bytes"] > 12 * MIB
    assert roll_back(box)["written_files"] == 0
    # Restore again after everything is removed, from the store alone, and elsewhere.
    shutil.rmtree(box.source)
    assert roll_back(box)["failed"] == []
    assert differences(before, photograph(box.source)) == []
    wreck(box.source, rng)
    assert roll_back(box, "--no-hot")["failed"] == []
    assert differences(before, photograph(box.source)) == []
    roll_back(box, "-d", mounted.path / "elsewhere")
    assert differences(before, photograph(mounted.path / "elsewhere" / "source")) == []


def test_a_rollback_that_is_killed_leaves_files_old_or_new_and_can_be_run_again(
    mounted: Disk, rng: random.Random
) -> None:
    box = filled(mounted.path, rng)
    new = photograph(box.source)
    wreck(box.source, rng)
    start_s = time.monotonic()
    roll_back(box)
    usual_s = time.monotonic() - start_s
    for _ in range(6):
        wreck(box.source, rng)
        old = photograph(box.source)
        process = start_rollback(box)
        time.sleep(usual_s * rng.uniform(0.3, 1.0))
        process.send_signal(signal.SIGKILL)
        process.wait()
        left = list(box.source.rglob(".ciuic-restore-*"))
        for one in left:
            one.unlink()
        assert_old_or_new(box.source, old, new)
        roll_back(box)
        assert differences(new, photograph(box.source)) == []


@pytest.mark.parametrize("mounted", ["xfs", "btrfs"], indirect=True)
def test_a_rollback_survives_reflink_copies_that_vanish_meanwhile(
    mounted: Disk, rng: random.Random
) -> None:
    box = filled(mounted.path, rng)
    before = photograph(box.source)
    area = mounted.path / ".ciuic-frozen"
    trees = list(area.glob("*/trees/*"))
    copies = list(area.glob("*/copies/*"))
    assert trees or copies
    wreck(box.source, rng)
    process = start_rollback(box)
    while process.poll() is None and (trees or copies):
        if copies:
            copies.pop(rng.randrange(len(copies))).unlink()
        else:
            subprocess.run(["btrfs", "-q", "subvolume", "delete", trees.pop()], check=True)
        time.sleep(0.01)
    assert process.wait() == 0
    assert differences(before, photograph(box.source)) == []
    assert roll_back(box)["written_files"] == 0


@pytest.mark.parametrize("mounted", ["xfs", "btrfs"], indirect=True)
def test_a_whole_file_system_is_rolled_back_and_keeps_its_reflink_copies(
    mounted: Disk, tmp_path: Path, rng: random.Random
) -> None:
    """The root is the mount point, so the restored directory contains the frozen area."""
    box = Box(tmp_path)
    box.source = mounted.path
    box.configure()
    for number in range(5):
        (mounted.path / f"shard {number}").write_bytes(rng.randbytes(300_000))
    subprocess.run(["sync", "-f", mounted.path], check=True)
    settle()
    assert box.ciuic("snapshot").code == 0

    def photo() -> dict[bytes, Photo]:
        found = photograph(mounted.path)
        return {path: one for path, one in found.items() if not path.startswith(b".ciuic-frozen")}

    before = photo()
    for _ in range(2):
        for path in mounted.path.glob("shard*"):
            path.write_bytes(b"torn")
        (mounted.path / "new").write_bytes(b"new")
        report = roll_back(box)
        assert (report["failed"], report["cloned_bytes"]) == ([], 1_500_000)
        assert report["deleted_files"] == 1
        assert differences(before, photo()) == []


def test_a_rollback_onto_another_file_system_is_exact(
    mounted: Disk, tmp_path: Path, rng: random.Random
) -> None:
    box = filled(mounted.path, rng)
    with disk("xfs", tmp_path / "other") as other:
        report = roll_back(box, "-d", other.path)
        assert (report["failed"], report["cloned_bytes"]) == ([], 0)
        before = photograph(box.source, holes=False)
        assert differences(before, photograph(other.path / "source", holes=False)) == []
        wreck(other.path / "source", rng)
        assert roll_back(box, "-d", other.path)["failed"] == []
        assert differences(before, photograph(other.path / "source", holes=False)) == []


def test_a_full_file_system_ends_a_rollback_with_files_old_or_new(
    mounted: Disk, rng: random.Random
) -> None:
    box = filled(mounted.path, rng)
    new = photograph(box.source)
    wreck(box.source, rng)
    (box.source / "runs" / "model").unlink()
    old = photograph(box.source)
    mounted.leave_free(0)
    outcome = box.ciuic(
        "restore", "-s", "latest", "-p", box.source, "--overwrite", "--delete", "--json"
    )
    assert outcome.code in {0, 1}
    if outcome.code == 1:
        assert "free space" in outcome.document["error"]["hint"]
    assert_old_or_new(box.source, old, new)
    (mounted.path / "ballast").unlink()
    roll_back(box)
    assert differences(new, photograph(box.source)) == []


def test_a_file_of_ten_thousand_extents_is_rolled_back(mounted: Disk, rng: random.Random) -> None:
    box = Box(mounted.path)
    victim = box.source / "holes"
    with victim.open("wb") as file:
        file.truncate(10_000 * 2 * BLOCK)  # XFS allocates ahead in a file that grows
        for number in range(10_000):
            file.seek(number * 2 * BLOCK)
            file.write(rng.randbytes(BLOCK))
    subprocess.run(["sync", "-f", victim], check=True)
    settle()
    assert box.ciuic("snapshot").code == 0
    before = photograph(box.source)
    with victim.open("r+b") as file:
        for number in rng.sample(range(10_000), 50):
            file.seek(number * 2 * BLOCK)
            file.write(b"torn")
    report = roll_back(box)
    assert report["written_files"] == 1
    assert report["cloned_bytes"] > 0
    assert differences(before, photograph(box.source)) == []
    victim.unlink()
    roll_back(box)
    assert differences(before, photograph(box.source)) == []
    assert roll_back(box)["written_files"] == 0
    if mounted.kind != "ext4":
        assert box.ciuic("verify", "--hot").code == 0


def test_snapshots_of_scattered_changes_are_restored_from_the_store_alone(
    mounted: Disk, rng: random.Random
) -> None:
    """The store has the file as thousands of slices of a few chunks."""
    box = Box(mounted.path)
    victim = box.source / "optimizer"
    victim.write_bytes(rng.randbytes(24 * MIB + 5))
    subprocess.run(["sync", "-f", victim], check=True)
    settle()
    assert box.ciuic("snapshot").code == 0
    with victim.open("r+b") as file:
        for block in rng.sample(range(24 * MIB // BLOCK), 600):
            file.seek(block * BLOCK)
            file.write(rng.randbytes(BLOCK))
    settle()
    assert box.ciuic("snapshot").code == 0
    before = photograph(box.source)
    old = victim.stat().st_ino
    os.utime(victim)
    assert roll_back(box, "--no-hot")["written_files"] == 0
    assert victim.stat().st_ino == old
    for block in (0, 100, 3000):
        with victim.open("r+b") as file:
            file.seek(block * BLOCK + 7)
            file.write(b"torn")
        report = roll_back(box, "--no-hot")
        assert report["written_files"] == 1
        # The rollback takes everything except the torn part from the old file.
        assert report["written_bytes"] - report["cloned_bytes"] <= MIB
        assert differences(before, photograph(box.source)) == []
    os.truncate(victim, 3 * MIB + 9)
    roll_back(box, "--no-hot")
    assert differences(before, photograph(box.source)) == []
    victim.unlink()
    roll_back(box, "--no-hot")
    assert differences(before, photograph(box.source)) == []


@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
def test_a_reported_rollback_from_reflink_copies_survives_a_power_cut(
    kind: str, tmp_path: Path, rng: random.Random
) -> None:
    if kind == "xfs" and shutil.which("xfs_io") is None:
        pytest.skip("xfs_io is not installed")
    with disk(kind, tmp_path / "disks", size_mib=600) as made:
        box = filled(made.path, rng)
        before = photograph(box.source)
        for _ in range(3):
            wreck(box.source, rng)
            assert roll_back(box)["cloned_bytes"] > 12 * MIB
            if kind == "xfs":
                made.cut_power()
                made.unmount()
            else:
                # btrfs has no call that stops it at once. The disk has now what a power cut would
                # leave.
                after = tmp_path / "after.img"
                subprocess.run(["cp", "--sparse=always", made._image, after], check=True)
                made.unmount()
                shutil.move(after, made._image)
            made.mount()
            assert differences(before, photograph(box.source)) == []


def test_a_power_cut_in_a_rollback_from_reflink_copies_leaves_files_old_or_new(
    tmp_path: Path, rng: random.Random
) -> None:
    if shutil.which("xfs_io") is None:
        pytest.skip("xfs_io is not installed")
    with disk("xfs", tmp_path / "disks", size_mib=600) as made:
        box = filled(made.path, rng)
        new = photograph(box.source)
        wreck(box.source, rng)
        start_s = time.monotonic()
        roll_back(box)
        usual_s = time.monotonic() - start_s
        for _ in range(4):
            wreck(box.source, rng)
            subprocess.run(["sync", "-f", box.source], check=True)
            old = photograph(box.source)
            process = start_rollback(box)
            time.sleep(usual_s * rng.uniform(0.4, 1.0))
            made.cut_power()
            process.communicate(timeout=60)
            made.unmount()
            made.mount()
            for one in box.source.rglob(".ciuic-restore-*"):
                one.unlink()
            assert_old_or_new(box.source, old, new)
            roll_back(box)
            assert differences(new, photograph(box.source)) == []
