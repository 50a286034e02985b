"""A snapshot with a lost manifest keeps its data until a user forgets it by name."""

import json
import os
import shutil
from pathlib import Path

import pytest

from ciuic.catalog import damaged_manifests, lost_snapshots
from ciuic.errors import CorruptionError, SnapshotNotFoundError, UsageError
from ciuic.ids import SnapshotId
from ciuic.maintain.forget import ForgetPlan, apply_forget, plan_forget_by_id
from ciuic.maintain.prune.apply import apply_prune
from ciuic.maintain.prune.plan import plan_prune
from ciuic.maintain.prune.report import PruneReport
from ciuic.maintain.repair.apply import apply_repair
from ciuic.maintain.repair.entrance import repair_entrance
from ciuic.maintain.repair.plan import plan_repair
from ciuic.maintain.repair.report import RepairPlan
from ciuic.store import store as store_module
from ciuic.store.store import open_store
from tests.kit.box import Box
from tests.kit.damage import flip_byte
from tests.kit.trees import Photo, differences, photograph

MIB = 1024 * 1024


class Owner:
    """A store without copies of manifests, and the photograph of each of its three snapshots.

    Each has a pack of its own that no other needs.

    Attributes:
        ids: Oldest first.
    """

    def __init__(self, box: Box) -> None:
        self.box = box
        self.photos: dict[str, dict[bytes, Photo]] = {}
        for number in range(3):
            for old in box.source.iterdir():
                old.unlink()
            (box.source / f"own{number}").write_bytes(os.urandom(MIB + number))
            self.photos[box.take().id] = photograph(box.source)
        self.ids = list(self.photos)

    def manifest(self, name: str) -> Path:
        return self.box.store / "snapshots" / f"{name}.json"

    def packs(self) -> dict[str, bytes]:
        return {one.name: one.read_bytes() for one in (self.box.store / "packs").iterdir()}

    def prune(self) -> PruneReport:
        with open_store(str(self.box.store), write=True) as store:
            plan = plan_prune(store, trash_s=0, now_ns=self.box.clock.now_ns())
            return apply_prune(store, plan, clock=self.box.clock)

    def repair(self) -> RepairPlan:
        repair_entrance(str(self.box.store), apply=True)
        with open_store(str(self.box.store), write=True) as store:
            plan = plan_repair(store, parity=self.box.parity)
            apply_repair(store, plan, parity=self.box.parity, clock=self.box.clock)
        return plan

    def forget(self, *names: str) -> ForgetPlan:
        with open_store(str(self.box.store), write=True) as store:
            now_ns = self.box.clock.now_ns()
            plan = plan_forget_by_id(store, names, now_ns)
            apply_forget(store, plan, now_ns)
            return plan

    def lost(self) -> list[str]:
        with open_store(str(self.box.store)) as store:
            assert damaged_manifests(store).keys() >= set(lost_snapshots(store))
            return lost_snapshots(store)

    def comes_back(self, name: str) -> bool:
        out = self.box.directory / "out"
        shutil.rmtree(out, ignore_errors=True)
        self.box.restore(snapshot=name, to=out)
        return differences(self.photos[name], photograph(out / "source")) == []


@pytest.fixture
def owner(box: Box) -> Owner:
    return Owner(box)


def assert_refused(owner: Owner, name: str) -> None:
    """A prune names the snapshot that stops it and the remedy, and removes nothing."""
    before = owner.packs()
    with pytest.raises(CorruptionError, match=f"the manifest of {name} is gone") as caught:
        owner.prune()
    assert "nothing was removed" in caught.value.message
    assert f"'ciuic forget {name}'" in caught.value.hint
    assert f"snapshots/{name}.json" in caught.value.hint
    assert owner.packs() == before


@pytest.mark.parametrize("catalog", ["kept", "gone"])
def test_prune_keeps_the_data_of_a_manifest_that_a_repair_set_aside(
    owner: Owner, catalog: str
) -> None:
    name = owner.ids[1]
    whole = owner.manifest(name).read_bytes()
    flip_byte(owner.manifest(name), 100)
    assert owner.repair().is_hopeless
    assert not owner.manifest(name).exists()
    if catalog == "gone":
        (owner.box.store / "catalog.sqlite").unlink()
    owner.forget(owner.ids[0])
    assert owner.lost() == [name]
    assert_refused(owner, name)
    # The next snapshot updates the chunk index, which must still know of the lost one.
    owner.box.take()
    assert_refused(owner, name)

    owner.manifest(name).write_bytes(whole)

    assert owner.lost() == []
    assert owner.prune().freed_bytes > MIB
    assert owner.comes_back(name)


