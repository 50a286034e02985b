"""A restore that is incomplete: exit codes, and counts of what happened."""

import os
import shutil
from pathlib import Path

import pytest

from tests.kit.box import Box
from tests.kit.damage import flip_content
from tests.kit.program import Outcome, ciuic
from tests.kit.strace import strace


def blocked(path: Path) -> Path:
    """A directory that is not empty in the place of a file."""
    path.mkdir(parents=True)
    (path / "mine").write_bytes(b"mine")
    return path


def put_back(box: Box, out: Path, *more: str) -> Outcome:
    what = ("-s", "latest", "-p", box.source, "-d", out, "--overwrite", "--no-hot", "--json")
    return box.ciuic("restore", *what, *more)


def test_one_path_that_could_not_be_written_fails_the_restore(box: Box, tmp_path: Path) -> None:
    (box.source / "file").write_bytes(b"file")
    (box.source / "other").write_bytes(b"other")
    box.take()
    blocked(tmp_path / "out" / "source" / "file")
    for more in ((), ("--dry-run",)):
        done = put_back(box, tmp_path / "out", *more)
        assert done.code == 1, done.err
        assert [one["path"] for one in done.document["failed"]] == [str(box.source / "file")]
        counts = {key: done.document[key] for key in ("written_files", "kept_files")}
        assert counts == ({"written_files": 1, "kept_files": 0})
        if not more:
            assert (tmp_path / "out" / "source" / "other").read_bytes() == b"other"
            (tmp_path / "out" / "source" / "other").unlink()


def test_damage_counts_more_than_a_target_that_could_not_be_written(
    box: Box, tmp_path: Path
) -> None:
    (box.source / "file").write_bytes(b"file" * 2000)
    (box.source / "spoiled").write_bytes(b"spoiled" * 2000)
    box.take()
    flip_content(box.store, b"spoiled" * 2000)
    blocked(tmp_path / "out" / "source" / "file")
    done = put_back(box, tmp_path / "out")
    assert done.code == 4, done.err
    named = {one["path"] for one in done.document["failed"]}
    assert named == {str(box.source / "file"), str(box.source / "spoiled")}
    assert done.document["written_files"] == 0


def test_a_target_that_could_not_be_written_counts_more_than_what_the_snapshot_lacks(
    box: Box, tmp_path: Path
) -> None:
    (box.source / "file").write_bytes(b"file")
    with (box.source / "busy").open("wb") as busy:
        busy.write(b"busy")
        busy.flush()
        box.take()
    alone = put_back(box, tmp_path / "alone")
    blocked(tmp_path / "out" / "source" / "file")
    both = put_back(box, tmp_path / "out")
    assert (alone.code, both.code) == (3, 1), (alone.err, both.err)
    assert both.document["flux"] == [str(box.source / "busy")]


@pytest.mark.parametrize(
    ("call", "path"), [("symlinkat", "link"), ("linkat", "b"), ("mkdirat", "sub")]
)
def test_a_path_that_could_not_be_made_is_not_counted(
    box: Box, tmp_path: Path, call: str, path: str
) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    (box.source / "a").write_bytes(b"linked")
    os.link(box.source / "a", box.source / "b")
    (box.source / "link").symlink_to("a")
    (box.source / "sub").mkdir()
    (box.source / "sub" / "file").write_bytes(b"file")
    box.take()
    # The target itself is made by mkdir(2), or by mkdirat(2) where the processor has no other.
    number = 2 if call == "mkdirat" and os.uname().machine != "x86_64" else 1
    calls = call if call == "mkdirat" else f"{call},{call.removesuffix('at')}"
    wrapper = strace(calls, inject=f"error=EACCES:when={number}")
    what = ("-s", "latest", "-p", box.source, "-d", tmp_path / "out", "--no-hot", "--json")
    (tmp_path / "out").mkdir()
    done = ciuic("--config", box.config, "restore", *what, wrapper=wrapper)
    assert done.code == 1, done.err
    assert [one["path"] for one in done.document["failed"]] == [str(box.source / path)]
    placed = [one for one in (tmp_path / "out").rglob("*") if not one.is_dir() or one.is_symlink()]
    assert done.document["written_files"] == len(placed) == 3


def test_a_dry_run_names_what_it_would_delete(box: Box, tmp_path: Path) -> None:
    (box.source / "file").write_bytes(b"file")
    box.take()
    (box.source / "extra").mkdir()
    (box.source / "extra" / "deep").write_bytes(b"extra")
    (box.source / "new\nline").write_bytes(b"extra")
    what = ("-s", "latest", "-p", box.source, "--overwrite", "--delete", "--no-hot", "--dry-run")
    done = box.ciuic("restore", *what)
    assert done.code == 0, done.err
    assert sorted(done.out.splitlines()[:-1]) == [
        f"would delete {box.source}/extra/deep",
        f"would delete {box.source}/new\\nline",
    ]
    assert "would write 0 files (0 B), keep 1, delete 2" in done.out
    named = box.ciuic("restore", *what, "--json").document
    assert sorted(named["would_delete"]) == [
        str(box.source / "extra" / "deep"),
        str(box.source / "new\nline"),
    ]
    assert (named["deleted_files"], len(list(box.source.iterdir()))) == (2, 3)
    done = box.ciuic("restore", *what[:-1], "--json").document
    assert (done["would_delete"], done["deleted_files"]) == ([], 2)


def test_only_what_was_deleted_is_counted_as_deleted(box: Box, tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    (box.source / "file").write_bytes(b"file")
    box.take()
    (box.source / "extra").mkdir()
    for number in range(3):
        (box.source / "extra" / f"{number}").write_bytes(b"extra")
    wrapper = strace("unlinkat,unlink", inject="error=EACCES:when=3")
    what = ("-s", "latest", "-p", box.source, "--overwrite", "--delete", "--no-hot", "--json")
    done = ciuic("--config", box.config, "restore", *what, wrapper=wrapper)
    assert done.code == 1, done.err
    assert done.document["deleted_files"] == 2
    assert len(list((box.source / "extra").iterdir())) == 1
