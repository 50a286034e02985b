"""Writers that store the same chunks as deltas against each other's: every chunk stays readable.

docs/protocol.md, "Deltas of several writers"; tests/model/delta_rings.py walks through the cases.
"""

import itertools
import os
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ciuic.ids import SESSION_BYTES, SessionId
from ciuic.store.format.delta_graph import shortest_chains
from ciuic.store.format.frame import Frame, encode_delta_frame, encode_frame
from ciuic.store.packs.pack_writer import PackFile, publish_pack
from ciuic.store.records.kinds import DATA
from ciuic.store.records.layout import CATALOG, PACKS
from ciuic.store.store import open_store
from ciuic.system.hashing import data_id
from tests.kit.box import Box
from tests.kit.buckets import FolderMachine
from tests.kit.chance import drawn_seed
from tests.kit.older import Older

SIZE = 200 * 1024
NAMES = "wxyz"
RING = (("z", ""), ("x", "z"), ("w", ""), ("y", "w"), ("y", "x"), ("x", "y"))
"""What two writers have stored, in one order in which they may have recorded it: the one z, x and
y, the other w, y and x. Those that were recorded last would make a ring."""


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path, chunk_bytes=256 * 1024)


@pytest.fixture
def contents() -> dict[str, bytes]:
    """Four arrays that are alike."""
    dice = np.random.default_rng(7)
    first = dice.normal(0, 0.02, SIZE // 4).astype("<f4")
    return {
        name: (first + number * dice.normal(0, 1e-4, len(first))).astype("<f4").tobytes()
        for number, name in enumerate(NAMES)
    }


def framed(contents: dict[str, bytes], name: str, base: str) -> tuple[Frame, bytes]:
    content = contents[name]
    chunk = (data_id(content), content)
    if not base:
        frame, payload = encode_frame(DATA, [chunk])
        return frame, bytes(payload)
    other = contents[base]
    bases = [(data_id(other), Older(lambda: other, len(other), len(other)))]
    found = encode_delta_frame(chunk, bases, chain_cost=100)
    assert found is not None
    return found[0], bytes(found[1])


def written(
    box: Box, contents: dict[str, bytes], stored: Sequence[tuple[str, str]]
) -> list[tuple[bytes, PackFile]]:
    """Write a pack for each of these chunks."""
    done = []
    with open_store(str(box.store)) as store:
        for name, base in stored:
            pack = PackFile(str(box.store / "tmp"), store.session_id)
            pack.add(*framed(contents, name, base))
            pack_id = pack.complete()
            publish_pack(str(box.store), pack, pack_id)
            pack.close()
            done.append((pack_id, pack))
    return done


def taken(box: Box, contents: dict[str, bytes]) -> str:
    """Take a snapshot of files with these chunks, which the store has."""
    for name, content in contents.items():
        (box.source / name).write_bytes(content)
    before = {pack.name for pack in (box.store / PACKS).iterdir()}
    taken_id = box.take().id
    new = [pack for pack in (box.store / PACKS).iterdir() if pack.name not in before]
    assert sum(pack.stat().st_size for pack in new) < SIZE / 4, "only its trees are stored"
    return taken_id


def assert_readable(box: Box, contents: dict[str, bytes]) -> None:
    for name, content in contents.items():
        assert box.read(box.source / name) == content
    assert box.verify().ok
    assert box.verify(checksum=False).ok
    with open_store(str(box.store)) as store:
        for content in contents.values():
            assert store.reader.chain(data_id(content)) is not None


def test_two_writers_that_record_a_ring_leave_an_index_without_one(
    box: Box, contents: dict[str, bytes]
) -> None:
    with open_store(str(box.store), write=True) as store:
        for pack_id, pack in written(box, contents, RING):
            store.index.add_pack(pack_id, pack.size_bytes, pack.frames)
            store.index.commit()
        ids = [data_id(content) for content in contents.values()]
        assert store.index.usable(ids) == set(ids)
    taken(box, contents)
    assert_readable(box, contents)


def test_an_index_that_is_built_from_packs_in_any_order_has_no_ring(
    box: Box, contents: dict[str, bytes]
) -> None:
    done = written(box, contents, RING)
    ids = [data_id(content) for content in contents.values()]
    packs = dict(done)
    with open_store(str(box.store), write=True) as store:
        for order in itertools.permutations(packs):
            store.index.clear()
            for pack_id in order:
                store.index.add_pack(pack_id, packs[pack_id].size_bytes, packs[pack_id].frames)
            store.index.settle(lambda pack_id: packs[pack_id].frames)
            assert store.index.usable(ids) == set(ids), order


def test_an_index_that_sees_deltas_before_their_bases_has_no_ring_when_it_sees_these(
    box: Box, contents: dict[str, bytes]
) -> None:
    done = written(box, contents, RING)
    deltas = [one for one, (_, base) in zip(done, RING, strict=True) if base]
    bases = [one for one, (_, base) in zip(done, RING, strict=True) if not base]
    ids = [data_id(content) for content in contents.values()]
    with open_store(str(box.store), write=True) as store:
        for order in itertools.permutations(deltas):
            store.index.clear()
            for packs in (order, bases):
                for pack_id, pack in packs:
                    store.index.add_pack(pack_id, pack.size_bytes, pack.frames)
                store.index.settle(lambda pack_id: dict(done)[pack_id].frames)
            assert store.index.usable(ids) == set(ids), order


def test_a_delta_that_is_known_as_damaged_is_not_chosen_for_its_shorter_chain(
    box: Box, contents: dict[str, bytes]
) -> None:
    done = written(box, contents, (("z", ""), ("x", "z"), ("w", ""), ("y", "w"), ("x", "y")))
    damaged, longer = done[1][0], done[4][0]
    name = data_id(contents["x"])
    with open_store(str(box.store), write=True) as store:
        index = store.index
        for is_known in (False, True):
            if is_known:
                index.put_check(damaged, 1, 1, "damaged")
                index.drop_chunks([name])
            index.clear()
            for pack_id, pack in done:
                index.add_pack(pack_id, pack.size_bytes, pack.frames)
            index.settle(lambda pack_id: dict(done)[pack_id].frames)
            assert index.places([name])[name].pack_id == (longer if is_known else damaged)


def test_a_writer_relies_on_its_own_delta_instead_of_a_shorter_chain_in_a_condemned_pack(
    box: Box, contents: dict[str, bytes]
) -> None:
    stored = (("z", ""), ("x", "z"), ("w", ""), ("y", "w"), ("x", "y"))
    ids = [data_id(content) for content in contents.values()]
    packs = written(box, contents, stored)
    with open_store(str(box.store), write=True) as store:
        store.index.clear()
        store.index.shut_packs = frozenset([packs[1][0]])
        for pack_id, pack in packs:
            store.index.add_pack(pack_id, pack.size_bytes, pack.frames)
        assert store.index.usable(ids) == set(ids)
        store.index.settle(lambda pack_id: dict(packs)[pack_id].frames)
        assert store.index.usable(ids) == set(ids)


def test_an_index_that_is_built_from_packs_prefers_chains_without_condemned_packs(
    box: Box, contents: dict[str, bytes]
) -> None:
    done = written(box, contents, RING)
    ids = [data_id(content) for content in contents.values()]
    dice = random.Random(drawn_seed())
    with open_store(str(box.store), write=True) as store:
        for count in (1, 2, 3) * 10:
            order = dice.sample(done, len(done))
            condemned = frozenset(pack_id for pack_id, _ in order[:count])
            store.index.clear()
            store.index.shut_packs = condemned
            for pack_id, pack in order:
                store.index.add_pack(pack_id, pack.size_bytes, pack.frames)
            store.index.settle(lambda pack_id: dict(done)[pack_id].frames)
            options: dict[bytes, list[tuple[bytes, ...]]] = {}
            for _, pack in order[count:]:
                for packed in pack.frames:
                    for chunk_id, _ in packed.frame.chunks:
                        options.setdefault(chunk_id, []).append(packed.frame.delta_bases)
            assert store.index.usable(ids) == set(shortest_chains(options)), order
            store.index.shut_packs = frozenset()
            assert store.index.usable(ids) == set(ids), "readers find every chunk"


def test_a_store_with_a_ring_survives_the_loss_of_its_index_and_a_prune(
    box: Box, contents: dict[str, bytes]
) -> None:
    written(box, contents, RING)
    taken(box, contents)
    assert_readable(box, contents)
    for _ in range(2):
        (box.store / CATALOG).unlink()
        assert_readable(box, contents)
        # Garbage, so that packs are rewritten.
        (box.source / "garbage").write_bytes(os.urandom(3 * SIZE))
        gone = box.take().id
        (box.source / "garbage").unlink()
        box.take()
        assert box.ciuic("forget", gone).code == 0
        assert box.ciuic("prune", "--trash", "0").code == 0
        assert_readable(box, contents)


@pytest.mark.root
def test_the_index_has_a_delta_whose_recorded_pack_a_prune_of_a_bucket_deletes(
    box: Box, contents: dict[str, bytes], tmp_path: Path
) -> None:
    machine = FolderMachine(tmp_path / "bucket", tmp_path / "cache")
    machine.init()
    # Two packs have the same delta.
    for stored in ([("z", ""), ("x", "z")], [("x", "z")]):
        written(box, contents, stored)
    for pack in (box.store / PACKS).iterdir():
        machine.place().put(f"{PACKS}/{pack.name}", pack.read_bytes())
    for name in "xz":
        (box.source / name).write_bytes(contents[name])
    taken_id = machine.take_at(machine.place(), box.source).id
    chunk_id = data_id(contents["x"])
    with machine.opened_at(machine.place(), removes=True) as store:
        place = store.index.places([chunk_id])[chunk_id]
        assert place.delta_bases == (data_id(contents["z"]),)
        store.bucket.condemned.condemn(SessionId(os.urandom(SESSION_BYTES)), {place.pack_id})

    machine.prune()

    assert f"{place.pack_id.hex()}" not in "".join(machine.names("packs"))
    with machine.opened() as store:
        assert store.existing_index is not None
        found = store.existing_index.places([chunk_id])
    assert found[chunk_id].pack_id != place.pack_id
    machine.check(listed=[taken_id])
