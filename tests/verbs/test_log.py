"""``ciuic log``: the versions of a path."""

import os
from pathlib import Path

import pytest

from ciuic.catalog import list_snapshots
from ciuic.report.versions import versions
from ciuic.store.store import open_store
from tests.kit.box import Box
from tests.kit.damage import flip_content


def changes(box: Box, path: object, code: int = 0) -> list[tuple[str, str, str, int]]:
    """Return change, first and last snapshot, and number of snapshots of each version."""
    outcome = box.ciuic("log", str(path), "--json")
    assert outcome.code == code, outcome.err
    return [
        (one["change"], one["first"]["id"], one["last"]["id"], one["snapshots"])
        for one in outcome.document
    ]


def test_each_version_of_a_path_has_one_line(box: Box, tmp_path: Path) -> None:
    other, file = tmp_path / "other", box.source / "notes.txt"
    other.mkdir()
    ids = []
    for content in (None, "one", "one", "two", None, None, "two"):
        file.unlink(missing_ok=True)
        if content is not None:
            file.write_text(content)
        ids.append(box.take().id)
        box.take(other)  # says nothing about the path

    assert changes(box, file) == [
        ("added", ids[6], ids[6], 1),
        ("gone", ids[4], ids[5], 2),
        ("changed", ids[3], ids[3], 1),
        ("added", ids[1], ids[2], 2),
    ]
    lines = box.ciuic("log", str(file)).out.splitlines()
    assert len(lines) == 5
    assert [line.split()[0] for line in lines[1:]] == [ids[6], ids[4], ids[3], ids[1]]


def test_a_directory_that_snapshots_share_is_read_once(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = box.source / "deep" / "er" / "notes.txt"
    file.parent.mkdir(parents=True)
    file.write_text("same")
    for number in range(4):
        if number % 2:
            (box.source / "other").write_text(str(number))
        box.take()
    with open_store(str(box.store)) as store:
        read, node = [], store.reader.node

        def counted(kind: int, node_id: bytes) -> bytes:
            read.append(node_id)
            return node(kind, node_id)

        monkeypatch.setattr(store.reader, "node", counted)
        found = versions(store, list_snapshots(store), os.fsencode(file))

    assert [one.state for one in found] == ["whole"] * 4
    assert all(one.entry == found[0].entry for one in found)
    assert len(read) == len(set(read)) > 5


def test_metadata_alone_makes_no_version_of_a_file(box: Box) -> None:
    file = box.source / "notes.txt"
    file.write_text("same")
    first = box.take().id
    file.chmod(0o600)
    second = box.take().id

    assert changes(box, file) == [("added", first, second, 2)]


def test_a_path_that_no_snapshot_has_is_refused(box: Box) -> None:
    (box.source / "a").write_text("x")
    box.take()

    outcome = box.ciuic("log", str(box.source / "none"))
    as_json = box.ciuic("log", str(box.source / "none"), "--json")
    assert (outcome.code, outcome.out) == (1, "")
    assert "no snapshot holds" in outcome.err
    assert (as_json.code, as_json.document["error"]["kind"]) == (1, "path_not_found")


def test_options_that_leave_no_snapshot_are_named_and_not_the_path(box: Box) -> None:
    file = box.source / "a"
    file.write_text("x")
    box.take(tags=("good",))
    (box.source / "b").write_text("x")
    box.take()

    by_host = box.ciuic("log", file, "--host", "nope")
    by_tag = box.ciuic("log", box.source / "b", "--tag", "good")

    assert (by_host.code, by_tag.code) == (1, 1)
    assert "no snapshot matches --host 'nope'; the hosts are " in " ".join(by_host.err.split())
    assert "no snapshot that matches the options holds " in " ".join(by_tag.err.split())


def test_two_slashes_before_a_path_are_one(box: Box) -> None:
    (box.source / "a").write_text("x")
    box.take()

    outcomes = [
        box.ciuic("log", *options, "--json")
        for options in ([f"/{box.source}/a"], ["--root", f"/{box.source}"])
    ]

    for outcome in outcomes:
        assert outcome.code == 0, outcome.err
        assert len(outcome.document) == 1


def test_a_damaged_version_is_named(box: Box) -> None:
    file = box.source / "notes.txt"
    file.write_bytes(b"old" * 5000)
    first = box.take().id
    file.write_bytes(b"new" * 5000)
    second = box.take().id
    flip_content(box.store, b"new" * 5000)
    assert box.ciuic("scrub").code == 4

    assert changes(box, file, code=4) == [
        ("damaged", second, second, 1),
        ("added", first, first, 1),
    ]
