"""Places in a directory and in memory obey the contract of places. tests/s3 has a real server."""

import errno
import fcntl
import os
import stat

import pytest
from obstore.store import LocalStore, MemoryStore

from ciuic.errors import (
    AccessDeniedError,
    BusyError,
    CorruptionError,
    MissingError,
    StoreError,
    StoreFullError,
    UnsupportedError,
)
from ciuic.store.place.directory import DirectoryPlace
from ciuic.store.place.merged import merged_ranges
from ciuic.store.place.objects import Clients, ObjectPlace
from ciuic.store.place.place import ByteRange
from ciuic.store.place.probe import Abilities, probe
from ciuic.system import durable
from tests.kit.buckets import PlaceWithFaults
from tests.kit.clock import ManualClock
from tests.kit.filesystems import disk
from tests.kit.place_contract import MIB, Contract, Creates, ReadsAndWrites, keys


def object_place(store) -> ObjectPlace:
    return ObjectPlace("test://", Clients(store, store, store), patience_s=0)


@pytest.fixture
def directory_place(tmp_path):
    return DirectoryPlace(str(tmp_path))


class TestDirectory(Contract):
    @pytest.fixture
    def place(self, directory_place):
        return directory_place


class TestMemory(Contract):
    @pytest.fixture
    def place(self):
        return object_place(MemoryStore())


class TestLocal(ReadsAndWrites, Creates):
    """The client's own directory, which lists in no order and cannot replace."""

    @pytest.fixture
    def place(self, tmp_path):
        return object_place(LocalStore(tmp_path))

    def test_a_probe_finds_that_it_cannot_replace(self, place):
        assert probe(place) == Abilities(creates=True, replaces=False, lists_at_once=True)
        with pytest.raises(UnsupportedError):
            place.put("a", b"x")
            place.replace("a", b"y", place.get_versioned("a", 10).version)


class IgnoresConditions(DirectoryPlace):
    """A place that answers every conditional write with success, as some servers do."""

    def create(self, key, data):
        self.put(key, data)
        return self.get_versioned(key, 100).version

    def replace(self, key, data, version):
        return self.create(key, data)


class SaysNoButWrites(DirectoryPlace):
    """A place that refuses, but has written."""

    def create(self, key, data):
        try:
            return super().create(key, data)
        except StoreError:
            self.put(key, data)
            raise


class ListsLate(DirectoryPlace):
    """A place whose listings do not show new objects."""

    def list(self, folder="", after=""):
        return iter(())


def test_a_place_that_ignores_conditions_is_found_out(tmp_path):
    found = probe(IgnoresConditions(str(tmp_path)))

    assert found == Abilities(creates=False, replaces=False, lists_at_once=True)
    assert not found.allows_many_writers
    assert keys(DirectoryPlace(str(tmp_path))) == []


def test_a_place_that_refuses_and_still_writes_is_found_out(tmp_path):
    assert not probe(SaysNoButWrites(str(tmp_path))).creates


def test_a_place_whose_listings_are_late_does_not_allow_many_writers(tmp_path):
    found = probe(ListsLate(str(tmp_path)))

    assert found == Abilities(creates=True, replaces=True, lists_at_once=False)
    assert not found.allows_many_writers


def test_files_and_directories_are_private(directory_place, tmp_path):
    directory_place.put("packs/a", b"x")
    directory_place.create("packs/b", b"x")

    assert stat.S_IMODE((tmp_path / "packs").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "packs").iterdir()} == {0o600}


def test_no_temporary_file_stays_or_is_listed(directory_place, tmp_path):
    directory_place.create("a", b"x")
    with pytest.raises(StoreError):
        directory_place.create("a", b"y")
    directory_place.replace("a", b"z", directory_place.get_versioned("a", 10).version)

    assert os.listdir(tmp_path / "tmp") == []
    (tmp_path / "tmp" / "file-left").write_bytes(b"x")
    assert keys(directory_place) == ["a"]
    with pytest.raises(ValueError, match="temporary"):
        directory_place.get("tmp/file-left", 1)


def test_a_directory_that_is_not_mounted_is_not_an_empty_place(tmp_path):
    (tmp_path / "mount").mkdir()
    place = DirectoryPlace(str(tmp_path / "mount"))
    place.put("a", b"x")
    (tmp_path / "mount").rename(tmp_path / "elsewhere")

    for ask in (
        lambda: place.get("a", 1),
        lambda: keys(place),
        lambda: keys(place, "packs"),
        lambda: place.keys("packs"),
        lambda: place.put("b", b"x"),
        lambda: place.create("packs/b", b"x"),
        lambda: place.size_bytes("a"),
    ):
        with pytest.raises(StoreError, match="No such file or directory") as caught:
            ask()
        assert not isinstance(caught.value, MissingError)
    assert not (tmp_path / "mount").exists()


