"""Frames with two delta bases: no codec of today writes one, and every command follows both."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from ciuic.codec import decoding
from ciuic.errors import CorruptionError
from ciuic.ids import ChunkId
from ciuic.report.chunks import Frames, file_chunks
from ciuic.store.format.delta_graph import count_deltas
from ciuic.store.format.frame import Frame
from ciuic.store.packs.writer import StoreWriter
from ciuic.store.records.kinds import CHAIN_MAX, DATA, TREE
from ciuic.store.store import open_store
from ciuic.system.hashing import checksum, data_id
from ciuic.view.locator import Locator
from tests.kit.box import Box
from tests.kit.damage import flip_content
from tests.kit.hostile import HOSTILE, commit, file, node

CODEC = 99
DAMAGE = 4
SIZE = 70_000


def xor(one: bytes, other: bytes) -> bytes:
    return bytes([a ^ b for a, b in zip(one, other, strict=True)])


A, B = os.urandom(SIZE), os.urandom(SIZE)
C = xor(A, B)


@pytest.fixture
def _codec(monkeypatch: pytest.MonkeyPatch) -> None:
    """A codec whose payload is one byte that is added to the first byte of both bases' XOR."""

    def decode(stored: bytes, plain_bytes: int, delta_bases: Sequence[bytes]) -> bytes:
        plain = bytearray(xor(*map(bytes, delta_bases)))
        plain[0] = (plain[0] + stored[0]) % 256
        assert len(plain) == plain_bytes
        return bytes(plain)

    monkeypatch.setitem(decoding._DECODERS, CODEC, decode)
    monkeypatch.setitem(decoding.BASE_COUNTS, CODEC, 2)


def put(writer: StoreWriter, plain: bytes, bases: tuple[bytes, ...], added: int = 0) -> bytes:
    """Store a chunk as a delta of two bases."""
    payload = bytes([added])
    table = ((data_id(plain), len(plain)),)
    bases_ids = tuple([data_id(base) for base in bases])
    frame = Frame(DATA, CODEC, bases_ids, len(plain), 1, checksum(payload), table)
    writer._put(frame, payload)
    return data_id(plain)


@pytest.fixture
def hostile(box: Box) -> Box:
    """A store with a snapshot of ``c``: a delta of two chunks that no other snapshot needs."""
    for name, content in (("a", A), ("b", B), ("garbage", os.urandom(300_000))):
        (box.source / name).write_bytes(content)
    old = box.take().id

    def spelled(writer: StoreWriter) -> bytes:
        return node(writer, TREE, 0, [file(b"c", put(writer, C, (A, B)), SIZE)])

    commit(box.store, box.source, spelled)
    with open_store(str(box.store), write=True) as store:
        store.trash.forget([old], box.clock.now_ns())
    return box


def content(box: Box) -> bytes:
    with open_store(str(box.store)) as store:
        return bytes(store.reader.chunk(data_id(C), kind=DATA))


@pytest.mark.usefixtures("_codec")
@pytest.mark.parametrize("has_index", [True, False])
def test_prune_keeps_both_delta_bases(hostile: Box, has_index: bool) -> None:
    for _ in range(2):
        if not has_index:
            (hostile.store / "catalog.sqlite").unlink()
        pruned = hostile.ciuic("prune", "--trash", "0", "--json")
        assert pruned.code == 0, pruned.err
        assert content(hostile) == C
        assert hostile.verify().ok
    with open_store(str(hostile.store)) as store:
        assert store.reader.places([data_id(C)])[data_id(C)].delta_bases == (data_id(A), data_id(B))
        listed = store.reader.places([data_id(one) for one in (A, B)])
        assert len(listed) == 2
        assert sum(store.pack_lengths()) < 2 * SIZE + 20_000, "the garbage is gone"


@pytest.mark.usefixtures("_codec")
@pytest.mark.parametrize("base", [A, B])
@pytest.mark.parametrize("checksums", [True, False])
def test_verify_names_a_damaged_delta_base_whichever_it_is(
    hostile: Box, base: bytes, checksums: bool
) -> None:
    assert hostile.verify(checksum=checksums).ok
    if checksums:
        flip_content(hostile.store, base)
    else:
        with open_store(str(hostile.store), write=True) as store:
            place = store.reader.places([data_id(base)])[data_id(base)]
        os.truncate(hostile.store / "packs" / place.pack_id.hex(), place.offset_bytes + 200)

    report = hostile.verify(checksum=checksums)

    (damaged,) = [one for one in report.snapshots if one.id == HOSTILE]
    assert [one.path for one in damaged.damaged] == [os.fsencode(hostile.source / "c")]
    with pytest.raises(CorruptionError, match="delta base"):
        content(hostile)


