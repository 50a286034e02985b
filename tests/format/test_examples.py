"""docs/format.md: every example is what the code reads, and what it writes, byte for byte."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from ciuic import codec
from ciuic.catalog import list_snapshots
from ciuic.chunking import ContentChunker
from ciuic.chunking.rewritten import MAGICS, is_rewritten
from ciuic.clock import SystemClock, rfc3339
from ciuic.codec import delta, planes, sparse
from ciuic.hashing import checksum, data_id, node_id, pack_id
from ciuic.model import Entry
from ciuic.store import layout, nodes, open_store
from ciuic.store.frame import DATA, RECIPE, TREE, check_chunk, decode_frame, parse_header
from ciuic.store.header import Chunking, Header, read_header
from ciuic.store.manifest import _escaped, _unescaped, decode_manifest, encode_manifest
from ciuic.store.pack import encode_footer, read_footer, walk_frames
from ciuic.store.sealed import seal, unseal
from ciuic.store.trash import decode_forgotten, decode_retired
from ciuic.verbs.restore import RestoreRequest, restore
from ciuic.verbs.verify import verify_all
from tests.format import reader

PAGE = Path(__file__).parents[2] / "docs" / "format.md"
BLOCKS = {
    (kind, name): body
    for kind, name, body in re.findall(
        r"^```(\w+) ([\w-]+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
}


RAW_PLANES = planes.Plan(2, 0, (planes.Column(1, planes.RAW), planes.Column(1, planes.RAW)), 1.0)


def block(kind, name):
    return BLOCKS[kind, name]


def from_hex(name):
    """The bytes of an example; what follows a ``#`` is a remark."""
    return bytes.fromhex("".join([line.split("#")[0] for line in block("hex", name).splitlines()]))


def rows(name):
    return [[cell.strip() for cell in line.split("|")] for line in block("text", name).splitlines()]


@pytest.fixture
def store(tmp_path):
    """The store that stands in the page."""
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
        "pack": lambda: pack_id(data).hex(),
        "xxh3": lambda: f"{checksum(data):016x}",
    }
    assert found[function]() == result


@pytest.mark.parametrize("row", rows("paths"))
def test_paths(row):
    data, text = bytes.fromhex(row[0]), row[1]
    assert _escaped(data) == text
    assert _unescaped(text) == data
    assert reader.unescape_path(text) == data


def test_the_header_of_a_store_that_cuts_by_content(tmp_path):
    data = block("json", "content-header").encode()
    (tmp_path / layout.HEADER).write_bytes(data)
    header = read_header(str(tmp_path))
    assert header.encode() == data
    assert header.chunking == Chunking.of("content", 1024 * 1024)


def test_cuts_by_content():
    lines = [b'{"step": %d, "loss": %d}\n' % (one, one**3 % 997) for one in range(2000)]
    chunks = ContentChunker(16_384, 4096, 1024).chunks([(0, memoryview(b"".join(lines)))])
    assert [len(chunk) for _, chunk in chunks] == [
        int(one) for one in block("text", "content-cuts").split()
    ]


def test_what_is_rewritten_in_place():
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


def test_the_trash():
    data = block("json", "trash").encode()
    found = decode_forgotten(data, "cs-1a2b3c")
    assert found.data == block("json", "manifest").encode()
    assert found.forgotten_ns == found.manifest.summary.taken_ns + 86_400 * 10**9 + 5
    again = json.loads(data)
    assert again["forgotten"] == rfc3339(found.forgotten_ns)
    assert seal(again) == data
    assert reader.unseal(data)["manifest"] == found.data.decode()


def test_ciuic_brings_back_and_forgets_as_the_page_says(store):
    manifest, entry = block("json", "manifest").encode(), block("json", "trash").encode()
    (store / layout.TRASH).mkdir()
    (store / layout.TRASH / "cs-1a2b3c.json").write_bytes(entry)
    (store / layout.SNAPSHOTS / "cs-1a2b3c.json").unlink()
    with open_store(str(store), write=True) as opened:
        (one,) = opened.trash()
        opened.bring_back("cs-1a2b3c")
        assert (store / layout.SNAPSHOTS / "cs-1a2b3c.json").read_bytes() == manifest
        opened.forget(["cs-1a2b3c"], one.forgotten_ns)
    assert (store / layout.TRASH / "cs-1a2b3c.json").read_bytes() == entry
    assert list((store / layout.SNAPSHOTS).iterdir()) == []