def test_no_symlink_is_followed(directory_place, tmp_path, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret").write_bytes(b"secret")
    (tmp_path / "link").symlink_to(outside / "secret")
    (tmp_path / "folder").symlink_to(outside)

    with pytest.raises(CorruptionError, match="not a regular file"):
        directory_place.get("link", 100)
    for use in (
        lambda: directory_place.get("folder/secret", 100),
        lambda: directory_place.put("folder/secret", b"x"),
        lambda: directory_place.create("folder/new", b"x"),
        lambda: directory_place.delete(["folder/secret"]),
    ):
        with pytest.raises(StoreError, match="symlink"):
            use()
    assert keys(directory_place) == ["folder", "link"]
    assert directory_place.keys() == {"folder", "link"}
    directory_place.put("link", b"x")
    assert (outside / "secret").read_bytes() == b"secret"
    assert os.listdir(outside) == ["secret"]


@pytest.mark.timeout(20)
def test_a_fifo_is_damage_and_does_not_block(directory_place, tmp_path):
    os.mkfifo(tmp_path / "fifo")

    with pytest.raises(CorruptionError, match="not a regular file"):
        directory_place.get("fifo", 10)
    with pytest.raises(CorruptionError, match="not a regular file"):
        directory_place.get_ranges("fifo", [ByteRange(0, 1)])


def test_a_file_system_without_hard_links_is_named(directory_place, tmp_path, monkeypatch):
    def refuse(*_args, **_options):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)

    with pytest.raises(UnsupportedError, match="refuses hard links"):
        directory_place.create("a", b"x")
    assert probe(directory_place) == Abilities(creates=False, replaces=True, lists_at_once=True)
    assert os.listdir(tmp_path / "tmp") == []


def test_a_directory_that_cannot_be_locked_is_named(directory_place, monkeypatch):
    def refuse(*_args):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr(fcntl, "flock", refuse)

    assert probe(directory_place) == Abilities(creates=True, replaces=False, lists_at_once=True)
    directory_place.put("a", b"x")
    with pytest.raises(UnsupportedError, match="cannot lock"):
        directory_place.replace("a", b"y", directory_place.get_versioned("a", 10).version)
    directory_place.delete(["a"])
    assert keys(directory_place) == []


def test_a_replacement_waits_for_another_process_for_a_bounded_time(tmp_path):
    clock = ManualClock()
    place = DirectoryPlace(str(tmp_path), clock=clock)
    place.put("state", b"x")
    version = place.get_versioned("state", 10).version
    began_s = clock.monotonic_s()
    fd = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        with pytest.raises(BusyError, match="holds the lock"):
            place.replace("state", b"y", version)
    finally:
        os.close(fd)

    assert 29 < clock.monotonic_s() - began_s < 32
    place.replace("state", b"y", version)


def test_names_whose_sync_failed_are_synced_by_the_next_call(directory_place, monkeypatch):
    directory_place.stage("packs/a", b"x")
    directory_place.stage("snapshots/a", b"x")
    synced = []

    def fail(path):
        if path.endswith("packs") and not synced.count("failed"):
            synced.append("failed")
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        synced.append(os.path.basename(path))

    monkeypatch.setattr(durable, "sync_directory", fail)

    with pytest.raises(StoreError, match="cannot sync"):
        directory_place.make_durable()
    directory_place.make_durable()
    directory_place.make_durable()
    assert synced == ["failed", "packs", "snapshots"]


@pytest.mark.root
def test_a_full_disk_is_named_and_leaves_nothing(tmp_path):
    with disk("ext4", tmp_path, size_mib=64) as mounted:
        place = DirectoryPlace(str(mounted.path))
        place.put("packs/a", b"x")
        mounted.leave_free(0)

        for write in (place.put, place.stage, place.create):
            with pytest.raises(StoreFullError):
                write("packs/b", os.urandom(MIB))

        assert os.listdir(mounted.path / "tmp") == []
        assert "packs/b" not in keys(place)
        place.delete(["packs/a"])


@pytest.mark.root
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_durable_objects_survive_a_power_cut(tmp_path, kind):
    with disk(kind, tmp_path) as mounted:
        place = DirectoryPlace(str(mounted.path))
        place.put("one/put", b"put")
        place.create("two/created", b"created")
        place.stage("three/staged", b"staged")
        place.make_durable()
        place.put("state", b"old")
        place.replace("state", b"new", place.get_versioned("state", 10).version)
        place.put("gone", b"x")
        place.delete(["gone"])
        place.stage("four/late", b"late" * 1000)
        mounted.cut_power()
        mounted.unmount()
        mounted.mount()

        left = keys(place)
        assert set(left) - {"four/late"} == {"one/put", "two/created", "three/staged", "state"}
        assert place.get("one/put", 10) == b"put"
        assert place.get("two/created", 10) == b"created"
        assert place.get("three/staged", 10) == b"staged"
        assert place.get("state", 10) == b"new"
        if "four/late" in left:
            assert place.get("four/late", 10_000) == b"late" * 1000


def test_only_nearby_ranges_are_merged():
    ranges = [ByteRange(5 * MIB, 10), ByteRange(100, 10), ByteRange(0, 50), ByteRange(20, 10)]

    groups = merged_ranges(ranges)

    assert [(group.whole, list(group.positions)) for group in groups] == [
        (ByteRange(0, 110), [2, 3, 1]),
        (ByteRange(5 * MIB, 10), [0]),
    ]


def test_merged_ranges_stay_small_unless_a_range_is_large():
    rows = [ByteRange(at * MIB, MIB) for at in range(20)]
    groups = merged_ranges([*rows, ByteRange(0, 30 * MIB), ByteRange(2, 3)])

    assert max(group.whole.length_bytes for group in groups) == 30 * MIB
    assert [group.whole.length_bytes for group in merged_ranges(rows)] == [
        8 * MIB,
        8 * MIB,
        4 * MIB,
    ]
    assert sorted(position for group in groups for position in group.positions) == list(range(22))


def test_a_probe_names_the_missing_right_to_delete(directory_place, caplog):
    def refuse(_number, name, _keys):
        if name == "delete":
            raise AccessDeniedError("no")

    assert probe(PlaceWithFaults(directory_place, refuse)).allows_many_writers

    (record,) = caplog.records
    assert "no right to delete" in record.getMessage()
