"""Reflink copies: what they restore, when ciuic does not trust them, and life without them."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciuic.catalog import find_snapshot
from ciuic.model import BEING_WRITTEN
from ciuic.restore.report import RestoreReport
from ciuic.restore.restore import restore
from ciuic.restore.targets import RestoreRequest
from ciuic.store.store import open_store
from ciuic.view.reflinks import ReflinkCopies
from tests.kit.box import Box
from tests.kit.damage import flip_content
from tests.kit.filesystems import Disk, disk
from tests.kit.trees import differences, photograph, status_tree

MIB = 1024 * 1024
BLOCK = 4096

pytestmark = pytest.mark.root


@pytest.fixture(params=["xfs", "btrfs"])
def mounted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """A file system with reflinks: copies of files, and subvolumes."""
    with disk(request.param, tmp_path / "disks") as made:
        yield made


@pytest.fixture
def hot(mounted: Disk) -> Iterator[Box]:
    """A small tree with large files, and a snapshot of it with reflink copies."""
    yield filled(Box(mounted.path))


@pytest.fixture
def xfs(tmp_path: Path) -> Iterator[Box]:
    """The same with a copy for each file."""
    with disk("xfs", tmp_path / "disks") as made:
        yield filled(Box(made.path))


def filled(box: Box) -> Box:
    write(box.source / "model", random_bytes(3 * MIB + 77))
    write(box.source / "middle", random_bytes(200_000))
    write(box.source / "sub" / "small", b"small")
    with (box.source / "holes").open("wb") as file:
        file.truncate(9 * MIB)
        file.seek(4 * MIB)
        file.write(random_bytes(3 * BLOCK))
    subprocess.run(["sync", "-f", box.source], check=True)
    box.take()
    return box


def random_bytes(count: int) -> bytes:
    return os.urandom(count)


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def roll_back(box: Box, *, to: Path | None = None, hot: bool = True) -> RestoreReport:
    request = RestoreRequest(
        (os.fsencode(box.source),),
        destination=None if to is None else os.fsencode(to),
        overwrite=True,
        delete=True,
        hot=hot,
    )
    with open_store(str(box.store)) as store:
        manifest = store.manifest(find_snapshot(store, "latest").id)
        return restore(store, manifest, request, clock=box.clock)


@contextlib.contextmanager
def copy_of(box: Box, path: Path) -> Iterator[int | None]:
    """The descriptor of the reflink copy that a restore would use."""
    entry = box.entries()[os.fsencode(path)]
    with open_store(str(box.store)) as store:
        copies = ReflinkCopies(store, store.manifest(find_snapshot(store, "latest").id))
        fd = copies.open(os.fsencode(path), entry)
        try:
            yield fd
        finally:
            copies.close()
            if fd is not None:
                os.close(fd)


def place_of_copy(box: Box, path: Path) -> Path:
    with copy_of(box, path) as fd:
        return Path(os.readlink(f"/proc/self/fd/{fd}"))


# Uses


def test_holes_come_back_where_zeros_were_written(hot: Box) -> None:
    before = photograph(hot.source)
    path = hot.source / "holes"
    path.write_bytes(path.read_bytes())
    assert differences(photograph(hot.source), before) != []
    report = roll_back(hot)
    assert (report.written_files, report.cloned_bytes) == (1, path.stat().st_size)
    assert differences(photograph(hot.source), before) == []
    assert roll_back(hot).written_files == 0


def test_a_file_that_is_gone_comes_back_by_sharing_blocks(hot: Box) -> None:
    before = photograph(hot.source)
    for name in ("model", "middle", "holes"):
        (hot.source / name).unlink()
    report = roll_back(hot)
    assert report.failed == []
    assert report.written_files == 3
    assert report.cloned_bytes == report.written_bytes == 12 * MIB + 77 + 200_000
    assert differences(before, photograph(hot.source)) == []


def test_a_file_that_differs_in_one_block_is_replaced_whole(hot: Box) -> None:
    before = photograph(hot.source)
    with (hot.source / "model").open("r+b") as file:
        file.seek(MIB)
        file.write(b"torn")
    old = (hot.source / "model").stat().st_ino
    report = roll_back(hot)
    assert (report.written_files, report.cloned_bytes) == (1, 3 * MIB + 77)
    assert (hot.source / "model").stat().st_ino != old
    assert differences(before, photograph(hot.source)) == []


@pytest.mark.parametrize("size", [0, BLOCK, 2 * MIB, 4 * MIB])
def test_a_file_of_another_length_is_replaced(hot: Box, size: int) -> None:
    before = photograph(hot.source)
    os.truncate(hot.source / "model", size)
    report = roll_back(hot)
    assert report.cloned_bytes == 3 * MIB + 77
    assert differences(before, photograph(hot.source)) == []


@pytest.mark.parametrize("shares", [True, False])
def test_a_file_that_is_right_is_left_alone_whether_it_shares_blocks_or_not(
    hot: Box, shares: bool
) -> None:
    model = hot.source / "model"
    data = model.read_bytes()
    if not shares:
        model.unlink()
        model.write_bytes(data)
    os.utime(model, ns=(1, 1))
    old = model.stat().st_ino
    report = roll_back(hot)
    assert (report.written_files, model.stat().st_ino) == (0, old)
    assert model.stat().st_mtime_ns != 1
    again = model.stat().st_ctime_ns
    assert roll_back(hot).written_files == 0
    assert model.stat().st_ctime_ns == again


def test_a_dry_run_tells_what_a_rollback_does(hot: Box) -> None:
    (hot.source / "model").unlink()
    before = status_tree(hot.source)
    arguments = ("restore", "-s", "latest", "-p", hot.source, "--overwrite", "--json")
    foretold = hot.ciuic(*arguments, "--dry-run").document
    assert status_tree(hot.source) == before
    done = hot.ciuic(*arguments).document
    for key in ("written_files", "written_bytes", "cloned_bytes", "kept_files"):
        assert foretold[key] == done[key], key
    assert done["cloned_bytes"] == 3 * MIB + 77


def test_a_dry_run_into_a_new_place_shows_what_would_come_from_reflink_copies(hot: Box) -> None:
    for place in (hot.directory / "new", hot.directory / "new" / "er" / "still"):
        arguments = ("restore", "-s", "latest", "-p", hot.source, "-d", place, "--json")
        foretold = hot.ciuic(*arguments, "--dry-run").document
        assert not place.exists()
        done = hot.ciuic(*arguments).document
        for key in ("written_files", "written_bytes", "cloned_bytes", "kept_files"):
            assert foretold[key] == done[key], key
        assert done["cloned_bytes"] == 12 * MIB + 77 + 200_000
        no_hot = hot.ciuic(*arguments[:-1], "--no-hot", "--overwrite", "--dry-run", "--json")
        assert no_hot.document["cloned_bytes"] == 0
    elsewhere = ("-d", "/dev/shm/ciuic-nowhere", "--dry-run", "--json")
    other = hot.ciuic("restore", "-s", "latest", "-p", hot.source, *elsewhere).document
    assert (other["cloned_bytes"], other["written_bytes"]) == (0, done["written_bytes"])


def test_no_hot_reads_the_store_and_gives_the_same_trees(hot: Box) -> None:
    out = hot.directory / "out"
    arguments = ("restore", "-s", "latest", "-p", hot.source, "--json", "-d")
    by_clone = hot.ciuic(*arguments, out / "a").document
    by_store = hot.ciuic(*arguments, out / "b", "--no-hot").document
    assert by_clone["cloned_bytes"] > by_store["cloned_bytes"] == 0
    assert by_clone["written_bytes"] == by_store["written_bytes"]
    one, other = (photograph(out / name / "source") for name in "ab")
    assert differences(one, other) == []


def test_a_reflink_copy_is_restored_although_the_store_is_damaged(hot: Box) -> None:
    data = (hot.source / "model").read_bytes()
    flip_content(hot.store, data[:MIB])
    (hot.source / "model").unlink()
    arguments = ("restore", "-s", "latest", "-p", hot.source, "--overwrite")
    assert hot.ciuic(*arguments, "--no-hot").code == 4
    assert hot.ciuic(*arguments).code == 0
    assert (hot.source / "model").read_bytes() == data


def test_writing_to_a_restored_file_does_not_change_its_reflink_copy(hot: Box) -> None:
    data = (hot.source / "model").read_bytes()
    for place in (0, 777_777, 2 * MIB - 1):
        with (hot.source / "model").open("r+b") as file:
            file.seek(place)
            file.write(b"torn")
            file.truncate(3 * MIB)
        assert roll_back(hot).cloned_bytes == len(data)
        assert (hot.source / "model").read_bytes() == data


# Copies that are not trusted


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(MIB)
        file.write(b"tampered")


def overwrite_and_set_times(path: Path) -> None:
    status = path.stat()
    overwrite(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace(path: Path) -> None:
    path.rename(path.with_name("kept"))
    path.write_bytes(random_bytes(3 * MIB + 77))


def replace_by_symlink(path: Path) -> None:
    secret = write(path.parents[4] / "secret", random_bytes(3 * MIB + 77))
    path.unlink()
    path.symlink_to(secret)


def replace_by_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def lengthen(path: Path) -> None:
    os.truncate(path, 4 * MIB)


def cut_and_lengthen(path: Path) -> None:
    os.truncate(path, 0)
    os.truncate(path, 3 * MIB + 77)


TAMPERED = [
    overwrite,
    overwrite_and_set_times,
    replace,
    replace_by_symlink,
    replace_by_fifo,
    lengthen,
    cut_and_lengthen,
    lambda path: os.truncate(path, MIB),
    lambda path: path.unlink(),
    lambda path: path.touch(),
    lambda path: path.chmod(0o600),
]


@pytest.mark.parametrize("tamper", TAMPERED, ids=lambda one: one.__name__)
def test_a_changed_reflink_copy_is_not_used_and_the_file_comes_from_the_store(
    xfs: Box, tamper
) -> None:
    before = photograph(xfs.source)
    tamper(place_of_copy(xfs, xfs.source / "model"))
    (xfs.source / "model").unlink()
    (xfs.source / "middle").unlink()
    report = roll_back(xfs)
    assert report.failed == []
    assert report.cloned_bytes == 200_000
    assert differences(before, photograph(xfs.source)) == []
    proof = xfs.ciuic("verify", "--hot", "--json")
    assert proof.code == 4
    damaged = proof.document["snapshots"][0]["damaged"]
    assert [one["path"] for one in damaged] == [str(xfs.source / "model")]
    assert "reflink copy" in damaged[0]["what"]


def test_a_frozen_subvolume_that_was_changed_is_not_used(tmp_path: Path) -> None:
    with disk("btrfs", tmp_path / "disks") as made:
        box = filled(Box(made.path))
        before = photograph(box.source)
        copy = place_of_copy(box, box.source / "model")
        tree = next(one for one in copy.parents if one.parent.name == "trees")
        status = copy.stat()
        subprocess.run(["btrfs", "property", "set", "-f", tree, "ro", "false"], check=True)
        overwrite(copy)
        os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
        subprocess.run(["btrfs", "property", "set", tree, "ro", "true"], check=True)
        (box.source / "model").unlink()
        report = roll_back(box)
        assert report.cloned_bytes == 0
        assert differences(before, photograph(box.source)) == []
        proof = box.ciuic("verify", "--hot")
        assert proof.code == 4
        assert str(box.source) in proof.out


def test_a_restore_works_after_all_reflink_copies_were_deleted(hot: Box) -> None:
    before = photograph(hot.source)
    area = place_of_copy(hot, hot.source / "model")
    while area.name != ".ciuic-frozen":
        area = area.parent
    for tree in area.glob("*/trees/*"):
        subprocess.run(["btrfs", "subvolume", "delete", tree], check=True, capture_output=True)
    subprocess.run(["rm", "-rf", area], check=True)
    (hot.source / "model").unlink()
    report = roll_back(hot)
    assert (report.failed, report.cloned_bytes) == ([], 0)
    assert differences(before, photograph(hot.source)) == []
    proof = hot.ciuic("verify", "--hot")
    assert proof.code == 0
    assert "no reflink copies" in proof.out


def test_a_reflink_copy_of_a_file_that_was_being_written_is_not_used(hot: Box) -> None:
    model = hot.source / "model"
    with model.open("r+b") as file:
        file.write(b"being written")
        file.flush()
        hot.take()
        assert hot.entries()[os.fsencode(model)].state == BEING_WRITTEN
    data = model.read_bytes()
    model.unlink()
    report = roll_back(hot)
    assert report.cloned_bytes == 0
    assert report.flux == [os.fsencode(model)]
    assert model.read_bytes() == data


def test_a_hostile_store_gets_no_other_file_out_of_the_frozen_area(hot: Box) -> None:
    write(hot.directory / "secret", random_bytes(MIB))
    subprocess.run(["sync", "-f", hot.directory], check=True)
    hot.take()  # a frozen subvolume holds the secret too
    entries = hot.entries()
    model, middle = (os.fsencode(hot.source / name) for name in ("model", "middle"))
    status = (hot.directory / "secret").stat()
    forged = entries[model]
    forged.ino, forged.ctime_ns = status.st_ino, status.st_ctime_ns
    forged.mtime_ns, forged.size_bytes = status.st_mtime_ns, status.st_size
    with open_store(str(hot.store)) as store:
        copies = ReflinkCopies(store, store.manifest(find_snapshot(store, "latest").id))
        try:
            for path in (
                model,
                os.fsencode(hot.source) + b"/../secret",
                os.fsencode(hot.source) + b"/sub/../../secret",
                os.fsencode(hot.directory / "secret"),
                b"/etc/passwd",
                os.fsencode(hot.source),
            ):
                assert copies.open(path, forged) is None, path
            fd = copies.open(middle, entries[middle])
            assert fd is not None  # a valid request is answered
            os.close(fd)
        finally:
            copies.close()


def test_extents_of_another_file_system_prove_nothing(tmp_path: Path) -> None:
    """On a copy of the disk, a file with other bytes is at the same place."""
    with disk("xfs", tmp_path / "disks") as made:
        box = Box(made.path)
        shutil.move(box.store, tmp_path / "store")
        box.store = tmp_path / "store"
        filled(box)
        subprocess.run(["sync", "-f", made.path], check=True)
        twin, image = tmp_path / "twin", tmp_path / "twin.img"
        twin.mkdir()
        made.unmount()
        subprocess.run(["cp", "--sparse=always", made._image, image], check=True)
        made.mount()
        mount = ["mount", "-o", "loop,nouuid", image, twin]
        subprocess.run(mount, check=True)
        try:
            # No other file shares its blocks there: it can be written in place.
            subprocess.run(["rm", "-rf", twin / ".ciuic-frozen"], check=True)
            subprocess.run(["umount", twin], check=True)
            subprocess.run(mount, check=True)
            with (twin / "source" / "model").open("r+b") as file:
                file.write(b"other")
            subprocess.run(["sync", "-f", twin], check=True)
            roll_back(box, to=twin)
            assert differences(photograph(box.source), photograph(twin / "source")) == []
        finally:
            subprocess.run(["umount", twin], check=True)


# Verification


def test_verify_hot_reads_every_copy(hot: Box) -> None:
    proof = hot.ciuic("verify", "--hot", "--json")
    assert proof.code == 0
    document = proof.document
    assert document["ok"] is True
    assert document["copies"] == 3
    assert document["read_bytes"] == 12 * MIB + 77 + 200_000
    assert [one["ok"] for one in document["snapshots"]] == [True]
    assert "3 reflink copies" in hot.ciuic("verify", "--hot", "--all").err


def test_verify_hot_finds_rotten_bytes_in_a_reflink_copy(tmp_path: Path) -> None:
    """The disk returns other bytes; inode, times and extents are unchanged."""
    with disk("xfs", tmp_path / "disks") as made:
        box = filled(Box(made.path))
        data = (box.source / "model").read_bytes()
        made.unmount()
        image = bytearray(made._image.read_bytes())
        at = image.find(data[MIB : MIB + BLOCK])
        assert at > 0
        with made._image.open("r+b") as file:
            file.seek(at)
            file.write(b"rotten")
        made.mount()
        proof = box.ciuic("verify", "--hot", "--json")
        assert proof.code == 4
        damaged = proof.document["snapshots"][0]["damaged"]
        assert [one["path"] for one in damaged] == [str(box.source / "model")]
        assert "first at byte 1,048,576" in damaged[0]["what"]
        assert "--no-hot" in box.ciuic("verify", "--hot").err
        (box.source / "model").unlink()
        roll_back(box, hot=False)
        assert (box.source / "model").read_bytes() == data


def test_verify_hot_without_copies_says_so(tmp_path: Path) -> None:
    with disk("ext4", tmp_path / "disks") as made:
        box = filled(Box(made.path))
        proof = box.ciuic("verify", "--hot")
        assert proof.code == 0
        assert "no reflink copies" in proof.out
        document = box.ciuic("verify", "--hot", "--json").document
        assert (document["ok"], document["copies"]) == (True, 0)


def test_hot_and_checksum_are_two_questions(xfs: Box) -> None:
    assert xfs.ciuic("verify", "--hot", "--checksum").code == 2
