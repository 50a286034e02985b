"""The cache directory of a bucket: it cannot be made, or belongs to another store."""

import os
import shutil

import pytest

from ciuic.catalog.listing import lost_ids, read_rows
from ciuic.errors import StoreError, StoreFullError
from ciuic.store.directory.cache import explained_faults
from ciuic.store.records import layout
from tests.kit.buckets import FolderMachine, write
from tests.kit.filesystems import tmpfs
from tests.kit.machine import MIB
from tests.kit.program import NOBODY

pytestmark = pytest.mark.root


def test_a_file_in_the_place_of_the_cache_is_named_with_a_way_out(tmp_path):
    machine = FolderMachine(tmp_path / "bucket", tmp_path / "cache")
    machine.init()
    (tmp_path / "cache").write_text("a file")

    with pytest.raises(StoreError, match="Not a directory") as caught:
        machine.ids()
    assert "XDG_CACHE_HOME" in caught.value.hint


@pytest.fixture
def machine(tmp_path):
    """A machine that has a snapshot."""
    machine = FolderMachine(tmp_path / "bucket", tmp_path / "cache")
    machine.init()
    write(tmp_path / "source", ["a"])
    machine.take(tmp_path / "source")
    return machine


@pytest.mark.parametrize("write", [False, True])
def test_the_cache_of_another_user_is_refused_with_a_way_out_and_left_as_it_is(machine, write):
    paths = [machine.cache, *machine.cache.rglob("*")]
    for path in paths:
        os.chown(path, NOBODY, NOBODY)

    with (
        pytest.raises(StoreError, match=r"^the cache directory .* belongs to user ") as caught,
        machine.opened(write=write),
    ):
        pass

    assert "XDG_CACHE_HOME" in caught.value.hint
    assert "store_owner" not in caught.value.hint
    assert [machine.cache, *machine.cache.rglob("*")] == paths
    assert {path.stat().st_uid for path in paths} == {NOBODY}


@pytest.mark.parametrize("name", ["", layout.SNAPSHOTS, layout.CATALOG])
def test_a_cache_that_other_users_can_write_to_is_refused_and_may_be_removed(machine, name):
    with machine.opened() as store:
        path = store.path
    os.chmod(os.path.join(path, name), 0o777)

    with pytest.raises(StoreError, match="other users can write to ") as caught:
        machine.ids()

    assert f"rm -r {path}" in caught.value.hint
    shutil.rmtree(path)
    assert len(machine.ids()) == 1


@pytest.fixture
def full_disk(tmp_path):
    """A function that fills the disk, which has 4 MiB, but for some bytes."""
    with tmpfs(tmp_path / "full", size_mib=4) as path:

        def fill(free_bytes):
            status = os.statvfs(path)
            size_bytes = status.f_bavail * status.f_frsize - free_bytes
            (path / "fill").write_bytes(bytes(size_bytes))

        fill.path = path
        yield fill


@pytest.mark.parametrize("free_bytes", [0, MIB])
def test_a_full_disk_of_the_cache_is_not_taken_for_that_of_the_store(
    tmp_path, full_disk, free_bytes
):
    machine = FolderMachine(tmp_path / "bucket", full_disk.path)
    machine.init()
    write(tmp_path / "source", ["a"])
    full_disk(free_bytes)
    write(tmp_path / "source", ["b"], 2 * MIB)

    with pytest.raises(StoreFullError, match="No space left on device") as caught:
        machine.take(tmp_path / "source")

    assert str(full_disk.path) in caught.value.message
    assert "XDG_CACHE_HOME" in caught.value.hint
    assert "store's file system" not in caught.value.hint
    (full_disk.path / "fill").unlink()
    machine.check(listed=[machine.take(tmp_path / "source").id])


def test_a_full_disk_of_the_source_of_a_copy_is_not_taken_for_that_of_the_cache(tmp_path):
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    with pytest.raises(StoreFullError) as caught, explained_faults(environ):
        raise StoreFullError(f"cannot write {tmp_path}/store/packs: No space left on device")
    assert caught.value.hint == StoreFullError.default_hint


@pytest.mark.parametrize("is_forged", [False, True])
def test_the_cache_of_another_store_adds_nothing_to_this_one(tmp_path, is_forged):
    machines = [FolderMachine(tmp_path / name, tmp_path / "cache") for name in ("one", "two")]
    caches = []
    for machine in machines:
        machine.init()
        write(tmp_path / "source", ["a"])
        machine.take(tmp_path / "source")
        with machine.opened() as store:
            caches.append(tmp_path / "cache" / "ciuic" / store.path.rpartition("/")[2])
    one, two = caches
    about = (two / layout.CACHE).read_bytes()
    (one / layout.PARITY).mkdir(exist_ok=True)
    shutil.copytree(one / layout.SNAPSHOTS, one / layout.PARITY, dirs_exist_ok=True)
    shutil.rmtree(two)
    shutil.copytree(one, two)
    if is_forged:
        (two / layout.CACHE).write_bytes(about)

    machines[1].check(listed=machines[1].ids())
    with machines[1].opened() as store:
        assert lost_ids(store, read_rows(store), ()) == []
    machines[1].prune()
