"""A manifest that a bucket has lost: what it needs stays, until it is back or abandoned.

The bucket is a directory here, behind the same interface; tests/s3 has a real server.
"""

import functools
import os

import pytest

from ciuic.catalog import known_lost, lost_snapshots
from ciuic.copy.copy import CopyRequest, copy_snapshots
from ciuic.copy.repair import repair_from_copy
from ciuic.copy.report import CopyReport
from ciuic.errors import CorruptionError
from ciuic.maintain.prune.bucket.prune import finish_condemned, is_unfinished
from ciuic.maintain.repair.bucket import apply_in_bucket, plan_in_bucket
from ciuic.maintain.repair.manifests import put_back_manifests
from ciuic.maintain.scrub.bucket import Bucket
from ciuic.maintain.scrub.scrub import scrub
from ciuic.store.addressed import open_at_address
from ciuic.store.records.kinds import DATA
from ciuic.store.records.layout import pack_name
from ciuic.system.hashing import data_id
from ciuic.view.content import read_file
from ciuic.view.locator import locate
from tests.kit.buckets import FolderMachine, write
from tests.kit.damage import flip_byte
from tests.kit.spelled_pack import Spelled

pytestmark = pytest.mark.root


@pytest.fixture
def bucket(tmp_path):
    """Three snapshots, each with a file of its own; the first one is the parent of the second."""
    machine = FolderMachine(tmp_path / "bucket", tmp_path / "cache")
    machine.init()
    for name in "abc":
        for old in (tmp_path / "source").glob("*"):
            old.unlink()
        write(tmp_path / "source", [name])
        machine.take_at(machine.place(), tmp_path / "source")
    return tmp_path / "bucket"


def newcomer(bucket, name):
    """A machine that has never seen the bucket."""
    machine = FolderMachine(bucket, bucket.parent / name)
    machine.clock.advance(3600)
    return machine


def in_order(machine):
    """The IDs of all snapshots, the first one first."""
    with machine.opened() as store:
        manifests = [store.manifest(one).summary for one in store.manifests.ids()]
    return [one.id for one in sorted(manifests, key=lambda one: one.taken_ns)]


def lost(machine):
    with machine.opened() as store:
        return lost_snapshots(store)


def test_a_machine_that_never_saw_the_lost_snapshot_refuses_to_prune(bucket):
    first, second, third = in_order(newcomer(bucket, "before"))
    (bucket / f"snapshots/{second}.json").unlink()
    other = newcomer(bucket, "new")
    packs = other.names("packs")

    with pytest.raises(
        CorruptionError, match=f"{second} is gone, so nothing was removed"
    ) as caught:
        other.prune()

    assert f"'ciuic forget {second}'" in caught.value.hint
    assert other.names("packs") == packs
    assert lost(other) == [second]

    other.forget(second)
    other.prune()
    assert lost(newcomer(bucket, "later")) == []
    assert len(other.names("packs")) < len(packs)
    other.check(listed=[first, third])


def test_a_snapshot_that_another_machine_has_purged_is_not_lost(bucket):
    first, second, third = in_order(newcomer(bucket, "before"))
    one, two = newcomer(bucket, "one"), newcomer(bucket, "two")
    two.verify()
    one.forget(first, second)
    one.prune()
    assert lost(two) == []
    two.prune()
    newcomer(bucket, "new").check(listed=[third])


def test_a_manifest_that_is_lost_before_the_judgment_stops_it(bucket, tmp_path):
    first, second, third = in_order(newcomer(bucket, "before"))
    one, two = newcomer(bucket, "one"), newcomer(bucket, "two")
    one.forget(first)
    with two.opened_at(two.place()):  # a session at work
        assert one.prune().waiting_for
    packs = one.names("packs")
    (bucket / f"snapshots/{second}.json").unlink()

    with pytest.raises(CorruptionError, match=f"{second} is gone"):
        newcomer(bucket, "new").prune()
    with two.opened_at(two.place(), removes=True) as store:
        finish_condemned(store, clock=two.clock)
        assert is_unfinished(store)

    assert one.names("packs") == packs
    newcomer(bucket, "third").forget(second)
    two.prune()
    two.check(listed=[third])


