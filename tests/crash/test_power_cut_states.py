"""A power cut at every moment of a recorded run, with every state that the disk may keep.

A few hundred states each time; ``scripts/crash --only states`` checks thousands.
"""

import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciuic.source.freeze.methods import IN_PLACE, choose
from tests.kit.box import Box
from tests.kit.chance import drawn_seed
from tests.kit.journal import (
    ROOT,
    Image,
    Journal,
    Names,
    Node,
    Operation,
    Sync,
    Truncate,
    Write,
    read_image,
    write_image,
)
from tests.kit.powercut import ORDERED, WEAKEST, Disk
from tests.kit.recorder import Recorder
from tests.kit.states import cases, sampled, survive
from tests.kit.stories import STORIES
from tests.kit.trees import Photo, differences, photograph

DRAWS = 3
LONG = bool(os.environ.get("CIUIC_LONG"))
STATES = 1_000_000 if LONG else 80
"""Maximum number of cases for each story; the long form checks all."""


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in memory, where syncs cost nothing: the journal decides what is durable."""
    with tempfile.TemporaryDirectory(prefix="ciuic-test-", dir="/dev/shm") as directory:
        yield Path(directory)


@pytest.fixture
def place(tmp_path: Path, memory: Path) -> Path:
    """A directory for recording, without reflinks: a reflink leaves no bytes in a trace."""
    return tmp_path if choose(bytes(tmp_path)).how == IN_PLACE else memory / "place"


@pytest.mark.slow
@pytest.mark.timeout(1800 if LONG else 300)
@pytest.mark.parametrize("name", STORIES)
def test_every_promise_holds_in_every_state_after_a_power_cut(
    name: str, tmp_path: Path, place: Path, memory: Path
) -> None:
    seed = drawn_seed()
    rng = random.Random(seed)
    place.mkdir(exist_ok=True)
    story = STORIES[name](place / "story", rng)
    every = cases(story.journal, DRAWS)
    chosen = sampled(every, STATES, rng)
    report = survive(story, chosen, seed, memory, tmp_path / "failed")
    print(f"{report.states} states, {report.cases} of {len(every)} cases")
    assert report.states >= len(chosen) // 4


# The recording itself


def timeless(top: Path) -> dict[bytes, Photo]:
    """Return everything of a tree except the times of writes."""
    found = photograph(top, holes=False)
    return {path: photo._replace(mtime_ns=0) for path, photo in found.items()}


@pytest.mark.slow
def test_replaying_the_journal_of_a_run_gives_the_directory_after_it(
    tmp_path: Path, place: Path
) -> None:
    place.mkdir(exist_ok=True)
    box = Box(place)
    top = place / "disk"
    top.mkdir()
    box.store = top / "store"
    box.configure()
    (box.source / "sub").mkdir()
    (box.source / "sub" / "large").write_bytes(random.Random(0).randbytes(9_000_000))
    (box.source / "small").write_bytes(b"small")
    (box.source / "second name").hardlink_to(box.source / "small")
    (box.source / "symlink").symlink_to("nowhere")
    recorder = Recorder(top, tmp_path)
    config = ("--config", box.config)
    recorder.run(*config, "init")
    recorder.run(*config, "snapshot")
    (box.source / "small").write_bytes(b"changed")
    recorder.run(*config, "snapshot")
    recorder.run(*config, "restore", "-s", "latest", "-p", box.source, "-d", top)
    (box.source / "sub" / "large").write_bytes(random.Random(1).randbytes(9_000_000))
    recorder.run(*config, "snapshot", "--base")
    recorder.run(
        *config, "restore", "-s", "latest", "-p", box.source, "-d", top, "--overwrite", "--delete"
    )
    write_image(recorder.journal.last(), tmp_path / "again")
    assert differences(timeless(top), timeless(tmp_path / "again")) == []
    # The journal has the times that a restore set, but not the time of each call.
    again = photograph(tmp_path / "again" / "source", holes=False)
    assert differences(photograph(top / "source", holes=False), again) == []
    kinds = {type(one) for one in recorder.journal.operations}
    assert {Names, Write, Truncate, Sync} <= kinds


# The states that a disk may hold


def journal_of(*operations: Operation) -> Journal:
    """Return a disk with a file 1 named ``old``, with a page of ``a``, after these operations."""
    nodes = {ROOT: Node(0o040000, 0o755), 1: Node(0o100000, 0o644), 2: Node(0o100000, 0o644)}
    journal = Journal(Image(nodes, {1: b"a" * 4096}, {ROOT: {b"old": 1}}, {}))
    journal.operations.extend(operations)
    return journal


def held(journal: Journal, kind: str) -> set[tuple[tuple[bytes, bytes], ...]]:
    """Return all possible states of the disk after the last operation: names and contents."""
    disk = Disk(journal)
    for _ in journal.operations:
        disk.advance()
    rng = random.Random(0)
    found = set()
    for _ in range(400):
        image = disk.sample(kind, rng)
        names = sorted(image.names[ROOT].items())
        found.add(tuple((name, image.content.get(node, b"")) for name, node in names))
    return found


NEW = Names(((ROOT, b"new", 2),))
OVER_OLD = Names(((ROOT, b"old", 2), (ROOT, b"new", None)))


def test_only_synced_bytes_are_sure_to_be_on_the_disk():
    journal = journal_of(NEW, Write(2, 0, b"b"), Sync(2, 2), OVER_OLD, Sync(ROOT, 4))
    for kind in (ORDERED, WEAKEST):
        assert held(journal, kind) == {((b"old", b"b"),)}


def test_a_name_without_a_sync_is_old_or_new_and_never_missing():
    journal = journal_of(NEW, Write(2, 0, b"b"), Sync(2, 2), OVER_OLD)
    old, new = (b"old", b"a" * 4096), (b"old", b"b")
    # ext4's fsync makes the earlier name durable; by POSIX the file may have no name.
    assert held(journal, ORDERED) == {((b"new", b"b"), old), (new,)}
    assert held(journal, WEAKEST) == {(old,), ((b"new", b"b"), old), (new,), ((b"new", b"b"), new)}


def test_a_rename_before_its_content_shows_an_empty_file():
    journal = journal_of(NEW, Write(2, 0, b"b"), OVER_OLD, Sync(ROOT, 3))
    for kind in (ORDERED, WEAKEST):
        assert ((b"old", b""),) in held(journal, kind)
        assert ((b"old", b"b"),) in held(journal, kind)


def test_only_the_weakest_disk_shows_bytes_that_were_never_written():
    journal = journal_of(NEW, Sync(ROOT, 1), Write(2, 0, b"b" * 1024))
    contents = {
        kind: {dict(one)[b"new"] for one in held(journal, kind)} for kind in (ORDERED, WEAKEST)
    }
    assert contents[ORDERED] == {b"", b"b" * 1024}
    assert b"b" * 512 in contents[WEAKEST]
    assert bytes(512) + b"b" * 512 in contents[WEAKEST]
    assert any(set(one) - set(b"b\0") for one in contents[WEAKEST])


def test_an_overwritten_page_is_torn_at_sectors():
    journal = journal_of(Write(1, 0, b"b" * 4096))
    assert held(journal, ORDERED) == {((b"old", one * 4096),) for one in (b"a", b"b")}
    torn = {dict(one)[b"old"] for one in held(journal, WEAKEST)}
    assert b"b" * 512 + b"a" * 3584 in torn
    assert any(one.startswith(b"a" * 512 + b"b" * 512) for one in torn)


def test_a_sync_covers_the_calls_that_had_returned_before_it():
    late = journal_of(Write(1, 0, b"b"), Write(1, 1, b"b"), Sync(1, 1))
    contents = {dict(one)[b"old"][:2] for one in held(late, WEAKEST)}
    assert contents == {b"ba", b"bb"}


def test_writing_and_reading_an_image_are_inverse(tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "sub").mkdir(parents=True)
    (top / "sub" / "file").write_bytes(b"file")
    (top / "name").hardlink_to(top / "sub" / "file")
    (top / "link").symlink_to("sub")
    (top / "sub").chmod(0o700)
    write_image(read_image(top), tmp_path / "again")
    assert differences(timeless(top), timeless(tmp_path / "again")) == []
