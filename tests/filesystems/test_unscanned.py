"""Snapshots without a scan, on a real btrfs. Any change in a root causes a scan."""

import mmap
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ciuic.model import ExcludeRules
from ciuic.snapshot.report import TakeReport
from ciuic.source.freeze import freezer
from ciuic.source.freeze.interface import AREA_NAME
from ciuic.system import kernel
from tests.kit.box import Box
from tests.kit.damage import packs
from tests.kit.filesystems import Disk, disk
from tests.kit.program import ciuic
from tests.kit.trees import differences, photograph

MIB = 1024 * 1024

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture
def btrfs(tmp_path: Path) -> Iterator[Disk]:
    with disk("btrfs", tmp_path) as made:
        # If btrfs kept access times, reading a file would change its subvolume.
        made.remount("noatime")
        yield made


@pytest.fixture
def box(tmp_path: Path) -> Box:
    """The store is on a file system without the roots."""
    home = tmp_path / "home"
    home.mkdir()
    return Box(home)


def run(*command: str | Path) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def filled(root: Path) -> Path:
    root.mkdir(exist_ok=True)
    (root / "run").mkdir()
    (root / "run" / "model.pt").write_bytes(os.urandom(2 * MIB + 77))
    (root / "run" / "log.txt").write_text("step 1\n")
    in_place = root / "run" / "in-place.bin"
    in_place.touch()
    run("chattr", "+C", in_place)
    in_place.write_bytes(os.urandom(MIB))
    return root


@pytest.fixture
def root(btrfs: Disk) -> Path:
    """A directory in the top subvolume, where the reflink copies are too."""
    return filled(btrfs.path / "train")


def is_scanned(report: TakeReport) -> bool:
    return not report.unscanned_why


def generation(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY)
    try:
        return kernel.subvolume_info(fd).generation
    finally:
        os.close(fd)


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(5000)
        file.write(b"changed")


def write_direct(path: Path) -> None:
    block = mmap.mmap(-1, 4096)
    block[:] = b"d" * 4096
    fd = os.open(path, os.O_RDWR | os.O_DIRECT)
    try:
        os.pwritev(fd, [block], 0)
    finally:
        os.close(fd)


