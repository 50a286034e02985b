"""Several processes on one store: they wait for each other, or do not affect each other."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.kit.box import Box
from tests.kit.program import CIUIC, environment
from tests.kit.trees import differences, photograph

MIB = 1024 * 1024

pytestmark = pytest.mark.slow


def start(box: Box, *arguments: str | Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*CIUIC, "--config", box.config, *arguments],
        env=environment(),
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen[bytes]) -> bytes:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, (process.args, err.decode())
    return out


def test_simultaneous_requests_for_snapshots_are_served_one_after_another(box: Box) -> None:
    (box.source / "file").write_bytes(os.urandom(MIB))
    processes = [start(box, "snapshot", "--wait", "60s") for _ in range(4)]
    ids = {finish(one).decode().strip() for one in processes}
    assert len(ids) == 4
    assert {one.id for one in box.snapshots()} == ids
    assert box.verify().ok


def test_readers_and_a_writer_do_not_disturb_each_other(box: Box, tmp_path: Path) -> None:
    for number in range(300):
        (box.source / f"f{number}").write_bytes(os.urandom(2000))
    first = box.take().id
    before = photograph(box.source)
    seen = 1
    for step in range(5):
        (box.source / "large").write_bytes(os.urandom(20 * MIB))
        writer = start(box, "snapshot")
        rounds = 0
        while writer.poll() is None or rounds == 0:
            listed = box.snapshots()
            assert len(listed) >= seen
            seen = len(listed)
            assert box.verify(checksum=False).ok
            out = tmp_path / f"out{step}-{rounds}"
            assert box.restore(snapshot=first, to=out).failed == []
            assert differences(before, photograph(out / "source")) == []
            rounds += 1
        finish(writer)
    assert len(box.snapshots()) == 6
    assert box.verify().ok


def test_several_readers_of_a_store_without_a_chunk_index_all_succeed(box: Box) -> None:
    for number in range(50):
        (box.source / f"f{number}").write_bytes(os.urandom(2000))
    box.take()
    (box.store / "catalog.sqlite").unlink()
    readers = [start(box, "verify", "--checksum") for _ in range(3)]
    readers += [start(box, "stats"), start(box, "list"), start(box, "ls", "-R", "latest")]
    for one in readers:
        finish(one)


def test_two_restores_into_one_place_end_well(box: Box, tmp_path: Path) -> None:
    for number in range(100):
        (box.source / f"f{number}").write_bytes(os.urandom(20_000))
    (box.source / "large").write_bytes(os.urandom(10 * MIB))
    box.take()
    options = ("restore", "-s", "latest", "-p", box.source, "-d", tmp_path / "out", "--overwrite")
    processes = [start(box, *options) for _ in range(2)]
    for one in processes:
        said = one.communicate(timeout=120)
        assert one.returncode in {0, 3}, said
    finish(start(box, *options))
    assert differences(photograph(box.source), photograph(tmp_path / "out" / "source")) == []


def test_a_directory_that_another_restore_creates_at_the_same_moment_is_used(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (box.source / "deep").mkdir()
    (box.source / "deep" / "file").write_bytes(b"x")
    box.take()
    mkdir = os.mkdir
    created = []

    def at_the_same_moment(name: bytes, mode: int, *, dir_fd: int | None = None) -> None:
        mkdir(name, mode, dir_fd=dir_fd)
        created.append(name)
        mkdir(name, mode, dir_fd=dir_fd)

    (tmp_path / "out").mkdir()
    monkeypatch.setattr(os, "mkdir", at_the_same_moment)

    # Without --overwrite, the directory of the other restore is refused: test_two_restores.py.
    assert box.restore(to=tmp_path / "out", overwrite=True).failed == []
    assert [os.path.basename(name) for name in created] == [b"source", b"deep"]
    assert differences(photograph(box.source), photograph(tmp_path / "out" / "source")) == []


def test_a_file_that_takes_the_place_of_a_directory_at_that_moment_is_not_followed(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (box.source / "deep").mkdir()
    box.take()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    mkdir = os.mkdir

    def a_symlink_first(name: bytes, mode: int, *, dir_fd: int | None = None) -> None:
        if name == b"deep":
            os.symlink(elsewhere, name, dir_fd=dir_fd)
        mkdir(name, mode, dir_fd=dir_fd)

    (tmp_path / "out").mkdir()
    monkeypatch.setattr(os, "mkdir", a_symlink_first)

    (failed,) = box.restore(to=tmp_path / "out").failed
    assert failed.path.endswith(b"/deep")
    assert elsewhere.stat().st_mode & 0o777 == 0o755
