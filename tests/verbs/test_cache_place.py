"""The cache directory of a bucket: it cannot be made, or belongs to another store."""

import shutil

import pytest

from ciuic.catalog.listing import lost_ids, read_rows
from ciuic.errors import StoreError
from ciuic.store.records import layout
from tests.kit.buckets import FolderMachine, write

pytestmark = pytest.mark.root


def test_a_file_in_the_place_of_the_cache_is_named_with_a_way_out(tmp_path):
    machine = FolderMachine(tmp_path / "bucket", tmp_path / "cache")
    machine.init()
    (tmp_path / "cache").write_text("a file")

    with pytest.raises(StoreError, match="Not a directory") as caught:
        machine.ids()
    assert "XDG_CACHE_HOME" in caught.value.hint


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
