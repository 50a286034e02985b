"""Scrub of a bucket: damage is found and named; tests/s3 has a real server."""

import functools
import os

import pytest

from ciuic.errors import OfflineError
from ciuic.maintain.scrub.bucket import Bucket
from ciuic.maintain.scrub.budget import Budget
from ciuic.maintain.scrub.scrub import scrub
from ciuic.store.addressed import open_at_address
from ciuic.store.place.bucket import StoreInBucket
from ciuic.store.snapshots.marks import Marks
from tests.kit.buckets import FolderMachine, write

pytestmark = pytest.mark.root


@pytest.fixture
def one(tmp_path):
    machine = FolderMachine(tmp_path / "bucket", tmp_path / "cache")
    machine.init()
    write(tmp_path / "source", ["a", "b"], 3_000_000)
    write(tmp_path / "source", ["small"], 500)
    machine.take_at(machine.place(), tmp_path / "source")
    return machine


def scrubbed(machine, **options):
    opened = functools.partial(open_at_address, machine.address, machine.environ, machine.options)
    return scrub(Bucket(opened), clock=machine.clock, **options)


def largest(tmp_path):
    return max((tmp_path / "bucket/packs").iterdir(), key=lambda path: path.stat().st_size)


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def files_of(report):
    return {os.path.basename(os.fsdecode(file.path)) for p in report.damaged for file in p.files}


def test_a_sound_store_has_no_damage(one, tmp_path):
    report = scrubbed(one)

    assert report.ok
    assert report.has_read_all
    assert report.read_packs == len(one.names("packs")) == report.health.packs
    assert report.health.unchecked == 0


@pytest.mark.parametrize("cache", ["warm", "cold"])
@pytest.mark.parametrize("damage", ["flipped", "truncated", "deleted", "footer"])
def test_damage_is_named_with_the_files_that_it_affects(one, tmp_path, damage, cache):
    pack = largest(tmp_path)
    size = pack.stat().st_size
    if damage == "flipped":
        flip(pack, 1_000_000)
    elif damage == "truncated":
        os.truncate(pack, 2_000_000)
    elif damage == "footer":
        flip(pack, size - 100)
    else:
        pack.unlink()
    machine = one if cache == "warm" else FolderMachine(tmp_path / "bucket", tmp_path / "new")

    report = scrubbed(machine)

    assert not report.ok
    if damage == "footer":
        assert [found.lost for found in report.damaged] == [()]
        return
    named = files_of(report) | {os.path.basename(os.fsdecode(one.path)) for one in report.missing}
    # Small files are at the end of the same pack.
    assert named - {"small"}
    assert named <= ({"a", "b"} if damage == "flipped" else {"a", "b", "small"})
    again = scrubbed(machine, budget=Budget(size_bytes=1))
    assert not again.ok


def test_damaged_manifests_and_marks_are_named(one, tmp_path):
    (first,) = one.ids()
    second = one.take_at(one.place(), tmp_path / "source").id
    one.forget(first)
    manifest = tmp_path / f"bucket/snapshots/{second}.json"
    flip(manifest, 60)
    (mark,) = (tmp_path / "bucket/marks").iterdir()
    os.truncate(mark, 30)

    report = scrubbed(one)

    assert {os.fsdecode(found.path) for found in report.manifests} == {
        f"snapshots/{manifest.name}",
        f"marks/{mark.name}",
    }


def test_a_pack_that_another_machine_prunes_meanwhile_is_no_damage(one, tmp_path, monkeypatch):
    scrubbed(one)  # this machine knows every pack
    other = FolderMachine(tmp_path / "bucket", tmp_path / "other")
    other.clock.advance(3600)
    for path in (tmp_path / "source").iterdir():
        path.unlink()
    write(tmp_path / "source", ["new"], 1000)
    kept = other.take_at(other.place(), tmp_path / "source").id

    def prune():
        other.forget(*(other.ids() - {kept}))
        assert other.prune().removed.packs

    listed = StoreInBucket.manifest
    waiting = [prune]

    def manifest(bucket, snapshot_id):
        while waiting:
            waiting.pop()()
        return listed(bucket, snapshot_id)

    monkeypatch.setattr(StoreInBucket, "manifest", manifest)

    during = scrubbed(one)
    assert not waiting
    assert during.ok, during
    assert scrubbed(one).ok


def test_an_answer_that_was_damaged_on_the_way_is_no_damage(one, monkeypatch):
    from ciuic.store.place.directory import DirectoryPlace

    read, spoiled = DirectoryPlace.get, []

    def get(place, key, bytes_max):
        data = read(place, key, bytes_max)
        if key.startswith("packs/") and key not in spoiled:
            spoiled.append(key)
            return data[:100] + bytes(100) + data[200:]
        return data

    monkeypatch.setattr(DirectoryPlace, "get", get)

    assert scrubbed(one).ok
    assert spoiled


def test_a_bucket_that_is_not_reached_any_more_keeps_what_was_found(one, monkeypatch):
    write(one.cache.parent / "source", ["more"], 100_000)
    one.take_at(one.place(), one.cache.parent / "source")
    from ciuic.store.place.directory import DirectoryPlace

    read, packs = DirectoryPlace.get, []

    def get(place, key, bytes_max):
        if key.startswith("packs/"):
            packs.append(key)
            if len(packs) > 1:
                raise OfflineError("no answer")
        return read(place, key, bytes_max)

    monkeypatch.setattr(DirectoryPlace, "get", get)
    with pytest.raises(OfflineError):
        scrubbed(one)
    monkeypatch.undo()

    assert scrubbed(one, budget=Budget(size_bytes=1)).health.unchecked < len(one.names("packs"))


def test_the_mark_of_a_snapshot_that_another_machine_prunes_meanwhile_is_no_damage(
    one, tmp_path, monkeypatch
):
    (first,) = one.ids()
    kept = one.take_at(one.place(), tmp_path / "source").id
    one.forget(first)
    scrubbed(one)
    other = FolderMachine(tmp_path / "bucket", tmp_path / "other")
    other.clock.advance(3600)
    check, waiting = Marks.check, [other.prune]

    def prune_first(marks, *key):
        while waiting:
            waiting.pop()()
        check(marks, *key)

    monkeypatch.setattr(Marks, "check", prune_first)

    during = scrubbed(one)

    assert not waiting
    assert one.names("snapshots") == [f"{kept}.json"]
    assert during.manifests == []
    assert not during.health.documents
