"""docs/format.md: ciuic reads every example, and writes it byte for byte."""

import itertools
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from ciuic import codec
from ciuic.catalog import list_snapshots
from ciuic.chunking import TensorChunker
from ciuic.chunking.content import ContentChunker
from ciuic.chunking.rewritten import MAGICS, is_rewritten
from ciuic.codec import dense_delta, planes, sparse_delta
from ciuic.codec.plan import PAIRS, RAW, ZSTD, Column, DeltaPlan, Plan
from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.formats.headers import Span
from ciuic.maintain.label import change_tags, set_pinned
from ciuic.model import Entry
from ciuic.restore.restore import restore
from ciuic.restore.targets import RestoreRequest
from ciuic.store.directory.find import read_header
from ciuic.store.directory.pack_file import read_footer, walk_frames
from ciuic.store.format.frame import decode_frame, parse_header
from ciuic.store.format.pack import encode_footer, end_of
from ciuic.store.format.segment import PackEnd, encode_segment
from ciuic.store.records import layout, nodes, recipe_nodes, tree_nodes
from ciuic.store.records.condemnation import is_tombstone, new_tombstone
from ciuic.store.records.header import Chunking, Header
from ciuic.store.records.kinds import DATA, RECIPE, TREE, check_chunk
from ciuic.store.records.manifest import _escaped, _unescaped, decode_manifest, encode_manifest
from ciuic.store.records.mark import decode_mark, encode_mark
from ciuic.store.records.recipe_nodes import Piece
from ciuic.store.records.retired import decode_retired
from ciuic.store.records.sealed import seal, unseal
from ciuic.store.store import open_store
from ciuic.system.clock import SystemClock, rfc3339
from ciuic.system.hashing import checksum, data_id, node_id, pack_id_of
from ciuic.verify.verify import verify_all
from tests.format import cuts, reader
from tests.kit.older import Older

