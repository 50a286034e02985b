"""Looking into snapshots: paths, trees, contents and differences."""

import gc
import os
import stat
import subprocess
import weakref
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from ciuic.catalog import find_snapshot
from ciuic.errors import CorruptionError, PathNotFoundError
from ciuic.store.store import open_store
from ciuic.system.hashing import data_id
from ciuic.view.diff import Change, diff
from ciuic.view.listing import find
from ciuic.view.locator import Locator, locate
from tests.kit.box import Box
from tests.kit.damage import flip_content

MIB = 1024 * 1024


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.fixture
def taken(box: Box) -> Iterator[Box]:
    write(box.source / "a" / "file", b"file")
    write(box.source / "a" / "b" / "model.pt", os.urandom(2 * MIB + 9))
    write(box.source / "train.log", b"log")
    (box.source / "link").symlink_to("a/file")
    with (box.source / "holes").open("wb") as file:
        file.truncate(3 * MIB)
        file.seek(MIB + 3)
        file.write(b"data")
    box.take()
    yield box


def changes(box: Box, before: str, after: str) -> dict[str, str]:
    """Sign by path below the source."""
    with open_store(str(box.store)) as store:
        one = store.manifest(find_snapshot(store, before).id)
        other = store.manifest(find_snapshot(store, after).id)
        found: list[Change] = list(diff(store, one, other))
    return {os.path.relpath(os.fsdecode(change.path), box.source): change.sign for change in found}


def test_a_path_is_found_however_it_is_spelled(taken: Box) -> None:
    with open_store(str(taken.store)) as store:
        manifest = store.manifest(find_snapshot(store, "latest").id)
        base = os.fsencode(taken.source)
        for spelling in (b"/a/file", b"/a//file", b"/a/./file", b"/a/b/../file", b"/a/file/"):
            assert locate(store, manifest, base + spelling).path == base + b"/a/file"
        assert locate(store, manifest, b"/" + base).entry.is_directory


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("a/fil", "a/file"),
        ("a/file/below", "not a directory"),
        ("link/x", "not a directory"),
        ("zzz", "ciuic ls"),
        ("../elsewhere", "covers"),
    ],
)
def test_a_missing_path_is_answered_with_similar_names(taken: Box, path: str, hint: str) -> None:
    with open_store(str(taken.store)) as store:
        manifest = store.manifest(find_snapshot(store, "latest").id)
        with pytest.raises(PathNotFoundError) as caught:
            locate(store, manifest, os.fsencode(taken.source / path))
    assert hint in caught.value.hint


def test_a_path_in_a_directory_of_thousands_is_found(box: Box) -> None:
    for number in range(2500):
        (box.source / f"f{number:04}").touch()
    box.take()
    with open_store(str(box.store)) as store:
        manifest = store.manifest(find_snapshot(store, "latest").id)
        for number in range(0, 2500, 7):
            locate(store, manifest, os.fsencode(box.source / f"f{number:04}"))
        for absent in ("a", "f", "f0000a", "f2500", "z"):
            with pytest.raises(PathNotFoundError):
                locate(store, manifest, os.fsencode(box.source / absent))


def test_a_file_is_read_back_exactly_holes_included(taken: Box) -> None:
    for name in ("a/file", "a/b/model.pt", "holes"):
        outcome = subprocess.run(["cat", taken.source / name], capture_output=True, check=True)
        assert taken.read(taken.source / name) == outcome.stdout


def test_a_damaged_file_is_never_given_out(taken: Box) -> None:
    data = (taken.source / "a" / "b" / "model.pt").read_bytes()
    flip_content(taken.store, data[MIB : 2 * MIB])
    with pytest.raises(CorruptionError):
        taken.read(taken.source / "a" / "b" / "model.pt")
    outcome = taken.ciuic("cat", "latest", taken.source / "a" / "b" / "model.pt")
    assert outcome.code == 4


@pytest.mark.parametrize("path", ["a", "link"])
def test_only_files_are_printed(taken: Box, path: str) -> None:
    assert taken.ciuic("cat", "latest", taken.source / path).code == 2


def test_a_difference_is_shown_with_its_kind(taken: Box) -> None:
    write(taken.source / "a" / "file", b"FILE")
    write(taken.source / "new" / "inner", b"new")
    (taken.source / "train.log").chmod(0o600)
    (taken.source / "link").unlink()
    (taken.source / "link").mkdir()
    write(taken.source / "link" / "x", b"x")
    (taken.source / "holes").unlink()
    os.utime(taken.source / "a" / "b" / "model.pt")
    taken.take()
    ids = [one.id for one in taken.snapshots()]
    assert changes(taken, ids[1], ids[0]) == {
        "a/file": "M",
        "a/b/model.pt": "m",
        "new": "+",
        "new/inner": "+",
        "train.log": "m",
        "link": "T",
        "link/x": "+",
        "holes": "-",
    }
    back = changes(taken, ids[0], ids[1])
    assert (back["new"], back["new/inner"], back["holes"]) == ("-", "-", "+")


