"""Records of retired IDs: each is written once, and merging loses no ID."""

import os
import threading
from pathlib import Path

import pytest

from ciuic.errors import CorruptionError, StoreError
from ciuic.ids import SessionId, SnapshotId
from ciuic.store.directory.folder import Folder
from ciuic.store.snapshots.retired import Retired
from ciuic.system import durable

SESSION = SessionId(bytes(range(8)))
OTHER = SessionId(bytes(8))


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "tmp").mkdir()
    return str(tmp_path)


def ids(*numbers: int) -> set[SnapshotId]:
    return {SnapshotId(f"cs-{number:016x}") for number in numbers}


def records(path: str) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in Path(path, "retired").iterdir()}


def test_a_record_is_never_changed_and_has_only_new_ids(path: str) -> None:
    retired = Retired(path, SESSION)
    retired.add(ids(1, 2))
    before = records(path)
    assert list(before) == ["0001020304050607-1.json"]
    retired.add(ids(2))
    assert records(path) == before
    retired.add(ids(2, 3))
    after = records(path)
    assert {name: after[name] for name in before} == before
    assert retired.ids() == Retired(path, OTHER).ids() == ids(1, 2, 3)
    assert b"cs-0000000000000002" not in after["0001020304050607-2.json"]


def test_many_records_become_one(path: str) -> None:
    for number in range(40):
        Retired(path, SESSION if number % 2 else OTHER).add(ids(number))
        assert Retired(path, OTHER).ids() == ids(*range(number + 1))
    assert len(records(path)) <= 33


@pytest.mark.parametrize("call", ["create", "remove_durably"])
def test_a_merge_that_ends_early_loses_no_id(
    path: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    retired = Retired(path, SESSION)
    for number in range(32):
        retired.add(ids(number))

    def fails(*_: object) -> None:
        raise StoreError("the disk is on fire")

    monkeypatch.setattr(Folder, call, fails)
    if call == "create":
        with pytest.raises(StoreError, match="on fire"):
            retired.add(ids(32))
    else:
        retired.add(ids(32))
    monkeypatch.undo()
    assert retired.ids() == ids(*range(32 + (call != "create")))
    retired.add(ids(32, 33))
    assert retired.ids() == ids(*range(34))
    assert len(records(path)) < 32


def test_a_reader_misses_no_id_during_merges(path: str) -> None:
    """A listed record may be removed before it is read. Another record then has its IDs."""
    done = threading.Event()

    def add() -> None:
        for number in range(1, 80):
            Retired(path, SESSION).add(ids(number))
        done.set()

    Retired(path, OTHER).add(ids(0))
    writer = threading.Thread(target=add)
    writer.start()
    seen = 1
    try:
        while not done.is_set():
            found = Retired(path, OTHER)
            found.check()
            count = len(found.ids())
            assert count >= seen
            seen = count
    finally:
        writer.join(120)
    assert Retired(path, OTHER).ids() == ids(*range(80))


def test_two_processes_that_want_one_name_both_get_a_record(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = durable.create_whole, [True]

    def create_whole(*arguments: object, **options: object) -> None:
        if left:
            left.clear()
            Retired(path, SESSION).add(ids(2))
        real(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(durable, "create_whole", create_whole)
    Retired(path, SESSION).add(ids(1))
    assert Retired(path, OTHER).ids() == ids(1, 2)
    assert len(records(path)) == 2


def test_a_damaged_record_costs_only_its_own_ids(path: str) -> None:
    retired = Retired(path, SESSION)
    retired.add(ids(1))
    retired.add(ids(2))
    (Path(path) / "retired" / "0001020304050607-1.json").write_bytes(b"{}")
    assert retired.ids() == ids(2)
    with pytest.raises(CorruptionError, match="0001020304050607-1"):
        retired.add(ids(3))
    damaged, unread = retired.damage()
    assert (list(damaged), unread) == (["0001020304050607-1.json"], {})


def test_other_names_are_ignored(path: str) -> None:
    os.mkdir(f"{path}/retired")
    for name in ("x.json", "0001020304050607.json", "0001020304050607-0.json"):
        Path(path, "retired", name).write_text("?")
    retired = Retired(path, SESSION)
    retired.check()
    assert retired.ids() == frozenset()
