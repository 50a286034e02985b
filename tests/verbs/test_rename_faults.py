"""A restore that can write its files, but not give all of them their names."""

import os
import shutil
from pathlib import Path

import pytest

from tests.kit.box import Box
from tests.kit.program import Outcome, ciuic
from tests.kit.strace import strace
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
    """The result of a restore whose third rename fails."""
    wrapper = (*wrapped_in, *strace("renameat", inject=f"error={error}:when=3"))
    what = ("restore", "-s", "latest", "-p", filled.source, "-d", out, "--json")
    return ciuic("--config", filled.config, *what, wrapper=wrapper)


def whole_and_no_more(source: Path, restored: Path) -> int:
    """Checks that every file is whole and no temporary file is left; returns how many."""
    known, found = photograph(source), photograph(restored)
    files = [inside for inside, path, _ in walk(restored) if os.path.isfile(path)]
    for inside in files:
        assert found[inside].content == known[inside].content
    return len(files)


def test_a_rename_that_fails_costs_one_file(filled: Box, tmp_path: Path) -> None:
    done = restored_but_for_one(filled, tmp_path / "out", "EACCES")
    assert done.code == 1, done.err
    assert [one["what"] for one in done.document["failed"]] == ["Permission denied"]
    assert done.document["written_files"] == FILES - 1
    assert done.document["written_bytes"] == 3000 * (FILES - 1)
    assert whole_and_no_more(filled.source, tmp_path / "out" / "source") == FILES - 1


@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_an_error_that_ends_a_restore_leaves_only_whole_files(
    filled: Box, tmp_path: Path, error: str
) -> None:
    done = restored_but_for_one(filled, tmp_path / "out", error)
    assert done.code == 1, done.err
    assert done.document["error"]["kind"] == "target"
    assert done.document["written_files"] == 2, "what it did before is told"
    assert "wrote 2 files (5.86 KiB) before it stopped" in done.err
    assert whole_and_no_more(filled.source, tmp_path / "out" / "source") == 2
    assert filled.restore(to=tmp_path / "out", overwrite=True).kept_files >= 2
    assert differences(photograph(filled.source), photograph(tmp_path / "out" / "source")) == []


def test_later_files_still_get_their_names(filled: Box, tmp_path: Path) -> None:
    for number in range(60):
        (filled.source / f"g{number:02}").mkdir()
        (filled.source / f"g{number:02}" / "file").write_bytes(b"%d" % number)
    filled.take()
    # With 20 directories open at most, files are given their names in several rounds.
    few = ("prlimit", "--nofile=80:80")
    done = restored_but_for_one(filled, tmp_path / "out", "EACCES", few)
    assert done.code == 1, done.err
    assert len(done.document["failed"]) == 1
    assert done.document["written_files"] == FILES + 60 - 1
    assert whole_and_no_more(filled.source, tmp_path / "out" / "source") == FILES + 60 - 1