@pytest.mark.usefixtures("_codec")
def test_the_report_of_chunks_lists_both_delta_bases(hostile: Box) -> None:
    with open_store(str(hostile.store)) as store:
        manifest = store.manifest(HOSTILE)
        found = Locator(store, manifest).find(os.fsencode(hostile.source / "c"))
        assert found is not None
        (chunk,) = file_chunks(store, Frames(store), found.entry)
    assert chunk.delta_bases == (data_id(A), data_id(B))
    assert len(chunk.chain) == 3


def test_a_ciuic_without_the_codec_names_it_and_keeps_both_bases(hostile: Box) -> None:
    assert hostile.ciuic("prune", "--trash", "0").code == 0

    verified = hostile.ciuic("verify", "--all", "--checksum")

    assert verified.code == DAMAGE
    assert "codec 99 is not known" in hostile.ciuic("cat", HOSTILE, hostile.source / "c").err
    with open_store(str(hostile.store)) as store:
        assert len(store.reader.places([data_id(A), data_id(B), data_id(C)])) == 3


@pytest.mark.usefixtures("_codec")
def test_a_graph_of_deltas_counts_each_as_often_as_it_is_reached(box: Box) -> None:
    """64 frames, each with the one before as both of its bases, would need 2^64 decodings."""
    plain = [bytes([number]) + bytes(99) for number in (0, *range(1, 41))]

    def spelled(writer: StoreWriter) -> bytes:
        writer.add_data([(data_id(plain[0]), plain[0])])
        files = [file(b"00", data_id(plain[0]), 100)]
        for number in range(1, len(plain)):
            bases = (plain[number - 1], plain[number - 1])
            name = put(writer, plain[number], bases, added=number)
            files.append(file(b"%02d" % number, name, 100))
        return node(writer, TREE, 0, files)

    commit(box.store, box.source, spelled, files=len(plain))
    readable = []
    with open_store(str(box.store)) as store:
        for number in reversed(range(len(plain))):
            try:
                store.reader.chunk(data_id(plain[number]), kind=DATA)
                readable.append(number)
            except CorruptionError as error:
                assert "more than 64 deltas" in error.message

    assert readable == [6, 5, 4, 3, 2, 1, 0]  # 2^6 - 1 deltas are 63
    for has_index in (True, False):
        if not has_index:
            (box.store / "catalog.sqlite").unlink()
        for checksums in (True, False):
            (report,) = box.verify(checksum=checksums).snapshots
            named = sorted([os.path.basename(one.path) for one in report.damaged])
            assert named == [b"%02d" % number for number in range(7, len(plain))]


def chunk_id(number: int) -> ChunkId:
    return ChunkId(number.to_bytes(32, "little"))


def test_deltas_are_counted_in_a_graph() -> None:
    one, two, three, four, five = map(chunk_id, range(1, 6))
    graph = {one: (), two: (one,), three: (one, two), four: (three, three), five: (chunk_id(9),)}

    assert count_deltas(graph) == {one: 0, two: 1, three: 2, four: 5}
    assert count_deltas({one: (two,), two: (one,), three: (one,)}) == {}


def test_a_chain_has_as_many_deltas_as_are_allowed_and_no_more() -> None:
    chain: dict[ChunkId, tuple[ChunkId, ...]] = {chunk_id(0): ()}
    chain |= {chunk_id(number): (chunk_id(number - 1),) for number in range(1, CHAIN_MAX + 3)}

    counts = count_deltas(chain)

    assert max(counts.values()) == CHAIN_MAX
    assert len(counts) == CHAIN_MAX + 1


def test_a_store_without_the_codec_lists_its_paths(hostile: Box, tmp_path: Path) -> None:
    out = hostile.ciuic("restore", "-s", HOSTILE, "-p", hostile.source, "-d", tmp_path / "o")

    assert out.code == DAMAGE
    assert "codec 99" in out.err + out.out