PAGE = Path(__file__).parents[2] / "docs" / "format.md"
BLOCKS = {
    (kind, name): body
    for kind, name, body in re.findall(
        r"^```(\w+) ([\w-]+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
}


RAW_PLANES = Plan(2, 0, (Column(1, RAW), Column(1, RAW)), 1.0)


def block(kind, name):
    return BLOCKS[kind, name]


def from_hex(name):
    """Return the bytes of an example; a ``#`` begins a remark."""
    return bytes.fromhex("".join([line.split("#")[0] for line in block("hex", name).splitlines()]))


def rows(name):
    return [[cell.strip() for cell in line.split("|")] for line in block("text", name).splitlines()]


@pytest.fixture
def store(tmp_path):
    """The store that is on the page."""
    path = tmp_path / "store"
    for name in (layout.PACKS, layout.SNAPSHOTS, layout.TEMPORARY):
        (path / name).mkdir(parents=True)
    (path / layout.HEADER).write_text(block("json", "header"))
    (path / layout.PACKS / rows("packname")[0][0]).write_bytes(from_hex("pack"))
    (path / layout.SNAPSHOTS / "cs-1a2b3c.json").write_text(block("json", "manifest"))
    return path


@pytest.mark.parametrize("row", rows("hashes"))
def test_hashes(row):
    function, data, result = row
    data = bytes.fromhex(data)
    found = {
        "blake3": lambda: data_id(data).hex(),
        "recipe": lambda: node_id(RECIPE, data).hex(),
        "tree": lambda: node_id(TREE, data).hex(),
        "pack": lambda: pack_id_of(data).hex(),
        "xxh3": lambda: f"{checksum(data):016x}",
    }
    assert found[function]() == result


@pytest.mark.parametrize("row", rows("paths"))
def test_paths(row):
    data, text = bytes.fromhex(row[0]), row[1]
    assert _escaped(data) == text
    assert _unescaped(text) == data
    assert reader.unescape_path(text) == data


@pytest.mark.parametrize("row", rows("paths-read"))
def test_paths_with_escapes_that_were_not_needed(row):
    text, data = row[0], bytes.fromhex(row[1])
    assert _unescaped(text) == data
    assert reader.unescape_path(text) == data


@pytest.mark.parametrize("text", [*[row[0] for row in rows("paths-refused")], "/\ud800"])
def test_paths_that_are_refused(text):
    with pytest.raises(CorruptionError):
        _unescaped(text)
    with pytest.raises(reader.FormatError):
        reader.unescape_path(text)


def test_the_header_of_a_store_that_cuts_by_content(tmp_path):
    data = block("json", "content-header").encode()
    (tmp_path / layout.HEADER).write_bytes(data)
    header = read_header(str(tmp_path))
    assert header.encode() == data
    assert header.chunking == Chunking.of("content", 1024 * 1024)


def test_cuts_by_content():
    lines = [b'{"step": %d, "loss": %d}\n' % (one, one**3 % 997) for one in range(2000)]
    chunks = ContentChunker(16_384, 4096, 1024).chunks([(0, memoryview(b"".join(lines)))])
    listed = [int(one) for one in block("text", "content-cuts").split()]
    assert [len(chunk) for _, chunk in chunks] == listed
    assert cuts.cuts_by_content(b"".join(lines), masks(), 16_384, 4096, 1024) == listed


def masks():
    return {int(bits): int(mask, 16) for bits, mask in map(str.split, block_lines("masks"))}


def block_lines(name):
    return block("text", name).splitlines()


def test_the_gear_table():
    for line in block_lines("gear"):
        byte, value = line.split()
        assert cuts.gear(int(byte)) == int(value, 16)


@pytest.mark.parametrize(("average", "least"), [(256, 64), (4096, 4096), (65_536, 1024)])
def test_the_pseudocode_cuts_by_content_as_ciuic_does(average, least):
    dice = np.random.default_rng(average)
    size = 4 * average
    for length in (least - 1, least + 1, average - 1, size + 1, 40 * average):
        data = dice.integers(0, 40, length, dtype=np.uint8).tobytes()
        chunks = ContentChunker(size, average, least).chunks([(0, memoryview(data))])
        expected = [len(chunk) for _, chunk in chunks]
        assert cuts.cuts_by_content(data, masks(), size, average, least) == expected


def test_cuts_by_tensor():
    tensors = [tuple(int(one) for one in line.split()) for line in block_lines("tensors")]
    listed = [int(one) for one in block("text", "tensor-cuts").split()]
    assert cuts.cuts_by_tensor(tensors, 131_072, 300_000) == listed
    assert tensor_cuts(tensors, 131_072, 300_000) == listed


def test_the_pseudocode_cuts_by_tensor_as_ciuic_does():
    dice = np.random.default_rng(1)
    for _ in range(100):
        places = np.unique(dice.integers(0, 1_000_000, 2 * dice.integers(1, 20)))
        tensors = [(int(a), int(b)) for a, b in zip(places[::2], places[1::2], strict=False)]
        expected = tensor_cuts(tensors, 100_000, 1_000_000)
        assert cuts.cuts_by_tensor(tensors, 100_000, 1_000_000) == expected


def tensor_cuts(tensors, size, file_bytes):
    spans = [Span(first, end - first) for first, end in tensors]
    chunks = TensorChunker(spans, size).chunks([(0, memoryview(bytes(file_bytes)))])
    return [len(chunk) for _, chunk in chunks]


def test_files_that_are_rewritten_in_place():
    listed = {(int(at), bytes.fromhex(magic)) for at, magic, _ in rows("rewritten")}
    assert listed == {*MAGICS}
    for at, magic in listed:
        data = bytes(at) + magic + bytes(70_000)
        assert is_rewritten(lambda start, length, data=data: data[start : start + length])


def test_the_header(store):
    data = block("json", "header").encode()
    header = read_header(str(store))
    assert header == unseal(data, Header)
    assert header.encode() == data
    assert reader.read_header(data)["store_id"] == header.store_id


def test_the_manifest():
    data = block("json", "manifest").encode()
    manifest = decode_manifest(data, "cs-1a2b3c")
    assert encode_manifest(manifest) == data
    assert manifest.roots[0].path == b"/data/run\xff"


def test_the_marks(store):
    data = block("json", "mark").encode()
    mark = decode_mark(data, "cs-1a2b3c", 2)
    assert encode_mark(mark, "cs-1a2b3c", 2) == data
    assert reader.Store(str(store)).labels("cs-1a2b3c") == (["before-refactor"], False)
    with open_store(str(store), write=True) as opened:
        change_tags(opened, "cs-1a2b3c", add=["paper"])
        set_pinned(opened, "cs-1a2b3c", pinned=True)
    place = store / layout.MARKS / "cs-1a2b3c-2.json"
    assert place.read_bytes() == data
    assert reader.Store(str(store)).labels("cs-1a2b3c") == (list(mark.tags), True)
    place.write_bytes(data[:-1])
    assert reader.Store(str(store)).labels("cs-1a2b3c") == (["before-refactor", "paper"], True)
    (store / layout.MARKS / "cs-1a2b3c-1.json").write_bytes(data)
    assert reader.Store(str(store)).labels("cs-1a2b3c") == (["before-refactor"], True)


def test_ciuic_forgets_and_restores_snapshots_as_the_page_says(store):
    data = block("json", "mark-forgotten").encode()
    mark = decode_mark(data, "cs-1a2b3c", 1)
    assert json.loads(data)["forgotten"] == rfc3339(mark.forgotten_ns)
    before = (store / layout.SNAPSHOTS / "cs-1a2b3c.json").read_bytes()
    with open_store(str(store), write=True) as opened:
        opened.trash.forget(["cs-1a2b3c"], mark.forgotten_ns)
        assert (store / layout.MARKS / "cs-1a2b3c-1.json").read_bytes() == data
        assert reader.Store(str(store)).is_forgotten("cs-1a2b3c")
        assert reader.Store(str(store)).latest() is None
        (one,) = opened.trash.read()
        assert one.forgotten_ns == one.manifest.summary.taken_ns + 86_400 * 10**9 + 5
        opened.trash.bring_back("cs-1a2b3c")
    assert not reader.Store(str(store)).is_forgotten("cs-1a2b3c")
    assert reader.Store(str(store)).latest() == "cs-1a2b3c"
    assert (store / layout.SNAPSHOTS / "cs-1a2b3c.json").read_bytes() == before


def test_the_retired_ids(store):
    data = block("json", "retired").encode()
    assert decode_retired(data) == {"cs-0a0b0c", "cs-4d5e6f"}
    (store / layout.RETIRED).mkdir()
    first = store / layout.RETIRED / "0123456789abcdef-1.json"
    first.write_bytes(data)
    with open_store(str(store), write=True) as opened:
        opened.trash.empty(["cs-0a0b0c", "cs-4d5e6f"])
        assert list((store / layout.RETIRED).iterdir()) == [first]
        opened.trash.empty(["cs-222222"])
        name = layout.retired_name(opened.session_id, 1)
    assert first.read_bytes() == data
    ids = reader.unseal((store / layout.RETIRED / name).read_bytes())["ids"]
    assert ids == ["cs-222222"]


def test_the_tombstone():
    data = block("json", "tombstone").encode()
    assert is_tombstone(data)
    assert json.loads(data)["revoked"] == "00112233445566778899aabbccddeeff"
    assert new_tombstone().partition(b'"revoked": "')[0] == data.partition(b'"revoked": "')[0]
    assert len(data) == len(new_tombstone()) == 156


def test_the_digits_of_a_seal_are_where_the_page_says():
    data = seal({"checksum": ""})
    assert data[-4:] == b'"\n}\n'
    assert data[-68:-4] == data_id(data[:-68] + b"0" * 64 + data[-4:]).hex().encode()


def test_the_frame():
    data = from_hex("frame")
    frame = parse_header(data)
    payload = data[frame.header_bytes :]
    assert frame.encode_header() + payload == data
    plain = bytes(decode_frame(frame, payload))
    at = 0
    for name, length in frame.chunks:
        check_chunk(DATA, name, plain[at : at + length])
        at += length
    assert plain == b"epoch 1\nepoch 2\n"


def test_the_frame_with_two_delta_bases():
    data = from_hex("frame-two-bases")
    frame = parse_header(data)
    assert frame.encode_header() + b"\0" == data
    assert frame.delta_bases == (data_id(b"epoch 1\n"), data_id(b"epoch 9\n"))
    assert frame.chunks == ((data_id(b"epoch 2\n"), 8),)
    found = reader.parse_frame(data)
    assert (tuple(found.delta_bases), tuple(found.chunks)) == (frame.delta_bases, frame.chunks)
    assert found.header_length + found.stored_length == frame.total_bytes == len(data)
    with pytest.raises(UnknownFormatError, match="codec 99"):
        decode_frame(frame, data[frame.header_bytes :], b"", b"")


def test_the_pack(tmp_path):
    data, name = from_hex("pack"), rows("packname")[0][0]
    path = tmp_path / name
    path.write_bytes(data)
    with open(path, "rb") as file:
        frames = read_footer(file.fileno(), bytes.fromhex(name))
        assert list(walk_frames(file.fileno())) == frames
    again = b"CIUICPK1"
    packed = []
    for one in frames:
        packed.append(one._replace(offset_bytes=len(again)))
        end = one.offset_bytes + one.frame.total_bytes
        again += one.frame.encode_header() + data[one.offset_bytes + one.frame.header_bytes : end]
    pack, footer = encode_footer(packed, len(again), data[-48:-32])
    assert (pack.hex(), again + footer) == (name, data)
    assert from_hex("frame") in data


def test_the_segment():
    pack, name = from_hex("pack"), rows("packname")[0][0]
    data = from_hex("segment")
    end = end_of(lambda length, at: pack[at : at + length], len(pack))
    ends = [PackEnd(bytes.fromhex(name), len(pack), end)]

    assert encode_segment(ends) == data
    assert layout.segment_name(data) == rows("segmentname")[0][0]
    assert reader.ends_of_segment(data) == {name: (len(pack), end)}
    assert f"section 7, has {len(data)} bytes" in PAGE.read_text()


def test_the_pack_is_as_long_as_the_page_says():
    assert f"The pack of the example store, {len(from_hex('pack')):,} bytes" in PAGE.read_text()


def test_the_zstd_payload():
    plain = b"step 1 loss 2.5\n" * 8
    assert codec.decode(codec.ZSTD, from_hex("zstd"), len(plain)) == plain
    assert f"eight times over, {len(plain)} bytes" in PAGE.read_text().replace("\n", " ")


def test_the_byte_planes():
    plain, stored = bytes.fromhex("aa803f00c0bb"), from_hex("planes")
    assert bytes(codec.decode(codec.PLANES, stored, len(plain))) == plain
    columns = (Column(1, RAW), Column(1, RAW))
    assert bytes(planes.encode(plain, Plan(2, 1, columns, 1.0))) == stored
    assert reader.decode_payload(2, stored, len(plain)) == plain


@pytest.mark.parametrize(
    ("name", "plain", "widths"),
    [
        ("planes-4", "db0fc93f54f82dc0", (2, 1, 1)),
        ("planes-8", "182d4454fb2109406957148b0abf05c0", (4, 2, 1, 1)),
    ],
)
def test_the_byte_planes_of_wider_elements(name, plain, widths):
    data, stored = bytes.fromhex(plain), from_hex(name)
    assert bytes(codec.decode(codec.PLANES, stored, len(data))) == data
    assert reader.decode_payload(2, stored, len(data)) == data
    columns = tuple([Column(one, RAW) for one in widths])
    assert bytes(planes.encode(data, Plan(sum(widths), 0, columns, 1.0))) == stored


def test_the_byte_planes_with_pairs():
    plain = bytes.fromhex("803f004080400041" * 31 + "803f004080400000")
    stored = from_hex("pairs")
    assert bytes(codec.decode(codec.PLANES, stored, len(plain))) == plain
    assert reader.decode_payload(2, stored, len(plain)) == plain
    # Another release of zstandard may encode a frame to other bytes.
    columns = (Column(1, ZSTD), Column(1, PAIRS, 0x7F))
    again = bytes(planes.encode(plain, Plan(2, 0, columns, 1.0)))
    assert again[14 + 17 :][:5] == stored[14 + 17 :][:5] == bytes.fromhex("7f14000000")
    assert reader.decode_payload(2, again, len(plain)) == plain


def test_the_delta():
    reference, plain, stored = (
        bytes.fromhex("7e3f0240"),
        bytes.fromhex("803f0040"),
        from_hex("delta"),
    )
    assert bytes(codec.decode(codec.DELTA, stored, 4, reference)) == plain
    assert reader.decode_payload(3, stored, 4, reference) == plain
    plan = DeltaPlan(2, 0, b"", ((0, RAW_PLANES),), 1.0)
    assert bytes(dense_delta.encode(plain, reference, plan)) == stored


def test_the_delta_of_wider_elements():
    reference, plain = bytes.fromhex("feff7f3f01000040"), bytes.fromhex("0000803f00000040")
    stored = from_hex("delta-4")
    assert bytes(codec.decode(codec.DELTA, stored, 8, reference)) == plain
    assert reader.decode_payload(3, stored, 8, reference) == plain
    columns = tuple([Column(one, RAW) for one in (2, 1, 1)])
    plan = DeltaPlan(4, 0, b"", ((0, Plan(4, 0, columns, 1.0)),), 1.0)
    assert bytes(dense_delta.encode(plain, reference, plan)) == stored


def test_the_delta_in_classes():
    reference = bytes.fromhex("803f004080bf003f") + b"!"
    plain = bytes.fromhex("823f01407fbf003f") + b"?"
    stored = from_hex("delta-classes")
    assert bytes(codec.decode(codec.DELTA, stored, 9, reference)) == plain
    assert reader.decode_payload(3, stored, 9, reference) == plain
    plan = DeltaPlan(2, 0, b"\x80", ((4, RAW_PLANES), (0, RAW_PLANES)), 1.0)
    assert bytes(dense_delta.encode(plain, reference, plan)) == stored


@pytest.mark.parametrize(
    ("name", "width", "old", "new"),
    [
        ("sparse", 2, "803f" * 8, "803f803f823f803f803f803f803f7f3f"),
        ("sparse-bytes", 1, "3838b8007e38", "3839b8007c38"),
    ],
)
def test_the_sparse_deltas(name, width, old, new):
    reference, plain, stored = bytes.fromhex(old), bytes.fromhex(new), from_hex(name)
    assert bytes(codec.decode(codec.SPARSE, stored, len(plain), reference)) == plain
    assert reader.decode_payload(4, stored, len(plain), reference) == plain
    again = bytes(sparse_delta.encode(plain, reference, width, 0))
    if width == 1:
        assert again == stored
        return
    # With two numbers, the encoder has too little to choose a coding. The page uses a simple one.
    plan = DeltaPlan(2, 0, b"", ((0, RAW_PLANES),), 1.0)
    old_two, new_two = bytes.fromhex("803f803f"), bytes.fromhex("823f7f3f")
    assert again[:14] + bytes(dense_delta.encode(new_two, old_two, plan)) == stored


def test_the_sparse_delta_with_a_skip():
    reference, plain = (
        b"\xa4" + bytes.fromhex("803f" * 8),
        b"\xa5" + bytes.fromhex("803f803f823f803f803f803f803f7f3f"),
    )
    stored = from_hex("sparse-skip")
    assert bytes(codec.decode(codec.SPARSE, stored, 17, reference)) == plain
    assert reader.decode_payload(4, stored, 17, reference) == plain
    assert bytes(sparse_delta.encode(plain, reference, 2, 1))[:15] == stored[:15]


@pytest.mark.parametrize(
    ("name", "width", "old", "new"),
    [
        ("sparse-none", 4, "0000803f00000040" + "01", "0000803f00000040" + "02"),
        ("sparse-bytes-none", 1, "3838b8007e38", "3838b8007e38"),
    ],
)
def test_sparse_deltas_without_a_changed_element(name, width, old, new):
    reference, plain, stored = bytes.fromhex(old), bytes.fromhex(new), from_hex(name)
    assert bytes(codec.decode(codec.SPARSE, stored, len(plain), reference)) == plain
    assert reader.decode_payload(4, stored, len(plain), reference) == plain
    assert bytes(sparse_delta.encode(plain, reference, width, 0)) == stored


def payloads():
    """Return the codec, example, plain length and delta base of each example payload."""
    return [
        (1, "zstd", 128, b""),
        (2, "planes", 6, b""),
        (2, "planes-4", 8, b""),
        (2, "planes-8", 16, b""),
        (2, "pairs", 256, b""),
        (3, "delta", 4, bytes.fromhex("7e3f0240")),
        (3, "delta-4", 8, bytes.fromhex("feff7f3f01000040")),
        (3, "delta-classes", 9, bytes.fromhex("803f004080bf003f") + b"!"),
        (4, "sparse", 16, bytes.fromhex("803f" * 8)),
        (4, "sparse-skip", 17, b"\xa4" + bytes.fromhex("803f" * 8)),
        (4, "sparse-bytes", 6, bytes.fromhex("3838b8007e38")),
        (4, "sparse-none", 9, bytes.fromhex("0000803f00000040" + "01")),
        (4, "sparse-bytes-none", 6, bytes.fromhex("3838b8007e38")),
    ]


@pytest.mark.parametrize(("number", "name", "plain_bytes", "reference"), payloads())
def test_payloads_that_are_too_short_or_too_long_are_refused(number, name, plain_bytes, reference):
    stored = from_hex(name)
    assert len(reader.decode_payload(number, stored, plain_bytes, reference)) == plain_bytes
    # A column of pairs ignores bytes after its zstd frame, as the page says, and the last one ends
    # in such a frame.
    longer = [] if name in {"zstd", "pairs"} else [stored + b"\0"]
    for wrong in (*[stored[:end] for end in range(len(stored))], *longer):
        with pytest.raises(CorruptionError):
            codec.decode(number, wrong, plain_bytes, reference)
        with pytest.raises(reader.FormatError):
            reader.decode_payload(number, wrong, plain_bytes, reference)


@pytest.mark.parametrize("number", [3, 4])
def test_a_skip_beyond_the_end_is_refused_in_deltas(number):
    stored = bytes.fromhex({3: "080500", 4: "08050000000001"}[number])
    for end in (b"abc", b""):
        with pytest.raises(CorruptionError):
            codec.decode(number, stored + end, 3, b"old")
        with pytest.raises(reader.FormatError):
            reader.decode_payload(number, stored + end, 3, b"old")


def test_a_skip_beyond_the_end_of_byte_planes_leaves_no_elements():
    stored = bytes.fromhex("0803" + "040000000000" + "020000000000" + "010000000000" * 2) + b"xy"
    assert bytes(codec.decode(codec.PLANES, stored, 2)) == b"xy"
    assert reader.decode_payload(2, stored, 2) == b"xy"


def test_cuts_that_do_not_rise_are_refused():
    stored = from_hex("delta-classes")
    wrong = stored[:2] + b"\2\x80\x80" + stored[4:]
    reference = bytes.fromhex("803f004080bf003f") + b"!"
    with pytest.raises(CorruptionError):
        codec.decode(codec.DELTA, wrong, 9, reference)
    with pytest.raises(reader.FormatError):
        reader.decode_payload(3, wrong, 9, reference)


@pytest.mark.parametrize("dtype", ["<u4", "<u8", "<u2", "u1"])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.4])
def test_the_reader_of_this_page_decodes_sparse_deltas(dtype, share):
    dice = np.random.default_rng(1)
    old = dice.integers(0, 256, 80_000, dtype=np.uint8).view(dtype)
    new = old.copy()
    new[dice.random(len(old)) < share] += np.asarray(1, dtype)
    width = old.itemsize
    ends = (b"", b"") if width == 1 else (b"a", b"b")
    reference, plain = ends[0] + old.tobytes() + ends[1], ends[1] + new.tobytes() + ends[0]
    stored = bytes(sparse_delta.encode(plain, reference, width, len(ends[0])))
    assert reader.decode_payload(4, stored, len(plain), reference) == plain
    assert bytes(codec.decode(codec.SPARSE, stored, len(plain), reference)) == plain


