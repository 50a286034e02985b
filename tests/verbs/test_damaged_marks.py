"""A damaged newest mark costs no tag and no note: the newest earlier mark has them.

The bucket is a directory here, behind the same interface.
"""

import os

import pytest

from ciuic.catalog import list_snapshots
from ciuic.catalog.lost import known_damaged
from ciuic.cli import main
from ciuic.errors import (
    CorruptionError,
    OfflineError,
    UnknownFormatError,
    UnreachableError,
    UsageError,
)
from ciuic.maintain.bad_marks import BadMark, repair_mark
from ciuic.maintain.label import change_tags, set_note, set_pinned
from ciuic.maintain.repair.apply import apply_repair
from ciuic.maintain.repair.bucket import apply_in_bucket, plan_in_bucket
from ciuic.maintain.repair.plan import plan_repair
from ciuic.maintain.repair.report import RepairReport
from ciuic.maintain.scrub.bucket import Bucket
from ciuic.maintain.scrub.scrub import scrub
from ciuic.store.place.bucket import StoreInBucket
from ciuic.store.records import layout
from ciuic.store.records.sealed import seal
from ciuic.store.snapshots.marks import Marks
from ciuic.store.store import open_store
from tests.kit.buckets import FolderMachine, write
from tests.kit.damage import flip_byte, flip_content


@pytest.fixture
def one(tmp_path):
    """A machine that has given a snapshot in a bucket a tag, a note, and a pin that it removed."""
    machine = FolderMachine(tmp_path / "bucket", tmp_path / "cache")
    machine.init()
    write(tmp_path / "source", ["a"])
    name = machine.take_at(machine.place(), tmp_path / "source").id
    with machine.opened() as store:
        change_tags(store, name, add=["a b"])
        set_note(store, name, "best so far")
        set_pinned(store, name, pinned=True)
        set_pinned(store, name, pinned=False)
    return machine


def newest_mark(tmp_path):
    marks = (tmp_path / "bucket/marks").iterdir()
    return max(marks, key=lambda path: int(path.stem.rpartition("-")[2]))


def machine(tmp_path, name):
    made = FolderMachine(tmp_path / "bucket", tmp_path / name)
    made.clock.advance(3600)
    return made


def failing(error):
    def fails(*_):
        raise error("it cannot be used")

    return fails


def state(one):
    with one.opened() as store:
        (found,) = list_snapshots(store)
    return found


def repair(one):
    with one.opened_at(one.place(), removes=True) as store:
        plan, _ = apply_in_bucket(store, plan_in_bucket(store))
    return plan


def test_a_machine_without_the_mark_adds_a_tag_and_loses_nothing(one, tmp_path):
    flip_byte(newest_mark(tmp_path), 40)
    other = machine(tmp_path, "other")

    seen = state(other)
    with other.opened() as store:
        changed = change_tags(store, seen.id, add=["z"])

    assert (seen.tags, seen.note, seen.pinned) == (("a b",), "best so far", True)
    assert "mark 4 of" in seen.mark_problem
    assert seen.mark_problem.endswith("its tags and its note are those of mark 3")
    assert changed.tags == ("a b", "z")
    for found in (state(other), state(machine(tmp_path, "third"))):
        assert (found.tags, found.note, found.mark_problem) == (("a b", "z"), "best so far", "")


def counted_listings(monkeypatch):
    """Return a list that gets an item whenever all marks are listed for those of one snapshot."""
    asked = []
    marks = Marks._all_marks
    monkeypatch.setattr(Marks, "_all_marks", lambda self: asked.append(self) or marks(self))
    return asked


def damage_all(store, place):
    """Give each snapshot a tag, then a note, and damage the mark with the note."""
    for taken in list_snapshots(store):
        change_tags(store, taken.id, add=["kept"])
        set_note(store, taken.id, "lost")
    for seen in list_snapshots(store):
        for path in place.rglob(f"{seen.id}-{seen.mark}.json"):
            flip_byte(path, 40)


def check_all(store):
    found = list_snapshots(store)
    assert len(found) >= 5
    assert all("kept" in seen.tags and seen.mark_problem for seen in found)


