"""``ciuic list --path``: which snapshots have a path, its state, and where it changed."""

import os
import random
from pathlib import Path

import pytest

from ciuic.model import Entry
from ciuic.store.store import open_store
from tests.kit.box import Box
from tests.kit.damage import flip_content, pack_of
from tests.kit.machines import HERE, OTHER, THIRD, Shared
from tests.verbs.test_restore import hostile

OWN = {"uid": 0, "gid": 0, "mtime_ns": 1, "ctime_ns": 1, "ino": 1}


def listed(box: Box, path: Path, code: int = 0) -> dict[str, dict[str, object]]:
    """The fields of the JSON document about a path, by snapshot, newest first."""
    done = box.ciuic("list", "--path", path, "--json")
    assert done.code == code, done.err
    return {one["id"]: one["path"] for one in done.document}


def test_a_file_says_where_it_changed_and_where_it_is_the_same(box: Box) -> None:
    file = box.source / "file"
    box.take()
    file.write_bytes(b"one")
    first = box.take().id
    (box.source / "other").write_bytes(b"other")
    second = box.take().id
    os.utime(file, ns=(10**18, 10**18))
    third = box.take().id
    file.write_bytes(b"two")
    fourth = box.take().id
    file.unlink()
    box.take()
    found = listed(box, file)
    assert list(found) == [fourth, third, second, first]
    assert [one["same_as"] for one in found.values()] == [None, second, first, None]
    assert {one["state"] for one in found.values()} == {"whole"}
    assert [one["size_bytes"] for one in found.values()] == [3] * 4
    lines = box.ciuic("list", "--path", file, "--machine-readable").out.splitlines()
    everything = box.ciuic("list", "--machine-readable").out.splitlines()
    assert lines == [
        f"{everything[1]}|whole||3",
        f"{everything[2]}|whole|{second}|3",
        f"{everything[3]}|whole|{first}|3",
        f"{everything[4]}|whole||3",
    ]
    newest = box.ciuic("list", "--path", box.source, "--machine-readable").out.splitlines()[0]
    assert newest == f"{everything[0]}|whole||", "no snapshot records the size of a directory"


def test_a_file_that_was_away_is_compared_with_its_last_version(box: Box) -> None:
    file = box.source / "file"
    file.write_bytes(b"one")
    first = box.take().id
    file.unlink()
    box.take()
    file.write_bytes(b"one")
    third = box.take(tags=("mine",)).id
    assert {name: one["same_as"] for name, one in listed(box, file).items()} == {
        third: first,
        first: None,
    }
    tagged = box.ciuic("list", "--path", file, "--tag", "mine", "--json").document
    assert [one["path"]["same_as"] for one in tagged] == [first]


def test_large_files_that_are_cut_in_other_places_are_the_same(box: Box) -> None:
    data = random.Random(5).randbytes(5 * 1024 * 1024)
    file = box.source / "file"
    file.write_bytes(data)
    first = box.take().id
    file.write_bytes(data[:-1] + b"?")
    second = box.take().id
    assert [one["same_as"] for one in listed(box, file).values()] == [None, None]
    file.write_bytes(data[:-1] + b"?")
    third = box.take(base=True).id
    assert {name: one["same_as"] for name, one in listed(box, file).items()} == {
        third: second,
        second: None,
        first: None,
    }


def test_two_machines_with_the_same_path_are_compared_each_with_itself(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, file = Shared(box, monkeypatch), box.source / "file"
    ids = []
    for _ in range(2):
        for machine in (HERE, OTHER):
            file.write_text(machine.name)
            ids.append(shared.take(on=machine).id)
    (box.source / "more").write_text("a third machine has taken over from the second")
    ids.append(shared.take(on=THIRD).id)

    found = listed(box, file)

    assert [found[one]["same_as"] for one in ids] == [None, None, ids[0], ids[1], ids[3]]


def test_a_directory_is_the_same_as_long_as_nothing_in_it_changed(box: Box) -> None:
    file = box.source / "deep" / "er" / "file"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"one")
    first = box.take().id
    (box.source / "other").write_bytes(b"other")
    second = box.take().id
    file.write_bytes(b"two")
    third = box.take().id
    found = listed(box, box.source / "deep")
    assert {name: one["same_as"] for name, one in found.items()} == {
        third: None,
        second: first,
        first: None,
    }


