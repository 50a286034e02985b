"""On a full disk, a store can still free space and restore snapshots."""

import contextlib
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciuic.store.records import layout
from tests.kit.box import Box
from tests.kit.filesystems import Disk, disk
from tests.kit.trees import photograph

pytestmark = pytest.mark.root
MIB = 1024 * 1024
KINDS = {"ext4": 64, "xfs": 320, "btrfs": 320}


class Filled:
    """A disk to fill, and six snapshots of a 1 MiB file with new content each time."""

    def __init__(self, place: Disk, directory: Path) -> None:
        self.place = place
        self.box = initialized(place, directory)
        chance = random.Random(1)
        for number in range(6):
            (self.box.source / "checkpoint").write_bytes(chance.randbytes(MIB))
            (self.box.source / f"log {number}").write_bytes(b"a line\n" * number)
            self.do("snapshot")
        self.ids = self.listed()
        self.photo = photograph(self.box.source)

    def do(self, *arguments: str) -> str:
        done = self.box.ciuic(*arguments)
        assert done.code == 0, (arguments, done)
        return done.out

    def listed(self) -> list[str]:
        lines = self.do("list", "--machine-readable").splitlines()
        return [line.split("|")[0] for line in lines]

    def refuses_writing(self) -> bool:
        """Return whether writing a file of two blocks fails."""
        path = self.place.path / "probe"
        try:
            path.write_bytes(os.urandom(8192))
        except OSError:
            return True
        finally:
            path.unlink(missing_ok=True)
        return False

    def check_life(self) -> None:
        """Check that every promised command works, and that the space that prune frees is free."""
        box, ids = self.box, self.ids
        self.do("tag", ids[1], "--add", "kept")
        self.do("pin", ids[1])
        self.do("pin", ids[1], "--remove")
        self.do("forget", ids[5])
        self.do("forget", "--undo", ids[5])
        self.do("forget", "--policy", "last:2")
        assert self.listed() == ids[:2]
        assert self.do("tag", ids[1]).split() == ["kept"]
        self.do("verify", "--all", "--checksum")
        out = box.directory / "out"
        self.do("restore", "-s", ids[0], "-p", str(box.source), "-d", str(out), "--no-hot")
        assert photograph(out / "source") == self.photo
        foreseen = box.ciuic("prune", "--trash", "0", "--dry-run", "--json").document
        freed = box.ciuic("prune", "--trash", "0", "--json").document
        assert freed["freed_bytes"] == foreseen["freed_bytes"] > 4 * MIB
        assert not self.refuses_writing()
        (self.place.path / "checkpoint").write_bytes(os.urandom(3 * MIB))
        (self.place.path / "checkpoint").unlink()
        self.do("snapshot")
        self.do("verify", "--all", "--checksum")


@contextlib.contextmanager
def filled(kind: str, directory: Path) -> Iterator[Filled]:
    with disk(kind, directory, size_mib=KINDS[kind]) as place:
        yield Filled(place, directory / "box")


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_frees_itself_on_a_disk_that_something_else_has_filled(
    tmp_path: Path, kind: str
) -> None:
    with filled(kind, tmp_path) as one:
        one.place.leave_free(0)
        one.check_life()


@pytest.mark.parametrize(
    ("kind", "catalog"), [("ext4", "gone"), ("ext4", "old"), ("xfs", "old"), ("btrfs", "old")]
)
def test_without_space_for_the_chunk_index_it_is_built_in_memory(
    tmp_path: Path, kind: str, catalog: str
) -> None:
    """A snapshot that ended on the full disk may have left packs that an old index lacks."""
    with filled(kind, tmp_path) as one:
        path = one.box.store / layout.CATALOG
        if catalog == "gone":
            path.unlink()
        else:
            before = path.read_bytes()
            chance = random.Random(2)
            for number in range(3000):
                (one.box.source / f"small {number}").write_bytes(chance.randbytes(20))
            one.ids = [one.do("snapshot").split()[0], *one.ids[:5]]
            one.photo = photograph(one.box.source)
            path.write_bytes(before)
        one.place.leave_free(0)
        one.check_life()


def test_a_store_on_btrfs_without_space_for_metadata_frees_itself(tmp_path: Path) -> None:
    """btrfs keeps files below 2 KiB in its metadata, which has space of its own."""
    with filled("btrfs", tmp_path) as one:
        one.place.leave_free(0)
        directory = one.place.path / "tiny"
        with contextlib.suppress(OSError):
            directory.mkdir()
            for number in range(200_000):
                (directory / str(number)).write_bytes(os.urandom(1900))
        assert one.refuses_writing()
        one.check_life()


def test_a_store_that_is_over_its_quota_frees_itself(tmp_path: Path) -> None:
    """The quota is that of a btrfs subvolume, which also limits root."""
    with share(tmp_path) as place:
        one = Filled(place, tmp_path / "box")
        fill_quota(place)
        assert one.refuses_writing()
        one.check_life()


def btrfs(*arguments: str | Path) -> None:
    subprocess.run(["btrfs", *arguments], check=True, capture_output=True, timeout=60)


@contextlib.contextmanager
def share(directory: Path) -> Iterator[Disk]:
    """A subvolume of btrfs, for a quota."""
    if shutil.which("btrfs") is None:
        pytest.skip("btrfs-progs is not installed")
    with disk("btrfs", directory, size_mib=320) as place:
        inner = Disk.__new__(Disk)
        inner.kind, inner.path = "btrfs", place.path / "share"
        btrfs("subvolume", "create", inner.path)
        yield inner