@pytest.mark.parametrize("aside", ["kept", "removed"])
def test_the_chunk_index_still_knows_a_removed_manifest(owner: Owner, aside: str) -> None:
    name = owner.ids[1]
    if aside == "kept":
        owner.manifest(name).unlink()
    else:
        flip_byte(owner.manifest(name), 100)
        owner.repair()
        shutil.rmtree(owner.box.store / "quarantine")
    owner.box.take()
    assert owner.lost() == [name]
    assert_refused(owner, name)


def test_a_lost_directory_of_manifests_costs_no_data(owner: Owner) -> None:
    kept = owner.box.directory / "kept"
    shutil.move(owner.box.store / "snapshots", kept)
    with pytest.raises(CorruptionError, match="lost its directory"):
        owner.prune()
    (owner.box.store / "snapshots").mkdir(mode=0o700)
    assert owner.lost() == sorted(owner.ids)
    owner.box.take()
    assert_refused(owner, min(owner.ids))

    for path in kept.iterdir():
        shutil.move(path, owner.box.store / "snapshots")

    assert owner.prune()
    assert all(owner.comes_back(name) for name in owner.ids)


def test_a_lost_snapshot_is_given_up_by_its_full_id(
    owner: Owner,
) -> None:
    name = owner.ids[1]
    flip_byte(owner.manifest(name), 100)
    owner.repair()
    with pytest.raises(CorruptionError, match=f"the manifest of {name} is gone"):
        owner.forget(name[:-1])
    assert owner.lost() == [name]

    plan = owner.forget(name)

    assert plan.given_up == (name,)
    assert plan.forgotten == ()
    assert owner.lost() == []
    assert owner.prune().freed_bytes > MIB
    (record,) = (owner.box.store / "retired").iterdir()
    assert name in json.loads(record.read_bytes())["ids"]
    assert (owner.box.store / "quarantine" / f"{name}.json").exists()
    with pytest.raises(SnapshotNotFoundError):
        owner.forget(name)
    assert owner.box.verify().ok
    assert all(owner.comes_back(one) for one in (owner.ids[0], owner.ids[2]))
    assert owner.repair().is_damaged is False


def test_the_only_snapshot_can_be_given_up_if_it_is_lost_and_no_other_beside_it(
    owner: Owner,
) -> None:
    first, second, third = owner.ids
    owner.manifest(second).unlink()
    with pytest.raises(UsageError, match="every snapshot"):
        owner.forget(second, first, third)
    assert owner.lost() == [second]
    owner.manifest(first).unlink()
    owner.manifest(third).unlink()
    assert owner.forget(*owner.ids).given_up == tuple(owner.ids)
    assert owner.lost() == []


def test_a_lost_manifest_with_a_copy_is_put_back_and_cannot_be_abandoned(tmp_path: Path) -> None:
    owner = Owner(Box(tmp_path, parity=0.04))
    name = owner.ids[1]
    owner.manifest(name).unlink()
    with pytest.raises(CorruptionError, match="is gone") as caught:
        owner.forget(name)
    assert "ciuic repair --apply" in caught.value.hint
    owner.repair()
    assert owner.comes_back(name)


def test_a_lost_manifest_whose_copy_is_damaged_is_reported_until_it_is_abandoned(
    tmp_path: Path,
) -> None:
    owner = Owner(Box(tmp_path, parity=0.04))
    name = owner.ids[1]
    flip_byte(owner.box.store / "parity" / f"{name}.json", 100)
    owner.manifest(name).unlink()
    (owner.box.store / "catalog.sqlite").unlink()
    assert owner.repair().is_hopeless
    assert_refused(owner, name)
    owner.forget(name)
    assert owner.prune().freed_bytes > MIB
    assert not (owner.box.store / "parity" / f"{name}.json").exists()


