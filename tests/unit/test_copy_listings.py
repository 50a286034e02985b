"""How often a copy is asked for chunks: its packs are listed rarely, and it may come back."""

import pytest

from ciuic.copy.read_through import CopySource, ReadThrough
from ciuic.ids import ChunkId
from ciuic.store.directory.pack_files import PackFiles
from ciuic.store.records.kinds import DATA, TREE
from ciuic.store.store import open_store
from tests.kit.box import Box
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