@pytest.mark.parametrize("dtype", ["<f4", "<f8", "<f2"])
def test_the_reader_of_this_page_decodes_what_ciuic_encodes(dtype):
    dice = np.random.default_rng(1)
    old = dice.normal(0, 0.02, 40_000).astype(dtype)
    new = (old * (1 + dice.normal(0, 1e-3, len(old)))).astype(dtype)
    reference, plain = old.tobytes() + b"odd", new.tobytes() + b"end"
    found = codec.encode_delta(plain, [Older(lambda: reference, 0, len(plain))], 100.0)
    assert found is not None
    assert found.codec == 3
    assert reader.decode_payload(3, bytes(found.stored), len(plain), reference) == plain


def decoded(kind, name):
    """Return a node of the page, its ID, and a function that reads nodes from the page."""
    store = {
        node_id(kind, data): data
        for kind, one in ((RECIPE, "recipe-leaf"), (TREE, "tree-leaf"), (TREE, "tree-root"))
        for data in [from_hex(one)]
    }
    data = from_hex(name)
    own = node_id(kind, data)
    store[own] = data
    return data, own, lambda _, wanted: store[wanted]


def put_into(found):
    def put(kind, data):
        found.append(data)
        return node_id(kind, data)

    return put


def test_the_recipe_leaf():
    data, own, get = decoded(RECIPE, "recipe-leaf")
    pieces = list(recipe_nodes.iter_pieces(get, Entry(b"", 0, 0, 0, 0, 0, 0, 4112, 0, own, 1)))
    assert [(one.length_bytes, one.id) for one in pieces] == [
        (8, data_id(b"epoch 1\n")),
        (4096, b""),
        (8, data_id(b"epoch 2\n")),
    ]
    found = []
    builder = recipe_nodes.RecipeBuilder(put_into(found))
    for piece in pieces:
        builder.add(piece)
    assert builder.finish() == (own, 0)
    assert found == [data]