@pytest.fixture
def several(one, tmp_path):
    """The machine, with the damaged newest marks of five snapshots."""
    for number in range(4):
        write(tmp_path / "source", [str(number)])
        one.take_at(one.place(), tmp_path / "source")
    with one.opened() as store:
        damage_all(store, tmp_path / "bucket")
    return one


@pytest.mark.usefixtures("several")
def test_the_damaged_marks_of_many_snapshots_of_a_bucket_cost_one_listing(tmp_path, monkeypatch):
    asked = counted_listings(monkeypatch)

    with machine(tmp_path, "other").opened() as store:
        check_all(store)

    assert len(asked) == 1


def test_the_damaged_marks_of_many_snapshots_cost_one_listing(box, monkeypatch):
    for number in range(5):
        write(box.source, [str(number)])
        box.take()
    with open_store(str(box.store), write=True) as store:
        damage_all(store, box.store)
    (box.store / layout.CATALOG).unlink()  # it remembers what the marks said
    asked = counted_listings(monkeypatch)

    with open_store(str(box.store)) as store:
        check_all(store)
        assert len(asked) == 1


def fail_first_listing(monkeypatch):
    """Make the first listing of all marks fail."""
    marks = Marks._all_marks
    failed = []

    def listed(self):
        if not failed:
            failed.append(self)
            raise OfflineError("the server does not answer")
        return marks(self)

    monkeypatch.setattr(Marks, "_all_marks", listed)


@pytest.mark.usefixtures("several")
def test_a_listing_of_marks_that_fails_once_hides_earlier_marks_only_once(tmp_path, monkeypatch):
    fail_first_listing(monkeypatch)
    with machine(tmp_path, "other").opened() as store:
        found = list_snapshots(store)
        (lacking,) = [seen for seen in found if "kept" not in seen.tags]
        assert (len(found), lacking.tags, lacking.pinned) == (5, (), True)
        assert lacking.mark_problem.endswith(
            "; its earlier marks cannot be read: the server does not answer"
        )
        check_all(store)


@pytest.mark.usefixtures("several")
def test_a_repair_fails_rather_than_lose_the_tags_of_marks_that_it_cannot_list(
    tmp_path, monkeypatch
):
    other = machine(tmp_path, "other")
    with other.opened_at(other.place(), removes=True) as store:
        plan = plan_in_bucket(store)
    assert len(plan.marks.damaged) == 5

    with monkeypatch.context() as patch:
        fail_first_listing(patch)
        with (
            other.opened_at(other.place(), removes=True) as store,
            pytest.raises(OfflineError),
        ):
            apply_in_bucket(store, plan)
    repair(other)

    with machine(tmp_path, "third").opened() as store:
        found = list_snapshots(store)
    assert len(found) == 5
    assert all("kept" in seen.tags and not seen.mark_problem for seen in found)


@pytest.mark.usefixtures("several")
def test_a_change_fails_rather_than_lose_the_tags_of_marks_that_it_cannot_list(
    tmp_path, monkeypatch
):
    other = machine(tmp_path, "other")
    with other.opened() as store:
        name = list_snapshots(store)[0].id
    with monkeypatch.context() as patch:
        patch.setattr(Marks, "_all_marks", failing(OfflineError))
        for change in (
            lambda store: change_tags(store, name, add=["z"]),
            lambda store: set_note(store, "latest", "new"),
        ):
            with other.opened() as store, pytest.raises(OfflineError):
                change(store)

    with other.opened() as store:
        assert change_tags(store, name, add=["z"]).tags == ("kept", "z")


@pytest.mark.parametrize("error", [OfflineError, UnreachableError])
def test_an_earlier_mark_that_is_closed_is_passed_over_and_one_that_may_be_read_later_is_not(
    one, tmp_path, monkeypatch, error
):
    flip_byte(newest_mark(tmp_path), 40)
    other = machine(tmp_path, "other")
    real = StoreInBucket.mark
    monkeypatch.setattr(
        StoreInBucket,
        "mark",
        lambda self, name: (failing(error) if name.endswith("-3.json") else real)(self, name),
    )

    seen = state(other)

    # Mark 2 has the same tags and note as mark 3.
    is_known = error is UnreachableError
    assert (seen.tags, seen.note) == ((("a b",), "best so far") if is_known else ((), ""))
    assert seen.pinned
    with other.opened() as store:
        if is_known:
            assert change_tags(store, seen.id, add=["z"]).tags == ("a b", "z")
        else:
            with pytest.raises(error):
                change_tags(store, seen.id, add=["z"])


