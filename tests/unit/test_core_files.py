"""The compiled core writes new files as Python does, or refuses and removes them."""

import errno
import os
import resource
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic.model import Entry
from ciuic.restore.place.job import Job
from ciuic.restore.place.ledger import Ledger
from ciuic.restore.place.temporary_files import TemporaryFiles
from ciuic.restore.report import RestoreReport
from ciuic.source.directory import DirectoryHandle
from ciuic.system import durable
from ciuic.system.core import Core, Functions
from tests.kit.cores import VARIANTS, using

CORES = [None, *VARIANTS[:1]]
OTHER_USER = 65534

modes = st.integers(0, 0o7777).map(lambda mode: mode | stat.S_IRUSR)
times = st.integers(-(10**18), 2**33 * 10**9)
contents = st.lists(st.tuples(st.binary(max_size=3000), modes, times), max_size=32)


@pytest.fixture
def functions() -> Functions:
    if not VARIANTS:
        pytest.skip("the compiled core is not built")
    return VARIANTS[0].functions


@contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def made(compiled: Core | None, wanted: list[tuple[bytes, int, int]]) -> list[tuple[object, ...]]:
    """Write the files together and rename them; return what the directory then has."""
    with tempfile.TemporaryDirectory() as path:
        directory = DirectoryHandle(os.open(path, os.O_RDONLY), os.fsencode(path))
        files = TemporaryFiles(Ledger(RestoreReport(), None))
        jobs = []
        for number, (data, mode, mtime_ns) in enumerate(wanted):
            entry = Entry(
                name=b"%02d" % number,
                mode=stat.S_IFREG | mode,
                uid=os.getuid(),
                gid=os.getgid(),
                mtime_ns=mtime_ns,
                ctime_ns=0,
                ino=0,
                size_bytes=len(data),
            )
            jobs.append((Job(directory, entry.name, entry, entry.name, None), memoryview(data)))
        with using(compiled):
            files.write_together(jobs)
            names = [(directory.fd, file.temporary, file.job.name) for file in files.take()]
            assert durable.publish_names(names) == (len(wanted), 0)
        found = [(at, at.stat()) for at in sorted(Path(path).iterdir())]
        return [
            (at.name, status.st_mode, status.st_uid, status.st_mtime_ns, at.read_bytes())
            for at, status in found
        ]


@given(contents)
def test_files_are_as_requested_with_and_without_the_core(
    wanted: list[tuple[bytes, int, int]],
) -> None:
    expected = [
        (f"{number:02}", stat.S_IFREG | mode, os.getuid(), mtime_ns, data)
        for number, (data, mode, mtime_ns) in enumerate(wanted)
    ]
    for compiled in CORES:
        assert made(compiled, wanted) == expected


def test_an_existing_file_is_not_changed(functions: Functions, tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"outside")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "file").write_bytes(b"old")
    (inside / "link").symlink_to("../outside")
    (inside / "dangling").symlink_to("../nothing")
    names = [b"file", b"link", b"dangling", b"new"]
    with opened(inside) as fd:
        wanted = [(fd, name, b"new", 0o644, os.getuid(), os.getgid(), 0) for name in names]
        assert functions.files_create(wanted) == [errno.EEXIST] * 3 + [0]
    assert (tmp_path / "outside").read_bytes() == b"outside"
    assert not (tmp_path / "nothing").exists()
    assert (inside / "file").read_bytes() == b"old"
    assert (inside / "new").read_bytes() == b"new"


def test_a_file_that_cannot_be_completed_is_removed(functions: Functions, tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    own = (os.getuid(), os.getgid(), 0)
    with opened(tmp_path) as fd:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        try:
            errors = functions.files_create(
                [
                    (fd, b"long", bytes(5000), 0o600, *own),
                    (fd, b"short", bytes(4000), 0o600, *own),
                    (fd, b"unowned", b"", 0o600, 2**32 - 1, os.getgid(), 0),
                    (-1, b"nowhere", b"", 0o600, *own),
                ]
            )
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert errors == [errno.EFBIG, 0, errno.EINVAL, errno.EBADF]
    assert os.listdir(tmp_path) == ["short"]


def test_only_root_can_give_a_file_to_another_user(functions: Functions, tmp_path: Path) -> None:
    with opened(tmp_path) as fd:
        found = functions.files_create([(fd, b"given", b"x", 0o4755, OTHER_USER, OTHER_USER, 7)])
    if os.geteuid():
        assert found == [errno.EPERM]
        assert os.listdir(tmp_path) == []
    else:
        status = (tmp_path / "given").stat()
        assert (found, status.st_uid, status.st_mtime_ns) == ([0], OTHER_USER, 7)
        assert stat.S_IMODE(status.st_mode) == 0o4755, "a change of the owner clears this bit"


@pytest.mark.parametrize("compiled", CORES)
def test_renaming_ends_at_the_first_failure(compiled: Core | None, tmp_path: Path) -> None:
    for name in ("a", "c"):
        (tmp_path / name).write_text(name)
    (tmp_path / "A").write_text("old")
    with opened(tmp_path) as fd, using(compiled):
        names = [(fd, old, old.upper()) for old in (b"a", b"b", b"c")]
        assert durable.publish_names(names) == (1, errno.ENOENT)
    assert sorted(os.listdir(tmp_path)) == ["A", "c"]
    assert (tmp_path / "A").read_text() == "a"


@pytest.mark.parametrize(
    "file",
    [
        (0, b"a\0b", b"", 0, 0, 0, 0),
        [0, b"a", b"", 0, 0, 0, 0],
        (0, b"a", b"", 0, 0, 0),
        (0, b"a", "text", 0, 0, 0, 0),
        (2**40, b"a", b"", 0, 0, 0, 0),
    ],
)
def test_an_invalid_file_is_refused_before_anything_is_written(
    functions: Functions, tmp_path: Path, file: tuple[int, bytes, bytes, int, int, int, int]
) -> None:
    with opened(tmp_path) as fd:
        good = (fd, b"good", b"", 0o600, os.getuid(), os.getgid(), 0)
        with pytest.raises((ValueError, TypeError, OverflowError)):
            functions.files_create([good, file])
        with pytest.raises(ValueError, match="too many"):
            functions.files_create([good] * (functions.FILES_MAX + 1))
        with pytest.raises((ValueError, TypeError)):
            functions.files_rename([(fd, b"a", b"b\0c")])
    assert os.listdir(tmp_path) == []
