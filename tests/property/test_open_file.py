"""Open files of a mount: any reads in any order, holes, and the chunks that are decoded."""

import errno
import itertools
import os
import random
import time
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic.ids import ChunkId
from ciuic.model import Entry
from ciuic.mount.chunks import Chunks
from ciuic.mount.open_file import OpenFile, hole_bytes
from ciuic.store.index.places import ChunkPlace
from ciuic.store.store import Store, open_store
from tests.kit.box import Box
from tests.kit.chance import drawn_seed

KiB = 1024
CHUNK = 64 * KiB
HOLES = (CHUNK * 5, CHUNK * 9), (CHUNK * 30, CHUNK * 41)


class Stored:
    """A file in a store, and its bytes."""

    def __init__(self, store: Store, entry: Entry, content: bytes) -> None:
        self.store = store
        self.entry = entry
        self.content = content


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    """Store a file of 50 chunks with two holes. A change in its middle makes slices."""
    box = Box(tmp_path_factory.mktemp("stored"), chunk_bytes=CHUNK)
    content = bytearray(random.Random(drawn_seed()).randbytes(50 * CHUNK - 777))
    path = box.source / "file"
    for begin, end in HOLES:
        content[begin:end] = bytes(end - begin)
    with path.open("wb") as file:
        file.truncate(len(content))
        at = 0
        for begin, end in (*HOLES, (len(content), 0)):
            os.pwrite(file.fileno(), content[at:begin], at)
            at = end
    box.take()
    with path.open("r+b") as file:
        content[CHUNK * 20 + 100 : CHUNK * 20 + 300] = b"c" * 200
        os.pwrite(file.fileno(), b"c" * 200, CHUNK * 20 + 100)
    box.take()
    with open_store(str(box.store)) as store:
        yield Stored(store, box.entries()[os.fsencode(path)], bytes(content))


class Counted(Chunks):
    """Counts the chunks that a mount reads and decodes."""

    def __init__(self, stored: Stored) -> None:
        super().__init__(stored.store.reader)
        self._read_ids: list[ChunkId] = []

    @property
    def reads(self) -> int:
        """Return the number of reads so far."""
        return len(self._read_ids)

    def _read(
        self,
        chunk_id: ChunkId,
        length_bytes: int,
        places: Mapping[ChunkId, ChunkPlace],
        *,
        lend: bool = False,
    ) -> bytes | memoryview:
        found = super()._read(chunk_id, length_bytes, places, lend=lend)
        self._read_ids.append(chunk_id)
        return found


def read(file: OpenFile, offset: int, length: int) -> bytes:
    """Return the bytes of an open file at an offset."""
    out = bytearray(length)
    count = file.read_into(offset, memoryview(out))
    assert not any(out[count:])
    return bytes(out[:count])


offsets = st.integers(0, 50 * CHUNK + 10)


@given(reads=st.lists(st.tuples(offsets, st.integers(1, 3 * CHUNK)), max_size=30))
def test_any_reads_return_the_bytes_of_the_file(
    stored: Stored, reads: list[tuple[int, int]]
) -> None:
    chunks = Chunks(stored.store.reader)
    file = OpenFile(stored.store.reader, chunks, stored.entry)
    for offset, length in reads:
        assert read(file, offset, length) == stored.content[offset : offset + length]
    chunks.close()


@given(
    start=offsets,
    steps=st.lists(st.integers(1, 2 * CHUNK), min_size=1, max_size=40),
    swaps=st.lists(st.integers(0, 38)),
)
def test_reads_in_nearly_sequential_order_return_the_bytes(
    stored: Stored, start: int, steps: list[int], swaps: list[int]
) -> None:
    """The kernel sends several requests at once."""
    begins = list(itertools.accumulate(steps, initial=start))
    ranges = list(itertools.pairwise(begins))
    for at in swaps:
        ranges[at : at + 2] = reversed(ranges[at : at + 2])
    chunks = Chunks(stored.store.reader)
    file = OpenFile(stored.store.reader, chunks, stored.entry)
    for begin, end in ranges:
        assert read(file, begin, end - begin) == stored.content[begin:end]
    chunks.close()


def test_a_random_read_decodes_only_the_chunks_that_it_needs(stored: Stored) -> None:
    chunks = Counted(stored)
    file = OpenFile(stored.store.reader, chunks, stored.entry)

    read(file, 44 * CHUNK + 10, 4 * KiB)
    assert chunks.reads == 1
    read(file, 2 * CHUNK + 10, 4 * KiB)
    assert chunks.reads == 2
    read(file, 13 * CHUNK - 2 * KiB, 4 * KiB)
    assert chunks.reads == 4
    read(file, 7 * CHUNK, 4 * KiB)
    assert chunks.reads == 4, "a hole has no chunk"
    read(file, 44 * CHUNK + 50, 4 * KiB)
    assert chunks.reads == 4, "it is still there"
    chunks.close()


def test_a_sequential_reader_finds_the_next_chunks_decoded(stored: Stored) -> None:
    chunks = Counted(stored)
    file = OpenFile(stored.store.reader, chunks, stored.entry)
    for offset in range(0, 4 * CHUNK, 16 * KiB):
        read(file, offset, 16 * KiB)
    until_s = time.monotonic() + 60
    while chunks.reads <= 8 and time.monotonic() < until_s:
        time.sleep(0.001)
    chunks.close()

    assert chunks.reads > 8, "only what was asked for was read"


def test_each_chunk_is_decoded_once_by_a_sequential_reader(stored: Stored) -> None:
    chunks = Counted(stored)
    file = OpenFile(stored.store.reader, chunks, stored.entry)
    found = b"".join(
        [read(file, offset, 128 * KiB) for offset in range(0, len(stored.content), 128 * KiB)]
    )
    chunks.close()

    assert found == stored.content
    holes = sum(end - begin for begin, end in HOLES) // CHUNK
    assert chunks.reads <= 50 - holes + 2  # and the slices around the change


def test_holes_are_found(stored: Stored) -> None:
    chunks = Counted(stored)
    file = OpenFile(stored.store.reader, chunks, stored.entry)
    size = len(stored.content)
    for begin, end in HOLES:
        assert file.seek(begin - 1, os.SEEK_DATA) == begin - 1
        assert file.seek(begin - 1, os.SEEK_HOLE) == begin
        assert file.seek(begin, os.SEEK_DATA) == end
        assert file.seek(begin + 5, os.SEEK_HOLE) == begin + 5
    assert file.seek(size - 1, os.SEEK_HOLE) == size
    for offset, whence in ((size, os.SEEK_DATA), (size, os.SEEK_HOLE), (-1, os.SEEK_DATA)):
        with pytest.raises(OSError) as caught:
            file.seek(offset, whence)
        assert caught.value.errno == errno.ENXIO
    assert hole_bytes(stored.store.reader, stored.entry) == sum(end - begin for begin, end in HOLES)
    chunks.close()
