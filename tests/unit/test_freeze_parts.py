"""Runs that share an area of reflink copies: none loses what it uses, and no leftover stays."""

import errno
import fcntl
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ciuic.ids import SnapshotId
from ciuic.source.freeze import area as area_module
from ciuic.source.freeze.area import Area, copy_name
from ciuic.source.freeze.copies import Copies, Copy
from ciuic.source.freeze.records import Record, RootRecord
from ciuic.system import kernel

STORE_ID = "0123456789abcdef0123456789abcdef"
PARENT = SnapshotId("cs-00000000000000aa")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for areas on any file system: copies are files, and trees are directories."""
    (tmp_path / "ciuic-store.json").write_text(STORE_ID)
    (tmp_path / "data").mkdir()

    def clone(source_fd: int, target_fd: int) -> None:
        os.write(target_fd, os.pread(source_fd, 1000, 0))

    def remove(directory_fd: int, name: bytes) -> None:
        os.rmdir(name, dir_fd=directory_fd)

    monkeypatch.setattr(kernel, "clone_file", clone)
    monkeypatch.setattr(os, "fsync", lambda _fd: None)
    monkeypatch.setattr(kernel, "remove_subvolume", remove)
    return tmp_path / "data"


class Run:
    """The reflink copies of one run, step by step.

    Attributes:
        keeps: It keeps the copy and the tree of its parent.
    """

    def __init__(self, place: Path, name: SnapshotId, parent: SnapshotId | None = PARENT) -> None:
        self.name, self._parent, self.keeps = name, parent, True
        self._file = place.parent / "ciuic-store.json"
        self.area = Area.make(bytes(place), str(self._file), STORE_ID)
        self._kept: list[RootRecord] = []
        self._number = 0

    def begin(self) -> None:
        self.area.begin(self.name)
        self.area.clean([])

    def hold(self) -> None:
        record = self.area.hold(self._parent) if self._parent is not None else None
        self._kept = record.roots if record is not None else []

    def copy(self) -> None:
        with self._file.open("rb") as file:
            fd = self.area.copies_fd()
            self._number = self.area.add_copy(file.fileno(), fd)
            os.close(fd)
        os.mkdir(self.area.tree_path(b"%s.0" % self.name.encode()))

    def record(self) -> None:
        own = Copies.of([Copy((1, 2, 3), self._number, 4, 5, bytes(16)).packed()])
        tree = b"%s.0" % self.name.encode()
        roots = [RootRecord(b"/own", "reflink", copies=own), RootRecord(b"/own", "subvolume", tree)]
        self.area.write_record(1, [*roots, *(self._kept if self.keeps else ())])

    def end(self) -> None:
        self.area.end()

    def clean(self) -> None:
        if self._parent is not None:
            self.area.clean([self._parent])

    @property
    def steps(self) -> list[Callable[[], None]]:
        return [self.begin, self.hold, self.copy, self.record, self.end, self.clean]

    def all(self) -> None:
        for step in self.steps:
            step()


def whole(area: Area, name: SnapshotId) -> bool:
    """Return whether a snapshot has a record, and all copies and trees that the record names."""
    record = area.record(name)
    return record is not None and all(
        (not root.tree or os.path.isdir(area.tree_path(root.tree)))
        and area.numbers().issuperset(root.copies.numbers())
        for root in record.roots
    )


def contents(area: Area) -> dict[str, int]:
    return {
        name: len(os.listdir(os.path.join(area.path, name.encode())))
        for name in ("records", "copies", "trees")
    }


def run_id(number: int) -> SnapshotId:
    return SnapshotId(f"cs-{number:016x}")


def runs(place: Path, count: int) -> list[Run]:
    """Return runs that have the same parent, whose own run has ended."""
    parent = Run(place, PARENT, None)
    parent.all()
    parent.area.close()
    return [Run(place, run_id(number)) for number in range(count)]


def check_end(place: Path, *ended: Run) -> None:
    for run in ended:
        run.area.close()
    for run in ended:
        assert whole(run.area, run.name)
    last = Run(place, run_id(99), None)
    last.area.clean([run.name for run in ended] + [PARENT])
    assert contents(last.area) == {"records": 0, "copies": 0, "trees": 0}
    last.area.close()


def orders(count: int) -> Iterator[tuple[int, ...]]:
    """Yield every order of the steps of two runs: whose turn it is."""
    for places in itertools.combinations(range(2 * count), count):
        yield tuple(int(at in places) for at in range(2 * count))


def test_two_runs_of_the_same_files_are_whole_in_every_order_of_their_steps(place: Path) -> None:
    for order in orders(6):
        pair = runs(place, 2)
        pair[0].keeps = False
        steps = [iter(run.steps) for run in pair]
        for whose in order:
            next(steps[whose])()
        has_parent = [len(run._kept) > 0 for run in pair]
        assert any(has_parent), order
        check_end(place, *pair)


@pytest.mark.parametrize(
    "inside", ["_is_live", "_remove_records", "_accounted_for", "_remove_copies"]
)
@pytest.mark.parametrize("done", range(6))
def test_what_another_run_does_in_the_middle_of_a_removal_stays_whole(
    place: Path, monkeypatch: pytest.MonkeyPatch, inside: str, done: int
) -> None:
    one, other = runs(place, 2)
    one.keeps = False
    for step in one.steps[:-1]:
        step()
    for step in other.steps[:done]:
        step()
    original, left = getattr(Area, inside), [other]

    def meanwhile(*arguments: object) -> object:
        if left:
            for step in left.pop().steps[done:]:
                step()
        return original(*arguments)

    monkeypatch.setattr(Area, inside, meanwhile)
    one.clean()
    monkeypatch.setattr(Area, inside, original)
    assert not left
    check_end(place, one, other)


def test_a_record_that_is_written_between_two_looks_of_a_removal_counts(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The removal has seen that the other run lives, and then reads the records one by one."""
    one, other = runs(place, 2)
    one.keeps = False
    for step in one.steps[:-1]:
        step()
    for step in other.steps[:3]:
        step()
    read, left = Record.read, [other]

    def read_and_go_on(path: bytes) -> Record | None:
        found = read(path)
        if left and path.endswith(other.name.encode()):
            for step in left.pop().steps[3:]:
                step()
        return found

    monkeypatch.setattr(Record, "read", read_and_go_on)
    one.clean()
    monkeypatch.setattr(Record, "read", read)
    check_end(place, one, other)


