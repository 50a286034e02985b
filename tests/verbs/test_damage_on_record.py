"""What a verification or a restore finds damaged in a directory, the next snapshot stores again."""

import errno
import itertools
import os
from pathlib import Path

import pytest

from ciuic.ids import PackId
from ciuic.store.damage_records import note_read
from ciuic.store.records import layout
from ciuic.store.records.damage import ByteSpan, KnownDamage
from ciuic.store.records.kinds import DATA
from ciuic.store.store import Store, open_store
from ciuic.system import durable
from tests.kit.box import Box
from tests.kit.damage import flip_content, packs
from tests.verbs.test_delta_chains import depths, training

KIB = 1024


@pytest.fixture
def damaged(box: Box) -> Box:
    """A snapshot of two files; one cannot be restored."""
    for name in ("model", "other"):
        (box.source / name).write_bytes(os.urandom(300 * KIB))
    box.take()
    flip_content(box.store, (box.source / "model").read_bytes())
    return box


def records(box: Box) -> list[str]:
    folder = box.store / layout.DAMAGED
    return sorted(os.listdir(folder)) if folder.exists() else []


def call_damaged(box: Box, *pack_ids: PackId) -> None:
    with open_store(str(box.store)) as store:
        sizes = store.pack_files()
        for pack_id in pack_ids:
            note_read(store, pack_id, [ByteSpan(0, sizes[pack_id])], KnownDamage())


def is_data(store: Store, pack_id: PackId) -> bool:
    return any(packed.frame.kind == DATA for packed in store.index_keeper.list_pack(pack_id))


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("finder", ["verify", "restore", "scrub", "drill"])
def test_the_next_snapshot_stores_it_again(
    damaged: Box, tmp_path: Path, finder: str, has_index: bool
) -> None:
    if finder == "verify":
        assert not damaged.verify().ok
    elif finder == "restore":
        assert damaged.restore(to=tmp_path / "out").failed
    else:
        assert damaged.ciuic(finder).code == 4
    [name] = records(damaged)
    assert KnownDamage([name])
    if not has_index:
        (damaged.store / layout.CATALOG).unlink()

    assert damaged.take().new_bytes == 300 * KIB

    assert damaged.verify().ok
    assert damaged.take().new_bytes == 0


def states(box: Box, name: str) -> list[str]:
    """Return the states of a path, newest first, as ``ciuic list --path`` tells them."""
    found = box.ciuic("list", "--path", str(box.source / name), "--json").document
    return [one["path"]["state"] for one in found]


@pytest.mark.parametrize("finder", ["verify", "restore", "scrub", "drill"])
def test_every_command_knows_what_another_one_has_found(
    damaged: Box, tmp_path: Path, finder: str
) -> None:
    (damaged.source / "model").unlink()
    newer = damaged.take().id
    older = [one.id for one in damaged.snapshots()][-1]
    restore = ("restore", "-s", older, "-p", damaged.source)
    assert states(damaged, "model") == ["whole"], "nothing has read it yet"
    if finder == "verify":
        assert not damaged.verify().ok
    elif finder == "restore":
        assert damaged.ciuic(*restore, "-d", tmp_path / "out").code == 4
    elif finder == "scrub":
        assert damaged.ciuic("scrub").code == 4
    else:
        assert damaged.ciuic("drill", "--snapshot", older).code == 4

    assert states(damaged, "model") == ["damaged"]
    assert states(damaged, "other") == ["whole", "whole"]
    listed = damaged.ciuic("list", "--json").document
    assert {one["id"]: one["damaged"] for one in listed} == {newer: False, older: True}


def test_a_record_of_sound_bytes_makes_nothing_damaged(box: Box) -> None:
    (box.source / "model").write_bytes(os.urandom(300 * KIB))
    box.take()
    call_damaged(box, *(PackId(bytes.fromhex(one.name)) for one in packs(box.store)))
    assert records(box)

    assert states(box, "model") == ["whole"]


def test_a_difference_is_stored_again_as_a_whole(box: Box) -> None:
    """As another difference, it would not become the place of the chunk in the chunk index."""
    saves = list(itertools.islice(training(size=400 * KIB), 3))
    (box.source / "last.bin").write_bytes(saves[0])
    (box.source / "other.bin").write_bytes(saves[2])
    box.take()
    (box.source / "last.bin").write_bytes(saves[1])
    box.take()
    assert depths(box, box.source / "last.bin") == [1]
    flip_content(box.store, saves[1])
    assert not box.verify().ok
    (box.source / "other.bin").write_bytes(saves[1])

    assert box.take().new_bytes == 400 * KIB

    assert depths(box, box.source / "other.bin") == [0]
    assert box.take(base=True).new_bytes == 0
    assert box.verify().ok


def test_without_the_record_the_next_snapshot_relies_on_it(damaged: Box) -> None:
    assert not damaged.verify().ok
    for name in records(damaged):
        (damaged.store / layout.DAMAGED / name).unlink()
    assert damaged.take(base=True).new_bytes == 0
    assert not damaged.verify().ok


def test_a_repair_removes_the_record(damaged: Box) -> None:
    damaged.verify()
    damaged.take()
    assert records(damaged)

    damaged.ciuic("repair", "--apply")

    assert records(damaged) == []
    assert damaged.verify().ok


def test_a_prune_that_removes_the_pack_removes_the_record(damaged: Box) -> None:
    damaged.verify()
    for name in ("model", "other"):
        (damaged.source / name).write_bytes(os.urandom(300 * KIB))
    damaged.take()
    first = [one.id for one in damaged.snapshots()][-1]
    assert damaged.ciuic("forget", first, "--last-whole").code == 0
    assert records(damaged)

    assert damaged.ciuic("prune", "--trash", "0").code == 0

    assert records(damaged) == []
    assert damaged.verify().ok


def test_a_wrong_record_costs_the_space_of_its_chunks_once(box: Box) -> None:
    (box.source / "model").write_bytes(os.urandom(300 * KIB))
    box.take()
    call_damaged(box, *(PackId(bytes.fromhex(path.name)) for path in packs(box.store)))
    box.take()
    with open_store(str(box.store)) as store:
        held = {one for one in store.pack_files() if DATA in store.index.chunks_in(one).values()}
        [second] = held
        [first] = {one for one in store.pack_files() if is_data(store, one)} - held
    # A prune prefers the first by name of two copies that are alike.
    for name in records(box):
        (box.store / layout.DAMAGED / name).unlink()
    call_damaged(box, min(first, second))

    for _ in range(2):
        assert box.ciuic("prune", "--trash", "0").code == 0
        assert box.take().new_bytes == 0
        assert box.verify().ok


def test_what_parity_gives_back_is_not_on_record(box: Box) -> None:
    box.parity = 0.04
    (box.source / "model").write_bytes(os.urandom(300 * KIB))
    box.take()
    flip_content(box.store, (box.source / "model").read_bytes())
    before = packs(box.store)
    assert not box.verify().ok
    assert records(box) == []
    assert box.ciuic("scrub").code == 4

    assert records(box) == []
    assert box.take(base=True).new_bytes == 0
    assert packs(box.store)[: len(before)] == before


def test_a_store_that_cannot_be_written_to_is_verified_and_restored(
    damaged: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    monkeypatch.setattr(durable, "make_directory", refuse)
    monkeypatch.setattr(durable, "make_empty", refuse)

    assert not damaged.verify().ok
    report = damaged.restore(to=tmp_path / "out")

    assert len(report.failed) == 1
    assert (tmp_path / "out" / "source" / "other").exists()
    assert records(damaged) == []