def test_a_snapshot_without_changes_shows_no_difference(taken: Box) -> None:
    taken.take()
    ids = [one.id for one in taken.snapshots()]
    assert changes(taken, ids[1], ids[0]) == {}


def test_a_file_that_replaces_a_directory_removes_its_content(taken: Box) -> None:
    (taken.source / "a" / "b" / "model.pt").unlink()
    (taken.source / "a" / "b").rmdir()
    write(taken.source / "a" / "b", b"a file now")
    taken.take()
    ids = [one.id for one in taken.snapshots()]
    assert changes(taken, ids[1], ids[0]) == {"a/b": "T", "a/b/model.pt": "-"}


def test_a_root_that_one_snapshot_lacks_is_not_shown_as_deleted(taken: Box, tmp_path: Path) -> None:
    taken.source.rename(tmp_path / "away")
    taken.take()
    ids = [one.id for one in taken.snapshots()]
    with open_store(str(taken.store)) as store:
        one, other = (store.manifest(name) for name in (ids[1], ids[0]))
        found = list(diff(store, one, other))
    assert not any(change.sign == "-" and change.path.endswith(b"file") for change in found), (
        "a root that could not be read looks as if all of it had been deleted"
    )


def test_a_glob_finds_a_path_once_for_all_snapshots_that_share_it(taken: Box) -> None:
    first = taken.snapshots()[0].id
    write(taken.source / "a" / "file", b"changed")
    second = taken.take().id
    with open_store(str(taken.store)) as store:
        from ciuic.catalog import list_snapshots

        found = [
            (name, os.path.relpath(os.fsdecode(one.path), taken.source))
            for name, one in find(store, list_snapshots(store), b"*file")
        ]
        models = list(find(store, list_snapshots(store), b"*.pt"))
        whole = list(find(store, list_snapshots(store), os.fsencode(taken.source) + b"/a/*"))
    assert found == [(second, "a/file"), (first, "a/file")]
    assert len(models) == 1
    assert {os.path.basename(one.path) for _, one in whole} >= {b"file", b"b"}


def test_listing_shows_every_kind_and_no_control_characters(box: Box) -> None:
    os.mkfifo(box.source / "pipe")
    write(box.source / "evil\x1b[31m\nname", b"x")
    (box.source / "link").symlink_to("tar\x1bget")
    box.take()
    outcome = box.ciuic("ls", "-R", "latest")
    assert outcome.code == 0
    assert "\x1b" not in outcome.out
    assert "evil\\x1b[31m\\nname" in outcome.out
    assert len(outcome.out.splitlines()) == 4
    document = box.ciuic("ls", "-R", "latest", "--json").document
    paths = {one["path"]: one["type"] for one in document}
    assert paths[str(box.source / "evil\x1b[31m\nname")] == "file"
    assert paths[str(box.source / "pipe")] == "fifo"
    assert stat.S_ISFIFO((box.source / "pipe").stat().st_mode)


def test_a_path_that_is_not_utf_8_goes_through_json_and_back(box: Box, tmp_path: Path) -> None:
    name = b"odd \xff\xfe name"
    with open(os.fsencode(box.source) + b"/" + name, "wb") as file:
        file.write(b"odd")
    box.take()
    listed = box.ciuic("ls", "latest", box.source, "--json").document
    path = os.fsencode(listed[0]["path"])
    assert path == os.fsencode(box.source) + b"/" + name
    assert box.ciuic("cat", "latest", path).out == "odd"
    assert box.ciuic("restore", "-s", "latest", "-p", path, "-d", tmp_path / "out").code == 0
    assert os.listdir(os.fsencode(tmp_path / "out")) == [name]


def test_the_directories_that_a_search_has_read_are_freed_at_once(box: Box) -> None:
    (box.source / "a").write_text("1")
    taken = box.take()
    with open_store(str(box.store)) as store:
        locator = Locator(store, store.manifest(taken.id))
        assert locator.find(os.fsencode(box.source / "a")) is not None
        there = weakref.ref(locator)
        gc.disable()
        try:
            del locator
            assert there() is None
        finally:
            gc.enable()


def test_a_root_that_cannot_be_read_is_not_taken_for_the_root_before_it(
    box: Box, tmp_path: Path
) -> None:
    (box.source / "a").write_text("1")
    other = write(tmp_path / "other" / "b", b"2").parent
    taken = box.take(box.source, other)
    with open_store(str(box.store)) as store:
        manifest = store.manifest(taken.id)
        first, second = manifest.roots
        lost = msgspec.structs.replace(second, tree=data_id(b"not there"))
        manifest = msgspec.structs.replace(manifest, roots=(first, lost))
        locator = Locator(store, manifest)
        assert locator.find(first.path) is not None
        with pytest.raises(CorruptionError):
            locator.find(lost.path)
        with pytest.raises(CorruptionError):
            Locator(store, manifest, like=locator).find(lost.path)
