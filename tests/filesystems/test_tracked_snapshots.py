"""A snapshot that reads only changes still has every byte of every file."""

import contextlib
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciuic.model import BEING_WRITTEN
from ciuic.snapshot.report import TakeReport
from ciuic.source.freeze.places import remove_copies
from ciuic.store.records.header import CONTENT, TENSORS
from ciuic.store.records.recipe_nodes import iter_pieces
from ciuic.store.store import open_store
from ciuic.view.content import read_file
from tests.filesystems.test_extents import BLOCK, MIB, Worked, set_nocow
from tests.kit.box import Box, settle
from tests.kit.filesystems import Disk, disk

CHUNK_BYTES = 64 * 1024
STEPS = 25

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture(params=["xfs", "btrfs"])
def cow_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """A file system on which ciuic can freeze files."""
    with disk(request.param, tmp_path) as made:
        yield made


def box_on(place: Disk, *, chunk_bytes: int = MIB, chunking: str = TENSORS) -> Box:
    home = place.path / "home"
    home.mkdir()
    return Box(home, chunk_bytes=chunk_bytes, chunking=chunking)


class Worker:
    """Changes a directory of files at random, by a seed."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.dice = random.Random(seed)
        self.done: list[str] = []

    def work(self) -> None:
        """Change one of the files, or their names."""
        paths = [self.directory / name for name in ("a", "b", "c")]
        path = self.dice.choice(paths)
        if not path.exists():
            path.write_bytes(self.dice.randbytes(self.dice.randrange(700_000)))
        if self.dice.random() < 0.7:
            worked = Worked(path, self.dice)
            worked.work()
            self.done += worked.done
            return
        acts = [self.replace, self.copy_over, self.convert, self.recreate, self.link, self.swap]
        act = self.dice.choice([*acts, self.touch, self.block_by_block])
        act(path)
        self.done.append(act.__name__)

    def replace(self, path: Path) -> None:
        temporary = path.with_name("temporary")
        temporary.write_bytes(self.dice.randbytes(self.dice.randrange(700_000)))
        temporary.rename(path)

    def copy_over(self, path: Path) -> None:
        # Where the file system shares blocks, both files then have the same ones.
        subprocess.run(
            ["cp", "--reflink=auto", self.directory / "a", path], check=False, stderr=-3, timeout=60
        )

    def convert(self, path: Path) -> None:
        seek = f"seek={self.dice.randrange(100)}"
        subprocess.run(
            ["dd", "if=/dev/urandom", f"of={path}", "bs=4096", "count=3", seek, "conv=notrunc"],
            check=True,
            stderr=subprocess.DEVNULL,
            timeout=60,
        )

    def recreate(self, path: Path) -> None:
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data[: self.dice.randrange(len(data) + 1)] + b"and more")

    def link(self, path: Path) -> None:
        other = path.with_name(f"{path.name}-linked")
        other.unlink(missing_ok=True)
        os.link(path, other)

    def swap(self, path: Path) -> None:
        # Each path now has the other file's inode, but the clone and recipe of its old one.
        other = path.with_name("d")
        if other.exists():
            other.rename(path.with_name("e"))
            path.rename(other)
            path.with_name("e").rename(path)
        else:
            shutil.copyfile(path, other)

    def touch(self, path: Path) -> None:
        os.utime(path)

    def block_by_block(self, path: Path) -> None:
        with path.open("r+b") as file:
            for at in range(0, path.stat().st_size, 3 * BLOCK):
                file.seek(at)
                file.write(self.dice.randbytes(7))


def unlike(box: Box) -> list[str]:
    """Return the files of the newest snapshot that the source lacks or has differently."""
    entries = {path: entry for path, entry in box.entries().items() if entry.is_file}
    live = {os.fsencode(path) for path in box.source.rglob("*") if path.is_file()}
    found = [os.fsdecode(path) for path in live ^ entries.keys()]
    with open_store(str(box.store)) as store:
        for path in live & entries.keys():
            kept = b"".join(read_file(store, entries[path]))
            if kept != Path(os.fsdecode(path)).read_bytes():
                found.append(os.fsdecode(path))
    return found


def slices(box: Box) -> int:
    """Return the pieces of the newest snapshot that begin inside a chunk."""
    with open_store(str(box.store)) as store:
        return sum(
            piece.start_bytes > 0
            for entry in box.entries().values()
            if entry.is_file
            for piece in iter_pieces(store.reader.node, entry)
        )


@pytest.mark.parametrize(("seed", "chunking"), [(0, TENSORS), (1, CONTENT)])
@pytest.mark.parametrize(
    "how", ["xfs", "xfs of small blocks", "btrfs", "btrfs zstd", "btrfs nocow"]
)
def test_snapshots_have_every_byte_whatever_is_done_to_the_files(
    tmp_path: Path, how: str, seed: int, chunking: str
) -> None:
    kind, _, option = how.partition(" ")
    mkfs = ("-b", "size=1024") if option == "of small blocks" else ()
    with disk(kind, tmp_path, mkfs=mkfs) as place:
        if option == "zstd":
            place.remount("compress-force=zstd")
        box = box_on(place, chunk_bytes=CHUNK_BYTES, chunking=chunking)
        if option == "nocow":
            fd = os.open(box.source, os.O_RDONLY)
            set_nocow(fd)
            os.close(fd)
        worker = Worker(box.source, seed)
        dice = random.Random(seed)
        sliced = 0
        for step in range(STEPS):
            for _ in range(dice.choice([1, 2, 4])):
                worker.work()
            report = box.take(base=step % 8 == 7)
            assert report.trouble == (), (step, worker.done[-4:])
            assert unlike(box) == [], (step, worker.done[-4:])
            sliced += slices(box)
            if dice.random() < 0.1:
                with open_store(str(box.store)) as store:
                    remove_copies(store.header.store_id, [os.fsencode(box.source)], keep=0)
            settle()
        assert sliced > 0
        assert box.verify().ok


def test_after_a_change_of_one_block_only_that_block_is_read_and_stored(cow_disk: Disk) -> None:
    box = box_on(cow_disk)
    model = box.source / "model.pt"
    model.write_bytes(os.urandom(8 * MIB))
    box.take()
    settle()
    with model.open("r+b") as file:
        file.seek(3 * MIB + 10)
        file.write(b"changed")

    report = box.take()
    assert BLOCK <= report.read_bytes <= 16 * BLOCK
    assert report.new_bytes == report.read_bytes
    assert unlike(box) == []

    settle()
    os.utime(model)
    touched = box.take()
    assert (touched.read_bytes, touched.new_bytes) == (0, 0)
    assert unlike(box) == []


def test_a_full_snapshot_reads_all_of_a_tracked_file_and_finds_no_missed_change(
    cow_disk: Disk,
) -> None:
    box = box_on(cow_disk, chunk_bytes=CHUNK_BYTES)
    model = box.source / "model.pt"
    model.write_bytes(os.urandom(MIB))
    box.take()
    for number in range(3):
        settle()
        with model.open("r+b") as file:
            file.seek(number * 300_000)
            file.write(b"changed")
        box.take()
    settle()
    with model.open("r+b") as file:
        file.write(b"changed")
    assert slices(box) > 0

    report = box.take(base=True)

    assert report.read_bytes >= MIB
    assert report.trouble == ()
    assert unlike(box) == []
    assert slices(box) == 0, "what is read as a whole is cut afresh"


def test_changes_in_thousands_of_extents_are_all_tracked(cow_disk: Disk) -> None:
    box = box_on(cow_disk, chunk_bytes=CHUNK_BYTES)
    scattered = box.source / "scattered"
    step = 2 * BLOCK
    with scattered.open("wb") as file:
        for number in range(5200):
            file.seek(number * step)
            file.write(number.to_bytes(8, "big") * (BLOCK // 8))
        file.truncate(5200 * step)
    box.take()
    settle()
    changed = range(0, 5200, 130)
    with scattered.open("r+b") as file:
        for number in changed:
            file.seek(number * step + 99)
            file.write(b"changed")

    report = box.take()

    assert report.read_bytes == len(changed) * BLOCK
    assert unlike(box) == []


WRITER = """
import itertools, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
for generation in itertools.count(2):
    os.pwrite(fd, generation.to_bytes(8, "big") * (1024 * 1024 // 8), 512 * 1024)
    if generation == 3:
        print(flush=True)
"""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """A thread overwrites a file of 1 MiB again and again, each time in one call, with a number."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline()
        yield
    finally:
        writer.kill()
        writer.communicate()


def test_a_file_that_is_always_being_written_is_marked_and_each_snapshot_has_later_content(
    cow_disk: Disk,
) -> None:
    box = box_on(cow_disk, chunk_bytes=CHUNK_BYTES)
    model = box.source / "model.pt"
    outside = os.urandom(512 * 1024)
    model.write_bytes(outside + bytes(MIB) + outside)
    box.take()
    seen: list[int] = []
    with writing(model):
        for _ in range(8):
            report: TakeReport = box.take()
            assert report.flux == (os.fsencode(model),)
            assert box.entries()[os.fsencode(model)].state == BEING_WRITTEN
            data = box.read(model)
            assert data[: 512 * 1024] == outside == data[512 * 1024 + MIB :]
            area = data[512 * 1024 : 512 * 1024 + MIB]
            found = [int.from_bytes(area[at : at + 8], "big") for at in range(0, MIB, 8)]
            # XFS makes a clone between two writes. btrfs lets programs write while it writes the
            # dirty pages of a subvolume out for its snapshot: see G21.
            if cow_disk.kind == "xfs":
                assert min(found) == max(found)
            assert not seen or seen[-1] <= min(found), "not older than the snapshot before"
            seen.append(max(found))
    assert seen == sorted(set(seen)), "each snapshot is of a later moment"
    box.take()
    assert unlike(box) == []
