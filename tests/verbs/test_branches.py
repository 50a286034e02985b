"""A run that is rolled back and goes on: what the next snapshot says, and what log draws."""

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic import SnapshotManager
from ciuic.catalog import list_snapshots
from ciuic.ids import SnapshotId
from ciuic.model import Follow
from ciuic.report.histories.changes import descent
from ciuic.report.histories.graph import draw
from ciuic.store.directory.leftovers import remove_leftovers
from ciuic.store.records import layout
from ciuic.store.restored import note_restored
from ciuic.store.store import open_store
from ciuic.system.machine import Machine, this_machine
from tests.kit.box import Box
from tests.kit.trees import photograph


def follows(box: Box) -> list[list[tuple[str, str]]]:
    """Return what each snapshot follows, newest first."""
    listed = box.ciuic("list", "--json").document
    return [[(one["path"], one["snapshot"]) for one in each["follows"]] for each in listed]


def grown(box: Box, *contents: str) -> list[str]:
    """Take a snapshot with each content of one file."""
    ids = []
    for content in contents:
        (box.source / "model").write_text(content)
        ids.append(box.take().id)
    return ids


def rolled_back(box: Box, snapshot: str, *more: str) -> None:
    """Restore the source in place."""
    outcome = box.ciuic("restore", "-s", snapshot, "-p", box.source, "--overwrite", *more)
    assert outcome.code == 0, outcome.err


@pytest.fixture
def branched(box: Box) -> tuple[Box, list[str]]:
    """A run of three snapshots that was rolled back to the first one, and then had two more."""
    first = grown(box, "one", "two", "three")
    rolled_back(box, first[0])
    return box, [*first, *grown(box, "2b", "3b")]


def test_the_next_snapshot_says_what_it_follows_and_later_ones_do_not(
    branched: tuple[Box, list[str]],
) -> None:
    box, ids = branched

    assert follows(box) == [[], [(str(box.source), ids[0])], [], [], []]
    assert [one["parent"] for one in box.ciuic("list", "--json").document][1] == ids[2]
    assert f"follows   {ids[0]}" in box.ciuic("show", ids[3]).out
    assert not os.listdir(box.store / layout.RESTORED)


def test_log_draws_two_branches_that_meet_where_the_run_was_rolled_back_to(
    branched: tuple[Box, list[str]],
) -> None:
    box, ids = branched
    one, two, three, two_b, three_b = ids
    wanted = ["*", three_b, "*", two_b, "| *", three, "| *", two, "|/", "o", one]

    for arguments in ((), (str(box.source / "model"),)):
        lines = box.ciuic("log", *arguments, "--graph").out.splitlines()[1:]
        found = []
        for line in lines:
            lanes, _, rest = line.partition("cs-")
            found += [lanes.strip(), *([f"cs-{rest.split()[0]}"] if rest else [])]
        assert found == wanted

    by_id = {one["id"]: one["before"] for one in box.ciuic("log", "--json").document}
    assert by_id == {one: None, two: one, three: two, two_b: one, three_b: two_b}
    versions = box.ciuic("log", str(box.source / "model"), "--json").document
    assert [(each["first"]["id"], each["before"]) for each in versions] == [
        (three_b, two_b), (two_b, one), (three, two), (two, one), (one, None),
    ]  # fmt: skip
    assert versions[1]["follows"] == {"path": str(box.source), "snapshot": one}


def test_a_restore_of_one_file_branches_that_file_alone(box: Box) -> None:
    ids = grown(box, "one", "two")
    (box.source / "other").write_text("a")
    box.take()
    path = str(box.source / "other")
    (box.source / "other").write_text("b")
    box.take()
    assert box.ciuic("restore", "-s", ids[1], "-p", str(box.source / "model")).code != 0
    (box.source / "model").unlink()
    assert box.ciuic("restore", "-s", ids[0], "-p", str(box.source / "model")).code == 0
    (box.source / "other").write_text("c")
    last = box.take().id

    newest = box.ciuic("log", path, "--json").document[0]
    assert (newest["first"]["id"], newest["follows"]) == (last, None)
    model = box.ciuic("log", str(box.source / "model"), "--json").document[0]
    assert (model["first"]["id"], model["before"]) == (last, ids[0])


def test_a_restore_that_changed_nothing_or_went_elsewhere_is_not_followed(
    box: Box, tmp_path: Path
) -> None:
    first, _ = grown(box, "one", "two")
    assert box.ciuic("restore", "-s", first, "-p", box.source, "-d", tmp_path / "out").code == 0
    rolled_back(box, "latest")
    rolled_back(box, first, "--dry-run")
    box.take()

    assert follows(box)[0] == []


def test_a_checkout_is_followed(box: Box) -> None:
    first, _ = grown(box, "one", "two")
    assert box.ciuic("checkout", first, str(box.source)).code == 0
    box.take()

    # The checkout took the second one before it restored.
    assert follows(box)[:2] == [[(str(box.source), first)], []]


def test_a_restore_needs_no_right_to_write_to_the_store(box: Box, tmp_path: Path) -> None:
    grown(box, "one")
    os.unlink(box.source / "model")
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    (box.store / layout.RESTORED).symlink_to(hostile)

    assert box.ciuic("restore", "-s", "latest", "-p", str(box.source / "model")).code == 0
    assert not list(hostile.iterdir())