def test_the_recipe_with_slices():
    data, own, get = decoded(RECIPE, "recipe-slices")
    old, new = data_id(b"epoch 1\n"), data_id(b"9")
    pieces = list(recipe_nodes.iter_pieces(get, Entry(b"", 0, 0, 0, 0, 0, 0, 8, 0, own, 1)))
    assert pieces == [
        Piece(6, old),
        Piece(1, new),
        Piece(1, old, 7),
    ]
    chunks = {old: memoryview(b"epoch 1\n"), new: memoryview(b"9")}
    assert b"".join(recipe_nodes.cut(chunks[one.id], one) for one in pieces) == b"epoch 9\n"
    found = []
    builder = recipe_nodes.RecipeBuilder(put_into(found))
    for piece in pieces:
        builder.add(piece)
    assert builder.finish() == (own, 0)
    assert found == [data]


def test_the_recipe_index():
    data, own, get = decoded(RECIPE, "recipe-index")
    pieces = list(recipe_nodes.iter_pieces(get, Entry(b"", 0, 0, 0, 0, 0, 0, 8224, 0, own, 2)))
    assert [one.length_bytes for one in pieces] == [8, 4096, 8] * 2
    index = nodes._index_decoder.decode(data)
    assert [child.count for child in index.items] == [4112, 4112]
    assert nodes.encode_node(index) == data


