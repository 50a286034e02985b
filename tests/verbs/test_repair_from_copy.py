"""``ciuic repair --from``: chunks that one store has lost come from another store."""

import os
import random
import shutil
from pathlib import Path

import pytest

from ciuic.store.adding import new_writer
from ciuic.store.directory.create import create_store
from ciuic.store.store import open_store
from ciuic.system.hashing import data_id
from tests.kit.box import Box
from tests.kit.damage import flip_content, packs
from tests.kit.program import Outcome, ciuic
from tests.kit.trees import differences, photograph


@pytest.fixture
def pair(box: Box) -> Box:
    """A store with two snapshots, its copy, and no live files."""
    rng = random.Random(1)
    for number in range(30):
        path = box.source / f"d{number % 3}" / f"f{number}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(rng.randbytes(4000))
    (box.source / "large").write_bytes(rng.randbytes(2_500_000))
    box.take()
    (box.source / "d0" / "f0").write_bytes(b"changed")
    box.take(tags=("second",))
    assert box.ciuic("copy", "--to", copy_of(box), "--init").code == 0
    box.photo = photograph(box.source)
    shutil.rmtree(box.source)
    return box


def copy_of(box: Box) -> Path:
    return box.directory / "copy"


def repair(box: Box, *arguments: str | Path, code: int = 0) -> Outcome:
    outcome = box.ciuic("repair", *arguments)
    assert outcome.code == code, outcome
    assert "Traceback" not in outcome.err
    return outcome


def assert_whole(box: Box) -> None:
    assert box.verify().ok
    restored = box.directory / "out"
    assert box.ciuic("restore", "-s", "latest", "-p", box.source, "-d", restored).code == 0
    assert not differences(box.photo, photograph(restored / "source"))


def test_every_pack_is_lost_and_the_copy_gives_everything_back(pair: Box) -> None:
    for pack in packs(pair.store):
        pack.unlink()
    before = photograph(copy_of(pair) / "packs")
    names = sorted(one.id for one in pair.snapshots())
    foreseen = repair(pair, "--from", copy_of(pair), code=4)
    assert f"{copy_of(pair)} has {names[0]}" in foreseen.out
    assert not packs(pair.store), "nothing was changed"

    found = repair(pair, "--from", copy_of(pair), "--apply", "--json").document
    (given,) = found["copies"]
    assert found["ok"]
    assert sorted(given["healed"]) == names
    assert given["chunks"] > 30
    assert_whole(pair)
    assert photograph(copy_of(pair) / "packs") == before
    assert "nothing is damaged" in repair(pair).out


def test_a_damaged_pack_gets_only_what_it_has_lost(pair: Box) -> None:
    flip_content(pair.store, b"changed")
    found = repair(pair, "--from", copy_of(pair), "--apply", "--json").document
    assert found["copies"][0]["chunks"] <= 2
    assert {how for pack in found["packs"] for how in pack["chunks"]} == {"a copy"}
    assert_whole(pair)


def test_a_manifest_without_a_copy_comes_back_to_the_byte(pair: Box) -> None:
    paths = sorted((pair.store / "snapshots").iterdir())
    old = [path.read_bytes() for path in paths]
    paths[0].unlink()
    paths[1].write_bytes(b"{}")
    for copy in (pair.store / "parity").glob("cs-*"):
        copy.unlink()
    found = repair(pair, "--from", copy_of(pair), "--apply", "--json").document
    assert found["ok"], found
    assert [path.read_bytes() for path in paths] == old
    assert_whole(pair)


def test_a_copy_is_mended_from_the_store_in_the_same_way(pair: Box) -> None:
    for pack in packs(copy_of(pair)):
        pack.unlink()
    done = ciuic("--store", copy_of(pair), "repair", "--from", pair.store, "--apply")
    assert done.code == 0, done
    assert ciuic("--store", copy_of(pair), "verify", "--all", "--checksum").code == 0


def test_configured_copies_are_asked_without_being_named(pair: Box) -> None:
    gone = pair.directory / "gone"
    text = pair.config.read_text()
    pair.config.write_text(f"{text}copies = {gone}, {copy_of(pair)}\n")
    flip_content(pair.store, b"changed")
    # After a copy by the configuration, a record says which copies have it.
    assert pair.ciuic("copy", "--to", copy_of(pair)).code == 0
    remedy = f"'ciuic --config {pair.config} repair --apply'"
    hint = f"the copy {copy_of(pair)} has the damaged data intact: {remedy}"
    assert hint in pair.ciuic("verify", "--checksum").err
    target = pair.directory / "broken"
    alone = ("restore", "--no-copies", "-s", "latest", "-p", pair.source, "-d", target)
    assert hint in pair.ciuic(*alone).err

    outcome = repair(pair, "--apply")
    assert f"{gone}: there is no store at {gone}" in outcome.err
    assert f"taken from {copy_of(pair)}: " in outcome.out
    assert_whole(pair)


