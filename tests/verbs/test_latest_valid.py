"""latest-valid, the nearest valid snapshot, and older intact versions of paths."""

import os
from pathlib import Path

import pytest

from ciuic.catalog import find_snapshot
from ciuic.errors import CorruptionError, SnapshotNotFoundError
from ciuic.maintain.scrub.scrub import scrub
from ciuic.model import BEING_WRITTEN
from ciuic.store.store import open_store
from tests.kit.box import Box
from tests.kit.damage import flip_byte, flip_content, pack_of

MIB = 1024 * 1024


def take(box: Box, **files: bytes) -> str:
    """Write files, and take a snapshot."""
    for name, content in files.items():
        (box.source / name).write_bytes(content)
    return box.take().id


def find(box: Box, text: str) -> str:
    with open_store(str(box.store)) as store:
        return find_snapshot(store, text).id


def alternatives(box: Box, *arguments: str) -> dict[str, tuple[str | None, dict[str, str | None]]]:
    """For each damaged snapshot, what ``verify`` suggests instead, as a whole and by path."""
    outcome = box.ciuic("verify", *arguments, "--json")
    assert outcome.code == 4
    return {
        one["id"]: (
            one["nearest_valid"],
            {os.path.basename(bad["path"]): bad["intact_in"] for bad in one["damaged"]},
        )
        for one in outcome.document["snapshots"]
        if not one["ok"]
    }


def test_latest_valid_is_the_newest_that_can_be_restored_whole(box: Box) -> None:
    first = take(box, a=os.urandom(MIB))
    lost = os.urandom(MIB)
    take(box, b=lost)
    third = take(box, c=os.urandom(MIB))
    assert find(box, "latest-valid") == find(box, "latest") == third
    flip_content(box.store, lost)
    assert find(box, "latest-valid") == third, "no check has read it yet"
    scrub(str(box.store), clock=box.clock)
    assert find(box, "latest-valid") == first
    assert find(box, "latest") == third
    assert not box.verify(checksum=False).ok, "what a scrub found counts without reading"
    # Storing it again makes all of them valid.
    fourth = box.take().id
    assert find(box, "latest-valid") == fourth
    assert box.verify().ok


def test_latest_valid_goes_past_lost_packs_and_trees_without_any_scrub(box: Box) -> None:
    first = take(box, a=os.urandom(MIB))
    take(box, b=os.urandom(MIB))
    pack_of(box.store, (box.source / "b").read_bytes()).unlink()
    assert find(box, "latest-valid") == first


def test_latest_valid_with_nothing_valid_is_damage_and_without_any_snapshot_not(box: Box) -> None:
    with pytest.raises(SnapshotNotFoundError):
        find(box, "latest-valid")
    assert box.ciuic("show", "latest-valid").code == 1
    take(box, a=os.urandom(MIB))
    take(box, b=os.urandom(MIB))
    pack_of(box.store, (box.source / "a").read_bytes()).unlink()
    with pytest.raises(CorruptionError, match="each of the 2 snapshots is damaged"):
        find(box, "latest-valid")
    outcome = box.ciuic("show", "latest-valid")
    assert outcome.code == 4
    assert f"ciuic --config {box.config} verify --all" in outcome.err


def test_every_command_that_takes_an_id_takes_latest_valid(box: Box, tmp_path: Path) -> None:
    first = take(box, a=b"whole")
    take(box, b=os.urandom(MIB))
    flip_content(box.store, (box.source / "b").read_bytes())
    assert box.ciuic("scrub").code == 4
    assert box.ciuic("show", "latest-valid", "--json").document["id"] == first
    assert box.ciuic("cat", "latest-valid", box.source / "a").out == "whole"
    assert "a" in box.ciuic("ls", "latest-valid", box.source).out
    assert box.ciuic("verify", "latest-valid", "--checksum").code == 0
    assert str(box.source / "b") in box.ciuic("diff", "latest-valid", "latest").out
    out = tmp_path / "out"
    restored = box.ciuic("restore", "-s", "latest-valid", "-p", box.source, "-d", out)
    assert restored.code == 0
    assert first in restored.out
    assert [path.name for path in (out / "source").iterdir()] == ["a"]


