"""``verify`` reads the manifests in the bucket, not this machine's copies of them.

The bucket is a directory here, behind the same interface; tests/s3 has a real server.
"""

import os
import shutil

import pytest

from ciuic.catalog import list_snapshots
from ciuic.maintain.objects import damaged_manifests
from ciuic.maintain.repair.bucket import apply_in_bucket, plan_in_bucket
from ciuic.maintain.repair.manifests import put_back_manifests
from ciuic.report.doctor.findings import Subject
from ciuic.system.clock import SystemClock
from ciuic.verify.verify import verify_all, verify_snapshots
from ciuic.web.history.timelines import Timelines
from ciuic.web.reading import Reading
from tests.kit.buckets import FolderMachine, write

pytestmark = pytest.mark.root


@pytest.fixture
def one(tmp_path):
    """A machine that has taken two snapshots, and has read them again."""
    machine = FolderMachine(tmp_path / "bucket", tmp_path / "cache")
    machine.init()
    for name in "ab":
        write(tmp_path / "source", [name])
        machine.take_at(machine.place(), tmp_path / "source")
    machine.check(listed=machine.ids())
    return machine


def damaged(machine, *, checksum):
    with machine.opened() as store:
        report = verify_all(store, checksum=checksum, clock=SystemClock())
    return {
        snapshot.id: [os.fsdecode(bad.path) for bad in snapshot.damaged]
        for snapshot in report.snapshots
        if snapshot.damaged
    }


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("damage", ["altered", "cut", "deleted"])
def test_a_manifest_that_the_bucket_has_not_as_it_was_is_damage(one, tmp_path, damage, checksum):
    snapshot_id = min(one.ids())
    path = tmp_path / f"bucket/snapshots/{snapshot_id}.json"
    whole = path.read_bytes()
    if damage == "altered":
        path.write_bytes(whole.replace(b'"logical_bytes": ', b'"logical_bytes": 1', 1))
        assert path.read_bytes() != whole
    elif damage == "cut":
        os.truncate(path, 60)
    else:
        path.unlink()

    assert damaged(one, checksum=checksum) == {snapshot_id: [f"snapshots/{path.name}"]}
    assert damaged(one, checksum=checksum), "and so does the next one"

    path.write_bytes(whole)
    assert damaged(one, checksum=checksum) == {}


def test_damage_that_verify_found_is_repaired_from_files_of_this_machine(one, tmp_path):
    snapshot_id = min(one.ids())
    path = tmp_path / f"bucket/snapshots/{snapshot_id}.json"
    whole = path.read_bytes()
    os.truncate(path, 60)
    assert damaged(one, checksum=False)

    with one.opened_at(one.place(), removes=True) as store:
        plan = plan_in_bucket(store)
        apply_in_bucket(store, plan)
    with one.opened_at(one.place()) as store:
        put_back_manifests(store, plan)

    assert path.read_bytes() == whole
    assert damaged(one, checksum=False) == {}


def test_a_manifest_that_goes_while_verify_runs_is_damage_unless_it_was_purged(one, tmp_path):
    with one.opened() as store:
        newest_last = [summary.id for summary in reversed(list_snapshots(store))]
    for gone, is_purged in zip(newest_last, (True, False), strict=True):
        with one.opened() as store:
            summary = store.manifest(gone).summary
            if is_purged:
                other = FolderMachine(tmp_path / "bucket", tmp_path / "other")
                other.clock.advance(3600)
                other.forget(gone)
                other.prune()
            else:
                (tmp_path / f"bucket/snapshots/{gone}.json").unlink()
            report = verify_snapshots(store, [summary], {}, checksum=False, clock=SystemClock())
        assert report.ok == is_purged


def test_a_tombstone_that_a_purge_puts_in_the_place_of_a_manifest_is_no_damage(one, tmp_path):
    with one.opened() as store:
        gone = list_snapshots(store)[-1]
        other = FolderMachine(tmp_path / "bucket", tmp_path / "other")
        other.place().put(f"leases/dismissed-{gone.id}", b"")
        other.clock.advance(3600)
        other.forget(gone.id)
        other.prune()
        assert (tmp_path / f"bucket/snapshots/{gone.id}.json").stat().st_size == 156

        assert verify_snapshots(store, [gone], {}, checksum=False, clock=SystemClock()).ok
        assert list(damaged_manifests(store)) == []
        assert plan_in_bucket(store).manifests == ()


def test_without_an_index_of_the_bucket_the_page_does_not_say_that_all_was_read(
    one, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(one.cache))
    clock = SystemClock()
    timelines = Timelines(Reading(one.address, lambda: Subject(None, None, None), clock), (), clock)
    shutil.rmtree(one.cache)
    assert timelines.timeline().unchecked_packs is None

    one.restore(tmp_path / "source", tmp_path / "out")  # makes the chunk index
    assert timelines.timeline().unchecked_packs == 2
