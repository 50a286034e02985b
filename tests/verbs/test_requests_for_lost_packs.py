"""How many requests a bucket gets when it has lost packs, however many chunks were in them.

The bucket is a directory here, behind the same interface.
"""

import os

import pytest

from ciuic.catalog import list_snapshots
from ciuic.ids import ChunkId
from ciuic.restore.restore import restore
from ciuic.restore.targets import RestoreRequest
from ciuic.store.place.bucket import open_bucket
from ciuic.store.records.kinds import DATA
from ciuic.store.records.layout import pack_name
from ciuic.store.store import open_in_bucket
from ciuic.system.clock import SystemClock
from ciuic.system.hashing import data_id
from ciuic.verify.verify import verify_all
from tests.kit.buckets import FolderMachine, machine_with, write

pytestmark = pytest.mark.root

FILES = 60


class Counted:
    """A place that counts the requests about packs and segments."""

    def __init__(self, place):
        self._place = place
        self.asked = []

    def __getattr__(self, name):
        method = getattr(self._place, name)
        if name not in {"size_bytes", "list", "get_ranges", "get", "get_versioned"}:
            return method

        def counted(key, *rest):
            if key.startswith(("packs", "segments")):
                self.asked.append(f"{name} {key[:20]}")
            return method(key, *rest)

        return counted


@pytest.fixture
def machine(tmp_path):
    """A snapshot of many small files, whose chunks are in one pack or in a few."""
    return machine_with(tmp_path, [f"{number}" for number in range(FILES)])


def packs_of(machine, paths):
    """The names of the packs that hold the content of these files."""
    ids = [data_id(path.read_bytes()) for path in paths]
    with machine.opened() as store:
        places = store.reader.places(ids)
    return {pack_name(places[one].pack_id) for one in ids}


def opened(machine, place):
    return open_in_bucket(open_bucket(place, machine.environ))


def restored(store, machine, to):
    manifest = store.manifest(list_snapshots(store)[0].id)
    source = os.fsencode(machine.cache.parent / "source")
    request = RestoreRequest((source,), destination=os.fsencode(to), hot=False)
    return restore(store, manifest, request, clock=SystemClock())


@pytest.mark.parametrize("verb", ["restore", "verify"])
def test_a_lost_pack_costs_no_more_requests_for_more_chunks(machine, tmp_path, verb):
    files = list((tmp_path / "source").iterdir())
    lost = packs_of(machine, files)
    for name in lost:
        (tmp_path / "bucket" / "packs" / name).unlink()
    place = Counted(machine.place())

    with opened(machine, place) as store:
        if verb == "restore":
            report = restored(store, machine, tmp_path / "out")
            assert len(report.failed) == FILES
        else:
            report = verify_all(store, checksum=True, clock=SystemClock())
            assert len(report.snapshots[0].damaged) == FILES

    assert len(place.asked) <= 12 + 4 * len(lost), place.asked


def test_a_chunk_that_a_prune_moves_between_two_reads_is_found(tmp_path):
    """The reader has just listed the packs, for a chunk that is in none of them."""
    machine = FolderMachine(tmp_path / "bucket", tmp_path / "cache")
    other = FolderMachine(tmp_path / "bucket", tmp_path / "other")
    machine.init()
    source = tmp_path / "source"
    write(source, ["stays", "goes"])
    content = (source / "stays").read_bytes()
    old = machine.take_at(machine.place(), source).id
    (source / "goes").unlink()
    machine.take_at(machine.place(), source)
    place = Counted(machine.place())

    with opened(machine, place) as store:
        reader = store.reader
        (pack_id,) = {found.pack_id for found in reader.places([data_id(content)]).values()}
        assert not reader.places([ChunkId(bytes(32))])
        asked = len(place.asked)
        assert not reader.places([ChunkId(bytes([1] * 32))])
        assert place.asked[asked:] == [], "what the server has just said is asked again"
        other.forget(old)
        other.prune()
        assert pack_name(pack_id) not in other.names("packs")

        assert bytes(reader.chunk(data_id(content), kind=DATA)) == content


def test_a_chunk_of_a_snapshot_that_another_machine_adds_is_found(tmp_path):
    """The reader has just listed the packs, and then hears of the snapshot."""
    machine = FolderMachine(tmp_path / "bucket", tmp_path / "cache")
    other = FolderMachine(tmp_path / "bucket", tmp_path / "other")
    machine.init()
    source = tmp_path / "source"
    write(source, ["first"])
    machine.take_at(machine.place(), source)

    with opened(machine, machine.place()) as store:
        assert not store.reader.places([ChunkId(bytes(32))])
        write(source, ["second"])
        other.take_at(other.place(), source)
        store.bucket.fetch()

        report = restored(store, machine, tmp_path / "out")

    assert report.failed == []
    second = (tmp_path / "out" / "source" / "second").read_bytes()
    assert second == (source / "second").read_bytes()