def test_a_snapshot_whose_manifest_and_copy_are_damaged_is_abandoned_by_its_full_id(
    tmp_path: Path,
) -> None:
    owner = Owner(Box(tmp_path, parity=0.04))
    name = owner.ids[1]
    for place in ("snapshots", "parity"):
        flip_byte(owner.box.store / place / f"{name}.json", 100)
    with pytest.raises(CorruptionError, match=f"the manifest of {name}"):
        owner.prune()
    with pytest.raises(CorruptionError, match=name) as caught:
        owner.forget(name[:-1])
    assert f"ciuic forget {name}" in caught.value.hint
    done = owner.box.ciuic("forget", name)
    assert done.code == 0, done.err
    assert f"abandoned {name}" in done.err
    assert not owner.manifest(name).exists()
    assert (owner.box.store / "quarantine" / f"{name}.json").exists()
    assert owner.lost() == []
    assert owner.prune().freed_bytes > MIB
    assert all(owner.comes_back(one) for one in (owner.ids[0], owner.ids[2]))
    assert owner.repair().is_damaged is False


def test_a_snapshot_with_a_damaged_manifest_and_a_sound_copy_is_forgotten_not_abandoned(
    tmp_path: Path,
) -> None:
    owner = Owner(Box(tmp_path, parity=0.04))
    name = owner.ids[1]
    flip_byte(owner.manifest(name), 100)
    plan = owner.forget(name)
    assert plan.given_up == ()
    assert [one.id for one, _ in plan.forgotten] == [name]


def test_a_snapshot_that_was_forgotten_in_any_way_is_not_reported_as_lost(owner: Owner) -> None:
    first, second, third = owner.ids
    owner.forget(first)
    assert owner.lost() == []
    owner.prune()
    assert owner.lost() == []
    flip_byte(owner.manifest(third), 100)
    owner.repair()
    assert owner.lost() == [third]
    owner.box.take()
    # Set aside, then put back by hand, then forgotten as any other.
    data = bytearray((owner.box.store / "quarantine" / f"{third}.json").read_bytes())
    data[100] ^= 0xFF
    owner.manifest(third).write_bytes(data)
    owner.forget(third, second)
    owner.prune()
    assert owner.lost() == []


def test_a_damaged_row_of_the_chunk_index_adds_no_snapshot(owner: Owner) -> None:
    with open_store(str(owner.box.store), write=True) as store:
        size, mtime, row = store.index.snapshots()[owner.ids[0]]
        for name in ("cs-abcdef", "cs-abcdeg", "../x", ""):
            store.index.put_snapshot(name, size, mtime, 1, b"" if name == "" else row)
        store.index.commit()
    assert owner.lost() == []
    assert owner.prune()


def test_a_lost_id_is_not_given_to_another_snapshot(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = owner.ids[1]
    owner.manifest(lost).unlink()
    drawn = [lost, "cs-5e77ed"]
    monkeypatch.setattr(store_module, "random_snapshot_id", lambda: SnapshotId(drawn.pop(0)))
    assert owner.box.take().id == "cs-5e77ed"


def test_the_commands_say_what_is_lost_and_what_to_do(owner: Owner) -> None:
    box, name = owner.box, owner.ids[1]
    flip_byte(owner.manifest(name), 100)

    applied = box.ciuic("repair", "--apply")
    looked = box.ciuic("repair")
    document = box.ciuic("repair", "--json").document
    pruned = box.ciuic("prune", "--json")
    listed = box.ciuic("list")
    verified = box.ciuic("verify", "--all")
    dry = box.ciuic("forget", name, "--prune", "--trash", "0", "--dry-run", "--json")
    forgotten = box.ciuic("forget", name, "--prune", "--trash", "0")

    assert applied.code == looked.code == 4
    assert "set aside, as it has no copy" in applied.out
    assert f"the manifest of {name} is gone, and there is no copy of it" in looked.out
    assert f"'ciuic --config {box.config} forget {name}'" in looked.err
    assert "repair --apply'" not in looked.err
    assert [(one["id"], one["is_gone"]) for one in document["manifests"]] == [(name, True)]
    assert pruned.code == 4
    assert name in pruned.document["error"]["message"]
    assert f"'ciuic --config {box.config} forget {name}'" in pruned.document["error"]["hint"]
    assert listed.code == verified.code == 4
    assert f"{name} cannot be read: its file is gone" in listed.err
    assert f"{name}: DAMAGED" in verified.out
    assert dry.code == 0
    assert dry.document["given_up"] == [name]
    assert dry.document["prune"]["freed_bytes"] > MIB
    assert forgotten.code == 0
    assert f"abandoned {name}, whose manifest is lost" in forgotten.err
    assert box.ciuic("verify", "--all").code == 0
