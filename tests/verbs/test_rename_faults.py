"""A restore whose files are written and can't all be given their names."""

import os
import shutil
from pathlib import Path

import pytest

from tests.kit.box import Box
from tests.kit.program import Outcome, ciuic
from tests.kit.trees import differences, photograph, walk

FILES = 20


@pytest.fixture
def filled(box: Box) -> Box:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    for number in range(FILES):
        (box.source / f"f{number:02}").write_bytes(os.urandom(3000))
    box.take()
    return box


def restored_but_for_one(
    filled: Box, out: Path, error: str, wrapped_in: tuple[str, ...] = ()
) -> Outcome:
    """What a restore says when the third file can't be renamed."""
    options = ("-f", "-qq", "-o", "/dev/null", "-e", "trace=renameat")
    wrapper = (*wrapped_in, "strace", *options, "-e", f"inject=renameat:error={error}:when=3")
    what = ("restore", "-s", "latest", "-p", filled.source, "-d", out, "--json")
    return ciuic("--config", filled.config, *what, wrapper=wrapper)


def whole_and_no_more(source: Path, restored: Path) -> int:
    """Every file that is there is whole, and nothing unfinished is left; returns how many."""
    known, found = photograph(source), photograph(restored)
    files = [inside for inside, path, _ in walk(restored) if os.path.isfile(path)]
    for inside in files:
        assert found[inside].content == known[inside].content
    return len(files)


def test_what_is_wrong_with_one_name_costs_one_file(filled: Box, tmp_path: Path) -> None:
    done = restored_but_for_one(filled, tmp_path / "out", "EACCES")
    assert done.code == 3, done.err
    assert [one["what"] for one in done.document["failed"]] == ["Permission denied"]
    assert whole_and_no_more(filled.source, tmp_path / "out" / "source") == FILES - 1


@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_what_ends_a_restore_leaves_whole_files_and_nothing_else(
    filled: Box, tmp_path: Path, error: str
) -> None:
    done = restored_but_for_one(filled, tmp_path / "out", error)
    assert done.code == 1, done.err
    assert done.document["error"]["kind"] == "target"
    assert whole_and_no_more(filled.source, tmp_path / "out" / "source") == 2
    assert filled.restore(to=tmp_path / "out", overwrite=True).kept_files >= 2
    assert differences(photograph(filled.source), photograph(tmp_path / "out" / "source")) == []


def test_names_that_come_later_are_given_all_the_same(filled: Box, tmp_path: Path) -> None:
    for number in range(60):
        (filled.source / f"g{number:02}").mkdir()
        (filled.source / f"g{number:02}" / "file").write_bytes(b"%d" % number)
    filled.take()
    # With 20 directories open at most, files are given their names in several rounds.
    few = ("prlimit", "--nofile=80:80")
    done = restored_but_for_one(filled, tmp_path / "out", "EACCES", few)
    assert done.code == 3, done.err
    assert len(done.document["failed"]) == 1
    assert whole_and_no_more(filled.source, tmp_path / "out" / "source") == FILES + 60 - 1
