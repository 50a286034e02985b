"""A machine that reads a large bucket for the first time lists no packs, and trusts no segment.

The bucket is a directory behind the interface of a place, as in test_index_segments.
"""

import os
import shutil

import pytest

from ciuic.catalog import list_snapshots
from ciuic.store import index_keeper
from ciuic.store.place import pack_objects
from ciuic.store.place.bucket import open_bucket
from ciuic.store.store import open_in_bucket
from ciuic.system.clock import SystemClock
from ciuic.verify.verify import verify_all
from ciuic.view.content import read_file
from ciuic.view.listing import walk
from ciuic.view.located import Located, root_entry
from tests.kit.buckets import FolderMachine, write
from tests.verbs.test_index_segments import CountingPlace, newcomer

SNAPSHOTS = 24


@pytest.fixture(autouse=True)
def every_store_is_large(monkeypatch):
    monkeypatch.setattr(index_keeper, "_MANY_PACKS", 1)
    monkeypatch.setattr(pack_objects, "_LISTED_AT_ONCE", 1)


@pytest.fixture
def one(tmp_path):
    """A machine that has taken snapshots, each with a pack."""
    machine = FolderMachine(tmp_path / "bucket", tmp_path / "cache")
    machine.init()
    for number in range(SNAPSHOTS):
        write(tmp_path / "source", [f"{number}"], 2000)
        machine.take_at(machine.place(), tmp_path / "source")
    return machine


def contents(machine, place):
    """Read all files of the newest snapshot."""
    bucket = open_bucket(place, machine.environ, write=False)
    with open_in_bucket(bucket) as store:
        manifest = store.manifest(list_snapshots(store)[0].id)
        (root,) = manifest.roots
        return {
            os.path.basename(path): b"".join(read_file(store, entry))
            for path, entry in walk(store, Located(root.path, root_entry(store, root)))
            if entry.is_file
        }


def expected(tmp_path):
    return {os.fsencode(path.name): path.read_bytes() for path in (tmp_path / "source").iterdir()}


def names(machine, place):
    """Return the names in the newest snapshot, as ``ciuic ls`` reads them."""
    with open_in_bucket(open_bucket(place, machine.environ, write=False)) as store:
        manifest = store.manifest(list_snapshots(store)[0].id)
        (root,) = manifest.roots
        return {path for path, _ in walk(store, Located(root.path, root_entry(store, root)))}


def listings(place):
    return [key for name, key in place.requests if name in {"list", "keys"} and key == "packs"]


def test_a_cold_ls_lists_no_packs_and_reads_one(one, tmp_path):
    place = CountingPlace(one.place())
    machine = newcomer(tmp_path)

    assert len(names(machine, place)) == SNAPSHOTS + 1
    assert listings(place) == []
    assert len(set(place.of("packs/"))) == 1
    segments = len(place.of("segments"))
    names(machine, place)
    assert len(place.of("segments")) == segments, "the chunk index is kept"


def test_a_small_store_is_listed(one, tmp_path, monkeypatch):
    monkeypatch.setattr(index_keeper, "_MANY_PACKS", 1_000)
    place = CountingPlace(one.place())
    assert contents(newcomer(tmp_path), place) == expected(tmp_path)
    assert listings(place) == ["packs"]


def test_a_chunk_that_no_segment_lists_is_found(one, tmp_path):
    folder = tmp_path / "bucket/segments"
    largest = max(folder.iterdir(), key=lambda path: path.stat().st_size)
    for path in folder.iterdir():
        if path != largest:
            path.unlink()
    place = CountingPlace(one.place())

    assert contents(newcomer(tmp_path), place) == expected(tmp_path)
    assert listings(place), "the first chunk that is missing makes it look at all packs"


def test_packs_that_are_gone_are_found_in_others(one, tmp_path):
    """A prune has rewritten packs, and the segments still name the old ones alone."""
    folder = tmp_path / "bucket/segments"
    old = {path.name: path.read_bytes() for path in folder.iterdir()}
    before = set(one.names("packs"))
    source = tmp_path / "source"
    write(source, ["new"])
    kept = one.take_at(one.place(), source).id
    one.forget(*(one.ids() - {kept}))
    one.prune()
    assert not before <= set(one.names("packs")), "some are gone"
    shutil.rmtree(folder)
    folder.mkdir()
    for name, data in old.items():
        (folder / name).write_bytes(data)

    machine = newcomer(tmp_path)
    assert contents(machine, machine.place()) == expected(tmp_path)
    assert contents(machine, machine.place()) == expected(tmp_path)
    machine.check(listed={kept})


def test_a_verification_of_a_cold_store_names_what_is_missing(one, tmp_path):
    for path in (tmp_path / "bucket/packs").iterdir():
        path.unlink()
    machine = newcomer(tmp_path)
    with machine.opened() as store:
        assert not verify_all(store, checksum=False, clock=SystemClock()).ok


def test_a_machine_that_has_read_writes_as_any_other(one, tmp_path):
    machine = newcomer(tmp_path)
    assert contents(machine, machine.place()) == expected(tmp_path)
    write(tmp_path / "source", ["more"])
    machine.take_at(machine.place(), tmp_path / "source")
    machine.check(listed=one.ids())


def test_many_packs_are_listed_rather_than_asked_for_one_by_one(one, tmp_path, monkeypatch):
    monkeypatch.setattr(pack_objects, "_LISTED_AT_ONCE", 5)
    place = CountingPlace(one.place())
    assert contents(newcomer(tmp_path), place) == expected(tmp_path)
    assert listings(place) == ["packs"]
    asked = [key for name, key in place.requests if name == "size_bytes"]
    assert len(asked) <= 1 + SNAPSHOTS // 5
