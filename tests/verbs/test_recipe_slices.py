"""Recipes with slices of chunks, and recipes with wrong slices."""

import os
from pathlib import Path

import pytest

from ciuic.store.records.recipe_nodes import Piece
from ciuic.system.hashing import data_id
from tests.kit.box import Box
from tests.kit.damage import flip_content
from tests.kit.spelled import commit_spelled

KIB = 1024
OLD = os.urandom(300 * KIB)
NEW = os.urandom(4 * KIB)
AT = 100 * KIB
CONTENT = OLD[:AT] + NEW + OLD[AT + len(NEW) :]
PIECES = (
    Piece(AT, data_id(OLD)),
    Piece(len(NEW), data_id(NEW)),
    Piece(len(OLD) - AT - len(NEW), data_id(OLD), AT + len(NEW)),
)


@pytest.fixture
def sliced(box: Box) -> Box:
    """A second snapshot in which 4 KiB of a file are new and the rest are slices of the old."""
    (box.source / "model").write_bytes(OLD)
    (box.source / "log").write_bytes(b"step 1\n")
    box.take()
    commit_spelled(box.store, b"model", PIECES, chunks=[NEW])
    return box


def test_slices_are_printed_and_put_back_as_one_file(sliced: Box, tmp_path: Path) -> None:
    assert sliced.verify().ok
    sliced.restore(sliced.source / "model", to=tmp_path / "out")
    assert (tmp_path / "out" / "model").read_bytes() == CONTENT
    assert sliced.read(sliced.source / "model") == CONTENT


def test_a_file_that_is_right_already_keeps_its_inode(sliced: Box) -> None:
    path = sliced.source / "model"
    path.write_bytes(CONTENT)
    inode = path.stat().st_ino
    report = sliced.restore(path, overwrite=True)
    assert (report.written_files, report.kept_files) == (0, 1)
    assert path.stat().st_ino == inode
    path.write_bytes(OLD)
    assert sliced.restore(path, overwrite=True).written_files == 1
    assert path.read_bytes() == CONTENT


def test_the_same_bytes_spelled_in_another_way_are_no_difference(sliced: Box) -> None:
    commit_spelled(
        sliced.store,
        b"model",
        (Piece(AT - KIB, data_id(OLD)), Piece(KIB, data_id(OLD), AT - KIB), *PIECES[1:]),
    )
    newest, older, oldest = [one.id for one in sliced.snapshots()]
    assert sliced.ciuic("diff", older, newest, "--json").document == []
    (only,) = sliced.ciuic("diff", oldest, newest, "--json").document
    assert only["path"] == str(sliced.source / "model")


def test_damage_in_a_chunk_is_damage_of_all_files_with_a_slice_of_it(
    sliced: Box, tmp_path: Path
) -> None:
    flip_content(sliced.store, OLD)
    report = sliced.verify()
    assert [[os.fsdecode(bad.path) for bad in one.damaged] for one in report.snapshots] == [
        [str(sliced.source / "model")]
    ] * 2
    put_back = sliced.restore(to=tmp_path / "out")
    assert [one.path for one in put_back.failed] == [os.fsencode(sliced.source / "model")]
    assert sorted(os.listdir(tmp_path / "out" / "source")) == ["log"]


@pytest.mark.parametrize(
    "lie",
    [
        Piece(len(OLD), data_id(OLD), 1),
        Piece(1, data_id(OLD), len(OLD)),
        Piece(KIB, data_id(OLD), 2**40),
        Piece(len(NEW) + 1, data_id(NEW)),
    ],
)
def test_a_slice_that_its_chunk_does_not_have_is_damage(
    sliced: Box, tmp_path: Path, lie: Piece
) -> None:
    commit_spelled(sliced.store, b"model", (Piece(KIB, data_id(OLD)), lie))
    for checksum in (False, True):
        report = sliced.verify(checksum=checksum)
        assert [len(one.damaged) for one in report.snapshots] == [1, 0, 0]
    put_back = sliced.restore(to=tmp_path / "out")
    assert [one.path for one in put_back.failed] == [os.fsencode(sliced.source / "model")]
    assert not (tmp_path / "out" / "source" / "model").exists()
    assert sliced.ciuic("cat", "latest", sliced.source / "model").code == 4