def test_a_mark_that_is_closed_to_a_machine_stays_known_after_its_repair(
    one, tmp_path, monkeypatch
):
    path = f"marks/{newest_mark(tmp_path).name}"
    monkeypatch.setattr(StoreInBucket, "mark", failing(UnreachableError))
    other = machine(tmp_path, "other")
    scrub(subject(other), clock=other.clock)

    plan = repair(other)

    assert list(plan.unreachable) == [path]
    assert plan.is_hopeless
    assert known(other) == {path}
    assert newest_mark(tmp_path).name == path.removeprefix("marks/")


def test_several_damaged_marks_are_passed_over_and_the_bucket_is_asked_once(
    one, tmp_path, monkeypatch
):
    for number in (4, 3):
        flip_byte(next((tmp_path / "bucket/marks").glob(f"*-{number}.json")), 40)
    asked = counted_listings(monkeypatch)
    with machine(tmp_path, "other").opened() as store:
        for _ in range(3):
            (seen,) = list_snapshots(store)
    assert (seen.tags, seen.note) == (("a b",), "best so far")
    assert len(asked) == 1


def test_a_repair_replaces_a_damaged_mark_of_a_bucket_by_what_is_known(one, tmp_path):
    flip_byte(newest_mark(tmp_path), 40)
    other = machine(tmp_path, "other")

    plan = repair(other)

    assert [(bad.number, bad.has_copy) for bad in plan.marks.damaged] == [(4, False)]
    assert not plan.is_hopeless
    for found in (state(other), state(machine(tmp_path, "third"))):
        assert (found.tags, found.note, found.pinned) == (("a b",), "best so far", True)
        assert not found.mark_problem
    assert not repair(other).is_damaged


def test_a_machine_that_has_fetched_the_mark_puts_its_whole_state_back(one, tmp_path):
    flip_byte(newest_mark(tmp_path), 40)
    assert [found.path for found in scrub(subject(one), clock=one.clock).manifests] == [
        f"marks/{newest_mark(tmp_path).name}".encode()
    ]

    (bad,) = repair(one).marks.damaged

    assert bad.has_copy
    found = state(machine(tmp_path, "third"))
    assert (found.tags, found.note, found.pinned) == (("a b",), "best so far", False)


def test_a_repair_gives_no_mark_to_a_snapshot_that_another_machine_has_pruned(one, tmp_path):
    (first,) = one.ids()
    one.take_at(one.place(), tmp_path / "source")
    with one.opened(write=True) as store:
        store.manifest(first)
        other = machine(tmp_path, "other")
        other.forget(first)
        other.prune()
        assert one.names("marks") == []

        repair_mark(store, BadMark(first, 4, "its object is gone", has_copy=True))

    assert one.names("marks") == []


@pytest.mark.parametrize("error", [CorruptionError, UnknownFormatError, UsageError])
def test_a_mark_that_a_repair_could_not_repair_stays_known_as_damaged(
    one, tmp_path, monkeypatch, error
):
    name = f"marks/{newest_mark(tmp_path).name}"
    flip_byte(tmp_path / "bucket" / name, 40)
    scrub(subject(one), clock=one.clock)

    with monkeypatch.context() as patch:
        patch.setattr("ciuic.maintain.repair.bucket.repair_mark", failing(error))
        plan = repair(one)
    assert known(one) == {name}
    assert [bad.stays for bad in plan.marks.damaged] == ["it cannot be used"]
    assert plan.is_hopeless

    assert not repair(one).is_hopeless
    assert known(one) == set()


def test_a_mark_that_no_mark_can_follow_stays_and_packs_are_repaired(one, tmp_path):
    (name,) = one.ids()
    mark = tmp_path / "bucket" / f"marks/{name}-{10**18 - 1}.json"
    mark.write_bytes(b"?")
    scrub(subject(one), clock=one.clock)
    (pack,) = (tmp_path / "bucket/packs").iterdir()
    content = (tmp_path / "source/a").read_bytes()
    flip_byte(pack, pack.read_bytes().index(content[:100]))

    plan = repair(one)

    assert len(plan.packs) == 1
    assert [bad.stays for bad in plan.marks.damaged] == ["no number is left for another"]
    assert plan.is_hopeless
    assert known(one) == {f"marks/{mark.name}"}
    assert one.verify().ok
    assert not repair(one).has_work


