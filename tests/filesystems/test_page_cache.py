"""A snapshot leaves the page cache of every file as it was.

The tests ask the page cache about each page, by mincore(2). The kernel may also drop pages by
itself while a test runs, if the machine needs memory. So a test repeats its work, and only pages
that go every time count.
"""

import ctypes
import errno
import json
import mmap
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ciuic.source import page_cache
from ciuic.source.byte_range import ByteRange
from ciuic.source.file import OpenFile
from ciuic.source.freeze.interface import AREA_NAME
from ciuic.source.page_cache import CacheKeeper
from ciuic.source.small_file import read_small
from ciuic.system.clock import SystemClock
from tests.kit.box import Box, wait_until_settled
from tests.kit.filesystems import Disk, disk
from tests.kit.program import NOBODY, ciuic

MIB = 1024 * 1024
PAGE = mmap.PAGESIZE
WINDOW = page_cache.WINDOW_BYTES
ATTEMPTS = 10
UNDER_WAY = 2 * 8 * MIB
"""The kernel reads ahead at most twice the device's read_ahead_kb, which is rarely over 8 MiB."""
PREADV2 = {"x86_64": 327, "aarch64": 286}.get(os.uname().machine)
CACHESTAT = 451
OLDER_KERNELS = {
    "before 6.14": {PREADV2: errno.EOPNOTSUPP},
    "before 6.5": {PREADV2: errno.EOPNOTSUPP, CACHESTAT: errno.ENOSYS},
}
"""The errors of a Linux without RWF_DONTCACHE, and of one that also lacks cachestat(2)."""
REFUSE = """
import ctypes, json, os, struct, sys
filters = [struct.pack("=HBBI", 0x20, 0, 0, 0)]
for number, error in json.loads(sys.argv[1]).items():
    filters.append(struct.pack("=HBBI", 0x15, 0, 3 if error == 95 else 1, int(number)))
    if error == 95:  # only a call with flags, which are its sixth argument
        filters.append(struct.pack("=HBBI", 0x20, 0, 0, 56))
        filters.append(struct.pack("=HBBI", 0x15, 1, 0, 0))
    filters.append(struct.pack("=HBBI", 0x06, 0, 0, 0x50000 | error))
    filters.append(struct.pack("=HBBI", 0x20, 0, 0, 0))
filters.append(struct.pack("=HBBI", 0x06, 0, 0, 0x7fff0000))
program = ctypes.create_string_buffer(b"".join(filters))
head = struct.pack("=H6xQ", len(filters), ctypes.addressof(program))
prctl = ctypes.CDLL(None, use_errno=True).prctl
assert prctl(38, 1, 0, 0, 0) == 0
assert prctl(22, 2, ctypes.create_string_buffer(head), 0, 0) == 0
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Makes the kernel refuse system calls (seccomp(2)), and then runs another program."""
ASK = "import os; os.preadv(os.open('/proc/version', os.O_RDONLY), [bytearray(9)], 0, 0x80)"

pytestmark = [pytest.mark.root, pytest.mark.slow]

Pages = bytes
"""One byte for each page of a file: 1 if the page is in the page cache."""
Ranges = list[tuple[int, int]]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


