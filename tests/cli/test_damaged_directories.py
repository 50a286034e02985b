"""``ciuic ls`` and ``ciuic find`` name a damaged directory, and show everything else."""

import json
import os

import pytest

from ciuic.ids import ChunkId
from tests.kit.box import Box
from tests.kit.damage import flip_node


@pytest.fixture
def lost(box: Box) -> str:
    """The path of a damaged directory; ``before`` and ``behind`` beside it are sound."""
    path = box.source / "lost"
    path.mkdir()
    (path / "seen.txt").write_bytes(b"lost")
    box.take()
    for name in ("before", "zbehind"):
        (box.source / name).mkdir()
        (box.source / name / "seen.txt").write_bytes(b"sound")
    box.take()  # the other directories are in another frame
    flip_node(box.store, ChunkId(box.entries()[os.fsencode(path)].content))
    return str(path)


def test_ls_goes_on_after_a_damaged_directory(box: Box, lost: str) -> None:
    done = box.ciuic("ls", "-R", "latest", "--json")

    assert done.code == 4
    *listed, last = done.document
    assert last["error"]["message"] == "1 directory cannot be read"
    names = [entry["path"].removeprefix(str(box.source)) for entry in listed]
    assert names == ["", "/before", "/before/seen.txt", "/lost", "/zbehind", "/zbehind/seen.txt"]
    assert f"ciuic: {lost}: the directory cannot be read: " in done.err


def test_ls_of_a_damaged_directory_names_it(box: Box, lost: str) -> None:
    done = box.ciuic("ls", "latest", lost)

    assert (done.code, done.out) == (4, "")
    assert f"ciuic: {lost}: the directory cannot be read: " in done.err


def test_find_goes_on_after_a_damaged_directory(box: Box, lost: str) -> None:
    done = box.ciuic("find", "seen.txt", "--json")

    assert done.code == 4
    *listed, last = done.document
    assert last["error"]["message"] == "2 directories cannot be read"
    found = [entry["path"].removeprefix(str(box.source)) for entry in listed]
    assert found == ["/before/seen.txt", "/zbehind/seen.txt"]
    assert done.err.count("the directory cannot be read: ") == 2, done.err
    assert f"ciuic: {lost}: " in done.err


def test_a_damaged_root_is_named(box: Box, lost: str) -> None:
    with (box.store / "snapshots" / f"{box.snapshots()[0].id}.json").open() as file:
        manifest = json.load(file)
    flip_node(box.store, ChunkId(bytes.fromhex(manifest["roots"][0]["tree"])))

    done = box.ciuic("ls", "latest")

    assert (done.code, done.out) == (4, "")
    assert f"ciuic: {box.source}: the directory cannot be read: " in done.err
