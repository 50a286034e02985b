"""Chunks of a fixed size: files are cut at its multiples, and only there."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ciuic.chunking import FixedChunker
from ciuic.store.records.header import FIXED
from ciuic.store.records.recipe_nodes import iter_pieces
from ciuic.store.store import open_store
from tests.kit.box import Box

MIB = 1024 * 1024


@given(
    st.integers(4096, 16 * MIB),
    st.integers(0, 40 * MIB),
    st.integers(0, 40 * MIB),
    st.sampled_from([4096, MIB, 4 * MIB]),
)
def test_blocks_end_where_chunks_end(size: int, start: int, end: int, block_bytes: int) -> None:
    chunker = FixedChunker(size)
    at = start
    for _ in range(20):
        if at >= end:
            break
        until = min(chunker.block_end(at, block_bytes), end)
        assert at < until <= at + max(size, block_bytes)
        assert until == end or until % size == 0
        at = until


def test_a_file_is_cut_at_multiples_of_the_length_in_the_store(tmp_path: Path) -> None:
    """The length may be longer than one read, or not divide it."""
    size = 3 * MIB + 4096
    box = Box(tmp_path, chunk_bytes=size, chunking=FIXED)
    data = bytes(range(256)) * (2 * size // 256) + b"end"
    (box.source / "image").write_bytes(data)
    box.take()
    entry = box.entries()[bytes(box.source / "image")]
    with open_store(str(box.store)) as store:
        found = [one.length_bytes for one in iter_pieces(store.reader.node, entry)]
    assert found == [size, size, 3]
    assert box.read(box.source / "image") == data