def test_the_tree_leaf_and_the_root():
    data, own, get = decoded(TREE, "tree-leaf")
    entries = list(tree_nodes.iter_tree(get, own, 0))
    found = []
    builder = tree_nodes.TreeBuilder(put_into(found))
    for entry in entries:
        builder.add(entry)
    assert builder.finish() == (own, 0)
    root_data, root_own, get = decoded(TREE, "tree-root")
    root = tree_nodes.read_root(get, root_own)
    builder = tree_nodes.TreeBuilder(put_into(found))
    builder.add(root)
    assert builder.finish() == (root_own, 0)
    assert found == [data, root_data]
    assert (root.name, root.content, root.level) == (b".", own, 0)
    assert [one.name for one in entries] == [b"latest", b"log", b"weights"]
    assert entries[0].content == b"weights"
    assert entries[1].xattrs == ((b"user.by", b"me"),)
    assert (entries[2].mtime_ns, entries[2].level) == (-1, 1)


def test_the_tree_with_every_kind_of_entry():
    data, own, get = decoded(TREE, "tree-kinds")
    entries = {one.name: one for one in tree_nodes.iter_tree(get, own, 0)}
    assert nodes.encode_node([0, list(entries.values())]) == data
    _, records = reader.unpack_msgpack(data)
    same = [reader.make_entry(record) for record in records]
    assert [one.name for one in same] == list(entries)
    assert [(one.state, one.link_device, one.device) for one in same] == [
        (one.state, one.link_dev, one.rdev) for one in entries.values()
    ]
    a, b = entries[b"a"], entries[b"b"]
    assert (a.link_dev, a.ino) == (b.link_dev, b.ino) == (2049, 1010)
    assert reader.is_same_file(same[0], same[1])
    assert not reader.is_same_file(same[0], same[2])
    assert (entries[b"null"].mode, entries[b"null"].rdev) == (0o020666, 1 << 32 | 3)
    states = {name: one.state for name, one in entries.items() if one.state}
    assert states == {b"growing": 1, b"hidden": 2, b"lost": 2, b"proc": 3}


