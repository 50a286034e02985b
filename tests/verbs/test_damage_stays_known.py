"""Lost chunks stay known as long as a snapshot may need them, and no longer."""

import os
import shutil
from pathlib import Path

import pytest

from ciuic.catalog.lost import known_lost
from ciuic.copy.lost_packs import note_damaged_there
from ciuic.copy.report import CopyReport
from ciuic.ids import ChunkId
from ciuic.maintain.scrub.checks import suspects
from ciuic.maintain.scrub.scrub import scrub
from ciuic.store.store import open_store
from tests.kit.box import Box
from tests.kit.damage import flip_content, flip_node, pack_of
from tests.kit.program import ciuic
from tests.kit.strace import strace

KIB = 1024


@pytest.fixture
def model(box: Box) -> Path:
    """A file that only the second of three snapshots has, in a pack of its own."""
    (box.source / "other").write_bytes(os.urandom(300 * KIB))
    box.take()
    (box.source / "model").write_bytes(os.urandom(300 * KIB))
    box.take()
    path = (box.source / "model").rename(box.directory / "model")
    box.take()
    return path


def lost(box: Box) -> int:
    with open_store(str(box.store)) as store:
        return len(known_lost(store))


def is_marked(box: Box) -> bool:
    return "damaged" in box.ciuic("list").out


def test_a_pack_that_is_there_again_has_lost_nothing(box: Box, model: Path) -> None:
    pack = pack_of(box.store, model.read_bytes())
    away = box.directory / "away"
    pack.rename(away)
    assert box.ciuic("scrub").code == 4
    assert is_marked(box)
    away.rename(pack)

    box.take()

    assert not lost(box)
    assert box.ciuic("scrub").code == 0
    assert not is_marked(box)
    assert box.ciuic("verify", "--all").code == 0


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_pack_that_could_not_be_read_for_a_while_has_lost_nothing(box: Box, model: Path) -> None:
    pack = pack_of(box.store, model.read_bytes())
    wrapper = strace("newfstatat,?lstat,?statx", "-P", pack.name, inject="error=EIO")

    done = ciuic("--config", box.config, "scrub", "--json", wrapper=wrapper)

    assert [one["path"] for one in done.document["unreachable"]] == [f"packs/{pack.name}"]
    assert done.document["missing"]
    assert not lost(box)
    assert box.ciuic("scrub").code == 0
    assert not is_marked(box)
    assert box.ciuic("verify", "--all").code == 0


def forget_and_bring_back(box: Box, *between: tuple[str, ...]) -> None:
    """Forget the second snapshot, run commands, and bring it back."""
    name = box.snapshots()[1].id
    assert box.ciuic("forget", name).code == 0
    for command in between:
        box.ciuic(*command)
    assert box.ciuic("forget", "--undo", name).code == 0


def test_what_only_a_forgotten_snapshot_has_lost_stays_known(box: Box, model: Path) -> None:
    pack_of(box.store, model.read_bytes()).unlink()
    assert box.ciuic("scrub").code == 4

    forget_and_bring_back(box, ("scrub",))

    assert lost(box)
    assert is_marked(box)


@pytest.mark.parametrize("is_scrubbed", [True, False])
def test_a_repair_knows_what_a_forgotten_snapshot_has_lost(
    box: Box, model: Path, is_scrubbed: bool
) -> None:
    flip_content(box.store, model.read_bytes())
    if is_scrubbed:
        assert box.ciuic("scrub").code == 4

    forget_and_bring_back(box, ("repair", "--apply"))

    assert lost(box)
    assert is_marked(box)


def test_a_repair_stores_again_what_a_forgotten_snapshot_has_lost(box: Box, model: Path) -> None:
    flip_content(box.store, model.read_bytes())
    model.rename(box.source / "model")

    forget_and_bring_back(box, ("repair", "--apply"))

    assert box.verify().ok


def test_what_a_deleted_snapshot_has_lost_is_forgotten(box: Box, model: Path) -> None:
    pack_of(box.store, model.read_bytes()).unlink()
    assert box.ciuic("scrub").code == 4
    assert box.ciuic("forget", box.snapshots()[1].id).code == 0
    box.ciuic("scrub")
    assert lost(box)
    assert box.ciuic("prune", "--trash", "0").code == 0

    assert box.ciuic("scrub").code == 0

    assert not lost(box)


