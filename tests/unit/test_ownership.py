"""Only the owner of a store may be able to write to it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciuic.errors import StoreError
from ciuic.store.directory.create import create_store
from ciuic.store.directory.find import ALLOW_SHARED
from ciuic.store.store import open_store
from tests.kit.box import Box
from tests.kit.clock import ManualClock

PLACES = [".", "packs", "snapshots", "tmp", "ciuic-store.json", "catalog.sqlite", "lock.write"]


@pytest.fixture(params=[0o000, 0o077, 0o002])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    old = os.umask(request.param)
    yield request.param
    os.umask(old)


def modes(store: Path) -> dict[str, int]:
    found = {".": store.stat().st_mode & 0o7777}
    for path in store.rglob("*"):
        found[str(path.relative_to(store))] = path.stat().st_mode & 0o7777
    return found


def test_directories_are_0700_and_files_0600_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    os.mkdir(tmp_path / "box", 0o700)
    box = Box(tmp_path / "box")
    box.config.chmod(0o600)
    (box.source / "file").write_bytes(os.urandom(1000))
    box.take()
    assert box.ciuic("scrub").code == 0
    found = modes(box.store)
    assert len(found) > len(PLACES)
    for name, mode in found.items():
        wanted = 0o700 if (box.store / name).is_dir() else 0o600
        assert mode == wanted, f"{name}: {mode:o} under umask {umask:o}"


def test_an_empty_directory_that_becomes_a_store_becomes_private(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    store.chmod(0o777)
    create_store(str(store), ManualClock())
    assert store.stat().st_mode & 0o7777 == 0o700


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("bits", [0o020, 0o002])
def test_a_store_that_others_can_write_to_is_refused_with_the_remedy(
    box: Box, place: str, bits: int
) -> None:
    (box.source / "file").write_bytes(b"x")
    box.take()
    path = box.store / place
    path.chmod(path.stat().st_mode | bits)
    for write in (False, True):
        with (
            pytest.raises(StoreError, match="other users can write to"),
            open_store(str(box.store), write=write),
        ):
            pass
    path.chmod(path.stat().st_mode & ~0o022)
    with open_store(str(box.store), write=True):
        pass


@pytest.mark.parametrize("command", ["list", "snapshot", "verify", "init", "scrub", "stats"])
def test_every_command_refuses_it_in_one_sentence(box: Box, command: str) -> None:
    box.store.chmod(0o770)
    outcome = box.ciuic(command)
    assert outcome.code == 1
    assert f"other users can write to {box.store}: its mode is 0770" in outcome.err
    assert f"chmod -R go-w {box.store}" in outcome.err


def test_a_shared_store_is_used_if_the_user_says_so(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    (box.source / "file").write_bytes(b"x")
    box.take()
    box.store.chmod(0o777)
    monkeypatch.setenv(ALLOW_SHARED, "yes")
    assert box.ciuic("list").code == 1
    monkeypatch.setenv(ALLOW_SHARED, "1")
    assert box.ciuic("list").code == 0
    assert box.ciuic("snapshot").code == 0
    findings = box.ciuic("doctor", "--json").document["findings"]
    [what] = [one["what"] for one in findings if "can write" in one["what"]]
    assert what == f"other users can write to {box.store}, which {ALLOW_SHARED} allows"


def test_a_directory_that_is_not_a_store_is_not_called_shared(tmp_path: Path) -> None:
    directory = tmp_path / "directory"
    directory.mkdir()
    (directory / "file").write_bytes(b"x")
    directory.chmod(0o1777)
    with pytest.raises(StoreError, match="not a store"), open_store(str(directory)):
        pass


def test_a_store_that_others_can_read_is_used(box: Box) -> None:
    box.store.chmod(0o755)
    assert box.ciuic("list").code == 0
