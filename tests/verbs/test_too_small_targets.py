"""A restore says before it begins that its target may be too small."""

import os
from pathlib import Path

import pytest

from tests.kit.box import Box
from tests.kit.filesystems import disk, tmpfs
from tests.kit.program import Outcome

MIB = 1024 * 1024
WARNING = "it may not fit"

pytestmark = pytest.mark.root


@pytest.fixture
def sized(box: Box) -> Box:
    """A snapshot of three files of 4 MiB each, one with two names, and a small one."""
    for name in ("a.bin", "b.bin", "c.bin"):
        (box.source / name).write_bytes(os.urandom(4 * MIB))
    (box.source / "again.bin").hardlink_to(box.source / "a.bin")
    (box.source / "notes.txt").write_bytes(b"small")
    box.take()
    return box


def restore(box: Box, target: Path, *options: str) -> Outcome:
    """Restore the source into a directory."""
    return box.ciuic("restore", "-s", "latest", "-p", box.source, "-d", target, *options)


def test_a_target_that_is_too_small_is_named_before_anything_is_written(sized: Box, tmp_path: Path):
    with tmpfs(tmp_path / "small", size_mib=8) as small:
        dry_run = restore(sized, small, "--dry-run")
        document = restore(sized, small, "--dry-run", "--json").document
        outcome = restore(sized, small)

    expected = f"{small}: has 8.00 MiB available, and up to 12.0 MiB will be written there"
    assert dry_run.code == 0
    assert f"{expected}: {WARNING}" in dry_run.err
    assert [note["path"] for note in document["notes"]] == [str(small)]
    assert outcome.code == 1
    assert outcome.err.startswith(expected)
    assert outcome.err.count(WARNING) == 1


def test_what_fits_is_restored_without_a_warning(sized: Box, tmp_path: Path):
    with tmpfs(tmp_path / "small", size_mib=14) as small:
        outcome = restore(sized, small)

        assert outcome.code == 0, outcome.err
        assert WARNING not in outcome.err
        # All of it is there: nothing more is needed.
        again = restore(sized, small, "--overwrite")
        assert again.code == 0, again.err
        assert WARNING not in again.err
        # A changed file gives its space back.
        (small / sized.source.name / "c.bin").write_bytes(os.urandom(4 * MIB))
        assert WARNING not in restore(sized, small, "--overwrite", "--dry-run").err
        (small / sized.source.name / "b.bin").unlink()
        (small / "other").write_bytes(bytes(3 * MIB))
        assert WARNING in restore(sized, small, "--overwrite", "--dry-run").err


def test_a_target_that_is_a_mount_point_is_measured_itself(sized: Box, tmp_path: Path):
    target = tmp_path / "out" / sized.source.name
    target.mkdir(parents=True)
    with tmpfs(target, size_mib=8):
        outcome = restore(sized, target.parent, "--overwrite", "--dry-run")

    assert f"{target}: has 8.00 MiB available" in outcome.err
    assert WARNING in outcome.err


def test_the_file_system_around_a_mounted_target_is_not_measured(sized: Box, tmp_path: Path):
    with tmpfs(tmp_path / "small", size_mib=1) as small:
        target = small / sized.source.name
        target.mkdir()
        with tmpfs(target, size_mib=32):
            mounted = restore(sized, small, "--overwrite")
        assert mounted.code == 0, mounted.err
        assert WARNING not in mounted.err
        # A symlink is replaced by a directory.
        target.rmdir()
        target.symlink_to(tmp_path)
        linked = restore(sized, small, "--overwrite", "--dry-run")
        assert f"{small}: has 1.00 MiB available" in linked.err


def test_only_what_the_filter_takes_counts(sized: Box, tmp_path: Path):
    with tmpfs(tmp_path / "small", size_mib=8) as small:
        assert WARNING in restore(sized, small, "--exclude", "*.txt", "--dry-run").err
        outcome = restore(sized, small, "--include", "b.*")

    assert outcome.code == 0, outcome.err
    assert WARNING not in outcome.err


def test_a_file_system_that_saves_space_is_not_refused(box: Box, tmp_path: Path):
    with (box.source / "sparse").open("wb") as file:
        file.truncate(64 * MIB)
        file.write(b"start")
    box.take()
    with tmpfs(tmp_path / "small", size_mib=8) as small:
        outcome = restore(box, small)

        assert outcome.code == 0, outcome.err
        assert WARNING in outcome.err
        assert (small / box.source.name / "sparse").stat().st_size == 64 * MIB


def test_blocks_that_are_shared_with_a_reflink_copy_take_no_space(box: Box, tmp_path: Path):
    with disk("xfs", tmp_path, size_mib=320) as mounted:
        box.source = mounted.path / "source"
        box.source.mkdir()
        box.configure()
        (box.source / "model.pt").write_bytes(os.urandom(100 * MIB))
        taken = box.ciuic("snapshot")
        assert taken.code == 0, taken.err
        free = os.statvfs(mounted.path)
        spare_bytes = free.f_bavail * free.f_frsize - 40 * MIB
        (mounted.path / "filler").write_bytes(bytes(spare_bytes))
        shared = restore(box, mounted.path / "new")
        copied = restore(box, mounted.path / "copied", "--no-hot", "--dry-run")

        assert shared.code == 0, shared.err
        assert WARNING not in shared.err
        assert WARNING in copied.err