def test_a_damaged_manifest_is_abandoned_and_kept_in_the_quarantine(bucket):
    first, second, third = in_order(newcomer(bucket, "before"))
    path = bucket / f"snapshots/{second}.json"
    path.write_bytes(path.read_bytes().replace(b"delta", b"dexta"))
    damaged = path.read_bytes()
    other = newcomer(bucket, "new")
    with pytest.raises(CorruptionError, match="nothing was removed"):
        other.prune()

    other.forget(second)

    assert not path.exists()
    assert (bucket / f"quarantine/{second}.json").read_bytes() == damaged
    other.prune()
    newcomer(bucket, "later").check(listed=[first, third])


def repair(machine, *, source=None, apply=True):
    """Like ``ciuic repair --apply [--from SOURCE]``; returns the plan with what is left."""
    with machine.opened_at(machine.place(), removes=True) as store:
        plan = plan_in_bucket(store)
        if not apply:
            return plan
        apply_in_bucket(store, plan)
    with machine.opened_at(machine.place()) as store:
        plan = put_back_manifests(store, plan)
        if source is not None:
            with source.opened() as other:
                damaged = [bad.id for bad in plan.manifests if not bad.has_copy]
                given = repair_from_copy(store, other, damaged, parity=0.0, clock=machine.clock)
                assert set(given.repaired) == set(damaged), given
    return plan


@pytest.mark.parametrize("damage", ["gone", "flipped", "cut", "empty"])
def test_a_machine_that_has_used_the_bucket_puts_a_manifest_back(bucket, damage):
    machine = newcomer(bucket, "one")
    first, second, third = in_order(machine)
    path = bucket / f"snapshots/{second}.json"
    was = path.read_bytes()
    spoil(path, damage)
    stranger = newcomer(bucket, "stranger")
    assert [bad.has_copy for bad in repair(stranger).manifests] == [False]
    machine.verify()  # a run that only looks keeps what the machine has

    foreseen = repair(machine, apply=False)
    assert [(bad.id, bad.has_copy) for bad in foreseen.manifests] == [(second, True)]
    assert not path.exists() or path.read_bytes() != was
    assert not repair(machine).is_hopeless

    assert path.read_bytes() == was
    assert (bucket / f"quarantine/{second}.json").exists() == (damage != "gone")
    newcomer(bucket, "later").check(listed=[first, second, third])
    newcomer(bucket, "pruning").prune()
    assert not repair(machine).is_damaged
    assert not list((bucket.parent / "one").rglob("parity/cs-*"))


@pytest.mark.parametrize("damage", ["gone", "flipped", "cut"])
def test_a_copy_of_the_store_gives_a_manifest_back(bucket, tmp_path, damage):
    first, second, third = in_order(newcomer(bucket, "before"))
    copy = FolderMachine(tmp_path / "copy", tmp_path / "cache of the copy")
    copy.init()
    with newcomer(bucket, "source").opened() as source, copy.opened_at(copy.place()) as store:
        copy_snapshots(source, store, CopyRequest(), CopyReport("", False), clock=copy.clock)
    path = bucket / f"snapshots/{second}.json"
    was = path.read_bytes()
    spoil(path, damage)

    repair(newcomer(bucket, "new"), source=copy)

    assert path.read_bytes() == was
    newcomer(bucket, "later").check(listed=[first, second, third])


def test_a_manifest_that_was_uploaded_with_copies_is_put_back_from_them(bucket):
    first, second, third = in_order(newcomer(bucket, "before"))
    path = bucket / f"snapshots/{second}.json"
    was = path.read_bytes()
    (bucket / "parity").mkdir()
    path.rename(bucket / f"parity/{second}.json")

    assert not repair(newcomer(bucket, "new")).is_hopeless

    assert path.read_bytes() == was
    newcomer(bucket, "later").check(listed=[first, second, third])


