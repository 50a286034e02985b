"""``ciuic mount`` of a store that is damaged or hostile, or pruned or removed while mounted."""

import errno
import os
import subprocess
from pathlib import Path

import pytest

from ciuic.model import UNREADABLE
from ciuic.store.packs.writer import StoreWriter
from ciuic.store.records.kinds import TREE
from ciuic.store.records.layout import manifest_name
from tests.kit import hostile
from tests.kit.box import Box
from tests.kit.damage import flip_content
from tests.kit.mounted import LIMIT_S, mounted, wait_for

CHUNK = 1024 * 1024


def fails(number: int, path: Path, act=Path.read_bytes) -> bool:
    """Return whether a call on a path fails with this error."""
    try:
        act(path)
    except OSError as error:
        return error.errno == number
    return False


def test_a_damaged_chunk_is_an_error_where_it_is_read_and_is_named_once(box: Box) -> None:
    parts = [bytes([number]) * CHUNK for number in range(1, 9)]
    (box.source / "hurt").write_bytes(b"".join(parts))
    (box.source / "fine").write_bytes(b"fine" * 1000)
    taken = box.take().id
    flip_content(box.store, parts[6])

    with mounted(box) as shown:
        hurt = shown.at(box.source / "hurt")
        with hurt.open("rb", buffering=0) as file:
            assert os.pread(file.fileno(), CHUNK, 0) == parts[0]
            assert os.pread(file.fileno(), 100, 7 * CHUNK + 5) == parts[7][:100]
            with pytest.raises(OSError) as caught:
                os.pread(file.fileno(), 100, 6 * CHUNK + 100)
            assert caught.value.errno == errno.EIO
        assert fails(errno.EIO, hurt)
        assert fails(errno.EIO, hurt)
        assert shown.at(box.source / "fine").read_bytes() == b"fine" * 1000
        copied = subprocess.run(
            ["cp", "-a", shown.at(box.source), box.directory / "copy"],
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert copied.returncode == 1
        assert (box.directory / "copy" / "fine").read_bytes() == b"fine" * 1000
        lines = [line for line in shown.said().splitlines() if "hurt" in line]
    assert len(lines) == 1
    assert f"{box.source}/hurt in {taken}: " in lines[0]


def test_a_file_that_could_not_be_read_back_then_is_an_error(box: Box) -> None:
    (box.source / "a").write_text("x")
    box.take()

    def spelled(writer: StoreWriter) -> bytes:
        entry = hostile.file(b"secret", size_bytes=10)
        entry.state = UNREADABLE
        return hostile.node(writer, TREE, 0, [entry])

    hostile.commit(box.store, b"/hostile", spelled)

    with mounted(box) as shown:
        path = shown.at("/hostile/secret")
        assert path.stat().st_size == 10
        assert fails(errno.EIO, path)
        assert "/hostile/secret in " in shown.said()
        assert "could not be read when the snapshot was taken" in shown.said()


def test_a_damaged_directory_is_an_error_and_the_others_are_not(box: Box) -> None:
    (box.source / "a").write_text("x")
    taken = box.take().id

    def spelled(writer: StoreWriter) -> bytes:
        good = hostile.node(writer, TREE, 0, [hostile.file(b"file")])
        entries = [hostile.directory(b"bad", bytes(32)), hostile.directory(b"good", good)]
        return hostile.node(writer, TREE, 0, entries)

    hostile.commit(box.store, b"/hostile", spelled)

    with mounted(box) as shown:
        top = shown.at("/hostile")
        assert sorted(os.listdir(top)) == ["bad", "good"]
        assert os.listdir(top / "good") == ["file"]
        assert fails(errno.EIO, top / "bad", os.listdir)
        assert fails(errno.EIO, top / "bad", os.listdir)
        assert fails(errno.EIO, top / "bad" / "file")
        assert os.readlink(shown.point / "latest") == f"by-id/{hostile.HOSTILE}"
        assert os.readlink(shown.point / "latest-valid") == f"by-id/{taken}"
        assert shown.said().count("/bad in ") == 1


def test_a_damaged_manifest_is_named_and_the_others_are_shown(box: Box) -> None:
    (box.source / "a").write_text("1")
    first = box.take().id
    (box.source / "a").write_text("2")
    second = box.take().id
    path = box.store / "snapshots" / manifest_name(second)
    path.write_bytes(path.read_bytes()[:100])
    for copy in box.store.glob(f"parity/**/*{second}*"):
        copy.unlink()

    with mounted(box) as shown:
        assert os.listdir(shown.point / "by-id") == [first]
        lines = shown.said().splitlines()
        assert len([line for line in lines if line.startswith(f"ciuic: {second}: ")]) == 1


def test_a_store_that_goes_away_and_comes_back(box: Box) -> None:
    (box.source / "a").write_bytes(b"a" * 5000)
    (box.source / "b").write_bytes(b"b" * 5000)
    box.take()

    with mounted(box) as shown:
        assert shown.at(box.source / "a").read_bytes() == b"a" * 5000
        away = box.store.with_name("away")
        box.store.rename(away)
        box.store.touch()  # the mount point of a disk that is gone
        assert fails(errno.EIO, shown.point / "by-id", os.listdir)
        box.store.unlink()
        away.rename(box.store)
        assert len(os.listdir(shown.point / "by-id")) == 1
        assert shown.at(box.source / "b").read_bytes() == b"b" * 5000


def test_a_prune_moves_what_is_read_and_removes_what_is_forgotten(box: Box) -> None:
    old, kept = os.urandom(3 * CHUNK), os.urandom(CHUNK)
    (box.source / "old").write_bytes(old)
    (box.source / "kept").write_bytes(kept)
    first = box.take().id
    (box.source / "old").unlink()
    second = box.take().id

    with mounted(box) as shown:
        path = shown.at(box.source / "old", first)
        assert path.stat().st_size == len(old)
        gone = os.open(path, os.O_RDONLY)
        try:
            assert os.pread(gone, 10, 0) == old[:10]
            assert box.ciuic("forget", first, "--trash", "0", "--prune").code == 0
            assert os.listdir(shown.point / "by-id") == [second]
            assert shown.at(box.source / "kept", second).read_bytes() == kept
            with pytest.raises(OSError) as caught:
                os.pread(gone, 10, 2 * CHUNK)
            assert caught.value.errno == errno.EIO
        finally:
            os.close(gone)


def test_a_hostile_recipe_of_an_exabyte_costs_little(box: Box) -> None:
    (box.source / "a").write_text("x")
    box.take()
    hostile.commit_recipe(box.store, Path("/hostile"), 1 << 55)

    with mounted(box) as shown:
        (path,) = (shown.point / "latest" / "hostile").iterdir()
        with path.open("rb", buffering=0) as file:
            for offset in (0, 1 << 40, (1 << 55) - 10):
                try:
                    assert len(os.pread(file.fileno(), 10, offset)) <= 10
                except OSError as error:
                    assert error.errno == errno.EIO
        assert shown.process.poll() is None


def test_a_tree_that_is_very_deep_can_be_walked(box: Box) -> None:
    hostile.commit_deep_tree(box.store, Path("/hostile"), 900)

    with mounted(box) as shown:
        found = subprocess.run(
            ["find", shown.point / "by-id"], capture_output=True, timeout=LIMIT_S, check=False
        )
        assert len(found.stdout.splitlines()) > 890
        wait_for(lambda: os.path.isdir(shown.point / "latest" / "hostile"), "it has died")