def fill_quota(place: Disk) -> None:
    """Limit a subvolume to 28 MiB, and write files until it has them."""
    btrfs("quota", "enable", place.path)
    btrfs("quota", "rescan", "-w", place.path)
    btrfs("qgroup", "limit", "28M", place.path)
    for name, size in (("ballast", MIB // 4), ("more", 4096)):
        with contextlib.suppress(OSError), (place.path / name).open("wb", buffering=0) as file:
            while True:
                file.write(os.urandom(size))
                os.fsync(file.fileno())


def initialized(place: Disk, directory: Path) -> Box:
    """Return a box with an empty store on a disk."""
    directory.mkdir()
    box = Box(directory, parity=0.04)
    box.store = place.path / "store"
    box.configure()
    assert box.ciuic("init").code == 0
    return box


def run_of_models(
    place: Disk,
    directory: Path,
    *,
    models: int = 8,
    model_bytes: int = 2 * MIB,
    log_bytes: int = 150_000,
) -> Box:
    """Return a box with one snapshot that is needed. No pack is all garbage.

    Each snapshot of the run stored a new model, and a log that is kept.
    """
    box = initialized(place, directory)
    chance = random.Random(1)
    for number in range(models):
        (box.source / "model").write_bytes(chance.randbytes(model_bytes))
        (box.source / f"log {number}").write_bytes(chance.randbytes(log_bytes))
        assert box.ciuic("snapshot").code == 0
    assert box.ciuic("forget", "--policy", "last:1").code == 0
    return box


def check_prune(box: Box, *, least_bytes: int) -> None:
    """Prune what ``run_of_models`` left, and check that the snapshot is whole."""
    freed = box.ciuic("prune", "--trash", "0", "--json")
    assert freed.code == 0, freed
    assert freed.document["freed_bytes"] > least_bytes
    assert freed.document["removed"]["bytes"] < MIB, "these need no room"
    out = box.directory / "out"
    done = box.ciuic("restore", "-s", "latest", "-p", str(box.source), "-d", str(out))
    assert done.code == 0, done
    assert photograph(out / "source") == photograph(box.source)


@pytest.mark.parametrize("left_bytes", [0, 128 * 1024])
@pytest.mark.parametrize("kind", KINDS)
def test_a_prune_rewrites_packs_on_a_full_disk(tmp_path: Path, kind: str, left_bytes: int) -> None:
    with disk(kind, tmp_path, size_mib=KINDS[kind]) as place:
        box = run_of_models(place, tmp_path / "box")
        place.leave_free(left_bytes)
        check_prune(box, least_bytes=13 * MIB)


def test_a_prune_rewrites_packs_when_the_quota_is_used_up(tmp_path: Path) -> None:
    with share(tmp_path) as place:
        box = run_of_models(
            place, tmp_path / "box", models=4, model_bytes=3 * MIB, log_bytes=2 * MIB
        )
        fill_quota(place)
        assert place.free_bytes() > 100 * MIB, "the file system tells no quota"
        check_prune(box, least_bytes=8 * MIB)


def test_a_prune_that_cannot_empty_a_pack_leaves_the_reserve(tmp_path: Path) -> None:
    with disk("ext4", tmp_path, size_mib=128) as place:
        box = initialized(place, tmp_path / "box")
        chance = random.Random(1)
        for name in ("old", "kept"):
            (box.source / name).write_bytes(chance.randbytes(8 * MIB))
        assert box.ciuic("snapshot").code == 0
        (box.source / "old").unlink()
        assert box.ciuic("snapshot").code == 0
        assert box.ciuic("forget", "--policy", "last:1").code == 0
        place.leave_free(128 * 1024)
        before = (box.store / layout.RESERVE).stat().st_blocks

        pruned = box.ciuic("prune", "--trash", "0")

        assert pruned.code == 1, pruned
        assert "No space left" in pruned.err
        assert (box.store / layout.RESERVE).stat().st_blocks >= before // 2
        assert box.ciuic("tag", "latest", "--add", "x").code == 0


def test_the_reserve_is_created_again_when_there_is_space(tmp_path: Path) -> None:
    with filled("ext4", tmp_path) as one:
        reserve = one.box.store / layout.RESERVE
        whole = reserve.stat()
        assert whole.st_blocks * 512 >= whole.st_size >= MIB
        one.place.leave_free(0)
        one.do("tag", one.ids[0], "--add", "x")
        left = reserve.stat()
        assert left.st_size >= whole.st_size // 2, "as much as there was room for"
        assert one.place.free_bytes() < 256 * 1024, "it is not left for others to take"
        (one.place.path / "ballast").unlink()
        one.do("tag", one.ids[0], "--add", "y")
        assert reserve.stat().st_size == whole.st_size


@pytest.mark.parametrize("kind", ["a directory", "a symlink", "another file's name"])
def test_another_file_in_place_of_the_reserve_does_no_harm(tmp_path: Path, kind: str) -> None:
    box = Box(tmp_path)
    precious = tmp_path / "precious"
    precious.write_bytes(b"a thesis")
    reserve = box.store / layout.RESERVE
    match kind:
        case "a directory":
            reserve.mkdir()
        case "a symlink":
            reserve.symlink_to(precious)
        case "another file's name":
            reserve.hardlink_to(precious)
    box.take()
    box.take()
    assert precious.read_bytes() == b"a thesis"
    assert box.verify().ok
