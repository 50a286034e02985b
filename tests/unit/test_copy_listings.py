"""A copy that lacks many chunks is not listed again for each of them."""

import pytest

from ciuic.copy.read_through import CopySource, ReadThrough
from ciuic.ids import ChunkId
from ciuic.store.directory.pack_files import PackFiles
from ciuic.store.records.kinds import DATA
from ciuic.store.store import open_store
from tests.kit.box import Box


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
