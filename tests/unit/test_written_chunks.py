"""Chunks are read again from the files that a restore has just written."""

import contextlib
import os

import pytest

from ciuic.restore.place.far import written_chunks
from ciuic.restore.place.far.written_chunks import WrittenChunks
from ciuic.store.records.recipe_nodes import Piece
from ciuic.system.hashing import data_id
from ciuic.view.chunk_plan import Part

LENGTHS = (100_001, 200_000, 70_000, 65_537)


@pytest.fixture
def written():
    chunks = WrittenChunks()
    yield chunks
    chunks.close()


def put(written, path, seed=0):
    """Write a file of some chunks, and note them; returns the chunks by their IDs."""
    chunks = [bytes([seed + number]) * length for number, length in enumerate(LENGTHS)]
    path.write_bytes(b"".join(chunks))
    parts, offset = [], 0
    for chunk in chunks:
        parts.append(Part(offset, Piece(len(chunk), data_id(chunk))))
        offset += len(chunk)
    with path.open("rb") as file:
        written.add(written.add_file(file.fileno()), parts)
    return {data_id(chunk): chunk for chunk in chunks}


def read(written, chunk_id, length):
    with written.lend(chunk_id, length) as found:
        return None if found is None else bytes(found)


def opened(directory):
    """Return the names of the files in a directory that this process has open."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing, or of another thread
            found.append(os.path.split(os.readlink(f"/proc/self/fd/{fd}")))
    return sorted(name for top, name in found if top == str(directory))


def test_a_chunk_is_read_from_anywhere_in_a_file_also_under_another_name(written, tmp_path):
    chunks = put(written, tmp_path / "temporary")
    (tmp_path / "temporary").rename(tmp_path / "name")

    for chunk_id, chunk in chunks.items():
        assert chunk_id in written
        assert read(written, chunk_id, len(chunk)) == chunk


def test_a_slice_of_a_chunk_is_not_the_chunk(written, tmp_path):
    (tmp_path / "file").write_bytes(bytes(300_000))
    chunk_id = data_id(bytes(300_000))
    with (tmp_path / "file").open("rb") as file:
        number = written.add_file(file.fileno())
    written.add(number, [Part(0, Piece(100_000, chunk_id)), Part(100_000, Piece(9, chunk_id, 7))])

    assert read(written, chunk_id, 300_000) is None


def test_a_file_that_has_become_shorter_has_the_chunk_no_more(written, tmp_path):
    chunks = put(written, tmp_path / "file")
    os.truncate(tmp_path / "file", 300_001 + 1000)

    found = [read(written, chunk_id, len(chunk)) for chunk_id, chunk in chunks.items()]

    assert found == [*list(chunks.values())[:2], None, None]


def test_the_oldest_files_and_chunks_are_forgotten(written, tmp_path, monkeypatch):
    monkeypatch.setattr(written_chunks, "_FILES_MAX", 2)
    files = [put(written, tmp_path / f"{number}", 10 * number) for number in range(4)]

    assert [next(iter(chunks)) in written for chunks in files] == [False, False, True, True]
    assert read(written, next(iter(files[0])), LENGTHS[0]) is None
    assert opened(tmp_path) == ["2", "3"]

    monkeypatch.setattr(written_chunks, "_CHUNKS_MAX", 5)
    last = put(written, tmp_path / "last", 90)
    assert len(written._chunks) == 5
    assert all(chunk_id in written for chunk_id in last)

    written.close()
    assert opened(tmp_path) == []
