"""A restore does not take the name of a file away from a program that is writing it."""

import mmap
import os
import shutil
from pathlib import Path

import pytest

from tests.kit.box import Box
from tests.kit.program import Outcome
from tests.kit.trees import photograph

OLD = b"step 1\n"


@pytest.fixture
def run(box: Box) -> Path:
    """A log and a weight file, which have changed since the only snapshot, and a new file."""
    (box.source / "train.log").write_bytes(OLD)
    (box.source / "model.pt").write_bytes(b"good")
    (box.source / "cache").mkdir()
    box.configure(exclude="*.tmp")
    assert box.ciuic("snapshot").code == 0
    (box.source / "train.log").write_bytes(OLD + b"step 2\n")
    (box.source / "model.pt").write_bytes(b"evil")
    (box.source / "new.log").write_bytes(b"new")
    return box.source


def restore(box: Box, *options: str) -> Outcome:
    """Restore the source in place."""
    return box.ciuic("restore", "-s", "latest", "-p", box.source, "--overwrite", *options)


def test_a_file_that_is_open_for_writing_stops_the_restore(box: Box, run: Path):
    evil = photograph(run)
    with (run / "train.log").open("ab"):
        outcome = restore(box)
        dry_run = restore(box, "--dry-run")

    assert outcome.code == dry_run.code == 1
    assert f"(pid {os.getpid()}) has {run / 'train.log'} open for writing" in outcome.err
    assert "nothing was changed" in outcome.err
    assert "--force" in outcome.err
    assert dry_run.err == outcome.err
    assert photograph(run) == evil


def test_force_replaces_it(box: Box, run: Path):
    with (run / "train.log").open("ab"):
        outcome = restore(box, "--force")

    assert outcome.code == 0, outcome.err
    assert (run / "train.log").read_bytes() == OLD


def test_a_file_that_is_mapped_for_writing_stops_it_too(box: Box, run: Path):
    with (run / "train.log").open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
    outcome = restore(box)
    mapped.close()

    assert outcome.code == 1
    assert "train.log open for writing" in outcome.err
    assert restore(box).code == 0


def test_what_stays_as_it_is_may_be_open(box: Box, run: Path):
    readers = [(run / "train.log").open("rb"), (run / "new.log").open("ab")]
    outcome = restore(box)
    again = (run / "train.log").open("ab")
    kept = restore(box)
    for file in [*readers, again]:
        file.close()

    assert outcome.code == 0, outcome.err
    assert (run / "model.pt").read_bytes() == b"good"
    assert kept.code == 0, kept.err
    assert "wrote 0 files" in kept.out


def test_what_the_filter_leaves_out_may_be_open(box: Box, run: Path):
    with (run / "train.log").open("ab"):
        assert restore(box, "--include", "*.pt").code == 0
        assert restore(box, "--exclude", "*.log").code == 0
        assert restore(box, "--exclude", "*.pt").code == 1


def test_a_file_that_would_be_deleted_stops_it_unless_it_is_protected(box: Box, run: Path):
    new, excluded = run / "new.log", run / "cache" / "part.tmp"
    with new.open("ab"):
        outcome = restore(box, "--delete")
    with excluded.open("ab"):
        protected = restore(box, "--delete")

    assert outcome.code == 1
    assert "new.log open for writing" in outcome.err
    assert protected.code == 0, protected.err
    assert not new.exists()
    assert excluded.exists()


def test_the_store_below_the_target_may_be_open(box: Box, run: Path):
    inside = run / "store"
    shutil.move(box.store, inside)
    with (inside / "note").open("ab"):
        outcome = box.ciuic(
            *("--store", inside, "restore", "-s", "latest", "-p", run, "--overwrite", "--delete")
        )

    assert outcome.code == 0, outcome.err
    assert (inside / "note").exists()


def test_a_directory_that_stands_where_a_file_was_counts_with_delete(box: Box, run: Path):
    (run / "model.pt").unlink()
    (run / "model.pt").mkdir()
    with (run / "model.pt" / "part").open("ab"):
        outcome = restore(box, "--delete")

    assert outcome.code == 1
    assert "model.pt/part open for writing" in outcome.err


def test_a_restore_to_another_place_may_have_the_original_open(box: Box, run: Path):
    elsewhere = box.directory / "elsewhere"
    with (run / "train.log").open("ab"):
        for _ in range(2):
            outcome = restore(box, "-d", str(elsewhere))
            assert outcome.code == 0, outcome.err

    assert (elsewhere / run.name / "train.log").read_bytes() == OLD