def write_back_the_times(path: Path) -> None:
    before = path.stat()
    overwrite(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES: dict[str, Callable[[Path], object]] = {
    "a write": lambda run: overwrite(run / "model.pt"),
    "a write in place": lambda run: overwrite(run / "in-place.bin"),
    "a direct write": lambda run: write_direct(run / "model.pt"),
    "a direct write in place": lambda run: write_direct(run / "in-place.bin"),
    "a write with the old time": lambda run: write_back_the_times(run / "model.pt"),
    "a hole": lambda at: run("fallocate", "-p", "-o", "0", "-l", "4096", at / "model.pt"),
    "a mode": lambda run: (run / "log.txt").chmod(0o600),
    "an extended attribute": lambda run: os.setxattr(run / "log.txt", "user.note", b"1"),
    "a new file": lambda run: (run / "new").touch(),
    "a deleted file": lambda run: (run / "log.txt").unlink(),
    "a renamed file": lambda run: (run / "log.txt").rename(run / "log.old"),
    "a reflink copy": lambda at: run("cp", "--reflink=always", at / "model.pt", at / "best.pt"),
    "a new subvolume": lambda at: run("btrfs", "subvolume", "create", at / "inner"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_every_kind_of_change_causes_a_scan(
    what: str, box: Box, root: Path, tmp_path: Path
) -> None:
    box.take(root)
    assert not is_scanned(box.take(root))

    CHANGES[what](root / "run")
    expected = photograph(root, holes=False)
    assert is_scanned(box.take(root))
    box.restore(root, to=tmp_path)

    assert differences(expected, photograph(tmp_path / "train", holes=False)) == []


def test_a_snapshot_without_a_scan_has_everything_that_its_parent_has(
    box: Box, root: Path, tmp_path: Path
) -> None:
    parent = box.take(root)
    before = photograph(root, holes=False)
    reports = [box.take(root), box.take(root, tags=("again",))]
    box.restore(root, to=tmp_path)

    for report in reports:
        assert (report.files, report.logical_bytes) == (parent.files, parent.logical_bytes)
        assert (report.read_bytes, report.new_bytes, report.trouble_count) == (0, 0, 0)
        assert report.as_json()["scanned"] is False
    assert parent.id in reports[0].as_json()["unscanned_why"]
    assert reports[0].id in reports[1].as_json()["unscanned_why"]
    assert differences(before, photograph(tmp_path / "train", holes=False)) == []
    assert box.verify().ok
    shown = ciuic("--store", box.store, "show", "latest")
    assert "without a scan: its subvolume had not changed since the parent" in shown.out


def test_reflink_copies_stay_without_a_scan(box: Box, root: Path, tmp_path: Path) -> None:
    box.take(root)
    box.take(root)
    (root / "run" / "model.pt").unlink()
    place = ("-s", "latest", "-p", root / "run" / "model.pt", "--json")
    outcome = ciuic("--store", box.store, "restore", *place)

    assert outcome.document["cloned_bytes"] > 2 * MIB


def test_no_layout_of_subvolumes_needs_a_scan(box: Box, btrfs: Disk, tmp_path: Path) -> None:
    own = btrfs.path / "own"
    run("btrfs", "subvolume", "create", own)
    roots = [filled(own), filled(btrfs.path / "plain")]

    assert is_scanned(box.take(*roots))
    assert not is_scanned(box.take(*roots))
    overwrite(own / "run" / "model.pt")
    assert is_scanned(box.take(*roots))
    overwrite(btrfs.path / "plain" / "run" / "model.pt")
    assert is_scanned(box.take(*roots))
    assert not is_scanned(box.take(*roots))
    area = btrfs.path / os.fsdecode(AREA_NAME)
    assert area.stat().st_ino == 256
    assert area.stat().st_mode & 0o077 == 0


def test_a_write_through_a_memory_map_is_noticed(box: Box, root: Path, tmp_path: Path) -> None:
    model = root / "run" / "model.pt"
    box.take(root)
    with model.open("r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        assert not is_scanned(box.take(root))  # the program has only mapped it so far
        for _ in range(3):  # from the second write on, the page is writable and no write faults
            view[8192] = (view[8192] + 1) % 256
            assert is_scanned(box.take(root))
        expected = bytes(view)
    box.restore(root, to=tmp_path)

    assert (tmp_path / "train" / "run" / "model.pt").read_bytes() == expected


def test_a_change_right_after_the_check_is_in_the_next_snapshot(
    box: Box, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = root / "run" / "log.txt"
    box.take(root)
    look = freezer.is_unchanged_since

    def look_and_change(*arguments: object) -> bool:
        found = look(*arguments)  # type: ignore[arg-type]
        with log.open("a") as file:
            file.write("step 2\n")
        return found

    monkeypatch.setattr(freezer, "is_unchanged_since", look_and_change)
    assert not is_scanned(box.take(root))
    monkeypatch.undo()
    assert is_scanned(box.take(root))
    box.restore(root, to=tmp_path / "new")

    assert (tmp_path / "new" / "train" / "run" / "log.txt").read_text() == "step 1\nstep 2\n"


def test_another_subvolume_at_the_path_of_the_root_is_scanned(
    box: Box, btrfs: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = btrfs.path / "own", btrfs.path / "other"
    for path in (own, other):
        run("btrfs", "subvolume", "create", path)
        filled(path)
    write_out = freezer.Freezer._write_out

    def write_out_and_change(self: freezer.Freezer, place: bytes) -> None:
        write_out(self, place)
        # This change is in the transaction that ends with the freeze.
        (other / "run" / "log.txt").chmod(0o600)

    monkeypatch.setattr(freezer.Freezer, "_write_out", write_out_and_change)
    box.take(own)
    monkeypatch.undo()
    assert generation(own) == generation(other)
    own.rename(btrfs.path / "old")
    other.rename(own)

    assert is_scanned(box.take(own))


def test_a_subvolume_or_mount_inside_the_root_is_scanned(
    box: Box, root: Path, tmp_path: Path
) -> None:
    box.take(root)
    (root / "mounted").mkdir()
    box.take(root)
    assert not is_scanned(box.take(root))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("1")

    run("mount", "--bind", elsewhere, root / "mounted")
    try:
        for _ in range(2):
            assert is_scanned(box.take(root))
            assert os.fsencode(root / "mounted" / "file") in box.entries()
    finally:
        run("umount", root / "mounted")
    assert is_scanned(box.take(root))
    assert os.fsencode(root / "mounted" / "file") not in box.entries()

    run("btrfs", "subvolume", "create", root / "inner")
    for number in range(3):
        (root / "inner" / f"{number}").touch()
        assert is_scanned(box.take(root))
        assert os.fsencode(root / "inner" / f"{number}") in box.entries()


def test_a_snapshot_scans_if_it_is_full_or_asked_for_something_else(box: Box, root: Path) -> None:
    box.take(root)
    assert not is_scanned(box.take(root))

    assert is_scanned(box.take(root, base=True))
    assert is_scanned(box.take(root, exclude=ExcludeRules(("*.txt",))))
    assert os.fsencode(root / "run" / "log.txt") not in box.entries()
    assert is_scanned(box.take(root))
    assert is_scanned(box.take(root / "run"))


def test_chunks_that_the_store_has_lost_are_stored_again(box: Box, root: Path) -> None:
    box.take(root)
    for pack in packs(box.store):
        pack.unlink()

    report = box.take(root)

    assert is_scanned(report)
    assert report.read_bytes >= 3 * MIB


def test_a_root_that_shares_its_subvolume_with_the_store_is_scanned(btrfs: Disk) -> None:
    home = btrfs.path / "home"
    home.mkdir()
    box = Box(home)
    filled(box.source)
    box.take()

    assert is_scanned(box.take())
