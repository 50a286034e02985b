"""How files are stored: every byte of each is told once, and what it takes to have it."""

import os
from pathlib import Path

import pytest

from ciuic.catalog import chain_lengths, find_snapshot, list_snapshots
from ciuic.hashing import data_id
from ciuic.model import SnapshotSummary
from ciuic.store import open_store
from ciuic.verbs.browse import locate
from ciuic.verbs.chunks import Frames, StoredChunk, file_chunks
from tests.kit.box import Box
from tests.kit.damage import flip_byte, pack_of, place_of

MIB = 1024 * 1024


def chunks(box: Box, path: Path) -> list[StoredChunk]:
    with open_store(str(box.store)) as store:
        manifest = store.manifest(find_snapshot(store, "latest").id)
        entry = locate(store, manifest, os.fsencode(path)).entry
        return list(file_chunks(store, Frames(store), entry))


def test_the_chunks_of_a_file_are_all_of_it_in_order(box: Box) -> None:
    path = box.source / "file"
    data = os.urandom(3 * MIB + 9)
    path.write_bytes(data)
    box.take()
    found = chunks(box, path)

    assert b"".join(data[one.offset_bytes :][: one.length_bytes] for one in found) == data
    assert [one.id for one in found] == [
        data_id(data[at : at + MIB]) for at in range(0, len(data), MIB)
    ]
    for one in found:
        place = place_of(box.store, data[one.offset_bytes : one.offset_bytes + one.length_bytes])
        (frame,) = one.chain
        assert (frame.pack, frame.offset_bytes) == (place.pack, place.offset_bytes)
        assert one.read_bytes == frame.frame_bytes == place.frame_bytes
        assert (one.references, one.what) == ((), "")
    assert sum([one.stored_bytes for one in found[:3]]) == pytest.approx(3 * MIB, rel=0.001)


def test_chunks_that_share_a_frame_share_what_it_takes(box: Box) -> None:
    for number in range(10):
        (box.source / f"{number}").write_bytes(os.urandom(1000))
    box.take()
    found = [chunks(box, box.source / f"{number}")[0] for number in range(10)]

    frames = {one.chain[0] for one in found}
    assert len(frames) < 10
    assert sum([one.stored_bytes for one in found]) == pytest.approx(
        sum([one.frame_bytes for one in frames]), abs=10
    )


def test_holes_take_nothing(box: Box) -> None:
    path = box.source / "holes"
    with path.open("wb") as file:
        file.truncate(5 * MIB)
        file.seek(2 * MIB)
        file.write(b"data")
    box.take()
    found = chunks(box, path)

    holes = [one for one in found if not one.id]
    assert sum([one.length_bytes for one in holes]) >= 3 * MIB
    assert {(one.stored_bytes, one.read_bytes, one.chain) for one in holes} == {(0, 0, ())}
    assert sum([one.length_bytes for one in found]) == 5 * MIB


def test_what_can_not_be_told_is_named_and_the_rest_is_told(box: Box) -> None:
    path = box.source / "file"
    data = os.urandom(2 * MIB)
    path.write_bytes(data)
    box.take()
    place = place_of(box.store, data[:MIB])
    flip_byte(pack_of(box.store, data[:MIB]), place.offset_bytes + 20)
    first, second = chunks(box, path)
    assert "checksum" in first.what
    assert (first.chain, first.read_bytes, second.what) == ((), 0, "")


def summary(name: str, kind: str, parent: str | None, taken_ns: int) -> SnapshotSummary:
    return SnapshotSummary(name, kind, parent, taken_ns, 1, 1, 1, 1, (), 0, (b"/",))


def test_a_chain_is_counted_from_its_base_as_far_as_it_is_there(box: Box) -> None:
    chain = [summary("a", "base", None, 1)]
    chain += [summary(one, "delta", before, at) for at, (before, one) in enumerate(["ab", "bc"], 2)]
    chain += [summary("d", "base", "c", 4), summary("e", "delta", "d", 5)]
    assert chain_lengths(reversed(chain)) == {"a": 0, "b": 1, "c": 2, "d": 0, "e": 1}
    assert chain_lengths(chain[2:]) == {"c": 0, "d": 0, "e": 1}
    # A parent that comes later, or is the snapshot itself, is a lie.
    assert chain_lengths([summary("x", "delta", "x", 1)]) == {"x": 1}
    assert chain_lengths([summary("x", "delta", "y", 1), summary("y", "delta", "x", 2)]) == {
        "x": 1,
        "y": 2,
    }
    for _ in range(3):
        box.take()
    with open_store(str(box.store)) as store:
        found = list_snapshots(store)
    assert [chain_lengths(found)[one.id] for one in found] == [2, 1, 0]
