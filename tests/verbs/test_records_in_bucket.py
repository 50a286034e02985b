"""A prune of a bucket deletes useless records: of the quarantine, and notes about copies.

The bucket is a directory here, behind the same interface; tests/s3 has a real server.
"""

import pytest

from ciuic.errors import CorruptionError
from ciuic.maintain.prune.bucket.prune import finish_condemned
from ciuic.maintain.repair.bucket import apply_in_bucket, plan_in_bucket
from ciuic.maintain.repair.manifests import put_back_manifests
from tests.kit.buckets import FolderMachine, machine_with

pytestmark = pytest.mark.root


@pytest.fixture
def one(tmp_path):
    """Two snapshots; the first one has a file that the second one has not."""
    machine = machine_with(tmp_path, ["a", "b"], 3_000_000)
    (tmp_path / "source" / "b").rename(tmp_path / "away")
    machine.take_at(machine.place(), tmp_path / "source")
    return machine


@pytest.fixture
def first(one):
    with one.opened() as store:
        parents = {store.manifest(name).summary.parent for name in store.manifests.ids()}
    return (parents - {None}).pop()


def repair(machine):
    with machine.opened_at(machine.place(), removes=True) as store:
        plan = plan_in_bucket(store)
        apply_in_bucket(store, plan)
        finish_condemned(store, clock=machine.clock)
    with machine.opened_at(machine.place()) as store:
        return put_back_manifests(store, plan)


def damage(tmp_path):
    """Damage a chunk that only the first snapshot needs; returns the name of the pack."""
    lost = (tmp_path / "away").read_bytes()[1_000_000:1_000_100]
    for pack in (tmp_path / "bucket/packs").iterdir():
        data = bytearray(pack.read_bytes())
        at = data.find(lost)
        if at >= 0:
            data[at] ^= 1
            pack.write_bytes(data)
            return pack.name
    raise AssertionError("no pack has these bytes")


def test_a_damaged_pack_stays_in_the_quarantine_while_a_snapshot_lacks_something(
    one, first, tmp_path
):
    pack = damage(tmp_path)
    assert repair(one).remaining
    one.prune()
    assert one.names("quarantine") == [pack]

    one.forget(first)
    one.prune()

    assert one.names("quarantine") == []
    one.check(listed=one.ids())


def test_a_damaged_pack_goes_when_everything_was_found_elsewhere(one, tmp_path):
    pack = damage(tmp_path)
    (tmp_path / "away").rename(tmp_path / "source" / "b")
    assert not repair(one).remaining
    assert one.names("quarantine") == [pack]

    one.prune(dry_run=True)
    assert one.names("quarantine") == [pack]
    one.prune()

    assert one.names("quarantine") == []
    one.check(listed=one.ids())


def test_a_damaged_pack_stays_in_the_quarantine_until_it_is_deleted(one, tmp_path):
    pack = damage(tmp_path)
    (tmp_path / "away").rename(tmp_path / "source" / "b")
    other = FolderMachine(tmp_path / "bucket", tmp_path / "other")
    with other.opened_at(other.place()):  # a session at work, which may rely on the pack
        repair(one)
        one.prune()
        assert pack in one.names("packs")
        assert one.names("quarantine") == [pack]
    one.prune()
    assert pack not in one.names("packs")
    assert one.names("quarantine") == []


def test_a_damaged_manifest_goes_when_a_sound_one_has_its_place(one, first, tmp_path):
    path = tmp_path / f"bucket/snapshots/{first}.json"
    path.write_bytes(path.read_bytes()[:200])
    repair(one)
    assert one.names("quarantine") == [f"{first}.json"]

    one.prune()

    assert one.names("quarantine") == []
    one.check(listed=one.ids())


def test_a_damaged_manifest_that_was_abandoned_goes_with_its_snapshot(one, first, tmp_path):
    path = tmp_path / f"bucket/snapshots/{first}.json"
    path.write_bytes(path.read_bytes()[:200])
    stranger = FolderMachine(tmp_path / "bucket", tmp_path / "stranger")
    stranger.clock.advance(3600)
    stranger.forget(first)
    assert one.names("quarantine") == [f"{first}.json"]
    one.prune()
    assert one.names("quarantine") == []


def test_no_record_is_removed_while_a_manifest_is_lost(one, first, tmp_path):
    pack = damage(tmp_path)
    (tmp_path / "away").rename(tmp_path / "source" / "b")
    repair(one)
    path = tmp_path / f"bucket/snapshots/{first}.json"
    manifest = path.read_bytes()
    path.unlink()
    with pytest.raises(CorruptionError, match="is gone"):
        one.prune()
    assert one.names("quarantine") == [pack]
    path.write_bytes(manifest)
    one.prune()
    assert one.names("quarantine") == []


def test_other_names_in_the_quarantine_stay(one, tmp_path):
    one.place().put("quarantine/notes.txt", b"mine")
    one.prune()
    assert one.names("quarantine") == ["notes.txt"]


def test_a_note_about_a_copy_goes_when_a_tombstone_keeps_the_copy_from_coming_back(one, first):
    note = f"leases/dismissed-{first}"
    one.place().put(note, b"")
    one.prune()
    assert one.place().keys("leases") == {note}, "the snapshot may still be purged"

    one.forget(first)
    one.prune()

    assert one.place().keys("leases") == set()
    assert one.place().size_bytes(f"snapshots/{first}.json") == 156


def test_a_note_about_a_copy_stays_where_no_tombstone_is(one, first):
    one.forget(first)
    one.prune()
    note = f"leases/dismissed-{first}"
    one.place().put(note, b"")
    one.prune()
    assert one.place().keys("leases") == {note}
