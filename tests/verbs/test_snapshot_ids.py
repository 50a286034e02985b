"""Snapshot IDs: long in the store, short in tables, and any unique prefix is accepted."""

import json
import os
import random
import re
import threading
from pathlib import Path

import pytest

from ciuic.catalog import find_snapshot
from ciuic.errors import SnapshotNotFoundError
from ciuic.ids import SnapshotId, matching_ids, random_snapshot_id, short_ids
from ciuic.maintain.forget import bring_back
from ciuic.store import store as store_module
from ciuic.store.snapshots.manifests import Manifests
from ciuic.store.store import Store, open_store
from ciuic.system import durable
from ciuic.system.clock import local_time_text
from tests.cli.test_terminal import on_terminal, plain
from tests.kit.box import Box
from tests.kit.chance import drawn_seed

NEAR = ("cs-5e77ed0000000001", "cs-5e77ed0000000002", "cs-5e77edff00000003", "cs-0123456789abcdef")


@pytest.fixture
def near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    """A box with four snapshots; the IDs of three begin with the same six digits."""
    box = Box(tmp_path)
    drawn = list(NEAR)
    monkeypatch.setattr(store_module, "random_snapshot_id", lambda: SnapshotId(drawn.pop(0)))
    for number in range(len(NEAR)):
        (box.source / "file").write_text(str(number))
        assert box.take().id == NEAR[number]
    return box


# What an ID looks like


def test_an_id_has_64_random_bits(tmp_path: Path) -> None:
    box = Box(tmp_path)
    taken = [box.take() for _ in range(3)]
    assert len({report.id for report in taken}) == 3
    assert all(re.fullmatch("cs-[0-9a-f]{16}", report.id) for report in taken)
    assert {path.stem for path in (box.store / "snapshots").iterdir()} == {one.id for one in taken}
    manifest = json.loads((box.store / "snapshots" / f"{taken[1].id}.json").read_text())
    assert manifest["parent"] == taken[0].id


def test_short_ids_are_the_shortest_unique_prefixes() -> None:
    rng = random.Random(drawn_seed())
    for _ in range(50):
        # Few different digits, so that long prefixes are shared.
        ids = {
            SnapshotId("cs-" + "".join(rng.choices("01", k=rng.choice([6, 7, 12, 16]))))
            for _ in range(rng.randrange(1, 60))
        }
        short = short_ids(ids)
        assert short.keys() == ids
        for snapshot_id, shown in short.items():
            assert matching_ids(shown, ids) == [snapshot_id]
            if len(shown) > len("cs-") + 6 and shown != snapshot_id:
                assert len(matching_ids(shown[:-1], ids)) > 1 or shown[:-1] in ids
    assert short_ids([]) == {}


