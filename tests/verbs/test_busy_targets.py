"""Restores into directories that other programs write to."""

import ctypes
import itertools
import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ciuic.restore.place import large_files, present_files
from ciuic.restore.place.output import Output
from ciuic.system import durable
from tests.kit.box import Box
from tests.kit.clock import ManualClock
from tests.kit.trees import differences, photograph

MIB = 1024 * 1024


@pytest.fixture
def changed(box: Box) -> Box:
    """A file of many pieces whose last piece has changed since its snapshot."""
    path = box.source / "model"
    path.write_bytes(random.Random(1).randbytes(12 * MIB))
    box.take()
    with path.open("r+b") as file:
        file.seek(11 * MIB)
        file.write(b"changed")
    return box


@pytest.mark.parametrize("how", ["overwritten", "cut"])
def test_an_old_file_that_changes_after_it_was_compared_is_not_copied_from(
    changed: Box, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    path = changed.source / "model"
    wanted = changed.read(path)
    compare = large_files.matching_parts

    def then_write(*arguments: object) -> bytearray:
        found = compare(*arguments)  # type: ignore[arg-type]
        with path.open("r+b") as file:
            if how == "cut":
                file.truncate(2 * MIB)
            else:
                file.seek(3 * MIB)
                file.write(b"written meanwhile")
        return found

    monkeypatch.setattr(large_files, "matching_parts", then_write)
    report = changed.restore(path, overwrite=True)

    assert report.failed == []
    assert path.read_bytes() == wanted
    assert report.cloned_bytes == 0


def test_a_short_copy_by_the_kernel_is_noticed(
    changed: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = changed.source / "model"
    wanted = changed.read(path)
    monkeypatch.setattr(os, "copy_file_range", lambda *_: 0)

    report = changed.restore(path, overwrite=True)

    assert path.read_bytes() == wanted
    assert report.cloned_bytes == 11 * MIB


def test_unchanged_bytes_of_an_old_file_are_copied(changed: Box) -> None:
    path = changed.source / "model"
    wanted = changed.read(path)

    report = changed.restore(path, overwrite=True)

    assert path.read_bytes() == wanted
    assert report.cloned_bytes == 11 * MIB


def test_a_file_that_may_have_changed_within_a_tick_of_the_clock_is_read(box: Box) -> None:
    path = box.source / "log"
    path.write_bytes(b"first")
    box.take(clock=ManualClock(path.stat().st_ctime_ns))
    looked: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        look = present_files.open_present
        patch.setattr(
            present_files, "open_present", lambda job: looked.append(job.path) or look(job)
        )
        box.restore(path, overwrite=True)
        assert looked == [os.fsencode(path)]
        looked.clear()
        box.take()
        box.restore(path, overwrite=True)
        assert looked == []


def test_files_whose_directory_goes_before_they_have_names_cost_no_others(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        directory = box.source / f"run {number:02d}"
        directory.mkdir()
        (directory / "weights").write_bytes(random.Random(number).randbytes(50_000))
    box.take()
    out = box.directory / "out"
    gone = out / "source" / "run 07"
    sync = durable.sync_file_system

    def after_rotation(fd: int) -> None:
        if gone.exists():
            for path in gone.iterdir():
                path.unlink()
            gone.rmdir()
        sync(fd)

    monkeypatch.setattr(durable, "sync_file_system", after_rotation)
    report = box.restore(to=out)

    failed = {one.path for one in report.failed}
    assert failed == {os.fsencode(box.source / "run 07" / "weights")}
    expected = {
        path: photo
        for path, photo in photograph(box.source).items()
        if not path.startswith(b"run 07")
    }
    assert differences(expected, photograph(out / "source")) == []


def test_a_file_that_only_looks_like_a_leftover_and_cannot_be_removed_stays(box: Box) -> None:
    (box.source / "file").write_bytes(b"content")
    box.take()
    out = box.directory / "out"
    (out / ".ciuic-restore-1-1-0123456789abcdef").mkdir(parents=True)

    report = box.restore(box.source / "file", to=out)

    assert report.failed == []
    assert (out / "file").read_bytes() == b"content"


def test_pieces_that_begin_anywhere_are_written_past_the_page_cache_side_by_side(
    tmp_path: Path,
) -> None:
    rng = random.Random(7)
    data = rng.randbytes(9 * MIB + 123)
    cuts = sorted({0, len(data), *(rng.randrange(len(data)) for _ in range(60)), 4096, 4097, 8192})
    pieces = list(itertools.pairwise(cuts))
    rng.shuffle(pieces)
    path = tmp_path / "file"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        direct_fd = os.open(path, os.O_WRONLY | os.O_DIRECT)
    except OSError:
        direct_fd = -1
    os.ftruncate(fd, len(data))
    output = Output(fd, direct_fd)

    def write(piece: tuple[int, int]) -> None:
        begin, end = piece
        with output.memory(end - begin, begin) as lent:
            if lent is None or begin % 3 == 0:
                output.write(data[begin:end], begin)
            else:
                lent[:] = data[begin:end]
                address = ctypes.addressof(ctypes.c_char.from_buffer(lent))
                assert (address - begin) % 4096 == 0, "the kernel would refuse to write directly"
                output.write(lent, begin, is_lent=True)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, pieces))
    output.write_edges()
    output.close()
    os.close(fd)
    assert path.read_bytes() == data
    with output.memory(3 * MIB, 0) as lent:
        assert lent is None, "a chunk of any length would make as large a buffer for each thread"
