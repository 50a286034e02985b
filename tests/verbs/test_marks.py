"""Marks: tags and pins that change after the commit, and what damage to marks costs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ciuic.catalog import find_snapshot, list_snapshots, unreadable
from ciuic.errors import StoreError, UnknownFormatError, UsageError
from ciuic.maintain.forget import apply_forget, plan_forget, plan_forget_by_id
from ciuic.maintain.label import change_tags, set_pinned
from ciuic.model import SnapshotSummary
from ciuic.retention import parse_policy
from ciuic.store.records.mark import Mark, encode_mark
from ciuic.store.records.sealed import seal
from ciuic.store.store import open_store
from tests.kit.box import Box

NOW_NS = 1_900_000_000_000_000_000

RACER = """
import sys
from ciuic.catalog import find_snapshot
from ciuic.store.records.mark import Mark
from ciuic.store.store import open_store

path, name, tag = sys.argv[1:]
with open_store(path) as store:
    for number in range(20):
        while True:
            old = find_snapshot(store, name)
            mark = Mark((*old.tags, f"{tag}-{number}"), old.pinned)
            if store.marks.add(old, mark, copy=False) is not None:
                break
"""


@pytest.fixture(params=[0.0, 0.04], ids=["without copies", "with copies"])
def box(tmp_path: Path, request: pytest.FixtureRequest) -> Box:
    made = Box(tmp_path, parity=request.param)
    for number in range(3):
        (made.source / "file").write_bytes(b"%d" % number * 20_000)
        made.take(tags=("first",))
    return made


def oldest(box: Box) -> SnapshotSummary:
    return box.snapshots()[-1]


def mark_file(box: Box, number: int) -> Path:
    return box.store / "marks" / f"{oldest(box).id}-{number}.json"


def copy_file(box: Box, number: int) -> Path:
    return box.store / "parity" / mark_file(box, number).name


def pin(box: Box, *, pinned: bool = True) -> SnapshotSummary:
    with open_store(str(box.store), write=True) as store:
        return set_pinned(store, oldest(box).id, pinned=pinned)


def tag(box: Box, *tags: str) -> SnapshotSummary:
    with open_store(str(box.store), write=True) as store:
        return change_tags(store, oldest(box).id, add=tags)


def forget_all_but_one(box: Box) -> list[str]:
    with open_store(str(box.store), write=True) as store:
        plan = plan_forget(store, parse_policy("last:1"), NOW_NS)
        apply_forget(store, plan, NOW_NS)
        return [found.id for found, _ in plan.kept]


def without_index(box: Box) -> None:
    (box.store / "catalog.sqlite").unlink()


def test_no_file_of_the_store_is_replaced_by_a_tag_or_a_pin(box: Box) -> None:
    pin(box)
    folders = ("snapshots", "marks", "parity", "packs")
    before = {
        path: (path.stat().st_ino, path.read_bytes())
        for folder in folders
        for path in (box.store / folder).glob("*")
    }
    tag(box, "x")
    pin(box, pinned=False)
    assert {path: (path.stat().st_ino, path.read_bytes()) for path in before} == before
    assert sorted(os.listdir(box.store / "marks")) == [mark_file(box, n).name for n in (1, 2, 3)]
    assert (oldest(box).tags, oldest(box).pinned) == (("first", "x"), False)


def test_no_change_is_lost_if_many_processes_mark_one_snapshot(box: Box) -> None:
    name = oldest(box).id
    racers = [
        subprocess.Popen([sys.executable, "-c", RACER, str(box.store), name, f"racer{number}"])
        for number in range(4)
    ]
    assert [racer.wait(timeout=120) for racer in racers] == [0, 0, 0, 0]
    wanted = {f"racer{number}-{turn}" for number in range(4) for turn in range(20)}
    assert set(oldest(box).tags) == wanted | {"first"}
    assert len(os.listdir(box.store / "marks")) == 80


@pytest.mark.parametrize("harm", ["flipped", "cut", "gone", "directory", "symlink", "other"])
@pytest.mark.parametrize("has_index", [True, False])
def test_a_pin_outlives_its_damaged_mark(box: Box, harm: str, has_index: bool) -> None:
    pin(box)
    name, path = oldest(box).id, mark_file(box, 1)
    has_copy = copy_file(box, 1).exists()
    if not has_index:
        without_index(box)
    if harm == "gone":
        path.unlink()
    elif harm == "directory":
        path.unlink()
        path.mkdir()
    elif harm == "symlink":
        path.rename(box.directory / "aside")
        path.symlink_to(box.directory / "aside")
    elif harm == "other":
        path.write_bytes(encode_mark(Mark((), pinned=False), name, 2))
    else:
        data = path.read_bytes()
        path.write_bytes(data[:-5] if harm == "cut" else data.replace(b"true", b"null"))
    if harm == "gone" and not has_index:
        return  # with neither, only a copy tells: the next test
    assert name in forget_all_but_one(box)
    assert oldest(box).pinned
    found = box.ciuic("scrub", "--json")
    assert path.name in found.out
    with open_store(str(box.store)) as store:
        found_marks = unreadable(store).marks
    seen = not has_copy and (harm == "gone" or not has_index)
    assert bool(found_marks) == seen
    assert box.ciuic("repair", "--apply").code == 0
    assert box.ciuic("repair").out.strip() == "nothing is damaged"
    assert oldest(box).pinned
    without_index(box)
    assert oldest(box).pinned
    pin(box, pinned=False)
    assert not oldest(box).pinned


def test_a_mark_that_only_its_copy_remembers_is_put_back(tmp_path: Path) -> None:
    box = Box(tmp_path, parity=0.04)
    for number in range(3):
        (box.source / "file").write_bytes(b"%d" % number * 20_000)
        box.take()
    pin(box)
    before, path = mark_file(box, 1).read_bytes(), mark_file(box, 1)
    shutil.rmtree(box.store / "marks")
    without_index(box)
    assert path.name in box.ciuic("scrub", "--json").out
    assert box.ciuic("repair", "--apply").code == 0
    assert path.read_bytes() == before
    assert oldest(box).pinned


def test_a_new_mark_ends_the_doubt(box: Box) -> None:
    pin(box)
    for path in (mark_file(box, 1), copy_file(box, 1)):
        path.unlink(missing_ok=True)
    assert "counts as pinned" in box.ciuic("list").err
    with open_store(str(box.store), write=True) as store:
        name = oldest(box).id
        with pytest.raises(UsageError, match="is pinned"):
            plan_forget_by_id(store, [name], NOW_NS)
    pin(box, pinned=False)
    assert mark_file(box, 2).exists(), "the number of the lost mark is not used again"
    assert box.ciuic("list").err == ""
    assert not oldest(box).pinned


def test_numbers_may_have_gaps_and_the_greatest_counts(box: Box) -> None:
    name = oldest(box).id
    (box.store / "marks").mkdir()
    for number in (1, 7, 1000):
        data = encode_mark(Mark((f"n{number}",), pinned=False), name, number)
        (box.store / "marks" / f"{name}-{number}.json").write_bytes(data)
    assert oldest(box).tags == ("n1000",)
    tag(box, "more")
    assert mark_file(box, 1001).exists()


def test_a_mark_of_a_later_version_is_kept_and_counts_as_a_pin(box: Box) -> None:
    name = oldest(box).id
    (box.store / "marks").mkdir()
    later = box.store / "marks" / f"{name}-1.json"
    later.write_bytes(seal({"format": 2, "state": "unknown", "checksum": ""}))
    assert oldest(box).pinned
    assert name in forget_all_but_one(box)
    with pytest.raises(UnknownFormatError):
        tag(box, "x")
    box.ciuic("repair", "--apply")
    assert [file for file in os.listdir(box.store / "marks") if name in file] == [later.name]


def test_a_mark_with_the_last_number_stops_only_changes(box: Box) -> None:
    name, number = oldest(box).id, 10**18 - 1
    (box.store / "marks").mkdir()
    data = encode_mark(Mark(("last",), pinned=False), name, number)
    (box.store / "marks" / f"{name}-{number}.json").write_bytes(data)
    assert oldest(box).tags == ("last",)
    with pytest.raises(StoreError, match="no number left"):
        tag(box, "x")


def test_names_that_are_no_marks_are_ignored(box: Box) -> None:
    name = oldest(box).id
    (box.store / "marks").mkdir()
    for other in (f"{name}-0.json", f"{name}-01.json", f"{name}.json", f"{name}-1", "x"):
        (box.store / "marks" / other).write_bytes(b"?")
    assert (oldest(box).tags, oldest(box).pinned) == (("first",), False)
    assert box.ciuic("scrub").code == 0


def test_a_mark_without_a_snapshot_tells_of_a_lost_manifest(box: Box) -> None:
    (box.store / "marks").mkdir()
    data = encode_mark(Mark((), pinned=True), "cs-abcdef", 1)
    (box.store / "marks" / "cs-abcdef-1.json").write_bytes(data)
    assert "the manifest of cs-abcdef is gone" in box.ciuic("prune").err
    assert box.ciuic("forget", "cs-abcdef").code == 0
    assert os.listdir(box.store / "marks") == []
    assert box.ciuic("prune").code == 0


def test_marks_go_with_their_snapshot_and_stay_in_the_trash(box: Box) -> None:
    tag(box, "x")
    name = oldest(box).id
    assert box.ciuic("forget", name).code == 0
    assert box.ciuic("prune").code == 0
    assert '"x"' in box.ciuic("list", "--trash", "--json").out
    assert box.ciuic("forget", "--undo", name).code == 0
    assert oldest(box).tags == ("first", "x")
    assert box.ciuic("forget", name, "--prune", "--trash", "0").code == 0
    assert os.listdir(box.store / "marks") == []
    assert not [file for file in box.store.glob("parity/cs-*") if name in file.name]


def test_a_mark_that_a_killed_prune_left_goes_with_the_next(box: Box) -> None:
    tag(box, "x")
    name, kept = oldest(box).id, box.directory / "kept"
    shutil.copytree(box.store / "marks", kept)
    assert box.ciuic("forget", name, "--prune", "--trash", "0").code == 0
    shutil.copytree(kept, box.store / "marks", dirs_exist_ok=True)
    assert box.ciuic("prune").code == 0
    assert os.listdir(box.store / "marks") == []


def test_more_tags_than_a_mark_holds_are_refused(box: Box) -> None:
    before = oldest(box)
    with pytest.raises(UsageError, match=r"the tags of cs-.* take more than"):
        tag(box, *[f"{number:064}" for number in range(16_000)])
    assert oldest(box) == before


def test_a_list_reads_no_mark_twice(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    tag(box, "x")
    with open_store(str(box.store)) as store:
        monkeypatch.setattr(store.marks, "read", None)  # a call would fail
        assert list_snapshots(store)[-1].tags == ("first", "x")


def test_a_short_id_and_latest_have_the_same_tags(box: Box) -> None:
    name = tag(box, "x").id
    with open_store(str(box.store)) as store:
        assert find_snapshot(store, name).tags == ("first", "x")
        assert find_snapshot(store, name).tags == list_snapshots(store)[-1].tags