def test_the_tree_index():
    data, own, get = decoded(TREE, "tree-index")
    assert [one.name for one in itertools.islice(tree_nodes.iter_tree(get, own, 1), 3)] == [
        b"latest",
        b"log",
        b"weights",
    ]
    index = nodes._index_decoder.decode(data)
    assert [(child.count, child.first) for child in index.items] == [(3, b"latest"), (1, b"zeta")]
    assert nodes.encode_node(index) == data


def test_ciuic_restores_the_store_of_the_page(store, tmp_path):
    clock = SystemClock()
    with open_store(str(store)) as opened:
        assert verify_all(opened, checksum=True, clock=clock).ok
        (summary,) = list_snapshots(opened)
        request = RestoreRequest((b"/data/run\xff",), os.fsencode(tmp_path))
        restore(opened, opened.manifest(summary.id), request, clock=clock)
    check_restored(os.fsencode(tmp_path) + b"/run\xff")


def test_the_reader_restores_the_store_of_the_page(store, tmp_path):
    target = os.fsencode(tmp_path / "target")
    restorer = reader.Restorer(reader.Store(str(store)))
    restorer.restore("cs-1a2b3c", target)
    check_restored(target + b"/data/run\xff")


def check_restored(path):
    weights = os.path.join(path, b"weights")
    with open(weights, "rb") as file:
        assert file.read() == b"epoch 1\n" + bytes(4096) + b"epoch 2\n"
    assert os.stat(weights).st_mtime_ns == -1
    assert os.stat(weights).st_mode & 0o777 == 0o600
    assert os.readlink(os.path.join(path, b"latest")) == b"weights"
    with open(os.path.join(path, b"log"), "rb") as file:
        assert file.read() == b"epoch 1\n"
    assert os.stat(path).st_mtime_ns == 1_781_533_800_000_000_000


def test_every_example_of_the_page_is_tested():
    here = Path(__file__)
    source = here.read_text() + here.with_name("test_parity_page.py").read_text()
    assert [name for _, name in BLOCKS if f'"{name}"' not in source] == []