def test_a_damaged_file_is_said_to_be_damaged_in_every_snapshot_that_has_it(box: Box) -> None:
    rng = random.Random(6)
    old, new = rng.randbytes(1024 * 1024), rng.randbytes(1024 * 1024)
    file = box.source / "file"
    file.write_bytes(old)
    first = box.take().id
    file.write_bytes(new)
    second = box.take().id
    (box.source / "other").write_bytes(b"other")
    third = box.take().id
    pack_of(box.store, new).unlink()
    found = listed(box, file, code=4)
    assert {name: one["state"] for name, one in found.items()} == {
        third: "damaged",
        second: "damaged",
        first: "whole",
    }
    done = box.ciuic("list", "--path", file)
    assert done.code == 4
    assert f"{file} in {third}: some of it is lost" in done.err
    whole = [line for line in done.out.splitlines() if " whole" in line]
    assert [line.split()[0] for line in whole] == [first]


def test_a_damaged_way_to_the_path_hides_no_snapshot(box: Box) -> None:
    file = box.source / "deep" / "file"
    file.parent.mkdir()
    file.write_bytes(b"one")
    first = box.take().id
    file.write_bytes(b"two, longer")
    second = box.take().id
    with open_store(str(box.store)) as store:
        tree = store.manifest(second).roots[0].tree
        place = store.reader.places([tree])[tree]
    from ciuic.store.records.layout import pack_name
    from tests.kit.damage import flip_byte

    pack = box.store / "packs" / pack_name(place.pack_id)
    flip_byte(pack, place.offset_bytes + place.frame_bytes - 1)
    found = listed(box, file, code=4)
    assert {name: one["state"] for name, one in found.items()} == {
        second: "damaged",
        first: "whole",
    }


def test_scrubbed_damage_is_remembered(box: Box) -> None:
    data = random.Random(8).randbytes(1024 * 1024)
    file = box.source / "file"
    file.write_bytes(data)
    box.take()
    flip_content(box.store, data)
    assert box.ciuic("scrub").code == 4
    assert [one["state"] for one in listed(box, file, code=4).values()] == ["damaged"]


@pytest.mark.parametrize(
    ("state", "kind", "said"),
    [(1, 0o100644, "in flux"), (2, 0o100644, "unreadable"), (3, 0o40755, "left out")],
)
def test_marks_are_shown_for_the_file_and_its_directories(
    box: Box, state: int, kind: int, said: str
) -> None:
    hostile(
        box,
        [Entry(b"deep", 0o40755, **OWN)],
        root=box.source,
        inner={b"deep": [Entry(b"file", kind, state=state, **OWN)]},
    )
    assert [one["state"] for one in listed(box, box.source / "deep" / "file").values()] == [said]


def test_a_directory_is_as_bad_as_the_worst_in_it(live_box: Box) -> None:
    box = live_box
    file = box.source / "deep" / "er" / "file"
    file.parent.mkdir(parents=True)
    (box.source / "calm").mkdir()
    with file.open("wb") as open_file:
        open_file.write(b"half")
        open_file.flush()
        box.take()
    assert [one["state"] for one in listed(box, file).values()] == ["in flux"]
    assert [one["state"] for one in listed(box, box.source / "deep").values()] == ["in flux"]
    assert [one["state"] for one in listed(box, box.source / "calm").values()] == ["whole"]


def test_the_table_fits_sixty_columns_and_names_an_absent_path(box: Box) -> None:
    file = box.source / "file"
    file.write_bytes(b"one")
    box.take()
    box.take(tags=("a tag of some length",))
    lines = box.ciuic("list", "--path", file).out.splitlines()
    assert lines[0].split() == ["ID", "TAKEN", "SIZE", "MODIFIED", "STATE", "SAME", "AS", "TAGS"]
    assert len(lines) == 3
    absent = box.ciuic("list", "--path", box.source / "nothing")
    assert (absent.code, absent.out) == (0, "")
    assert "no snapshot holds" in absent.err