def test_what_a_snapshot_without_a_manifest_has_lost_stays_known(box: Box, model: Path) -> None:
    pack_of(box.store, model.read_bytes()).unlink()
    assert box.ciuic("scrub").code == 4
    manifest = box.store / "snapshots" / f"{box.snapshots()[1].id}.json"
    data = manifest.read_bytes()
    manifest.unlink()
    for command in (("scrub",), ("repair", "--apply")):
        assert box.ciuic(*command).code == 4
        assert lost(box)
    manifest.write_bytes(data)

    assert is_marked(box)


def test_a_copy_that_repairs_all_listed_snapshots_ends_no_other_damage(
    box: Box, model: Path
) -> None:
    other = box.source / "other"
    copy = box.copied(box.directory / "copy")
    flip_content(box.store, other.read_bytes())
    for store in (box.store, copy.store):
        flip_content(store, model.read_bytes())
    other.unlink()

    forget_and_bring_back(box, ("repair", "--apply", "--from", str(copy.store)))

    assert lost(box) == 1
    assert is_marked(box)


@pytest.mark.parametrize("is_forgotten", [True, False])
def test_a_copy_knows_that_packs_are_gone_while_a_forgotten_snapshot_needs_them(
    box: Box, model: Path, is_forgotten: bool
) -> None:
    name = box.snapshots()[1].id
    assert box.ciuic("forget", name).code == 0
    pack_of(box.store, model.read_bytes()).unlink()
    with open_store(str(box.store), write=True) as store:
        if not is_forgotten:
            store.trash.empty([name])
        note_damaged_there(store, (), CopyReport("", False))
        assert store.index.has_gone() == is_forgotten


def test_a_node_that_a_snapshot_could_not_read_for_a_while_is_not_lost(box: Box) -> None:
    (box.source / "file").write_bytes(b"content")
    box.take()
    tree = ChunkId(box.entries()[os.fsencode(box.source)].content)
    (box.source / "more").write_bytes(b"content")
    flip_node(box.store, tree)
    box.take()
    assert lost(box) == 1
    flip_node(box.store, tree)

    assert box.ciuic("scrub").code == 0

    assert not lost(box)
    assert not is_marked(box)


def suspected(box: Box) -> int:
    with open_store(str(box.store)) as store:
        return len(suspects(store))


@pytest.mark.parametrize("is_rotten", [True, False])
def test_a_scrub_clears_no_pack_in_which_a_snapshot_has_found_damage_since(
    box: Box, is_rotten: bool
) -> None:
    (box.source / "file").write_bytes(b"content")
    box.take()
    tree = ChunkId(box.entries()[os.fsencode(box.source)].content)

    def find(done: int, whole: int) -> None:
        if done < whole:
            return
        (box.source / "more").write_bytes(b"content")
        flip_node(box.store, tree)
        box.take()
        if not is_rotten:
            flip_node(box.store, tree)

    assert not scrub(str(box.store), clock=box.clock, progress=find).damaged

    assert suspected(box) == lost(box) == 1
    assert box.ciuic("scrub").code == (4 if is_rotten else 0)
    assert not suspected(box)
    assert bool(lost(box)) == is_rotten


def test_a_scrub_clears_a_pack_that_was_suspected_before_it_read_the_pack(box: Box) -> None:
    for _ in range(3):
        (box.source / "model").write_bytes(os.urandom(300 * KIB))
        box.take()
    with open_store(str(box.store)) as store:
        *others, last = sorted(store.pack_files())
    assert len(others) >= 2
    done = []

    def find(*_: int) -> None:
        if not done:
            with open_store(str(box.store), write=True, only_adds=True) as store:
                store.index.drop_damaged(list(store.index.chunks_in(last)))
            assert lost(box)
            box.clock.advance(60)  # after the next pack, the scrub records its results
        done.append(True)

    assert scrub(str(box.store), clock=box.clock, progress=find).ok

    assert not suspected(box)
    assert not lost(box)
    assert box.ciuic("verify", "--all", "--checksum").code == 0