def test_foreign_and_broken_notes_are_left_alone(box: Box) -> None:
    first, _ = grown(box, "one", "two")
    with open_store(str(box.store)) as store:
        note_restored(store, [os.fsencode(box.source)], store_id(first), Machine("other", "0" * 16))
    folder = box.store / layout.RESTORED
    for number, content in enumerate([b"", b"{", b"\xff" * 40, b"[" * 15_000, b'{"host": 7}']):
        (folder / f"{number:016x}").write_bytes(content)
    before = photograph(folder)
    box.take()

    assert follows(box)[0] == []
    assert photograph(folder) == before


def test_there_are_never_too_many_notes(box: Box) -> None:
    first, _ = grown(box, "one", "two")
    places = [os.fsencode(box.source / f"{number}\udcff") for number in range(300)]
    with open_store(str(box.store)) as store:
        note_restored(store, places, store_id(first), this_machine())
        note_restored(store, [b"/elsewhere"], store_id(first), this_machine())
    box.take()

    assert len(follows(box)[0]) == 256
    assert follows(box)[0][0][0].endswith("\udcff")


def test_a_writer_that_empties_tmp_removes_no_note_that_is_being_written(box: Box) -> None:
    first, _ = grown(box, "one", "two")
    is_done = threading.Event()

    def clean() -> None:
        while not is_done.is_set():
            remove_leftovers(str(box.store))

    cleaner = threading.Thread(target=clean)
    cleaner.start()
    try:
        with open_store(str(box.store)) as store:
            for number in range(200):
                place = os.fsencode(box.source / str(number))
                note_restored(store, [place], store_id(first), this_machine())
    finally:
        is_done.set()
        cleaner.join()
    assert len(list((box.store / layout.RESTORED).iterdir())) == 200


def store_id(text: str) -> SnapshotId:
    """Return the full ID of a snapshot."""
    return SnapshotId(text)


@given(st.lists(st.integers(0, 6), max_size=25))
def test_a_reader_who_follows_the_lanes_down_finds_where_each_row_comes_from(
    steps: list[int],
) -> None:
    # A row comes from one below it, or from no known row: 0, or a number past the end.
    rows = [(at, at + step if step else None) for at, step in enumerate(steps)]
    known = {at: before if before and before < len(rows) else None for at, before in rows}
    found: dict[int, int | None] = {}
    open_lanes: dict[int, list[int]] = {}
    for line in draw(rows):
        if line.row is None:
            other = line.lanes.index("/") + 1
            mine = line.lanes.index("_") - 1 if "_" in line.lanes else other - 2
            open_lanes.setdefault(mine, []).extend(open_lanes.pop(other))
            continue
        place = max(line.lanes.find("*"), line.lanes.find("o"))
        assert {at for at, sign in enumerate(line.lanes) if sign == "|"} == set(open_lanes) - {
            place
        }
        found |= dict.fromkeys(open_lanes.pop(place, []), line.row)
        if line.lanes[place] == "*":
            open_lanes[place] = [line.row]
        else:
            found[line.row] = None

    assert found == known
    assert not open_lanes


def test_a_tensor_has_a_history_of_its_own(box: Box) -> None:
    numpy = pytest.importorskip("numpy")
    path = box.source / "model.npz"
    ids = []
    for weight, bias in ((1.0, 0.0), (1.0, 0.5), (1.5, 0.5)):
        numpy.savez(path, weight=numpy.full(5000, weight), bias=numpy.full(5000, bias))
        ids.append(box.take().id)

    found = box.ciuic("log", str(path), "--tensor", "weight", "--json").document
    assert [(one["first"]["id"], one["change"]) for one in found] == [
        (ids[2], "changed"),
        (ids[0], "added"),
    ]
    assert found[0]["relative_distance"] == pytest.approx(0.5)
    assert found[0]["before"] == ids[0]
    assert "0.5" in box.ciuic("log", str(path), "--tensor", "weight", "--graph").out
    none = box.ciuic("log", str(path), "--tensor", "none", "--json")
    assert none.code == 1
    assert "has the tensor 'none'" in none.document["error"]["message"]
    assert box.ciuic("log", "--tensor", "weight").code == 2


def test_a_training_that_loads_an_older_state_and_goes_on_begins_a_branch(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    state = {"weight": numpy.ones(100, numpy.float32)}

    def save(manager: SnapshotManager, step: int) -> str:
        return str(manager.save_snapshot(state, None, 0, step=step, wait=True).id)

    with SnapshotManager(str(tmp_path / "store")) as manager:
        ids = [save(manager, step) for step in range(3)]
        manager.load_snapshot(0)
        ids += [save(manager, 3), save(manager, 4)]
    with SnapshotManager(str(tmp_path / "store")) as manager:
        manager.load_latest_snapshot()
        ids.append(save(manager, 5))

    with open_store(str(tmp_path / "store")) as store:
        found = {one.id: one for one in list_snapshots(store)}
    assert [found[one].follows for one in ids] == [
        *[()] * 3,
        (Follow(b"/state", store_id(ids[0])),),
        *[()] * 2,
    ]
    assert [one.before for one in descent(list(found.values()))][::-1] == [
        None, ids[0], ids[1], ids[0], ids[3], ids[4],
    ]  # fmt: skip
