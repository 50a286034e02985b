"""``restore --fallback`` of directories that the snapshot cannot list, or only in part."""

import os
import re
from pathlib import Path

import pytest

from ciuic.errors import CorruptionError
from ciuic.ids import ChunkId, SnapshotId
from ciuic.model import Entry
from ciuic.store.packs.reader import StoreReader
from ciuic.store.records.kinds import TREE
from ciuic.store.records.layout import pack_name
from ciuic.store.records.nodes import index_children
from ciuic.store.store import open_store
from tests.kit.box import Box

FILES = 3000
"""Enough for several leaves."""


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> set[bytes]:
    """Nodes that cannot be read: no pack has one of them alone."""
    nodes: set[bytes] = set()
    node = StoreReader.node

    def readable(reader: StoreReader, kind: int, name: ChunkId) -> bytes:
        if name in nodes:
            raise CorruptionError(f"node {name.hex()[:12]} is lost")
        return node(reader, kind, name)

    monkeypatch.setattr(StoreReader, "node", readable)
    return nodes


@pytest.fixture
def directory(box: Box) -> Path:
    """A directory of many files; all have the content "0"."""
    path = box.source / "d"
    path.mkdir()
    for number in range(FILES):
        (path / f"{number:04}").write_bytes(b"0")
    box.take()
    return path


def change(box: Box, directory: Path, content: bytes) -> SnapshotId:
    """Give all files another content, and take a snapshot."""
    for file in directory.iterdir():
        file.write_bytes(content)
    return box.take().id


def entry_of(box: Box, path: Path, snapshot_id: SnapshotId) -> Entry:
    return box.entries(snapshot_id)[os.fsencode(path)]


def leaves(box: Box, path: Path, snapshot_id: SnapshotId) -> list[tuple[ChunkId, bytes]]:
    """Return the leaves of a directory, and the first name in each."""
    entry = entry_of(box, path, snapshot_id)
    assert entry.level == 1
    with open_store(str(box.store)) as store:
        children = index_children(store.reader.node(TREE, ChunkId(entry.content)), 1)
    assert len(children) >= 4
    return [(child.id, child.first) for child in children]


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def names(low: bytes, high: bytes) -> set[str]:
    """Return the names of files from one on, up to another one."""
    every = {f"{number:04}" for number in range(FILES)}
    return {name for name in every if low <= name.encode() < high}


def test_a_part_of_a_directory_that_cannot_be_listed_comes_from_an_older_snapshot(
    box: Box, directory: Path, tmp_path: Path, lost: set[bytes]
) -> None:
    removed = directory / "0000"
    removed.unlink()
    newest = change(box, directory, b"new")
    time_ns = directory.stat().st_mtime_ns
    found = leaves(box, directory, newest)
    (leaf, low), (_, high) = found[1], found[2]
    lost.add(leaf)
    missing = names(low, high)

    plain = box.restore(to=tmp_path / "plain")
    report = box.restore(to=tmp_path / "out", fallback=True)

    there = contents(tmp_path / "plain" / "source" / "d")
    assert there.keys() == names(b"0001", b":") - missing
    (failure,) = plain.failed
    assert failure.path == os.fsencode(directory)
    assert failure.what.startswith("a part of the directory cannot be read: ")
    restored = tmp_path / "out" / "source" / "d"
    there = contents(restored)
    assert "0000" not in there, "the snapshot tells that it was removed"
    assert {name for name, content in there.items() if content == b"0"} == missing
    assert {name for name, content in there.items() if content == b"new"} == (
        names(b"0001", b":") - missing
    )
    assert report.failed == []
    assert report.damaged
    (note,) = report.notes
    assert note.path == os.fsencode(directory)
    assert note.what.startswith(f"a part of it is damaged in {newest}: taken from cs-")
    assert note.what.endswith(f"without what is only in {newest}")
    assert restored.stat().st_mtime_ns == time_ns, "what is known of the directory is its own"


def test_each_name_comes_from_the_newest_snapshot_that_can_list_it(
    box: Box, directory: Path, tmp_path: Path, lost: set[bytes]
) -> None:
    middle = change(box, directory, b"mid")
    newest = change(box, directory, b"new")
    at = leaves(box, directory, newest)
    lost.update(leaf for leaf, _ in at[1:3])
    lost.add(leaves(box, directory, middle)[2][0])

    report = box.restore(to=tmp_path / "out", fallback=True)

    by_content: dict[bytes, set[str]] = {}
    for name, content in contents(tmp_path / "out" / "source" / "d").items():
        by_content.setdefault(content, set()).add(name)
    assert by_content[b"mid"] == names(at[1][1], at[2][1])
    assert by_content[b"0"] == names(at[2][1], at[3][1])
    assert len(by_content[b"new"]) == FILES - len(by_content[b"mid"] | by_content[b"0"])
    assert report.failed == []
    (note,) = report.notes
    oldest = box.snapshots()[-1].id
    said = re.fullmatch(
        f"a part of it is damaged in {newest}: taken from {middle} of .* and {oldest} of .*,"
        f" without what is only in {newest}",
        note.what,
    )
    assert said, note.what


def test_what_was_taken_is_named_if_something_is_still_missing(
    box: Box, directory: Path, tmp_path: Path, lost: set[bytes]
) -> None:
    middle = change(box, directory, b"mid")
    newest = change(box, directory, b"new")
    at = leaves(box, directory, newest)
    ids = [snapshot.id for snapshot in box.snapshots() if snapshot.id != newest]
    lost.update([leaves(box, directory, name)[2][0] for name in ids])
    lost.update(leaf for leaf, _ in at[1:3])

    report = box.restore(to=tmp_path / "out", fallback=True)

    assert [failure.path for failure in report.failed] == [os.fsencode(directory)]
    (note,) = report.notes
    assert note.what.startswith(f"a part of it was taken from {middle} of ")


