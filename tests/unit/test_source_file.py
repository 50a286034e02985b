"""Reading a file: whether a program is writing it, and what the reader does to writers."""

import mmap
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ciuic.source import page_cache
from ciuic.source.byte_range import ByteRange
from ciuic.source.file import BLOCK_BYTES, OpenFile
from ciuic.source.small_file import Small, read_small
from ciuic.system import kernel
from tests.kit.box import Box
from tests.kit.program import NOBODY, environment

MIB = 1024 * 1024
SMALL = 6000
LARGE = 2 * BLOCK_BYTES + 777

OTHER = """
import mmap, os, sys
how, path = sys.argv[1:]
fd = os.open(path, os.O_RDONLY if how == "reads" else os.O_RDWR)
if how == "maps":
    mapped = mmap.mmap(fd, 0)
    os.close(fd)
if how == "maps to read":
    mapped = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
    os.close(fd)
print("ready", flush=True)
sys.stdin.read()
"""

WRITES_SOON = """
import os, sys
print("ready", flush=True)
sys.stdin.readline()
with open(sys.argv[1], "r+b") as file:
    file.write(b"new")
print("written", flush=True)
"""

READS_AS_SOMEBODY = """
import os, sys
from ciuic.source.file import OpenFile
from ciuic.source.small_file import read_small
os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
directory, name = os.open(os.path.dirname(sys.argv[1]), os.O_RDONLY), os.path.basename(sys.argv[1])
small = read_small(directory, os.fsencode(name), owned=False)
opened = OpenFile(directory, os.fsencode(name), owned=False)
print(len(small.data), small.has_writer, opened.has_writer)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A small file."""
    path = tmp_path / "file"
    path.write_bytes(os.urandom(SMALL))
    return path


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    """The descriptor of the directory of ``path``."""
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


@contextmanager
def other(program: str, *arguments: str | Path) -> "Iterator[subprocess.Popen[str]]":
    """Run another process until the end of the block; enter the block once it is ready."""
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        assert process.stdin is not None
        process.stdin.close()
    assert process.returncode == 0


def read(directory: int, *, frozen: bool = False) -> Small:
    """Read the small file."""
    small = read_small(directory, b"file", owned=True, frozen=frozen)
    assert small is not None
    return small


def found(directory: int) -> tuple[bool | None, bool | None]:
    """Return whether each of the two ways of reading finds a writer."""
    opened = OpenFile(directory, b"file", owned=True)
    opened.close()
    return read(directory).has_writer, opened.has_writer


@pytest.mark.parametrize("how", ["writes", "maps", "maps to read"])
def test_a_process_that_has_a_file_open_for_writing_is_found(
    path: Path, directory: int, how: str
) -> None:
    assert found(directory) == (False, False)
    with other(OTHER, how, path):
        # A read-only map keeps its file open as it was opened: for writing.
        assert found(directory) == (True, True)
    assert found(directory) == (False, False)


def test_a_process_that_only_reads_is_not_a_writer(path: Path, directory: int) -> None:
    with other(OTHER, "reads", path):
        assert found(directory) == (False, False)


def test_a_writer_that_starts_between_two_attempts_is_found(path: Path, directory: int) -> None:
    opened = OpenFile(directory, b"file", owned=True)
    assert opened.has_writer is False
    with other(OTHER, "writes", path):
        opened.look_again()
        assert opened.has_writer is True
    opened.close()


def test_no_writer_is_searched_for_in_a_reflink_copy(path: Path, directory: int) -> None:
    with other(OTHER, "writes", path):
        assert read(directory, frozen=True).has_writer is None
        opened = OpenFile(directory, b"file", owned=True, private=True)
        opened.look_again()
        assert opened.has_writer is None
        opened.close()


@pytest.mark.root
def test_whether_another_users_file_has_a_writer_is_unknown_and_the_file_is_read(
    public_box: Box,
) -> None:
    path = public_box.source / "file"
    path.write_bytes(b"somebody's")
    path.chmod(0o644)
    public_box.source.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", READS_AS_SOMEBODY, path, str(NOBODY)],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
        cwd="/",
    )
    assert done.stdout == "10 None None\n"


def test_a_writer_waits_for_the_reader_without_harm(path: Path) -> None:
    """By default, the kernel would send the holder of a lease a signal, which kills it."""
    fd = os.open(path, os.O_RDONLY)
    with other(WRITES_SOON, path) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        assert kernel.hold_lease(fd) is False
        assert is_leased(path)
        writer.stdin.write("go\n")
        writer.stdin.flush()
        while not lease_is_being_broken(path):
            assert writer.poll() is None
        os.close(fd)
        assert writer.stdout.readline() == "written\n"
    assert path.read_bytes().startswith(b"new")
    assert signal.getsignal(signal.SIGIO) == signal.SIG_DFL


def is_leased(path: Path) -> bool:
    return any("LEASE" in line for line in locks(path))


def lease_is_being_broken(path: Path) -> bool:
    return any("LEASE" in line and "BREAKING" in line for line in locks(path))


