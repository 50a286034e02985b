"""How often a copy is asked for chunks: its packs are listed rarely, and it may come back."""

import pytest

from ciuic.catalog import list_snapshots
from ciuic.copy.read_through import CopySource, ReadThrough
from ciuic.ids import ChunkId
from ciuic.store.directory.pack_files import PackFiles
from ciuic.store.place.directory import DirectoryPlace
from ciuic.store.records.kinds import DATA, TREE
from ciuic.store.store import open_store
from tests.kit.box import Box
from tests.kit.buckets import FolderMachine
from tests.kit.clock import ManualClock


def test_chunks_that_a_copy_lacks_do_not_list_its_packs_each_time(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    (box.source / "a").write_text("a")
    box.take()
    copy = box.directory / "copy"
    assert box.ciuic("copy", "--to", copy, "--init").code == 0
    listings = []
    names = PackFiles.names

    def counted(packs: PackFiles) -> set[str]:
        listings.append(packs)
        return names(packs)

    monkeypatch.setattr(PackFiles, "names", counted)
    with open_store(str(box.store)) as store:
        through = ReadThrough(store, lambda: [CopySource("copy", str(copy))])
        for number in range(50):
            assert through.chunk(ChunkId(number.to_bytes(32, "big")), DATA) is None
        through.close()
    assert 0 < len(listings) < 5


def test_a_copy_that_could_not_be_read_is_asked_again_after_some_minutes(box: Box) -> None:
    (box.source / "a").write_text("a")
    box.take()
    copy = box.directory / "copy"
    assert box.ciuic("copy", "--to", copy, "--init").code == 0
    copy.rename(box.directory / "away")
    clock = ManualClock()
    with open_store(str(box.store)) as store:
        tree = store.manifest(box.snapshots()[0].id).roots[0].tree
        through = ReadThrough(store, lambda: [CopySource("copy", str(copy))], clock=clock)
        assert through.chunk(tree, TREE) is None
        (box.directory / "away").rename(copy)
        clock.advance(299)
        assert through.chunk(tree, TREE) is None
        clock.advance(2)
        assert through.chunk(tree, TREE) is not None
        (taken,) = through.taken()
        assert taken.problem
        assert not taken.is_away
        through.close()


def test_a_copy_in_a_bucket_gives_chunks_without_its_manifests(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    (box.source / "a").write_text("a")
    box.take()
    copy = FolderMachine(box.directory / "bucket", box.directory / "copying")
    copy.init()
    for _ in range(3):
        copy.take_at(copy.place(), box.source)
    with copy.opened() as there:
        tree = there.manifest(list_snapshots(there)[0].id).roots[0].tree
    asked = []
    get = DirectoryPlace.get

    def noted(place: DirectoryPlace, key: str, bytes_max: int) -> bytes:
        asked.append(key)
        return get(place, key, bytes_max)

    monkeypatch.setattr(DirectoryPlace, "get", noted)
    monkeypatch.setenv("XDG_CACHE_HOME", str(box.directory / "reading"))
    with open_store(str(box.store)) as store:
        through = ReadThrough(store, lambda: [CopySource("copy", copy.address)])
        assert through.chunk(tree, TREE) is not None
        through.close()
    assert not [key for key in asked if key.startswith("snapshots/")]
