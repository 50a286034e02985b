"""Reports about chunks that are stored as deltas."""

import itertools
import os
from pathlib import Path

import pytest

from ciuic.catalog import find_snapshot
from ciuic.report.breakdown import break_down
from ciuic.report.chunks import Frames, StoredChunk, codec_name, file_chunks
from ciuic.report.tensors import diff_tensors
from ciuic.store.store import open_store
from ciuic.view.locator import locate
from tests.kit.box import Box
from tests.kit.damage import place_of
from tests.kit.tensors import typed
from tests.verbs.test_delta_chains import training

KIB = 1024
SIZE = 1024 * KIB


@pytest.fixture
def run(tmp_path: Path) -> tuple[Box, list[bytes]]:
    """Three saves of a tensor in one place, each a difference from the one before."""
    box = Box(tmp_path, chunk_bytes=512 * KIB)
    box.chain_cost = 100
    saves = list(itertools.islice(training(size=SIZE), 3))
    for one in saves:
        (box.source / "last.st").write_bytes(typed({"w": ("F32", [SIZE // 4], one)}))
        box.take()
    return box, saves


def chunks(box: Box) -> list[StoredChunk]:
    """The headers, and both chunks of the tensor."""
    with open_store(str(box.store)) as store:
        manifest = store.manifest(find_snapshot(store, "latest").id)
        entry = locate(store, manifest, os.fsencode(box.source / "last.st")).entry
        return list(file_chunks(store, Frames(store), entry))


def test_a_delta_is_shown_with_all_its_bases(run: tuple[Box, list[bytes]]) -> None:
    box, saves = run
    headers, *found = chunks(box)
    assert headers.delta_bases == ()
    assert len(found) == 2
    for number, chunk in enumerate(found):
        versions = [one[number * 512 * KIB :][: 512 * KIB] for one in saves]
        places = [place_of(box.store, one) for one in reversed(versions)]
        assert [one.frame_bytes for one in chunk.chain] == [one.frame_bytes for one in places]
        assert chunk.delta_bases == tuple([base for one in places[:2] for base in one.delta_bases])
        assert chunk.read_bytes == sum([one.frame_bytes for one in places])
        assert [codec_name(one.codec) for one in chunk.chain] == ["delta", "delta", "planes"]
        assert chunk.stored_bytes < 0.9 * chunk.chain[-1].frame_bytes


def test_the_cost_of_reading_a_chain_is_compared_with_a_chunk_without_base(
    run: tuple[Box, list[bytes]],
) -> None:
    box, _ = run
    headers, *tensor = chunks(box)
    with open_store(str(box.store)) as store:
        found = break_down(store, find_snapshot(store, "latest").id)
    chains = found.chains

    assert (chains.deltas, chains.depth_max) == (2, 2)
    assert chains.depth_mean == pytest.approx(4 / chains.chunks)
    read_bytes = sum([one.read_bytes for one in tensor])
    read_bytes += headers.chain[0].frame_bytes
    alone_bytes = sum([one.chain[-1].frame_bytes for one in (*tensor, headers)])
    assert chains.read_bytes == read_bytes, "each frame once"
    assert chains.alone_bytes == pytest.approx(alone_bytes, rel=0.01)
    own_bytes = sum([one.chain[0].frame_bytes for one in (*tensor, headers)])
    assert chains.own_bytes == own_bytes < chains.alone_bytes < chains.read_bytes
    assert chains.read_cost == pytest.approx(read_bytes / alone_bytes, rel=0.01)
    assert found.codecs["delta"].count == 4
    # With the delta bases that the tensor needs: each chunk counts once.
    assert found.elements["F32"].stored_bytes == pytest.approx(
        sum([one.read_bytes for one in tensor]), rel=0.01
    )


def test_a_chain_with_a_missing_end_is_shown_as_far_as_it_goes(
    run: tuple[Box, list[bytes]],
) -> None:
    box, saves = run
    place = place_of(box.store, saves[0][: 512 * KIB])
    for pack in (box.store / "packs").iterdir():
        if pack.name.startswith(place.pack_id.hex()):
            pack.unlink()
    first = chunks(box)[1]
    assert len(first.chain) == 2
    assert len(first.delta_bases) == 2
    assert "gone" in first.what or "in no pack" in first.what


def test_tensors_are_compared_through_differences(run: tuple[Box, list[bytes]]) -> None:
    box, _ = run
    ids = [one.id for one in box.snapshots()]
    with open_store(str(box.store)) as store:
        pairs = [store.manifest(find_snapshot(store, one).id) for one in (ids[2], ids[0])]
        _, comparison = next(diff_tensors(store, *pairs))
        assert comparison is not None
        found = comparison(lambda *_: None)
    assert found is not None
    (change,) = found.changes
    assert change.distance is not None
    assert change.distance.elements == SIZE // 4