def test_the_retired_ids(store):
    data = block("json", "retired").encode()
    assert decode_retired(data) == {"cs-0a0b0c", "cs-4d5e6f"}
    (store / layout.RETIRED).write_bytes(block("json", "retired").encode())
    with open_store(str(store), write=True) as opened:
        opened.empty_trash(["cs-0a0b0c", "cs-4d5e6f"])
        assert (store / layout.RETIRED).read_bytes() == data
        opened.empty_trash(["cs-222222"])
    ids = reader.unseal((store / layout.RETIRED).read_bytes())["ids"]
    assert ids == ["cs-0a0b0c", "cs-222222", "cs-4d5e6f"]


def test_the_digits_of_a_seal_stand_where_the_page_says():
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
    pack, footer = encode_footer(packed, len(again))
    assert (pack.hex(), again + footer) == (name, data)
    assert from_hex("frame") in data


def test_the_pack_is_as_long_as_the_page_says():
    assert f"The pack of the example store, {len(from_hex('pack')):,} bytes" in PAGE.read_text()


def test_the_zstd_payload():
    plain = b"step 1 loss 2.5\n" * 8
    assert codec.decode(codec.ZSTD, from_hex("zstd"), len(plain)) == plain
    assert f"eight times over, {len(plain)} bytes" in PAGE.read_text().replace("\n", " ")


def test_the_byte_planes():
    plain, stored = bytes.fromhex("aa803f00c0bb"), from_hex("planes")
    assert bytes(codec.decode(codec.PLANES, stored, len(plain))) == plain
    columns = (planes.Column(1, planes.RAW), planes.Column(1, planes.RAW))
    assert bytes(planes.encode(plain, planes.Plan(2, 1, columns, 1.0))) == stored
    assert reader.decode_payload(2, stored, len(plain)) == plain


def test_the_byte_planes_with_pairs():
    plain = bytes.fromhex("803f004080400041" * 31 + "803f004080400000")
    stored = from_hex("pairs")
    assert bytes(codec.decode(codec.PLANES, stored, len(plain))) == plain
    assert reader.decode_payload(2, stored, len(plain)) == plain
    # Another release of zstandard may spell its frames in another way.
    columns = (planes.Column(1, planes.ZSTD), planes.Column(1, planes.PAIRS, 0x7F))
    again = bytes(planes.encode(plain, planes.Plan(2, 0, columns, 1.0)))
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
    plan = delta.DeltaPlan(2, 0, b"", ((0, RAW_PLANES),), 1.0)
    assert bytes(delta.encode(plain, reference, plan)) == stored


def test_the_delta_in_classes():
    reference = bytes.fromhex("803f004080bf003f") + b"!"
    plain = bytes.fromhex("823f01407fbf003f") + b"?"
    stored = from_hex("delta-classes")
    assert bytes(codec.decode(codec.DELTA, stored, 9, reference)) == plain
    assert reader.decode_payload(3, stored, 9, reference) == plain
    plan = delta.DeltaPlan(2, 0, b"\x80", ((4, RAW_PLANES), (0, RAW_PLANES)), 1.0)
    assert bytes(delta.encode(plain, reference, plan)) == stored


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
    again = bytes(sparse.encode(plain, reference, width, 0))
    if width == 1:
        assert again == stored
        return
    # Two numbers are too few to find out how to store their differences: the page has it simple.
    plan = delta.DeltaPlan(2, 0, b"", ((0, RAW_PLANES),), 1.0)
    old_two, new_two = bytes.fromhex("803f803f"), bytes.fromhex("823f7f3f")
    assert again[:14] + bytes(delta.encode(new_two, old_two, plan)) == stored


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
    stored = bytes(sparse.encode(plain, reference, width, len(ends[0])))
    assert reader.decode_payload(4, stored, len(plain), reference) == plain
    assert bytes(codec.decode(codec.SPARSE, stored, len(plain), reference)) == plain