def test_the_leftovers_of_a_killed_run_go_while_another_lives(place: Path) -> None:
    killed, other = runs(place, 2)
    for run in (killed, other):
        run.begin()
        run.hold()
        run.copy()
    killed.area.close()  # as the kernel does
    assert contents(other.area) == {"records": 3, "copies": 3, "trees": 3}
    third = Run(place, run_id(3))
    third.begin()
    assert contents(other.area) == {"records": 3, "copies": 2, "trees": 2}
    for run in (other, third):
        for step in run.steps[2 + (run is other) :]:
            step()
    check_end(place, other, third)


def test_a_new_record_that_is_taken_for_a_leftover_is_created_again(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = runs(place, 2)
    lock, taken = fcntl.flock, []

    def lock_late(fd: int, how: int) -> None:
        if how == fcntl.LOCK_EX and not taken:
            taken.append(True)
            one.begin()
        lock(fd, how)

    monkeypatch.setattr(area_module.fcntl, "flock", lock_late)
    other.begin()
    assert taken
    assert not one.area.finished() & {one.name, other.name}
    for run in (one, other):
        for step in run.steps[1:]:
            step()
    check_end(place, one, other)


def test_only_one_process_at_a_time_removes_and_the_other_waits_for_nothing(place: Path) -> None:
    (one,) = runs(place, 1)
    fd = os.open(os.path.join(one.area.path, b"records"), os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    one.begin()
    assert one.area.clean([PARENT]) == []
    assert one.area.record(PARENT) is not None
    os.close(fd)
    assert one.area.clean([PARENT]) == [PARENT]
    one.area.close()


@pytest.mark.parametrize("step", ["begin", "copy"])
def test_a_full_disk_takes_what_no_other_run_uses(
    place: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    one, other = runs(place, 2)
    newer = Run(place, run_id(7), None)
    newer.all()
    newer.area.close()
    one.begin()
    one.hold()
    one.copy()
    if step == "copy":
        other.begin()
        other.hold()
    assert one._number in other.area.older()
    original, failures = os.open, [errno.ENOSPC]

    def full(path: object, flags: int, *more: object, **named: object) -> int:
        if flags & os.O_EXCL and failures:
            raise OSError(failures.pop(), "full")
        return original(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", full)
    getattr(other, step)()
    assert not failures
    assert other.area.finished() == {PARENT}
    assert whole(one.area, PARENT)
    assert not other.area.older(), "its record will name no older copy"
    for run in (one, other):
        run.area.close()


def test_a_full_disk_also_takes_what_the_run_itself_has_kept(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = runs(place, 1)
    one.begin()
    one.hold()
    clone, failures = kernel.clone_file, [errno.EDQUOT]

    def full(source_fd: int, target_fd: int) -> None:
        if failures:
            raise OSError(failures.pop(), "full")
        clone(source_fd, target_fd)

    monkeypatch.setattr(kernel, "clone_file", full)
    one.copy()
    assert contents(one.area) == {"records": 1, "copies": 1, "trees": 1}
    one.area.close()


def test_two_snapshots_with_the_same_first_digits_have_copies_of_their_own(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(area_module, "_first_digits", lambda _: 5)
    one, other = runs(place, 2)
    for step in range(6):
        for run in (one, other):
            run.steps[step]()
    check_end(place, one, other)


def test_an_area_that_a_run_uses_is_not_removed_although_its_store_is_gone(place: Path) -> None:
    (one,) = runs(place, 1)
    one.begin()
    one.copy()
    header = place.parent / "ciuic-store.json"
    header.rename(place.parent / "moved")
    (place.parent / "other.json").write_text("f" * 32)

    def other_store_comes() -> None:
        Area.make(bytes(place), str(place.parent / "other.json"), "f" * 32).close()

    other_store_comes()
    assert contents(one.area)["copies"] == 2
    one.area.close()
    other_store_comes()
    assert not os.path.exists(one.area.path)


def test_leftovers_of_other_layouts_are_removed(place: Path) -> None:
    (one,) = runs(place, 1)
    top = Path(os.fsdecode(one.area.path))
    (top / "copies" / os.fsdecode(copy_name(1))).write_bytes(b"of an older version")
    (top / "copies" / "anything").write_bytes(b"else")
    (top / "records" / "file-0011").write_bytes(b"a temporary file")
    (top / "trees" / "strange").mkdir()
    one.begin()
    assert contents(one.area) == {"records": 2, "copies": 1, "trees": 1}
    one.area.close()