def test_wrong_content_under_the_right_name_is_not_taken(box: Box) -> None:
    right, wrong = b"right" * 1000, b"wrong" * 1000
    (box.source / "file").write_bytes(right)
    box.take()
    create_store(str(copy_of(box)), box.clock)
    with open_store(str(copy_of(box)), write=True) as store:
        writer = new_writer(store)
        writer.add_data([(data_id(right), wrong)])
        writer.finish()
    assert box.ciuic("copy", "--to", copy_of(box)).code == 0
    shutil.rmtree(box.source)
    flip_content(box.store, right)
    found = repair(box, "--from", copy_of(box), "--apply", "--json", code=4).document
    assert found["copies"][0]["healed"] == []
    assert found["copies"][0]["problem"]
    assert [one["damaged_count"] for one in found["snapshots"]] == [1]


def test_an_impossible_source_is_refused_before_anything_changes(pair: Box) -> None:
    flip_content(pair.store, b"changed")
    before = photograph(pair.store / "packs")
    for place, said in (
        (pair.store, "is the store itself"),
        (pair.directory / "nothing", "there is no store at"),
        ("s3://user:secret@bucket/x", "holds a user name or a password"),
        ("ftp://host/x", "ciuic"),
    ):
        outcome = box_repair(pair, place)
        assert outcome.code not in {0, 4}
        assert said in outcome.err
        assert "secret" not in outcome.err
    assert photograph(pair.store / "packs") == before


def box_repair(box: Box, place: str | Path) -> Outcome:
    return box.ciuic("repair", "--from", place, "--apply")


def cut_the_largest(box: Box) -> None:
    os.truncate(packs(box.store)[0], 1000)
    for parity in (box.store / "parity").glob("*"):
        parity.unlink()


def test_snapshots_that_the_copy_lacks_are_healed_by_the_chunks_of_those_that_it_has(
    pair: Box,
) -> None:
    target = pair.directory / "source"
    assert pair.ciuic("restore", "-s", "latest", "-p", pair.source, "-d", pair.directory).code == 0
    (target / "d1" / "new").write_bytes(b"new" * 2000)
    newer = pair.take().id
    shutil.rmtree(target)
    cut_the_largest(pair)
    foreseen = repair(pair, "--from", copy_of(pair), "--json", code=4).document
    assert newer in foreseen["copies"][0]["heals"]
    assert foreseen["snapshots"] == []
    done = repair(pair, "--from", copy_of(pair), "--apply", "--json").document
    assert done["ok"]
    assert newer in done["copies"][0]["healed"]
    assert done["snapshots"] == []
    assert pair.verify().ok


def test_a_snapshot_that_the_copy_lacks_too_stays_damaged_with_and_without_apply(pair: Box) -> None:
    pair.source.mkdir()
    (pair.source / "new").write_bytes(b"new" * 9000)
    newer = pair.take().id
    shutil.rmtree(pair.source)
    flip_content(pair.store, b"new" * 9000)
    for more in ((), ("--apply",)):
        found = repair(pair, "--from", copy_of(pair), "--json", *more, code=4).document
        assert [one["id"] for one in found["snapshots"]] == [newer]


def test_a_dry_run_does_not_report_damage_that_the_copy_repairs(pair: Box) -> None:
    flip_content(pair.store, b"changed")
    said = repair(pair, "--from", copy_of(pair), code=4)
    assert "1 of its chunks: from a copy" in said.out
    assert "what is lost here would be taken from there" in said.out
    assert "stays damaged" not in said.out
    again = f"repair --apply --from {copy_of(pair)}'"
    assert f"run 'ciuic --config {pair.config} {again}" in said.err
    assert "stays damaged" not in repair(pair, "--from", copy_of(pair), "--apply").out
    assert_whole(pair)


def test_a_source_that_is_not_there_is_not_to_be_made(pair: Box) -> None:
    flip_content(pair.store, b"changed")
    said = pair.ciuic("repair", "--from", pair.directory / "nosuch")
    assert said.code == 1
    assert "init" not in said.err
    assert "Name a store that has the same snapshots" in said.err