def test_verify_names_the_nearest_valid_snapshot_and_where_each_path_is_intact(box: Box) -> None:
    one = take(box, a=b"a1" * MIB, b=b"b1" * MIB)
    two = take(box, a=os.urandom(2 * MIB))
    three = take(box, b=os.urandom(2 * MIB))
    take(box, a=os.urandom(MIB), b=os.urandom(MIB))
    # The version of a is in two and three, that of b in three alone.
    flip_content(box.store, box.read(box.source / "a", two)[:MIB])
    flip_content(box.store, box.read(box.source / "b", three)[:MIB])
    found = alternatives(box, "--all", "--checksum")
    assert found == {two: (one, {"a": one}), three: (one, {"a": one, "b": two})}
    assert alternatives(box, three, "--checksum")[three] == (one, {"a": one, "b": two})
    outcome = box.ciuic("verify", three, "--checksum")
    assert f"{three}: DAMAGED; the nearest valid snapshot is {one}" in outcome.out
    assert f"; intact in {two}" in outcome.out


def test_without_an_older_valid_snapshot_the_oldest_newer_one_is_nearest(box: Box) -> None:
    one = take(box, a=os.urandom(MIB))
    two = take(box, a=os.urandom(MIB))
    three = take(box, c=b"c")
    flip_content(box.store, box.read(box.source / "a", one))
    assert alternatives(box, "--all", "--checksum") == {one: (two, {"a": None})}
    flip_byte(box.store / "snapshots" / f"{one}.json", 50)
    name = f"snapshots/{one}.json"
    assert alternatives(box, "--all")[one] == (three, {os.path.basename(name): None})


def test_where_nothing_is_valid_paths_still_have_older_versions(box: Box) -> None:
    one = take(box, a=os.urandom(MIB), always=os.urandom(MIB), later=b"")
    two = take(box, a=os.urandom(MIB))
    flip_content(box.store, (box.source / "always").read_bytes())
    flip_content(box.store, (box.source / "a").read_bytes())
    assert alternatives(box, "--all", "--checksum") == {
        one: (None, {"always": None}),
        two: (None, {"always": None, "a": one}),
    }
    assert f"{two}: DAMAGED; no snapshot is valid" in box.ciuic("verify", "--checksum").out


def test_a_damaged_directory_is_intact_in_a_snapshot_with_everything_below_it(box: Box) -> None:
    (box.source / "d" / "inner").mkdir(parents=True)
    (box.source / "d" / "inner" / "file").write_bytes(b"1" * 100)
    one = box.take().id
    (box.source / "d" / "new").write_bytes(os.urandom(100))
    two = box.take().id
    tree = box.entries()[os.fsencode(box.source / "d")].content
    with open_store(str(box.store)) as store:
        place = store.reader.places([tree])[tree]
    pack = box.store / "packs" / place.pack_id.hex()
    flip_byte(pack, place.offset_bytes + place.frame_bytes - 1)
    found = alternatives(box, two)
    assert found[two][0] == one
    assert set(found[two][1].values()) == {one}


def test_a_version_that_was_being_written_is_not_intact(box: Box) -> None:
    whole = take(box, a=os.urandom(1000))
    with (box.source / "a").open("ab") as writer:
        writer.write(b"half")
        writer.flush()
        half = box.take().id
    assert box.entries(half)[os.fsencode(box.source / "a")].state == BEING_WRITTEN
    content = os.urandom(MIB)
    newest = take(box, a=content)
    flip_content(box.store, content)
    assert alternatives(box, "latest", "--checksum") == {newest: (half, {"a": whole})}


def test_a_snapshot_that_parity_restores_is_its_own_nearest_valid_one(box: Box) -> None:
    box.parity = 0.04
    content = os.urandom(2 * MIB)
    name = take(box, a=content)
    flip_content(box.store, content[:MIB])
    assert alternatives(box, "--checksum") == {name: (name, {"a": name})}
    outcome = box.ciuic("verify", "--checksum")
    assert f"{name}: DAMAGED, but can still be restored in full" in outcome.out
    assert "intact in" not in outcome.out
