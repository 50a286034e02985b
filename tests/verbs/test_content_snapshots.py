"""Snapshots of files cut by content: moved bytes are not stored again."""

import json
import os
import random
import sqlite3
from pathlib import Path

import pytest

from ciuic.store.directory.find import read_header
from ciuic.store.records.header import CONTENT, FIXED, TENSORS, Chunking
from ciuic.store.records.recipe_nodes import HOLE, iter_pieces
from ciuic.store.store import open_store
from tests.kit.box import Box

KIB = 1024
MIB = 1024 * KIB
CHUNK = 64 * KIB


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path, chunk_bytes=CHUNK, chunking=CONTENT)


def pieces(box: Box, path: Path) -> list[int]:
    """Lengths of a file's pieces; those of holes are negative."""
    with open_store(str(box.store)) as store:
        entry = box.entries()[bytes(path)]
        found = iter_pieces(store.reader.node, entry)
        return [-one.length_bytes if one.id == HOLE else one.length_bytes for one in found]


def vocabulary(seed: int) -> bytes:
    """The vocabulary of a tokenizer."""
    dice = random.Random(seed)
    words = {dice.randbytes(6).hex(): one for one in range(60_000)}
    return json.dumps(words, indent=1).encode()


def test_an_insertion_costs_a_few_chunks_wherever_it_is(box: Box) -> None:
    path = box.source / "tokenizer.json"
    content = vocabulary(1)
    path.write_bytes(content)
    box.take()
    for at in (0, len(content) // 2, len(content) - 3):
        path.write_bytes(content[:at] + b'"inserted": 1,' + content[at:])
        report = box.take()
        assert report.new_bytes <= 4 * CHUNK
        assert report.read_bytes == path.stat().st_size
        assert box.read(path) == path.read_bytes()
    assert box.verify().ok


def test_a_log_whose_head_was_rotated_away_is_there_already(box: Box) -> None:
    path = box.source / "train.jsonl"
    dice = random.Random(2)
    lines = [b'{"step": %d, "loss": %f}\n' % (one, dice.random()) for one in range(80_000)]
    path.write_bytes(b"".join(lines))
    box.take()
    path.write_bytes(b"".join(lines[30_001:]))
    assert box.take().new_bytes <= 4 * CHUNK
    assert box.read(path) == b"".join(lines[30_001:])


@pytest.mark.parametrize("kind", [FIXED, TENSORS])
def test_stores_of_the_other_kinds_cut_as_ever(tmp_path: Path, kind: str) -> None:
    box = Box(tmp_path, chunk_bytes=CHUNK, chunking=kind)
    path = box.source / "tokenizer.json"
    path.write_bytes(vocabulary(1))
    box.take()
    whole, rest = divmod(path.stat().st_size, CHUNK)
    assert pieces(box, path) == [CHUNK] * whole + [rest]
    path.write_bytes(b"[" + vocabulary(1))
    assert box.take().new_bytes == path.stat().st_size


def test_a_library_without_its_extension_is_not_used(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ciuic.chunking.content.IS_COMPILED", False)
    path = box.source / "tokenizer.json"
    path.write_bytes(vocabulary(1))
    box.take()
    assert set(pieces(box, path)[:-1]) == {CHUNK}


def test_init_options_set_how_files_are_cut(box: Box, tmp_path: Path) -> None:
    for number, (arguments, expected) in enumerate(
        {
            (): Chunking("content", MIB, MIB // 2, MIB // 8),
            ("--chunk-size", "64K"): Chunking("content", CHUNK, CHUNK // 2, CHUNK // 8),
            ("--chunk-average", "64K"): Chunking("content", MIB, CHUNK, CHUNK // 4),
            ("--chunk-least", "64K"): Chunking("content", MIB, MIB // 2, CHUNK),
            ("--chunking", "tensors"): Chunking("tensors", MIB),
            ("--chunking", "fixed", "--chunk-size", "64K"): Chunking("fixed", CHUNK),
        }.items()
    ):
        store = tmp_path / f"made {number}"
        assert box.ciuic("--store", store, "init", *arguments).code == 0
        assert read_header(str(store)).chunking == expected


def test_files_that_are_written_in_place_are_cut_at_fixed_places(box: Box) -> None:
    path = box.source / "runs.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE run (name)")
        rows = [(random.Random(one).randbytes(500).hex(),) for one in range(1000)]
        database.executemany("INSERT INTO run VALUES (?)", rows)
    database.close()
    box.take()
    whole, rest = divmod(path.stat().st_size, CHUNK)
    assert whole > 10
    assert pieces(box, path) == [CHUNK] * whole + ([rest] if rest else [])


def test_a_file_of_one_chunk_is_not_cut(box: Box) -> None:
    for size in (CHUNK, CHUNK + 1):
        path = box.source / str(size)
        path.write_bytes(random.Random(size).randbytes(size))
    box.take()
    assert len(pieces(box, box.source / str(CHUNK + 1))) > 1
    assert box.entries()[bytes(box.source / str(CHUNK))].level == 0


def test_holes_end_chunks_and_the_chunks_after_them_are_found_again(box: Box) -> None:
    path, other = box.source / "sparse", box.source / "dense"
    data = random.Random(3).randbytes(20 * CHUNK)
    with path.open("wb") as file:
        file.write(b"head")
        file.seek(10 * CHUNK)
        file.write(data)
        file.truncate(40 * CHUNK)
    other.write_bytes(data)
    box.take()
    found = pieces(box, path)
    at = found.index(-(10 * CHUNK - 4096))
    assert sum(found[:at]) == 4096
    assert found[at + 1 : -1] == pieces(box, other)
    box.restore(to=box.directory / "out")
    back = box.directory / "out" / "source" / "sparse"
    assert back.read_bytes() == path.read_bytes()
    assert back.stat().st_blocks <= path.stat().st_blocks


def test_chunks_lie_across_the_blocks_that_are_read(tmp_path: Path) -> None:
    box = Box(tmp_path, chunking=CONTENT)
    path = box.source / "large.bin"
    path.write_bytes(random.Random(4).randbytes(13 * MIB + 5))
    box.take()
    found = pieces(box, path)
    ends = {sum(found[: one + 1]) for one in range(len(found) - 1)}
    assert not ends & {4 * MIB, 8 * MIB, 12 * MIB}
    assert max(found) <= MIB
    assert box.read(path) == path.read_bytes()


def test_a_file_that_is_written_while_it_is_read_has_every_byte_it_had_then(box: Box) -> None:
    path = box.source / "growing.log"
    path.write_bytes(vocabulary(5))
    box.take()
    with path.open("ab") as file:
        file.write(vocabulary(6))
        file.flush()
        os.fsync(file.fileno())
        box.take()
    assert box.read(path) == path.read_bytes()
    assert box.verify().ok
