"""How files are stored: every byte is shown once, with what must be read for it."""

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from ciuic.catalog import find_snapshot, list_snapshots
from ciuic.chains import snapshot_chains
from ciuic.model import SnapshotSummary
from ciuic.report.chunks import Frames, StoredChunk, file_chunks
from ciuic.store.store import open_store
from ciuic.system.hashing import data_id
from ciuic.view.locator import locate
from tests.kit.box import Box
from tests.kit.damage import erase_headers, place_of

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
        assert (frame.pack_id, frame.offset_bytes) == (place.pack_id, place.offset_bytes)
        assert one.read_bytes == frame.frame_bytes == place.frame_bytes
        assert (one.delta_bases, one.what) == ((), "")
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


def test_unreadable_chunks_are_named_and_the_rest_is_shown(box: Box) -> None:
    path = box.source / "file"
    data = os.urandom(2 * MIB)
    path.write_bytes(data)
    box.take()
    erase_headers(box.store, data[:MIB])
    first, second = chunks(box, path)
    assert first.what == "no frame starts here"
    assert (first.chain, first.read_bytes, second.what) == ((), 0, "")


def summary(name: str, kind: str, parent: str | None, taken_ns: int) -> SnapshotSummary:
    return SnapshotSummary(name, kind, parent, taken_ns, 1, 1, 1, 1, (), 0, (b"/",))


def texts(snapshots: Iterable[SnapshotSummary]) -> dict[str, str]:
    return {name: str(one) for name, one in snapshot_chains(snapshots).items()}


def test_a_chain_is_counted_from_its_base_as_far_as_it_is_there(box: Box) -> None:
    chain = [summary("a", "base", None, 1)]
    chain += [summary(one, "delta", before, at) for at, (before, one) in enumerate(["ab", "bc"], 2)]
    chain += [summary("d", "base", "c", 4), summary("e", "delta", "d", 5)]
    chain += [summary("f", "delta", "c", 6)]
    assert texts(reversed(chain)) == {"a": "0", "b": "1", "c": "2", "d": "0", "e": "1", "f": "3"}
    # A chain whose full snapshot was forgotten has at least this length.
    assert texts(chain[2:]) == {"c": "1+", "d": "0", "e": "1", "f": "2+"}
    # A clock that was ahead when the parent was taken changes nothing.
    assert texts([summary("a", "base", None, 9), summary("b", "delta", "a", 1)]) == {
        "a": "0",
        "b": "1",
    }
    # A cycle of parents is invalid.
    assert texts([summary("x", "delta", "x", 1)]) == {"x": "1+"}
    circle = texts([summary("x", "delta", "y", 1), summary("y", "delta", "x", 2)])
    assert sorted(circle.values()) == ["1+", "2+"]
    for _ in range(3):
        box.take()
    with open_store(str(box.store)) as store:
        found = list_snapshots(store)
    assert [texts(found)[one.id] for one in found] == ["2", "1", "0"]
