"""The compiled core reads small files as Python does, or leaves them to Python."""

import contextlib
import os
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic.source.small_file import Still, Wanted, read_small, read_together
from ciuic.source.stability import ReadStatus
from ciuic.system.core import Core, Functions
from tests.kit.cores import VARIANTS, using

ROUND_BYTES = 200_000
WHOLE_READS = 100

names = st.binary(min_size=1, max_size=40).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in {b".", b".."}
)
xattrs = st.dictionaries(
    st.text("abcxyz", min_size=1, max_size=8).map(lambda name: f"user.{name}"),
    st.binary(max_size=300),
    max_size=3,
)
contents = st.one_of(
    st.binary(max_size=300), st.integers(0, 20_000).map(lambda size: (b"%d " % size * size)[:size])
)
modes = st.integers(0, 0o7777).map(lambda mode: mode | stat.S_IRUSR)
times = st.integers(-(10**18), 2**33 * 10**9)
files = st.dictionaries(names, st.tuples(contents, modes, times, xattrs), max_size=80)


@pytest.fixture
def compiled() -> Core:
    if not VARIANTS:
        pytest.skip("the compiled core is not built")
    return VARIANTS[0]


@pytest.fixture
def functions(compiled: Core) -> Functions:
    return compiled.functions


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def wanted(directory: int, name: bytes, *, frozen: bool = False) -> Wanted:
    """Return the file as a walk lists it."""
    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    return Wanted(directory, name, status.st_size, True, frozen)


def read(compiled: Core, directory: int, *names: bytes, frozen: bool = False) -> list[Still | None]:
    with using(compiled):
        return read_together([wanted(directory, name, frozen=frozen) for name in names])


def by_python(directory: int, name: bytes) -> Still:
    """Return the file as ``read_small`` reads it."""
    small = read_small(directory, name, owned=True)
    assert small is not None
    status = ReadStatus(*[getattr(small.status, field) for field in ReadStatus._fields])
    return Still(small.data, status, small.xattrs)


@given(files)
def test_files_are_read_as_python_reads_them(
    made: dict[bytes, tuple[bytes, int, int, dict[str, bytes]]],
) -> None:
    if not VARIANTS:
        pytest.skip("the compiled core is not built")
    with tempfile.TemporaryDirectory() as path:
        directory = os.open(path, os.O_RDONLY)
        try:
            for name, (data, mode, mtime_ns, attributes) in made.items():
                at = os.path.join(os.fsencode(path), name)
                Path(os.fsdecode(at)).write_bytes(data)
                for attribute, value in attributes.items():
                    # A file system may support no attributes, or not this many.
                    with contextlib.suppress(OSError):
                        os.setxattr(at, attribute, value)
                os.chmod(at, mode)
                os.utime(at, ns=(mtime_ns, mtime_ns))
            found = read(VARIANTS[0], directory, *made)
            for name, one in zip(made, found, strict=True):
                expected = by_python(directory, name)
                if sum(len(value) + 20 for _, value in expected.xattrs) < 400:
                    assert one == expected
                else:
                    assert one in {None, expected}, "the core has 512 bytes for attributes"
        finally:
            os.close(directory)


