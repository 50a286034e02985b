"""A writer of a bucket starts from the header that its machine kept, and notices if it is stale."""

import json
import shutil

import msgspec
import pytest

from ciuic.errors import StoreError, UnknownFormatError
from ciuic.ids import random_snapshot_id
from ciuic.maintain.repair.header import repair_header
from ciuic.store.addressed import open_at_address
from ciuic.store.directory.cache import StaleHeaderError
from ciuic.store.place.bucket import open_bucket
from ciuic.store.records import layout
from ciuic.store.store import open_in_bucket
from tests.kit.buckets import FolderMachine, KilledError, PlaceWithFaults, write

pytestmark = pytest.mark.root


@pytest.fixture
def source(tmp_path):
    write(tmp_path / "source", "ab")
    return tmp_path / "source"


@pytest.fixture
def one(tmp_path, source):
    machine = FolderMachine(tmp_path / "bucket", tmp_path / "cache")
    machine.init()
    machine.take(source)
    return machine


@pytest.fixture
def other(tmp_path, one):
    return FolderMachine(tmp_path / "bucket", tmp_path / "other")


class CountsHeaders:
    """A place in front of another one, which counts how often the header is read."""

    def __init__(self, place):
        self._place = place
        self.count = 0

    def __getattr__(self, name):
        return getattr(self._place, name)

    def get(self, key, bytes_max):
        self.count += key == layout.HEADER
        return self._place.get(key, bytes_max)


@pytest.mark.parametrize(("trusts_kept", "count"), [(True, 1), (False, 2)])
def test_a_writer_that_trusts_its_machine_reads_the_header_once(one, trusts_kept, count):
    place = CountsHeaders(one.place())
    bucket = open_bucket(place, one.environ, write=True, trusts_kept=trusts_kept)
    with open_in_bucket(bucket, write=True):
        assert place.count == count


@pytest.mark.parametrize("options", [{}, {"write": True}, {"write": True, "removes": True}])
def test_a_bucket_that_was_emptied_is_named_as_one_to_each_command(one, tmp_path, options):
    store_id = one.store_id()
    shutil.rmtree(tmp_path / "bucket")
    (tmp_path / "bucket").mkdir()

    with (
        pytest.raises(StoreError, match="any more: this machine has used store") as refused,
        open_at_address(one.address, one.environ, one.options, **options),
    ):
        pass

    assert store_id[:8] in refused.value.message
    assert f"copy --to {one.place().name} --init'" in refused.value.hint
    assert list(one.place().keys()) == []


def test_a_store_that_was_made_anew_at_the_address_gets_the_snapshot(one, other, source, tmp_path):
    (old,) = one.ids()
    shutil.rmtree(tmp_path / "bucket")
    (tmp_path / "bucket").mkdir()
    other.init()

    with pytest.raises(StaleHeaderError):
        bucket = open_bucket(one.place(), one.environ, write=True, trusts_kept=True)
        with open_in_bucket(bucket, write=True):
            pass
    taken = one.take(source)

    assert old not in one.ids()
    other.check(listed={taken.id})
    assert one.names("leases") == []
    one.take(source)  # this machine keeps two headers now, and trusts neither
    assert len(other.ids()) == 2


def changed_header(tmp_path, **fields):
    path = tmp_path / "bucket" / layout.HEADER
    text = json.dumps({**json.loads(path.read_text()), **fields})
    path.unlink()
    path.write_text(text)


def test_a_store_of_a_newer_format_is_refused_by_a_machine_that_knew_the_older(
    one, source, tmp_path
):
    changed_header(tmp_path, format=99)

    with pytest.raises(UnknownFormatError, match=layout.HEADER):
        one.take(source)
    assert one.names("leases") == []
    with pytest.raises(UnknownFormatError, match=layout.HEADER):
        repair_header(one.place(), one.environ, None, one.clock, apply=True)


def test_a_store_that_has_lost_its_header_is_named_by_a_machine_that_knew_it(one, source, tmp_path):
    (tmp_path / "bucket" / layout.HEADER).unlink()

    with pytest.raises(StoreError, match="has lost its header"):
        one.take(source)
    assert one.names("leases") == []


def test_a_header_that_changes_after_it_was_compared_is_read_again(one, tmp_path):
    bucket = open_bucket(one.place(), one.environ, write=True, trusts_kept=True)
    path = tmp_path / "bucket" / layout.HEADER
    with open_in_bucket(bucket, write=True) as store:
        header = msgspec.structs.replace(store.header, optional=["a feature of a later version"])
        path.unlink()
        path.write_bytes(header.encode())
        store.announce([random_snapshot_id()])
        assert store.bucket.header.optional == header.optional
        changed_header(tmp_path, format=99)
        with pytest.raises(UnknownFormatError):
            store.announce([random_snapshot_id()])


def test_a_lease_of_a_writer_that_was_killed_where_a_store_was_does_not_stop_init(
    one, source, tmp_path
):
    shutil.rmtree(tmp_path / "bucket")
    (tmp_path / "bucket").mkdir()

    def kill_after_the_lease(number, _name, _keys):
        if number:
            raise KilledError

    place = PlaceWithFaults(one.place(), kill_after_the_lease)
    bucket = open_bucket(place, one.environ, write=True, trusts_kept=True)
    place.get = lambda *_: place.delete(["the process ends"])  # before it reads the header
    with pytest.raises(KilledError), open_in_bucket(bucket, write=True):
        pass
    assert len(one.names("leases")) == 1

    assert one.init()[0]
    one.take(source)