def test_a_path_that_only_an_older_snapshot_lists_is_damaged_in_that_one(
    box: Box, tmp_path: Path, lost: set[bytes]
) -> None:
    file = box.source / "d" / "inner" / "file"
    file.parent.mkdir(parents=True)
    taken = []
    for content in (b"oldest", b"older", b"newest"):
        file.write_bytes(content)
        taken.append(box.take().id)
    oldest, older, newest = taken
    inner = entry_of(box, file.parent, older).content
    lost.update([inner, entry_of(box, box.source / "d", newest).content])

    report = box.restore(to=tmp_path / "out", fallback=True)

    assert (tmp_path / "out" / "source" / "d" / "inner" / "file").read_bytes() == b"oldest"
    notes = {note.path: note.what.partition(" of ")[0] for note in report.notes}
    assert notes == {
        os.fsencode(box.source / "d"): f"damaged in {newest}: taken from {older}",
        os.fsencode(file.parent): f"damaged in {older}: taken from {oldest}",
    }
    assert report.failed == []


def test_a_directory_that_no_snapshot_can_list_stays_named(
    box: Box, directory: Path, tmp_path: Path, lost: set[bytes]
) -> None:
    newest = change(box, directory, b"new")
    for snapshot in box.snapshots():
        lost.add(entry_of(box, directory, snapshot.id).content)
    assert newest in {snapshot.id for snapshot in box.snapshots()}

    report = box.restore(to=tmp_path / "out", fallback=True)

    assert [failure.path for failure in report.failed] == [os.fsencode(directory)]
    assert report.notes == []


def test_nothing_is_deleted_from_a_directory_that_cannot_be_listed_in_full(
    box: Box, directory: Path, tmp_path: Path, lost: set[bytes]
) -> None:
    newest = change(box, directory, b"new")
    target = tmp_path / "out" / "source" / "d"
    target.mkdir(parents=True)
    (target / "other").write_bytes(b"other")
    lost.add(leaves(box, directory, newest)[1][0])

    report = box.restore(to=tmp_path / "out", overwrite=True, delete=True, fallback=True)

    assert (target / "other").exists()
    assert report.deleted_files == 0
    assert len(contents(target)) == FILES + 1


@pytest.mark.parametrize("asked", ["source", "source/d", "source/d/file"])
def test_a_path_that_the_snapshot_cannot_find_comes_from_the_newest_that_can(
    box: Box, tmp_path: Path, asked: str
) -> None:
    """The pack with all trees of the newest snapshot is lost, with that of the root."""
    file = box.source / "d" / "file"
    file.parent.mkdir()
    for content in (b"oldest", b"older"):
        file.write_bytes(content)
        older = box.take().id
    file.write_bytes(b"newest")
    newest = box.take().id
    with open_store(str(box.store)) as store:
        root = store.manifest(newest).roots[0].tree
        pack = store.reader.places([root])[root].pack_id
    (box.store / "packs" / pack_name(pack)).unlink()
    path = box.source.parent / asked
    restore = ("restore", "-s", newest, "-p", path, "-d", tmp_path / "out", "--no-hot", "--json")

    plain = box.ciuic(*restore)
    done = box.ciuic(*restore, "--fallback")

    assert (plain.code, done.code) == (4, 4)
    assert "error" in plain.document
    restored = tmp_path / "out" / file.relative_to(path.parent)
    assert restored.read_bytes() == b"older"
    (note,) = done.document["notes"]
    assert note["path"] == str(path)
    assert note["what"].startswith(f"damaged in {newest}: taken from {older} of ")
    assert done.document["failed"] == []


def test_a_path_that_no_snapshot_can_find_is_refused_before_anything_changes(
    box: Box, tmp_path: Path, lost: set[bytes]
) -> None:
    (box.source / "file").write_bytes(b"content")
    box.take()
    with open_store(str(box.store)) as store:
        lost.add(store.manifest(box.snapshots()[0].id).roots[0].tree)

    with pytest.raises(CorruptionError, match="is lost"):
        box.restore(to=tmp_path / "out", fallback=True)

    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("was_file", [False, True])
def test_an_older_snapshot_that_lists_a_directory_says_what_it_is(
    box: Box, tmp_path: Path, lost: set[bytes], was_file: bool
) -> None:
    """The newest cannot list the root, and the one before it not the directory in it."""
    directory = box.source / "d"
    if was_file:
        directory.write_bytes(b"a file, once")
    else:
        directory.mkdir(0o700)
        (directory / "file").write_bytes(b"oldest")
    box.take()
    if was_file:
        directory.unlink()
        directory.mkdir()
    directory.chmod(0o750)
    (directory / "file").write_bytes(b"older")
    older = box.take().id
    (box.source / "more").write_bytes(b"more")
    newest = box.take().id
    lost.add(entry_of(box, directory, older).content)
    with open_store(str(box.store)) as store:
        lost.add(store.manifest(newest).roots[0].tree)

    report = box.restore(to=tmp_path / "out", fallback=True)

    restored = tmp_path / "out" / "source" / "d"
    assert restored.is_dir()
    assert restored.stat().st_mode & 0o777 == 0o750
    assert [failure.path for failure in report.failed] == [os.fsencode(directory)] * was_file
    assert contents(restored) == ({} if was_file else {"file": b"oldest"})