def test_without_the_core_all_files_are_left_to_python(directory: int, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with using(None):
        assert read_together([wanted(directory, b"file")]) == [None]


def test_a_file_that_is_being_written_is_left_to_python(
    compiled: Core, directory: int, tmp_path: Path
) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(name)
    with (tmp_path / "b").open("r+b"):
        found = read(compiled, directory, b"a", b"b", b"c")
        frozen = read(compiled, directory, b"b", frozen=True)
    assert [None if one is None else one.data for one in found] == [b"a", None, b"c"]
    assert frozen[0] is not None, "no program can write to a frozen file"
    assert read(compiled, directory, b"b")[0] is not None


def test_no_read_is_torn_while_a_program_writes_all_the_time(
    compiled: Core, directory: int, tmp_path: Path
) -> None:
    """A writer opens the file, fills it with one byte in two steps, and closes it."""
    path = tmp_path / "file"
    path.write_bytes(b"\0" * ROUND_BYTES)
    stop, is_failed = threading.Event(), []

    def write() -> None:
        half = ROUND_BYTES // 2
        for number in range(10**9):
            if stop.is_set():
                return
            byte = bytes([number % 251])
            with path.open("r+b", buffering=0) as file:
                is_failed.extend(
                    at for at in (0, half) if os.pwrite(file.fileno(), byte * half, at) != half
                )

    thread = threading.Thread(target=write)
    thread.start()
    whole: list[Still] = []
    try:
        while len(whole) < WHOLE_READS:
            whole += [one for one in read(compiled, directory, b"file") if one is not None]
    finally:
        stop.set()
        thread.join()
    assert [len(set(one.data)) for one in whole] == [1] * len(whole)
    assert {len(one.data) for one in whole} == {ROUND_BYTES}
    assert not is_failed


def test_a_reader_closes_every_file(compiled: Core, directory: int, tmp_path: Path) -> None:
    names = [b"%d" % number for number in range(100)]
    for name in names:
        (tmp_path / os.fsdecode(name)).write_bytes(name)
    open_files = len(os.listdir("/proc/self/fd"))
    assert None not in read(compiled, directory, *names)
    assert len(os.listdir("/proc/self/fd")) <= open_files
    locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    assert not [line for line in locks if "LEASE" in line and str(os.getpid()) in line]


def test_an_entry_that_has_replaced_a_file_is_left_to_python(
    compiled: Core, directory: int, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"secret")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo")
    asked = [
        Wanted(directory, name, 100, True, frozen)
        for name in (b"link", b"directory", b"fifo", b"missing", b"file/below")
        for frozen in (False, True)
    ]
    with using(compiled):
        assert read_together(asked) == [None] * len(asked)


def test_a_file_that_has_grown_or_shrunk_is_read_completely_or_left_to_python(
    compiled: Core, directory: int, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    with using(compiled):
        lengths = [0, 9, 10, 11, 200_000]
        found = [
            read_together([Wanted(directory, b"file", length, True, False)])[0]
            for length in lengths
        ]
    assert [None if one is None else one.data for one in found] == [
        None,
        None,
        *[b"0123456789"] * 3,
    ]


def test_more_files_than_the_buffer_holds_are_read_in_several_calls(
    compiled: Core, directory: int, tmp_path: Path
) -> None:
    sizes = [0, 1, 4095, 4096, 4097, 256 * 1024, 1024 * 1024 - 1, 300_000, 900_000, *[7] * 200]
    data = [os.urandom(size) for size in sizes]
    for number, one in enumerate(data):
        (tmp_path / str(number)).write_bytes(one)
    found = read(compiled, directory, *[b"%d" % number for number in range(len(sizes))])
    assert [None if one is None else one.data for one in found] == data


def test_the_access_time_of_ones_own_file_stays(
    compiled: Core, directory: int, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    os.utime(path, ns=(5, path.stat().st_mtime_ns))
    assert read(compiled, directory, b"file")[0] is not None
    assert path.stat().st_atime_ns == 5


@pytest.mark.parametrize(
    "file",
    [
        (0, b"a\0b", 1, 0),
        [0, b"a", 1, 0],
        (0, b"a", 1),
        (0, b"a", -1, 0),
        (0, b"a", 5000, 0),
        (0, b"a", 2**62, 0),
        (0, "text", 1, 0),
        (2**40, b"a", 1, 0),
    ],
)
def test_invalid_files_and_buffers_are_refused(
    functions: Functions, directory: int, tmp_path: Path, file: tuple[int, bytes, int, int]
) -> None:
    (tmp_path / "good").write_bytes(b"good")
    good = (directory, b"good", 10, 0)
    buffer = bytearray(8192)
    with pytest.raises((ValueError, TypeError, OverflowError)):
        functions.files_read(buffer, [good, file])
    with pytest.raises(ValueError, match="too many"):
        functions.files_read(buffer, [good] * (functions.FILES_MAX + 1))
    with pytest.raises((TypeError, BufferError)):
        functions.files_read(bytes(8192), [good])
    assert not any(buffer), "nothing was read"
