"""A log that was started again after a snapshot. Its length in the snapshot then means nothing."""

import json
import os
from pathlib import Path

import pytest

from ciuic.store.packs.reader import StoreReader
from ciuic.store.records.recipe_nodes import Piece
from ciuic.store.store import open_store
from ciuic.system.hashing import data_id
from ciuic.timeline import stored
from ciuic.timeline.placing import Offsets, read_logs
from ciuic.timeline.stored import Beginnings
from ciuic.view.locator import Locator
from tests.kit.box import Box
from tests.kit.damage import flip_content
from tests.kit.spelled import commit_spelled

KIB = 1024


def lines(steps: range, loss: float, **more: object) -> str:
    return "".join(json.dumps({"step": step, "loss": loss, **more}) + "\n" for step in steps)


@pytest.mark.parametrize("count", [5, 20_000], ids=["small", "longer than what is read of it"])
def test_a_snapshot_of_an_earlier_log_is_placed_where_that_log_ends(box: Box, count: int) -> None:
    log = box.source / "train.jsonl"
    log.write_text(lines(range(1, count + 1), 9.5, note="longer lines than those that come later"))
    earlier = box.take().id
    log.write_text(lines(range(1, 4 * count), 0.1))
    later = box.take().id

    found = box.ciuic("timeline", "--log", log, "--json").document["snapshots"]
    text = box.ciuic("timeline", "--log", log)
    compared = box.ciuic("compare", earlier, later, "--log", log, "--json").document["snapshots"]

    told = {one["id"]: (one["step"], one["value"], one["placed_by"]) for one in found}
    assert told == {
        earlier: (count, 9.5, "stored"),
        later: (4 * count - 1, 0.1, "log"),
    }
    assert "1 snapshot holds a log that has been started over" in text.err
    assert [one["step"] for one in compared] == [count, 4 * count - 1]
    assert [one["metrics"]["loss"] for one in compared] == [9.5, 0.1]


def test_a_damaged_log_with_another_beginning_gives_no_step(box: Box) -> None:
    log = box.source / "train.jsonl"
    content = lines(range(50), 9.5)
    log.write_text(content)
    box.take()
    flip_content(box.store, content.encode())
    log.write_text(lines(range(500), 0.1))

    found = box.ciuic("timeline", "--log", log, "--json")

    assert found.code == 0, found.err
    assert [one["step"] for one in found.document["snapshots"]] == [None]


OLD = os.urandom(300 * KIB)
NEW = os.urandom(4 * KIB)
AT, HOLE = 100 * KIB, 2000 * KIB
CONTENT = OLD[:AT] + NEW + OLD[AT + len(NEW) :] + bytes(HOLE) + NEW
PIECES = (
    Piece(AT, data_id(OLD)),
    Piece(len(NEW), data_id(NEW)),
    Piece(len(OLD) - AT - len(NEW), data_id(OLD), AT + len(NEW)),
    Piece(HOLE, b""),
    Piece(len(NEW), data_id(NEW)),
)


def test_a_log_of_whole_chunks_slices_and_holes_is_compared_byte_by_byte(box: Box) -> None:
    log = box.source / "log"
    log.write_bytes(OLD)
    box.take()
    commit_spelled(box.store, b"log", PIECES, chunks=[NEW])
    ends = (0, AT, AT + len(NEW), len(OLD), len(OLD) + HOLE, len(CONTENT))
    places = sorted({min(max(end + by, 0), len(CONTENT) - 1) for end in ends for by in (-1, 0)})
    with open_store(str(box.store)) as store:
        newest = box.snapshots()[0]
        found = Locator(store, store.manifest(newest.id)).find(os.fsencode(log))
        assert found is not None

        def is_beginning(content: bytes) -> bool:
            log.write_bytes(content)
            with log.open("rb") as file:
                return Beginnings(store, file).has(found.entry)

        assert is_beginning(CONTENT)
        assert is_beginning(CONTENT + b"more")
        assert not is_beginning(CONTENT[:-1])
        assert not is_beginning(b"")
        for place in places:
            other = bytes([CONTENT[place] ^ 1])
            assert not is_beginning(CONTENT[:place] + other + CONTENT[place + 1 :]), place
    assert found.entry.size_bytes == len(CONTENT)


def test_many_snapshots_of_a_log_cause_about_one_read_of_it_and_read_no_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk_bytes, count = 4 * KIB, 40
    box = Box(tmp_path, chunk_bytes=chunk_bytes)
    log = box.source / "train.jsonl"
    for number in range(count):
        with log.open("a") as file:
            file.write(lines(range(100 * number, 100 * number + 100), 1.0))
        box.take()
    hashed: list[int] = []
    chunks: list[object] = []
    read_chunk = StoreReader.chunk

    def count_hash(plain: bytes) -> bytes:
        hashed.append(len(plain))
        return data_id(plain)

    def count_chunk(self: StoreReader, chunk_id: bytes, **how: object) -> object:
        chunks.append(how["kind"])
        return read_chunk(self, chunk_id, **how)

    monkeypatch.setattr(stored, "data_id", count_hash)
    monkeypatch.setattr(StoreReader, "chunk", count_chunk)
    offsets = Offsets()
    with open_store(str(box.store)) as store:
        snapshots = box.snapshots()
        wanted = [(os.fsencode(log), ["loss"])]
        found = read_logs(store, snapshots, wanted, offsets=offsets, read=lambda *_: None)
        steps = [place and place.step for place in map(found.place, snapshots[::-1])]
        assert steps == [100 * number + 99 for number in range(count)]
        assert sum(hashed) <= log.stat().st_size + count * chunk_bytes
        assert stored.DATA not in chunks

        log.write_text(lines(range(7), 5.0) + log.read_text())
        for _ in range(2):
            chunks.clear()
            found = read_logs(store, snapshots, wanted, offsets=offsets, read=lambda *_: None)
            told = {place and place.by for place in map(found.place, snapshots)}
            assert told == {"stored"}
        assert stored.DATA not in chunks, "the ends of logs are kept"