def test_a_manifest_that_was_purged_meanwhile_is_not_put_back(bucket):
    _, second, _ = in_order(newcomer(bucket, "before"))
    machine = newcomer(bucket, "one")
    machine.verify()
    path = bucket / f"snapshots/{second}.json"
    path.unlink()
    with machine.opened_at(machine.place(), removes=True) as store:
        plan = plan_in_bucket(store)
    assert plan.manifests[0].has_copy
    with machine.opened_at(machine.place()) as store:
        newcomer(bucket, "other").forget(second)
        put_back_manifests(store, plan)

    assert not path.exists()
    assert lost(machine) == []


def test_a_manifest_that_comes_back_without_its_chunks_is_named(bucket):
    machine = newcomer(bucket, "one")
    _, second, _ = in_order(machine)
    with newcomer(bucket, "before").opened() as store:
        path = os.fsencode(bucket.parent / "source" / "b")
        content = read_file(store, locate(store, store.manifest(second), path).entry)
        name = data_id(b"".join(content))
        pack = pack_name(store.reader.places([name])[name].pack_id)
    (bucket / f"snapshots/{second}.json").unlink()
    machine.verify()
    (bucket / "packs" / pack).unlink()

    plan = repair(machine)

    assert plan.is_hopeless
    assert (bucket / f"snapshots/{second}.json").exists()


def place_of(machine, content):
    """The pack that has this content, and an offset in its frame."""
    with machine.opened() as store:
        (place,) = store.reader.places([data_id(content)]).values()
    path = machine.cache.parent / "bucket/packs" / pack_name(place.pack_id)
    return path, place.offset_bytes + place.frame_bytes - 1


@pytest.mark.parametrize("is_scrubbed", [True, False])
def test_what_a_lost_manifest_needs_stays_known_as_lost(bucket, tmp_path, is_scrubbed):
    machine = newcomer(bucket, "one")
    live = tmp_path / "source/c"
    content, name = live.read_bytes(), in_order(machine)[2]
    live.unlink()
    machine.take_at(machine.place(), tmp_path / "source")
    place_of(machine, content)[0].unlink()
    if is_scrubbed:
        scrubbed(machine)
    machine.verify()
    (bucket / f"snapshots/{name}.json").unlink()
    if is_scrubbed:
        scrubbed(machine)
        assert lost_chunks(machine)

    plan = repair(machine)

    assert [one.id for one in plan.remaining] == [name]
    assert lost_chunks(machine)


def scrubbed(machine):
    opened = functools.partial(open_at_address, machine.address, machine.environ, machine.options)
    return scrub(Bucket(opened), clock=machine.clock)


def lost_chunks(machine):
    with machine.opened() as store:
        return known_lost(store)


def test_what_a_lost_manifest_needs_is_stored_again_from_a_live_file(bucket, tmp_path):
    machine = newcomer(bucket, "one")
    first, second, third = in_order(machine)
    machine.verify()
    flip_byte(*place_of(machine, (tmp_path / "source/c").read_bytes()))
    (bucket / f"snapshots/{third}.json").unlink()

    plan = repair(machine)

    assert len(plan.origins) == 1
    assert not plan.is_hopeless
    newcomer(bucket, "later").check(listed=[first, second, third])


@pytest.mark.parametrize("who", ["one", "other"])
def test_what_is_stored_again_before_a_manifest_is_put_back_is_not_lost(bucket, tmp_path, who):
    machine = newcomer(bucket, "one")
    live = tmp_path / "source/c"
    content, name = live.read_bytes(), in_order(machine)[2]
    live.unlink()
    machine.take_at(machine.place(), tmp_path / "source")
    flip_byte(*place_of(machine, content))
    machine.verify()
    (bucket / f"snapshots/{name}.json").unlink()
    with machine.opened_at(machine.place(), removes=True) as store:
        plan = plan_in_bucket(store)
        apply_in_bucket(store, plan)
    live.write_bytes(content)
    again = newcomer(bucket, who)
    again.take_at(again.place(), tmp_path / "source")
    live.unlink()

    with machine.opened_at(machine.place()) as store:
        plan = put_back_manifests(store, plan)

    assert not plan.is_hopeless
    assert not plan.lost
    assert not lost_chunks(machine)
    machine.check(listed=in_order(machine))


