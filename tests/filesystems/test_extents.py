"""Changes found by extents alone, on real file systems, for every kind of change."""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ciuic.source.byte_range import ByteRange
from ciuic.source.freeze.extents import changed_ranges, fingerprint
from ciuic.system import kernel
from tests.kit.filesystems import Disk, clone_range, disk, tmpfs

BLOCK = 4096
MIB = 1024 * 1024
SIZE_MAX = 768 * 1024
ROUNDS = 150

pytestmark = [pytest.mark.root, pytest.mark.slow]

_libc = ctypes.CDLL(None, use_errno=True)
_KEEP_SIZE, _PUNCH_HOLE, _COLLAPSE, _ZERO, _INSERT, _UNSHARE = 1, 2, 8, 16, 32, 64
_FS_IOC_GETFLAGS, _FS_IOC_SETFLAGS, _NOCOW = 0x8008_6601, 0x4008_6602, 0x0080_0000


def fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    arguments = [ctypes.c_int64(offset), ctypes.c_int64(length)]
    if _libc.fallocate(fd, mode, *arguments) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class Worked:
    """A file that is changed at random. Operations that the file system refuses are skipped."""

    def __init__(self, path: Path, dice: random.Random) -> None:
        self.path = path
        self.dice = dice
        self.done: list[str] = []
        self.reserved = 0

    def work(self) -> None:
        """Do one operation that changes the file, or that only looks like a change."""
        act = self.dice.choice(self._acts())
        fd = os.open(self.path, os.O_RDWR)
        try:
            act(fd)
            self.done.append(act.__name__)
        except OSError as error:
            # This file system does not insert holes, or does not share blocks.
            if error.errno not in {errno.EINVAL, errno.EOPNOTSUPP, errno.ENXIO}:
                raise
        finally:
            os.close(fd)

    def _acts(self) -> list[Callable[[int], None]]:
        return [
            self.write,
            self.write,
            self.write_the_same_again,
            self.write_past_the_cache,
            self.write_through_a_map,
            self.append,
            self.truncate,
            self.cut_and_let_grow,
            self.punch,
            self.preallocate,
            self.write_into_what_is_reserved,
            self.zero,
            self.collapse,
            self.insert,
            self.unshare,
            self.clone_from_itself,
            self.clone_from_another,
            self.swap,
        ]

    def write(self, fd: int) -> None:
        offset = self.somewhere(fd)
        os.pwrite(fd, self.noise(), offset)

    def write_the_same_again(self, fd: int) -> None:
        offset = self.somewhere(fd)
        os.pwrite(fd, os.pread(fd, self.dice.randrange(1, 40_000), offset), offset)

    def write_past_the_cache(self, fd: int) -> None:
        direct = os.open(self.path, os.O_RDWR | os.O_DIRECT)
        try:
            with mmap.mmap(-1, self.dice.randrange(1, 9) * BLOCK) as memory:
                memory.write(self.dice.randbytes(len(memory)))
                os.pwritev(direct, [memory], self.somewhere(fd) // BLOCK * BLOCK)
        finally:
            os.close(direct)

    def write_through_a_map(self, fd: int) -> None:
        size = os.fstat(fd).st_size
        if not size:
            return
        with mmap.mmap(fd, size) as memory:
            offset = self.dice.randrange(size)
            data = self.noise()[: size - offset]
            memory[offset : offset + len(data)] = data

    def append(self, fd: int) -> None:
        os.pwrite(fd, self.noise(), os.fstat(fd).st_size)

    def truncate(self, fd: int) -> None:
        os.ftruncate(fd, self.dice.randrange(SIZE_MAX))

    def cut_and_let_grow(self, fd: int) -> None:
        # The bytes of the block behind the cut must not come back.
        size = os.fstat(fd).st_size
        os.ftruncate(fd, max(0, size - self.dice.randrange(1, 2 * BLOCK)))
        os.ftruncate(fd, size)

    def punch(self, fd: int) -> None:
        fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, self.somewhere(fd), self.dice.randrange(1, 90_000))

    def preallocate(self, fd: int) -> None:
        mode = self.dice.choice([0, _KEEP_SIZE])
        self.reserved = self.somewhere(fd)
        fallocate(fd, mode, self.reserved, self.dice.randrange(1, 90_000))

    def write_into_what_is_reserved(self, fd: int) -> None:
        # The blocks stay in place. Only a flag changes, which says that they hold data.
        os.pwrite(fd, self.dice.randbytes(5 * BLOCK), self.reserved)

    def zero(self, fd: int) -> None:
        fallocate(fd, _ZERO, self.somewhere(fd), self.dice.randrange(1, 90_000))

    def collapse(self, fd: int) -> None:
        fallocate(fd, _COLLAPSE, self.somewhere(fd) // BLOCK * BLOCK, BLOCK)

    def insert(self, fd: int) -> None:
        fallocate(fd, _INSERT, self.somewhere(fd) // BLOCK * BLOCK, 2 * BLOCK)

    def unshare(self, fd: int) -> None:
        fallocate(fd, _UNSHARE, 0, max(1, os.fstat(fd).st_size))

    def clone_from_itself(self, fd: int) -> None:
        offset, target = (self.somewhere(fd) // BLOCK * BLOCK for _ in range(2))
        clone_range(fd, offset, 4 * BLOCK, fd, target)

    def clone_from_another(self, fd: int) -> None:
        other = os.open(self.path.with_name("other"), os.O_RDWR | os.O_CREAT)
        try:
            os.ftruncate(other, SIZE_MAX)
            os.pwrite(other, self.noise(), self.dice.randrange(SIZE_MAX))
            offset, target = (self.somewhere(fd) // BLOCK * BLOCK for _ in range(2))
            clone_range(other, offset, 8 * BLOCK, fd, target)
        finally:
            os.close(other)

    def swap(self, fd: int) -> None:
        # Exchange two blocks. Their places on the device change with them, or do not change at all.
        one, other = (self.somewhere(fd) // BLOCK * BLOCK for _ in range(2))
        first, second = os.pread(fd, BLOCK, one), os.pread(fd, BLOCK, other)
        os.pwrite(fd, second, one)
        os.pwrite(fd, first, other)

    def somewhere(self, fd: int) -> int:
        return self.dice.randrange(min(SIZE_MAX, os.fstat(fd).st_size + 2 * BLOCK))

    def noise(self) -> bytes:
        length = self.dice.choice([1, 100, BLOCK, self.dice.randrange(1, 120_000)])
        return self.dice.choice([self.dice.randbytes(length), bytes(length), self.lines(length)])

    def lines(self, length: int) -> bytes:
        """Return text that differs from block to block, and that compresses well."""
        word = self.dice.randbytes(4)
        return b"".join([b"%d " % at + word for at in range(length // 5 + 1)])[:length]


class Reflink:
    """Freezes a file as clones of it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._count = 0

    def freeze(self) -> int:
        """Return a descriptor of the frozen file."""
        self._count += 1
        name = self.file.with_name(f"frozen-{self._count}")
        source = os.open(self.file, os.O_RDONLY)
        target = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            inherit_nocow(source, target)
            kernel.clone_file(source, target)
        finally:
            os.close(source)
        name.unlink()
        return target


class Subvolume:
    """Freezes a file together with its subvolume."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._count = 0

    def freeze(self) -> int:
        """Return a descriptor of the frozen file."""
        self._count += 1
        source = os.open(self.file.parent, os.O_RDONLY)
        above = os.open(self.file.parent.parent, os.O_RDONLY)
        try:
            kernel.snapshot_subvolume(source, above, b"frozen-%d" % self._count)
        finally:
            os.close(source)
            os.close(above)
        frozen = self.file.parent.parent / f"frozen-{self._count}"
        return os.open(frozen / self.file.name, os.O_RDONLY)


def inherit_nocow(source: int, target: int) -> None:
    """btrfs shares blocks only between two files that are both copy-on-write, or both not."""
    with contextlib.suppress(OSError):
        flags = bytearray(8)
        fcntl.ioctl(source, _FS_IOC_GETFLAGS, flags)
        if int.from_bytes(flags, "little") & _NOCOW:
            set_nocow(target)


def set_nocow(fd: int) -> None:
    fcntl.ioctl(fd, _FS_IOC_SETFLAGS, _NOCOW.to_bytes(8, "little"))


def whole(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


def missed(old_fd: int, new_fd: int, changed: list[ByteRange]) -> list[int]:
    """Return the blocks that are reported unchanged although they changed or are new."""
    new = bytearray(whole(new_fd))
    old = bytearray(whole(old_fd)[: len(new)])
    old += bytes(byte ^ 0xFF for byte in new[len(old) :])
    for start, length in changed:
        old[start : start + length] = new[start : start + length] = bytes(length)
    blocks = range(0, len(new), BLOCK)
    return [at // BLOCK for at in blocks if new[at : at + BLOCK] != old[at : at + BLOCK]]


def check_ranges(changed: list[ByteRange], size: int) -> None:
    """Check that ranges are in order, apart, not empty, and within the file."""
    at = -1
    for start, length in changed:
        assert length > 0
        assert start > at
        at = start + length
    assert at <= size


Freeze = Callable[[Path], int]


@pytest.fixture
def reflink() -> Iterator[Freeze]:
    """A function that freezes a file by a clone; clones are closed before the unmount."""
    with contextlib.ExitStack() as opened:

        def freeze(file: Path) -> int:
            fd = Reflink(file).freeze()
            opened.callback(os.close, fd)
            return fd

        yield freeze


@pytest.fixture(params=["xfs", "btrfs"])
def cow_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    with disk(request.param, tmp_path) as made:
        yield made


class Place(NamedTuple):
    """A directory on a file system of its own. Attributes:
    path: The directory.
    tells: The file system says where all bytes lie.
    """

    path: Path
    tells: bool = True


@pytest.fixture(params=["xfs", "xfs of small blocks", "btrfs", "btrfs zstd", "btrfs nocow"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    kind, _, how = request.param.partition(" ")
    mkfs = ("-b", "size=1024") if how == "of small blocks" else ()
    with disk(kind, tmp_path, mkfs=mkfs) as made:
        if how == "zstd":
            made.remount("compress-force=zstd")
        if how == "nocow":
            fd = os.open(made.path, os.O_RDONLY)
            set_nocow(fd)
            os.close(fd)
        yield Place(made.path, how != "zstd")


def torture(file: Path, freezer: Reflink | Subvolume, *, seed: int) -> int:
    """Change and freeze the file in turns; return the number of bytes reported unchanged."""
    dice = random.Random(seed)
    worked = Worked(file, dice)
    file.write_bytes(dice.randbytes(300_000))
    last_fd = freezer.freeze()
    unchanged = 0
    try:
        for number in range(ROUNDS):
            for _ in range(dice.choice([1, 1, 2, 5])):
                worked.work()
            if dice.random() < 0.3:
                os.sync()
            before_fd, last_fd = last_fd, freezer.freeze()
            try:
                sizes = os.fstat(before_fd).st_size, os.fstat(last_fd).st_size
                changed = changed_ranges(before_fd, sizes[0], last_fd, sizes[1])
                assert changed is not None
                check_ranges(changed, sizes[1])
                assert missed(before_fd, last_fd, changed) == [], (seed, number, worked.done[-5:])
            finally:
                os.close(before_fd)
            unchanged += sizes[1] - sum(one.length_bytes for one in changed)
    finally:
        os.close(last_fd)
    assert len(set(worked.done)) >= 13
    return unchanged


@pytest.mark.parametrize("seed", range(2))
def test_ranges_reported_unchanged_are_unchanged_whatever_happens_to_a_file(
    place: Place, seed: int
) -> None:
    file = place.path / "file"
    unchanged = torture(file, Reflink(file), seed=seed)
    assert unchanged > ROUNDS * 50_000 or not place.tells


@pytest.mark.parametrize("seed", range(2))
def test_ranges_reported_unchanged_are_unchanged_between_snapshots_of_a_subvolume(
    tmp_path: Path, seed: int
) -> None:
    with disk("btrfs", tmp_path) as made:
        subprocess.run(
            ["btrfs", "-q", "subvolume", "create", made.path / "home"], check=True, timeout=60
        )
        file = made.path / "home" / "file"
        assert torture(file, Subvolume(file), seed=seed) > ROUNDS * 50_000


def test_a_change_of_two_blocks_is_reported_as_two_blocks(cow_disk: Disk, reflink: Freeze) -> None:
    file = cow_disk.path / "file"
    file.write_bytes(os.urandom(64 * MIB))
    old = reflink(file)
    with file.open("r+b") as opened:
        for at in (10 * MIB + 5, 50 * MIB):
            opened.seek(at)
            opened.write(b"changed")
    new = reflink(file)
    assert changed_ranges(old, 64 * MIB, new, 64 * MIB) == [
        ByteRange(10 * MIB, BLOCK),
        ByteRange(50 * MIB, BLOCK),
    ]


def test_an_append_is_reported_as_the_last_block_and_the_new_ones(
    cow_disk: Disk, reflink: Freeze
) -> None:
    file = cow_disk.path / "file"
    file.write_bytes(os.urandom(8 * MIB + 10))
    old = reflink(file)
    with file.open("ab") as opened:
        opened.write(os.urandom(5000))
    new = reflink(file)
    (changed,) = changed_ranges(old, 8 * MIB + 10, new, 8 * MIB + 5010) or []
    assert changed.offset_bytes in {8 * MIB, 8 * MIB + 10}
    assert sum(changed) == 8 * MIB + 5010


@pytest.mark.parametrize("place", ["btrfs zstd"], indirect=True)
def test_a_compressed_extent_does_not_say_where_its_bytes_are(
    place: Place, reflink: Freeze
) -> None:
    file = place.path / "file"
    file.write_bytes(b"".join([b"line %d\n" % at for at in range(12_000)]))
    size = file.stat().st_size
    os.sync()
    old = reflink(file)
    with file.open("r+b") as opened:
        # Both parts of the extent have the place of its first byte.
        clone_range(opened.fileno(), 2 * BLOCK, BLOCK, opened.fileno(), 0)
    new = reflink(file)
    assert whole(old)[:BLOCK] != whole(new)[:BLOCK]
    (first, *_) = changed_ranges(old, size, new, size) or []
    assert first.offset_bytes == 0


def test_all_of_thousands_of_extents_are_seen(cow_disk: Disk, reflink: Freeze) -> None:
    file = cow_disk.path / "file"
    size, step = 40 * MIB, 2 * BLOCK
    with file.open("wb") as opened:
        # Every other block is a hole, so the file system cannot join two extents.
        for at in range(0, size, step):
            opened.seek(at)
            opened.write(at.to_bytes(8, "big") * (BLOCK // 8))
        opened.truncate(size)
    old = reflink(file)
    assert sum(1 for _ in kernel.map_extents(old, sync=True)) == size // step == 5120
    with file.open("r+b") as opened:
        for at in range(0, size, 100 * step):
            opened.seek(at)
            opened.write(b"changed")
    new = reflink(file)
    expected = [ByteRange(at, BLOCK) for at in range(0, size, 100 * step)]
    assert changed_ranges(old, size, new, size) == expected


def test_the_fingerprint_of_a_copy_does_not_depend_on_later_changes_of_the_file(
    cow_disk: Disk, reflink: Freeze
) -> None:
    file = cow_disk.path / "file"
    file.write_bytes(os.urandom(20 * MIB))
    copy = reflink(file)
    first = fingerprint(copy)
    with file.open("r+b") as opened:
        opened.seek(7 * MIB)
        opened.write(os.urandom(MIB))
        opened.truncate(15 * MIB)
        os.fsync(opened.fileno())
    assert first is not None
    assert fingerprint(copy) == first
    # A change of the copy itself changes its fingerprint.
    os.pwrite(copy, b"touched", 3 * MIB)
    assert fingerprint(copy) != first


def test_without_an_extent_map_nothing_is_reported_unchanged(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "memory", size_mib=1) as memory:
        (memory / "file").write_bytes(b"bytes")
        fd = os.open(memory / "file", os.O_RDONLY)
        assert changed_ranges(fd, 5, fd, 5) is None
        assert fingerprint(fd) is None
        os.close(fd)