@pytest.mark.parametrize("error", [None, CorruptionError, UnknownFormatError, UsageError])
def test_a_mark_that_a_repair_cannot_repair_stays_in_a_directory(box, monkeypatch, error):
    (box.source / "file").write_bytes(os.urandom(300_000))
    name = box.take().id
    (box.store / "marks").mkdir(exist_ok=True)
    mark = box.store / "marks" / f"{name}-{1 if error else 10**18 - 1}.json"
    mark.write_bytes(b"?")
    assert box.ciuic("scrub").code == 4
    flip_content(box.store, (box.source / "file").read_bytes())

    with monkeypatch.context() as patch, open_store(str(box.store), write=True) as store:
        if error:
            patch.setattr("ciuic.maintain.repair.apply.repair_mark", failing(error))
        plan = plan_repair(store, parity=0.0)
        plan, names = apply_repair(store, plan, parity=0.0, clock=box.clock)
        assert set(known_damaged(store)) == {f"marks/{mark.name}"}
    report = RepairReport(plan, True, names, 0.0)
    assert not report.ok
    assert [bad["stays"] for bad in report.as_json()["marks"]] == [True]

    assert len(plan.packs) == 1
    assert mark.read_bytes() == b"?"
    would = box.ciuic("repair").out
    assert ("it stays: no number is left for another" in would) is (not error)
    done = box.ciuic("repair", "--apply", "--json")
    assert done.document["ok"] is bool(error)
    assert [bad["stays"] for bad in done.document["marks"]] == [not error]
    assert box.ciuic("verify", "--all").code == 0


def test_the_command_names_a_mark_that_it_could_not_repair(box, monkeypatch, capsys):
    (box.source / "file").write_bytes(b"content")
    name = box.take().id
    (box.store / "marks").mkdir(exist_ok=True)
    (box.store / "marks" / f"{name}-1.json").write_bytes(b"?")
    monkeypatch.setattr("ciuic.maintain.repair.apply.repair_mark", failing(UnknownFormatError))
    monkeypatch.setattr("sys.argv", ["ciuic", "--config", str(box.config), "repair", "--apply"])

    with pytest.raises(SystemExit) as end:
        main()

    assert end.value.code == 4
    assert capsys.readouterr().out.count("it stays: it cannot be used\n") == 1


def test_a_mark_of_a_later_version_stays_known_after_a_repair(one, tmp_path):
    path = newest_mark(tmp_path)
    path.write_bytes(seal({"format": 2, "state": "unknown", "checksum": ""}))
    scrub(subject(one), clock=one.clock)
    assert known(one) == {f"marks/{path.name}"}

    plan = repair(one)

    assert list(plan.unread) == [f"marks/{path.name}"]
    assert known(one) == {f"marks/{path.name}"}


def known(one):
    with one.opened() as store:
        return set(known_damaged(store))


def subject(one):
    return Bucket(lambda **access: one.opened(write=access.get("write", False)))


def test_a_directory_keeps_tags_and_note_and_each_command_says_so(box):
    (box.source / "file").write_bytes(b"content")
    name = box.take().id
    for words in (("tag", name, "--add", "a b"), ("note", name, "best"), ("pin", name)):
        assert box.ciuic(*words).code == 0
    (box.store / "catalog.sqlite").unlink()
    for folder in ("marks", "parity"):
        for path in (box.store / folder).glob(f"{name}-3.json"):
            flip_byte(path, 40)

    for words in (("show", name), ("note", name), ("tag", name)):
        said = box.ciuic(*words).err
        assert f"ciuic: {name} counts as pinned: mark 3 of {name}" in said
        assert "its tags and its note are those of mark 2" in said
    would = box.ciuic("repair")
    assert "replaced by a pin with the last tags and the last note that are known" in would.out
    assert box.ciuic("repair", "--apply").code == 0
    assert box.ciuic("repair").code == 0
    (found,) = box.snapshots()
    assert (found.tags, found.note, found.pinned) == (("a b",), "best", True)