def test_what_is_damaged_in_a_pack_of_a_newer_ciuic_is_lost(bucket, tmp_path):
    """A repair leaves the pack, so the chunk index still names it."""
    machine = newcomer(bucket, "one")
    name = in_order(machine)[2]
    live = tmp_path / "source/c"
    pack, _ = place_of(machine, live.read_bytes())
    newer = Spelled()
    newer.add(DATA, b"n" * 100, odd={"kind": 9})
    newer.add_pack(pack)
    newer.write(bucket)
    pack.unlink()
    machine = newcomer(bucket, "two")
    machine.verify()
    flip_byte(*place_of(machine, live.read_bytes()))
    live.unlink()
    (bucket / f"snapshots/{name}.json").unlink()

    plan = repair(machine)

    assert [bad.stays for bad in plan.packs] == [True]
    assert [one.id for one in plan.remaining] == [name]
    assert lost_chunks(machine)


def spoil(path, damage):
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        spoiled = {"flipped": data.replace(b"delta", b"dexta"), "cut": data[:100], "empty": b""}
        path.write_bytes(spoiled[damage])


def test_a_parent_that_a_listing_missed_is_not_lost(bucket):
    """Both came while the pages of a listing were read: the child is on the last page."""
    _, second, _ = in_order(newcomer(bucket, "before"))
    other = newcomer(bucket, "new")
    with other.opened() as store:
        (store_file,) = (bucket.parent / "new").rglob(f"{second}.json")
        store_file.unlink()
        assert second not in store.manifests.ids()
        assert lost_snapshots(store) == []


def test_a_damaged_record_of_retired_ids_is_replaced_by_what_can_be_read_in_it(bucket):
    first, second, third = in_order(newcomer(bucket, "before"))
    machine = newcomer(bucket, "one")
    machine.forget(first, second)
    machine.prune()
    (record,) = (bucket / "retired").iterdir()
    record.write_bytes(record.read_bytes().replace(b"checksum", b"checksun"))
    other = newcomer(bucket, "other")
    assert lost(other) == [], "a parent may be retired there"
    with pytest.raises(CorruptionError, match="retired"):
        other.prune()

    plan = repair(other)

    assert list(plan.retired) == [record.name]
    assert (bucket / f"quarantine/retired-{record.name}").exists()
    assert lost(newcomer(bucket, "new")) == []
    other.prune()
    newcomer(bucket, "later").check(listed=[third])


def test_a_machine_reads_each_record_of_retired_ids_once(bucket):
    first, second, third = in_order(newcomer(bucket, "before"))
    machine, other = newcomer(bucket, "one"), newcomer(bucket, "other")
    machine.forget(first)
    machine.prune()
    assert lost(other) == []
    (record,) = (bucket / "retired").iterdir()
    was = record.read_bytes()
    record.write_bytes(b"damaged")

    assert lost(other) == []
    with other.opened() as store:
        assert store.trash.retired.ids() == {first}
        assert store.trash.retired.damage()[0].keys() == {record.name}, "a repair reads the bucket"

    record.write_bytes(was)
    (machine_copy,) = (bucket.parent / "other").rglob("retired/*.json")
    machine_copy.write_bytes(b"damaged")
    assert lost(other) == []
    assert machine_copy.read_bytes() == was
    record.unlink()
    with other.opened() as store:
        assert store.trash.retired.ids() == frozenset()
    assert not machine_copy.exists()
    assert {second, third} <= set(in_order(other))