@pytest.mark.parametrize("dtype", ["<f4", "<f8", "<f2"])
def test_the_reader_of_this_page_decodes_what_ciuic_encodes(dtype):
    dice = np.random.default_rng(1)
    old = dice.normal(0, 0.02, 40_000).astype(dtype)
    new = (old * (1 + dice.normal(0, 1e-3, len(old)))).astype(dtype)
    reference, plain = old.tobytes() + b"odd", new.tobytes() + b"end"
    found = codec.encode_delta(plain, [codec.Reference(lambda: reference, 0, len(plain))], 100.0)
    assert found is not None
    assert found.codec == 3
    assert reader.decode_payload(3, bytes(found.stored), len(plain), reference) == plain


def decoded(kind, name):
    """A node of the page, its ID, and a function that reads nodes from the page."""
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
    pieces = list(nodes.iter_pieces(get, Entry(b"", 0, 0, 0, 0, 0, 0, 4112, 0, own, 1)))
    assert [(one.length_bytes, one.id) for one in pieces] == [
        (8, data_id(b"epoch 1\n")),
        (4096, b""),
        (8, data_id(b"epoch 2\n")),
    ]
    found = []
    builder = nodes.RecipeBuilder(put_into(found))
    for piece in pieces:
        builder.add(piece)
    assert builder.finish() == (own, 0)
    assert found == [data]


def test_the_recipe_with_slices():
    data, own, get = decoded(RECIPE, "recipe-slices")
    old, new = data_id(b"epoch 1\n"), data_id(b"9")
    pieces = list(nodes.iter_pieces(get, Entry(b"", 0, 0, 0, 0, 0, 0, 8, 0, own, 1)))
    assert pieces == [nodes.Piece(6, old), nodes.Piece(1, new), nodes.Piece(1, old, 7)]
    chunks = {old: memoryview(b"epoch 1\n"), new: memoryview(b"9")}
    assert b"".join(nodes.cut(chunks[one.id], one) for one in pieces) == b"epoch 9\n"
    found = []
    builder = nodes.RecipeBuilder(put_into(found))
    for piece in pieces:
        builder.add(piece)
    assert builder.finish() == (own, 0)
    assert found == [data]


def test_the_recipe_index():
    data, own, get = decoded(RECIPE, "recipe-index")
    pieces = list(nodes.iter_pieces(get, Entry(b"", 0, 0, 0, 0, 0, 0, 8224, 0, own, 2)))
    assert [one.length_bytes for one in pieces] == [8, 4096, 8] * 2
    index = nodes._index_decoder.decode(data)
    # A count is a hint: the second one is not what its child holds.
    assert [child.count for child in index.items] == [4112, 8]
    assert nodes._encoder.encode(index) == data


def test_the_tree_leaf_and_the_root():
    data, own, get = decoded(TREE, "tree-leaf")
    entries = list(nodes.iter_tree(get, own, 0))
    found = []
    builder = nodes.TreeBuilder(put_into(found))
    for entry in entries:
        builder.add(entry)
    assert builder.finish() == (own, 0)
    root_data, root_own, get = decoded(TREE, "tree-root")
    (root,) = nodes.iter_tree(get, root_own, 0)
    builder = nodes.TreeBuilder(put_into(found))
    builder.add(root)
    assert builder.finish() == (root_own, 0)
    assert found == [data, root_data]
    assert (root.name, root.content, root.level) == (b".", own, 0)
    assert [one.name for one in entries] == [b"latest", b"log", b"weights"]
    assert entries[0].content == b"weights"
    assert entries[1].xattrs == ((b"user.by", b"me"),)
    assert (entries[2].mtime_ns, entries[2].level) == (-1, 1)


def test_the_tree_index():
    data, own, get = decoded(TREE, "tree-index")
    names = [entry.name for entry in nodes._iter_entries(get, own, 1)]
    assert names == [b"latest", b"log", b"weights", b"."]
    index = nodes._index_decoder.decode(data)
    assert [(child.count, child.first) for child in index.items] == [(3, b"latest"), (1, b"zeta")]
    assert nodes._encoder.encode(index) == data


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


def test_no_example_of_the_page_is_left_out():
    here = Path(__file__)
    source = here.read_text() + here.with_name("test_parity_page.py").read_text()
    assert [name for _, name in BLOCKS if f'"{name}"' not in source] == []