def locks(path: Path) -> list[str]:
    """Return the locks of this process; another one may lock the same number of another disk."""
    holder = re.compile(rf" {os.getpid()} \S+:{path.stat().st_ino} ")
    return [line for line in Path("/proc/locks").read_text().splitlines() if holder.search(line)]


def test_a_reader_releases_the_file_when_it_is_done(path: Path, directory: int) -> None:
    read_small(directory, b"file", owned=True)
    opened = OpenFile(directory, b"file", owned=True)
    assert locks(path) == []
    opened.close()


def test_a_file_is_read_while_it_is_written_all_the_time(path: Path, directory: int) -> None:
    """Thousands of writers and readers run at the same time, and all of them succeed."""
    stop = threading.Event()
    written = [0]

    def write() -> None:
        while not stop.is_set():
            with path.open("r+b", buffering=0) as file:
                file.write(os.urandom(9))
            written[0] += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        results = [read(directory) for _ in range(2000)]
    finally:
        stop.set()
        thread.join()
    assert {len(one.data) for one in results} == {SMALL}
    assert written[0] > 0


def test_a_file_that_has_grown_large_is_not_read_as_a_small_one(path: Path, directory: int) -> None:
    os.truncate(path, page_cache.SMALL_BYTES_MAX + 1)
    assert read_small(directory, b"file", owned=True) is None
    os.truncate(path, SMALL)
    assert read_small(directory, b"file", owned=True, bytes_max=SMALL - 1) is None
    assert len(read(directory).data) == SMALL


def test_a_rename_during_a_read_does_not_make_it_torn(
    path: Path, directory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rename changes the ctime of the replaced file, and new links change it in every attempt."""
    content = path.read_bytes()
    names = iter(range(1000))

    def read_and_link(*arguments: int) -> bytes:
        os.link(path, path.with_name(f"link {next(names)}"))
        return page_cache.read_whole(*arguments)

    monkeypatch.setattr("ciuic.source.small_file.read_whole", read_and_link)
    for is_leased in (True, False):
        if not is_leased:
            monkeypatch.setattr("ciuic.source.small_file.hold_lease", lambda _: None)
        small = read(directory)
        assert not small.is_torn
        assert small.data == content


def test_a_torn_file_that_was_replaced_is_read_again_by_its_name(
    path: Path, directory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.urandom(SMALL + 5)
    path.with_name("whole").write_bytes(whole)
    with other(OTHER, "writes", path):

        def read_and_replace(*arguments: int) -> bytes:
            if path.with_name("whole").exists():
                path.with_name("whole").rename(path)
            return page_cache.read_whole(*arguments)

        monkeypatch.setattr("ciuic.source.small_file.read_whole", read_and_replace)
        small = read(directory)
    assert (small.is_torn, small.has_writer) == (False, False)
    assert small.data == whole


@pytest.mark.parametrize("size", [0, 1, SMALL, mmap.PAGESIZE, 256 * 1024])
@pytest.mark.parametrize("refusing", [False, True])
def test_small_files_are_read_to_the_last_byte(
    path: Path, directory: int, size: int, *, refusing: bool
) -> None:
    content = os.urandom(size)
    path.write_bytes(content)
    device = path.stat().st_dev
    if refusing:
        page_cache.without_dontcache.add(device)
    try:
        small = read(directory)
    finally:
        page_cache.without_dontcache.discard(device)
    assert small.data == content
    assert not small.is_torn


RANGES = [
    [ByteRange(0, LARGE)],
    [
        ByteRange(5, 1),
        ByteRange(4096, 4096),
        ByteRange(BLOCK_BYTES - 3, 7),
        ByteRange(LARGE - 1, 1),
    ],
    [ByteRange(at, 100) for at in range(0, LARGE - 100, 9000)],
]


@pytest.mark.parametrize("ranges", RANGES)
@pytest.mark.parametrize("private", [False, True])
def test_scattered_blocks_equal_single_reads_of_them(
    path: Path, directory: int, ranges: list[ByteRange], *, private: bool
) -> None:
    content = os.urandom(LARGE)
    path.write_bytes(content)
    opened = OpenFile(directory, b"file", owned=True, private=private)
    scattered = [(at, bytes(block)) for at, block in opened.scattered_blocks(ranges)]
    one_by_one = [(at, bytes(block)) for one in ranges for at, block in opened.blocks(one)]
    opened.close()
    assert scattered == one_by_one
    assert all(content[at : at + len(block)] == block for at, block in scattered)
    assert sum(len(block) for _, block in scattered) == sum(one.length_bytes for one in ranges)
    assert not opened.ended_early


def test_ranges_of_a_file_that_shrank_end_early(path: Path, directory: int) -> None:
    path.write_bytes(os.urandom(LARGE))
    opened = OpenFile(directory, b"file", owned=True)
    os.truncate(path, MIB + 50)
    ranges = [ByteRange(at, 100) for at in range(0, LARGE - 100, MIB)]
    blocks = [(at, len(block)) for at, block in opened.scattered_blocks(ranges)]
    opened.close()
    assert blocks == [(0, 100), (MIB, 50)]
    assert opened.ended_early
