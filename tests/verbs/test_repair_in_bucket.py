"""Repair of a bucket, beside other sessions: docs/protocol.md.

The bucket is a directory here, behind the same interface; tests/s3 has a real server.
"""

import contextlib
import os

import pytest

from ciuic.catalog.lost import known_damaged
from ciuic.maintain.prune.bucket.prune import finish_condemned
from ciuic.maintain.repair.bucket import apply_in_bucket, plan_in_bucket
from ciuic.maintain.repair.manifests import put_back_manifests
from ciuic.maintain.repair.report import chunk_counts
from ciuic.maintain.repair.sources import read_origin
from ciuic.maintain.scrub.bucket import Bucket
from ciuic.maintain.scrub.scrub import scrub
from ciuic.store.packs.writer import StoreWriter
from tests.kit.buckets import FolderMachine, KilledError, PlaceWithFaults, machine_with, write

pytestmark = pytest.mark.root


@pytest.fixture
def one(tmp_path):
    return machine_with(tmp_path, ["a", "b"], 3_000_000)


@pytest.fixture
def pack(one, tmp_path):
    """The pack that holds the damaged part of a file."""
    path = max((tmp_path / "bucket/packs").iterdir(), key=lambda path: path.stat().st_size)
    damage(path, 1_000_000)
    return path