def pages_of(path: Path) -> Pages:
    size = path.stat().st_size
    vector = ctypes.create_string_buffer(-(-size // PAGE))
    if not size:
        return b""
    with path.open("rb") as file:
        address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
        try:
            assert _libc.mincore(address, size, vector) == 0
        finally:
            _libc.munmap(address, size)
    return bytes(one & 1 for one in vector.raw)


def cache_of(source: Path) -> dict[str, Pages]:
    files = (one for one in source.rglob("*") if stat.S_ISREG(one.lstat().st_mode))
    return {str(one.relative_to(source)): pages_of(one) for one in sorted(files)}


def warm(path: Path, hot: Ranges) -> None:
    """Put these ranges of a file into the page cache, and drop its other pages."""
    fd = os.open(path, os.O_RDONLY | os.O_NOATIME)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert not any(pages_of(path)), "this page cache does not let go"
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        for offset, length in hot:
            os.pread(fd, length, offset)
    finally:
        os.close(fd)


def every(step: int, size: int, length: int = MIB) -> Ranges:
    """Return the first of every ``step`` ranges of a file."""
    return [(at, length) for at in range(0, size, step * length)]


LARGE = 2 * WINDOW + 5 * MIB + 77
FILES: dict[str, tuple[int, Ranges]] = {
    "nothing": (0, []),
    "one byte cold": (1, []),
    "one byte hot": (1, [(0, 1)]),
    "inline cold": (1500, []),
    "inline hot": (1500, [(0, 1500)]),
    "6 KB cold": (6000, []),
    "6 KB hot": (6000, [(0, 6000)]),
    "whole pages hot": (4 * PAGE, [(0, 4 * PAGE)]),
    "whole pages cold": (4 * PAGE, []),
    "100 KB half": (100_000, [(0, 12 * PAGE)]),
    "100 KB end": (100_000, [(20 * PAGE, 100_000)]),
    "256 KiB cold": (256 * 1024, []),
    "256 KiB every other page": (256 * 1024, every(2, 256 * 1024, PAGE)),
    "large cold": (5 * MIB + 77, []),
    "large hot": (5 * MIB + 77, [(0, 6 * MIB)]),
    "large half": (9 * MIB, [(0, 9 * MIB // 2)]),
    "large every other MiB": (9 * MIB + 5000, every(2, 9 * MIB)),
    "large every other page": (3 * MIB, every(2, 3 * MIB, PAGE)),
    "windows cold": (WINDOW + MIB, []),
    "windows every third": (LARGE, every(3, LARGE, 3 * MIB)),
    "windows seam": (WINDOW + MIB, [(WINDOW - 5 * PAGE, 3 * PAGE), (WINDOW + 2 * PAGE, 2 * PAGE)]),
}
"""The length of each file, and its ranges in the page cache."""


def content(size: int) -> bytes:
    """Return bytes that no file system compresses, quickly."""
    return (os.urandom(min(size, MIB)) * -(-size // MIB))[:size]


def fill(source: Path) -> None:
    """Write files of every kind."""
    source.mkdir()
    for name, (size, _) in FILES.items():
        (source / name).write_bytes(content(size))
    with (source / "holes").open("wb") as file:
        file.truncate(WINDOW + 30 * MIB)
        for offset in (MIB, 9 * MIB + PAGE, WINDOW + 3 * MIB):
            file.seek(offset)
            file.write(os.urandom(300_000))


def warm_all(source: Path) -> None:
    for name, (_, hot) in FILES.items():
        warm(source / name, hot)
    warm(source / "holes", [(MIB, PAGE), (5 * MIB, 3 * PAGE)])


def check(source: Path, work: Callable[[], object]) -> None:
    """Check that work brings no page into the page cache, and drops no page every time."""
    always: dict[str, Pages] = {}
    for _ in range(ATTEMPTS):
        warm_all(source)
        before = cache_of(source)
        assert any(before["large hot"])
        assert 0 < sum(before["windows every third"]) < len(before["windows every third"])
        work()
        after = cache_of(source)
        new = {name: _count(before[name], after[name]) for name in before}
        assert {name: count for name, count in new.items() if count} == {}
        always = gone_again(always, before, after)
        if not always:
            return
    raise AssertionError(f"was in the page cache and is no longer: {always.keys()}")


def gone_again(
    always: dict[str, Pages], before: dict[str, Pages], after: dict[str, Pages]
) -> dict[str, Pages]:
    """Return the pages of each file that went in this attempt and in all earlier ones.

    Args:
        always: The pages that went in all earlier attempts; empty: this is the first one.
        before: The page cache before the work.
        after: The page cache after it.
    """
    gone = {
        name: bytes(was > is_there for was, is_there in zip(before[name], after[name], strict=True))
        for name in before
    }
    if always:
        gone = {
            name: bytes(one & other for one, other in zip(always[name], gone[name], strict=True))
            for name in always
        }
    return {name: pages for name, pages in gone.items() if any(pages)}


def _count(one: Pages, other: Pages) -> int:
    """Return the number of pages that are in the second but not in the first."""
    return sum(before < after for before, after in zip(one, other, strict=True))


@pytest.fixture(scope="module", params=["ext4", "xfs", "btrfs"])
def mounted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Disk]:
    """A file system of each kind, with files of every kind in ``source``."""
    with disk(request.param, tmp_path_factory.mktemp(request.param), size_mib=2048) as made:
        fill(made.path / "source")
        yield made


on_ext4 = pytest.mark.parametrize("mounted", ["ext4"], indirect=True)
"""This file system has no reflinks, so files are read in place."""


def configure(source: Path, directory: Path) -> Path:
    """Create a store beside the source, with a name of its own."""
    config, store = directory / "ciuic.conf", source.parent / f"store of {directory.name}"
    # With the default priority, it would wait for every other test that runs.
    config.write_text(
        f"snapshot_paths = {source}\nsnapshot_dir = {store}\n"
        "base_interval = 0\nio_priority = none\n"
    )
    outcome = ciuic("--config", config, "init")
    assert outcome.code == 0, outcome.err
    return config


def snapshot(config: Path, *options: str, wrapper: tuple[str, ...] = ()) -> None:
    outcome = ciuic("--config", config, "snapshot", *options, wrapper=wrapper)
    assert outcome.code == 0, outcome.err


def test_a_snapshot_leaves_the_page_cache_as_it_was(mounted: Disk, tmp_path: Path) -> None:
    source = mounted.path / "source"
    config = configure(source, tmp_path)
    check(source, lambda: snapshot(config))
    check(source, lambda: snapshot(config))
    check(source, lambda: snapshot(config, "--base"))


def test_the_pages_of_files_that_changed_since_the_last_snapshot_stay_as_they_were(
    mounted: Disk, tmp_path: Path
) -> None:
    source = mounted.path / "source"
    config = configure(source, tmp_path)
    snapshot(config)
    for name in ("windows every third", "large every other MiB", "6 KB cold", "100 KB half"):
        with (source / name).open("r+b") as file:
            file.seek(FILES[name][0] // 2)
            file.write(os.urandom(9))
    check(source, lambda: snapshot(config))


@on_ext4
@pytest.mark.parametrize("kernel", OLDER_KERNELS)
def test_older_kernels_leave_the_page_cache_as_it_was_with_more_calls(
    mounted: Disk, tmp_path: Path, kernel: str
) -> None:
    if PREADV2 is None:
        pytest.skip("the numbers of this machine's system calls are not known")
    source = mounted.path / "source"
    config = configure(source, tmp_path)
    refusing = (sys.executable, "-c", REFUSE, json.dumps(OLDER_KERNELS[kernel]))
    asked = subprocess.run(
        [*refusing, sys.executable, "-c", ASK], capture_output=True, text=True, check=False
    )
    assert f"[Errno {errno.EOPNOTSUPP}]" in asked.stderr
    check(source, lambda: snapshot(config, "--base", wrapper=refusing))


@pytest.mark.parametrize("refusing", [False, True])
def test_reading_files_in_place_leaves_the_page_cache_as_it_was(
    mounted: Disk, *, refusing: bool
) -> None:
    source = mounted.path / "source"
    device = source.stat().st_dev
    directory = os.open(source, os.O_RDONLY)
    if refusing:
        page_cache.without_dontcache.add(device)

    def read_all() -> None:
        for name, (size, _) in FILES.items():
            wanted = (source / name).stat().st_size
            assert wanted == size
            if size <= 256 * 1024:
                small = read_small(directory, os.fsencode(name), owned=True)
                assert small is not None
                assert len(small.data) == size
            else:
                assert read_large(directory, name, [ByteRange(0, size)]) == size

    try:
        check(source, read_all)
    finally:
        page_cache.without_dontcache.discard(device)
        os.close(directory)


def read_large(
    directory: int, name: str, extents: list[ByteRange], *, scattered: bool = False
) -> int:
    opened = OpenFile(directory, os.fsencode(name), owned=True)
    try:
        if scattered:
            return sum(len(block) for _, block in opened.scattered_blocks(extents))
        return sum(len(block) for one in extents for _, block in opened.blocks(one))
    finally:
        opened.close()


@on_ext4
def test_the_holes_of_a_sparse_file_are_not_asked_about_page_by_page(
    mounted: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asking about all 16,384 windows of a file of 1 TiB would take a minute."""
    size = 1 << 40
    with (mounted.path / "sparse").open("wb") as file:
        file.truncate(size)
        file.write(b"x")
    page_by_page: list[int] = []
    monkeypatch.setattr(page_cache, "_absent_by_page", lambda *of: page_by_page.append(of[1]) or [])
    with (mounted.path / "sparse").open("rb") as file:
        keeper = CacheKeeper(file.fileno(), size, private=False)
        for at in range(0, size, size // 500):
            keeper.reach(at, PAGE)
        keeper.finish()
        with monkeypatch.context() as patch:
            patch.setattr(page_cache, "_cachestat", lambda *_: -1)
            keeper.reach(0, PAGE)  # kernels before 6.5
        keeper.finish()
    if page_cache._cachestat(page_cache._SYS_CACHESTAT, -1, 0, 0, 0) and ctypes.get_errno() in {
        errno.ENOSYS,
        errno.EPERM,
    }:
        return
    assert page_by_page in ([0, page_cache.WINDOW_BYTES], [0, 0, page_cache.WINDOW_BYTES])


def test_reading_ranges_does_not_read_the_bytes_between_them(mounted: Disk) -> None:
    source = mounted.path / "source"
    directory = os.open(source, os.O_RDONLY)
    large = [name for name, (size, _) in FILES.items() if size > MIB]
    seen: list[int] = []

    def read_ranges() -> None:
        seen.clear()
        for name in large:
            size = FILES[name][0]
            ranges = [ByteRange(at, 5000) for at in range(3 * PAGE, size - 5000, 300_001)]
            wanted = sum(one.length_bytes for one in ranges)
            assert read_large(directory, name, ranges, scattered=True) == wanted
            seen.append(wanted)

    try:
        check(source, read_ranges)
        assert sum(seen) < 64 * MIB
    finally:
        os.close(directory)


def test_a_reader_that_stops_in_the_middle_leaves_at_most_its_current_read(
    mounted: Disk,
) -> None:
    source = mounted.path / "source"
    name = "windows every third"
    directory = os.open(source, os.O_RDONLY)
    try:
        warm(source / name, FILES[name][1])
        before = pages_of(source / name)
        opened = OpenFile(directory, os.fsencode(name), owned=True)
        for offset, _ in opened.blocks(ByteRange(0, LARGE)):
            if offset > WINDOW + 12 * MIB:
                break
        opened.close()
        assert _count(before, pages_of(source / name)) <= UNDER_WAY // PAGE
    finally:
        os.close(directory)


@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
def test_no_page_of_a_reflink_copy_stays(tmp_path: Path, kind: str) -> None:
    """A snapshot reads its reflink copies. Their pages go, and the pages of the files stay."""
    with disk(kind, tmp_path, size_mib=512) as made:
        box = Box(made.path)
        names = ("windows every third", "large hot", "large every other page")
        for name in names:
            (box.source / name).write_bytes(os.urandom(FILES[name][0]))
            warm(box.source / name, [])
        wait_until_settled(box.source)
        assert box.take(clock=SystemClock()).trouble_count == 0
        area = made.path / os.fsdecode(AREA_NAME)
        sizes = {FILES[name][0] for name in names}
        copies = [one for one in area.rglob("*") if one.is_file() and one.stat().st_size in sizes]
        assert len(copies) == len(names), "nothing was frozen"
        for copy in copies:
            assert sum(pages_of(copy)) == 0, copy
        assert sum(sum(pages_of(box.source / name)) for name in names) == 0


def test_no_page_stays_of_a_file_that_no_other_process_reads(mounted: Disk) -> None:
    source = mounted.path / "source"
    directory = os.open(source, os.O_RDONLY)
    try:
        for name in ("windows every third", "large hot", "large every other page"):
            warm(source / name, FILES[name][1])
            opened = OpenFile(directory, os.fsencode(name), owned=True, private=True)
            for _ in opened.blocks(ByteRange(0, FILES[name][0])):
                pass
            opened.close()
            assert sum(pages_of(source / name)) == 0, name
    finally:
        os.close(directory)


@on_ext4
def test_pages_mapped_meanwhile_stay_and_their_writes_are_not_lost(mounted: Disk) -> None:
    source = mounted.path / "source"
    name = "large cold"
    warm(source / name, [])
    directory = os.open(source, os.O_RDONLY)
    try:
        with (source / name).open("r+b", buffering=0) as file:
            opened = OpenFile(directory, os.fsencode(name), owned=True)
            blocks = opened.blocks(ByteRange(0, FILES[name][0]))
            next(blocks)
            file.write(b"dirty")
            with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
                assert mapped[2 * MIB] is not None
                for _ in blocks:
                    pass
                opened.close()
                assert pages_of(source / name)[2 * MIB // PAGE] == 1
    finally:
        os.close(directory)
    assert (source / name).read_bytes()[:5] == b"dirty"


def test_a_user_who_may_not_ask_the_page_cache_drops_no_page(public_box: Box) -> None:
    place = public_box.directory / "place"
    place.mkdir()
    os.chown(place, NOBODY, NOBODY)
    with disk("ext4", public_box.directory, size_mib=1024) as made:
        source = made.path / "source"
        fill(source)
        config = place / "ciuic.conf"
        config.write_text(
            f"snapshot_paths = {source}\nsnapshot_dir = {place / 'store'}\nio_priority = none\n"
        )
        assert ciuic("--config", config, "init", user=NOBODY).code == 0
        always: dict[str, Pages] = {}
        for _ in range(ATTEMPTS):
            warm_all(source)
            before = cache_of(source)
            outcome = ciuic("--config", config, "snapshot", "--base", user=NOBODY)
            assert outcome.code == 0, outcome.err
            after = cache_of(source)
            assert sum(map(sum, after.values())) > 0
            always = gone_again(always, before, after)
            if not always:
                break
        assert not always, f"was in the page cache and is no longer: {always.keys()}"