def test_short_ids_of_many_snapshots_cost_one_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ID is compared with its neighbors only: a comparison of all pairs would not end."""
    ids = [random_snapshot_id() for _ in range(200_000)]
    short = short_ids(ids)
    assert len(set(short.values())) == len(set(ids))


# The commit


def test_exactly_one_of_several_racing_writers_gets_a_name(tmp_path: Path) -> None:
    gate = threading.Barrier(8)
    outcomes: list[bytes | None] = []

    def create(content: bytes) -> None:
        gate.wait()
        try:
            durable.create_whole(
                str(tmp_path / "name"), content, temporary_directory=str(tmp_path), mode=0o600
            )
        except FileExistsError:
            outcomes.append(None)
        else:
            outcomes.append(content)

    threads = [
        threading.Thread(target=create, args=(bytes([number]) * 10_000,)) for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    won = [content for content in outcomes if content is not None]
    assert len(outcomes) == 8
    assert won == [(tmp_path / "name").read_bytes()]
    assert os.listdir(tmp_path) == ["name"]
    assert (tmp_path / "name").stat().st_nlink == 1


def test_a_file_system_without_hard_links_gets_the_file_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "name"
    durable.create_whole(str(path), b"first", temporary_directory=str(tmp_path), mode=0o600)
    with pytest.raises(FileExistsError):
        durable.create_whole(str(path), b"second", temporary_directory=str(tmp_path), mode=0o600)
    assert path.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["name"]


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_commit_never_replaces_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_seen: bool
) -> None:
    """Another writer commits the same ID, before or after this one looks whether it is free."""
    box = Box(tmp_path)
    (box.source / "file").write_text("old")
    first = box.take().id
    manifest = (box.store / "snapshots" / f"{first}.json").read_bytes()
    (box.source / "file").write_text("new")
    real, drawn = Store.new_snapshot_id, [first]
    monkeypatch.setattr(
        Store, "new_snapshot_id", lambda store: drawn.pop() if drawn else real(store)
    )
    if not is_seen:
        monkeypatch.setattr(Manifests, "has", lambda *_: False)
    second = box.take().id
    monkeypatch.undo()
    assert not drawn
    assert second != first
    assert (box.store / "snapshots" / f"{first}.json").read_bytes() == manifest
    assert box.read(box.source / "file", first) == b"old"
    assert box.read(box.source / "file", second) == b"new"
    assert box.verify().ok
    assert os.listdir(box.store / "tmp") == []


# What is accepted


@pytest.mark.parametrize("text", ["cs-0", "0", "cs-01234567", "0123456789abcdef", NEAR[3]])
def test_any_unique_prefix_is_accepted(near: Box, text: str) -> None:
    with open_store(str(near.store)) as store:
        assert find_snapshot(store, text).id == NEAR[3]


def test_every_command_takes_a_prefix(near: Box, tmp_path: Path) -> None:
    short, file = "cs-5e77edf", near.source / "file"
    for line in (
        ("show", short), ("ls", short), ("cat", short, file), ("diff", short, "0123"),
        ("verify", short), ("tag", short, "--add", "x"), ("pin", short),
        ("pin", "--remove", short), ("find", "-s", short, "*"),
        ("stats", "--by", "kind", "-s", short),
        ("restore", "-s", short, "-p", file, "-d", tmp_path / "out"), ("forget", short),
        ("forget", "--undo", short),
    ):  # fmt: skip
        done = near.ciuic(*line)
        assert done.code == 0, (line, done.said())
    assert near.read(file, "5e77edf") == b"2"


def test_an_ambiguous_prefix_names_the_candidates_with_their_times(near: Box) -> None:
    times = {one.id: local_time_text(one.taken_ns) for one in near.snapshots()}
    done = near.ciuic("show", "5e77ed0")
    assert done.code == 1
    assert done.out == ""
    for snapshot_id in NEAR[:2]:
        assert f"{snapshot_id} from {times[snapshot_id]}" in done.err
    assert "cs-5e77ed0 is ambiguous: the IDs of 2 snapshots begin with it: " in done.err
    assert "Give more digits" in done.err
    assert near.ciuic("forget", "cs-5e").code == 1
    assert len(near.snapshots()) == len(NEAR)


def test_a_damaged_snapshot_is_among_the_candidates(near: Box) -> None:
    (near.store / "snapshots" / f"{NEAR[0]}.json").write_bytes(b"{}")
    with (
        open_store(str(near.store)) as store,
        pytest.raises(SnapshotNotFoundError, match=f"{NEAR[0]} from an unknown time"),
    ):
        find_snapshot(store, "cs-5e77ed0")


def test_an_ambiguous_prefix_in_the_trash_names_the_candidates(near: Box) -> None:
    assert near.ciuic("forget", NEAR[0], NEAR[1]).code == 0
    with (
        open_store(str(near.store), write=True) as store,
        pytest.raises(SnapshotNotFoundError, match=r"ambiguous in the trash: .* from \d{4}-"),
    ):
        bring_back(store, "cs-5e77ed")
    with open_store(str(near.store)) as store:
        assert find_snapshot(store, "cs-5e77ed").id == NEAR[2], "listed snapshots come first"


# What is printed


def test_tables_on_a_terminal_have_short_ids_and_scripts_get_whole_ones(near: Box) -> None:
    short = {"cs-5e77ed0000000001", "cs-5e77ed0000000002", "cs-5e77edf", "cs-012345"}
    whole = set(NEAR)

    def ids_of(*line: str | Path) -> list[set[str]]:
        """Return the IDs in a table, on a terminal and in a pipe."""
        command = ("ciuic", "--config", near.config, *line)
        outputs = plain(on_terminal(*command, COLUMNS="120")[1]), near.ciuic(*line).out
        return [set(re.findall(r"^cs-\w+", text, re.MULTILINE)) for text in outputs]

    assert ids_of("list") == [short, whole]
    assert ids_of("list", "--path", near.source / "file") == [short, whole]
    assert ids_of("forget", "--dry-run", "--policy", "last:2") == [short, whole]
    assert ids_of("find", "file") == [short, whole]
    lines = near.ciuic("list", "--machine-readable").out.splitlines()
    assert {line.split("|")[0] for line in lines} == whole
    assert {one["id"] for one in near.ciuic("list", "--json").document} == whole
    assert near.ciuic("show", "cs-5e77edf").out.split()[:2] == ["snapshot", NEAR[2]]


def test_the_snapshot_command_prints_the_whole_id(tmp_path: Path) -> None:
    box = Box(tmp_path)
    done = box.ciuic("snapshot")
    assert re.fullmatch(r"cs-[0-9a-f]{16}\n", done.out), done.said()


def test_ids_that_the_trash_shows_are_accepted(near: Box) -> None:
    assert near.ciuic("forget", NEAR[0]).code == 0
    command = ("ciuic", "--config", near.config, "list", "--trash")
    shown = plain(on_terminal(*command)[1]).splitlines()[1].split()[0]
    assert shown == NEAR[0], "another snapshot, listed, differs in the last digit only"
    assert near.ciuic("forget", "--undo", shown).code == 0