def damage(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def repair(machine, *, place=None, finish=True):
    """Like ``ciuic repair --apply``; returns the plan and the sessions that are waited for."""
    with machine.opened_at(place or machine.place(), removes=True) as store:
        plan = plan_in_bucket(store)
        apply_in_bucket(store, plan)
        return plan, finish_condemned(store, clock=machine.clock) if finish else []


def newcomer(tmp_path, name="new"):
    machine = FolderMachine(tmp_path / "bucket", tmp_path / name)
    machine.clock.advance(3600)
    return machine


def test_chunks_that_a_live_file_has_are_stored_again(one, pack, tmp_path):
    was = pack.read_bytes()
    assert not newcomer(tmp_path, "before").verify().ok

    plan, left = repair(one)

    assert len(plan.packs) == 1
    assert len(plan.origins) == 1
    assert (plan.remaining, left) == ((), [])
    assert not pack.exists()
    assert (tmp_path / "bucket/quarantine" / pack.name).read_bytes() == was
    one.check(listed=one.ids())
    newcomer(tmp_path).check(listed=one.ids())
    with one.opened() as store:
        assert not plan_in_bucket(store).is_damaged


def test_a_repair_announces_itself_before_it_reads_packs(one, pack):
    def kinds():
        return [name.partition("-")[0] for name in one.names("leases")]

    seen = []
    with one.opened_at(one.place(), removes=True) as store:
        assert kinds() == ["prune"]
        plan_in_bucket(store, progress=lambda *_: seen.append(kinds()) if not seen else None)
        assert seen == [["prune", "repair"]]
    assert not kinds()


def test_each_chunk_is_stored_before_the_next_one_is_read(one, pack, tmp_path, monkeypatch):
    """All chunks of the damaged packs of a large bucket do not fit in memory."""
    damage(pack, 3_500_000)
    steps = []
    add = StoreWriter.add_data

    def read_and_note(store, origin):
        steps.append("read")
        return read_origin(store, origin)

    def add_and_note(writer, chunks):
        steps.append("add")
        return add(writer, chunks)

    monkeypatch.setattr("ciuic.maintain.repair.storing.read_origin", read_and_note)
    monkeypatch.setattr(StoreWriter, "add_data", add_and_note)
    plan, _ = repair(one)
    assert len(plan.origins) > 1
    assert steps == ["read", "add"] * len(plan.origins)
    newcomer(tmp_path).check(listed=one.ids())


def test_a_repair_and_a_scrub_count_the_same_lost_chunks_of_a_cut_pack(one, tmp_path):
    pack = max((tmp_path / "bucket/packs").iterdir(), key=lambda path: path.stat().st_size)
    with one.opened() as store:
        [pack_id] = [one for one in store.pack_files() if pack.name.startswith(one.hex())]
        frames = store.index_keeper.list_pack(pack_id)
    os.truncate(pack, pack.stat().st_size // 2)
    write(tmp_path / "source", ["a", "b"], 10)  # no live file has these bytes now
    lost = [one for one in frames if one.offset_bytes + one.frame.total_bytes > pack.stat().st_size]
    count = sum(len(packed.frame.chunks) for packed in lost)
    subject = Bucket(lambda **access: one.opened(write=access.get("write", False)))

    counts = []
    for _ in range(2):  # after the first scrub, the chunk index no longer has the lost chunks
        with one.opened() as store:
            plan = plan_in_bucket(store)
        counts += [chunk_counts(bad, plan) for bad in plan.packs]
        counts += [{"lost": len(bad.lost)} for bad in scrub(subject, clock=one.clock).damaged]

    assert count > 1
    assert counts == [{"lost": count}] * 4


@pytest.mark.parametrize("what", ["flipped", "truncated", "footer", "all"])
def test_chunks_that_no_source_has_are_named_and_the_rest_stays(one, pack, tmp_path, what):
    size = pack.stat().st_size
    if what == "truncated":
        os.truncate(pack, size // 2)
    elif what == "footer":
        damage(pack, size - 60)
    elif what == "all":
        pack.write_bytes(os.urandom(size))
    lost = {bad.path for bad in one.verify().snapshots[0].damaged}
    write(tmp_path / "source", ["a", "b"], 10)  # no live file has these bytes now

    plan, _ = repair(one)

    machine = newcomer(tmp_path)
    assert {bad.path for bad in machine.verify().snapshots[0].damaged} == lost
    if what != "all":  # then no manifest's tree can be read
        assert {bad.path for bad in plan.remaining[0].damaged} == lost
    assert not pack.exists()
    taken = machine.take_at(machine.place(), tmp_path / "source").id
    assert {one.id: one.ok for one in machine.verify().snapshots}[taken]


def test_the_prune_of_a_machine_that_knew_the_damaged_pack_keeps_what_was_stored(
    one, pack, tmp_path
):
    two = newcomer(tmp_path)
    with two.opened() as store:
        assert len(store.index.packs()) == len(one.names("packs"))
    repair(one, finish=False)

    two.prune()

    assert not pack.exists()
    two.check(listed=one.ids())
    newcomer(tmp_path, "third").check(listed=one.ids())


def test_a_session_that_began_before_keeps_what_it_relies_on(one, pack, tmp_path):
    two = newcomer(tmp_path)
    with two.opened_at(two.place()) as held:
        _, left = repair(one)
        assert [lease.about.partition("-")[0] for lease in left] == ["snapshot"]
        assert pack.exists()
        taken = two.take_into(held, tmp_path / "source").id
        assert taken in two.ids()

    two.prune()

    assert not pack.exists()
    newcomer(tmp_path, "third").check(listed={*one.ids()})
    assert taken in one.ids()


def test_a_repair_that_is_killed_at_any_change_loses_nothing(one, pack, tmp_path):
    at = 0
    while True:

        def kill(number, _name, _keys, at=at):
            if number == at:
                raise KilledError

        place = PlaceWithFaults(one.place(), kill)
        with contextlib.suppress(KilledError):
            repair(one, place=place)
        if len(place.changes) <= at:
            break
        two = newcomer(tmp_path, f"new{at}")
        found = two.verify()
        assert {bad.path for one in found.snapshots for bad in one.damaged} <= {
            os.fsencode(tmp_path / "source/a"),
            os.fsencode(tmp_path / "source/b"),
        }
        at += 1
    assert at > 5

    one.prune(revoke_after_s=0)

    one.check(listed=one.ids())
    newcomer(tmp_path).check(listed=one.ids())


def test_a_plan_changes_nothing(one, pack, tmp_path):
    place = PlaceWithFaults(one.place(), lambda *_: None)
    before = one.names("")
    with one.opened() as store:
        plan = plan_in_bucket(store)

    assert plan.is_damaged
    assert place.changes == []
    assert one.names("") == before


def test_a_damaged_manifest_is_named_with_what_to_do(one, tmp_path):
    (manifest,) = (tmp_path / "bucket/snapshots").iterdir()
    damage(manifest, 60)

    plan, _ = repair(newcomer(tmp_path))

    (bad,) = plan.manifests
    assert bad.what.startswith(f"snapshots/{manifest.name}: ")
    assert not bad.has_remedy
    assert plan.is_hopeless


def test_a_manifest_stays_known_as_damaged_until_it_is_put_back(one, tmp_path):
    (manifest,) = (tmp_path / "bucket/snapshots").iterdir()
    damage(manifest, 60)
    subject = Bucket(lambda **access: one.opened(write=access.get("write", False)))
    scrub(subject, clock=one.clock)

    plan, _ = repair(one)

    (bad,) = plan.manifests
    assert bad.has_copy
    with one.opened_at(one.place()) as store:
        assert set(known_damaged(store)) == {f"snapshots/{manifest.name}"}
        put_back_manifests(store, plan)
        assert not known_damaged(store)
    assert scrub(subject, clock=one.clock).ok
