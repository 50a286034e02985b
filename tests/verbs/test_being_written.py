"""A restore does not take the name of a file away from a program that is writing it."""

import mmap
import os
import shutil
from pathlib import Path

import pytest

from ciuic.ids import ChunkId
from ciuic.model import BEING_WRITTEN, UNREADABLE
from ciuic.store.records.kinds import TREE
from tests.kit.box import Box
from tests.kit.damage import flip_node
from tests.kit.hostile import commit, directory, file, node
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
    for opened in [*readers, again]:
        opened.close()

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


def test_an_older_version_does_not_replace_a_file_that_was_and_is_being_written(live_box: Box):
    log = live_box.source / "train.log"
    log.write_bytes(OLD)
    assert live_box.ciuic("snapshot").code == 0
    with log.open("ab") as writing:
        writing.write(b"step 2\n")
        writing.flush()
        assert live_box.ciuic("snapshot").code == 3
        assert live_box.entries()[os.fsencode(log)].state == BEING_WRITTEN
        kept = restore(live_box)
        refused = restore(live_box, "--fallback")
        after = log.read_bytes()
    forced = restore(live_box, "--fallback", "--force")

    assert "wrote 0 files" in kept.out
    assert refused.code == 1
    assert "train.log open for writing" in refused.err
    assert after == OLD + b"step 2\n"
    assert forced.code == 0, forced.err
    assert log.read_bytes() == OLD


def test_an_older_version_of_what_could_not_be_read_counts_too(box: Box, run: Path):
    (run / "cache" / "part").write_bytes(b"older")
    assert box.ciuic("snapshot").code == 0
    unread = [directory(b"cache", b""), file(b"train.log")]
    for entry in unread:
        entry.state = UNREADABLE
    commit(box.store, run, lambda writer: node(writer, TREE, 0, unread))
    for place in (run / "train.log", run / "cache" / "part"):
        place.write_bytes(b"changed")
        with place.open("ab"):
            plain = restore(box)
            refused = restore(box, "--fallback")

        assert plain.code == 3, plain.err
        assert refused.code == 1
        assert f"{place} open for writing" in refused.err
        assert place.read_bytes() == b"changed"
    with (run / "new.log").open("ab"):
        assert restore(box, "--fallback").code == 0
    assert (run / "cache" / "part").read_bytes() == b"older"


def test_a_file_where_the_snapshot_has_a_directory_that_could_not_be_read_counts(
    box: Box, run: Path
):
    unread = directory(b"model.pt", b"")
    unread.state = UNREADABLE
    commit(box.store, run, lambda writer: node(writer, TREE, 0, [unread]))
    with (run / "model.pt").open("ab"):
        outcome = restore(box)

    assert outcome.code == 1
    assert (run / "model.pt").is_file()


def test_an_older_version_of_what_is_damaged_counts_too(box: Box, run: Path):
    part = run / "cache" / "part"
    for content in (b"older", b"newer"):
        part.write_bytes(content)
        assert box.ciuic("snapshot").code == 0
    flip_node(box.store, ChunkId(box.entries()[os.fsencode(part.parent)].content))
    with part.open("ab"):
        plain = restore(box)
        refused = restore(box, "--fallback")
    after = part.read_bytes()
    done = restore(box, "--fallback")

    assert plain.code == done.code == 4
    assert refused.code == 1
    assert f"{part} open for writing" in refused.err
    assert after == b"newer"
    assert part.read_bytes() == b"older"


def test_a_restore_to_another_place_may_have_the_original_open(box: Box, run: Path):
    elsewhere = box.directory / "elsewhere"
    with (run / "train.log").open("ab"):
        for _ in range(2):
            outcome = restore(box, "-d", str(elsewhere))
            assert outcome.code == 0, outcome.err

    assert (elsewhere / run.name / "train.log").read_bytes() == OLD
