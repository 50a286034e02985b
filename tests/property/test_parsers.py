"""For any bytes in a store, every parser returns, or raises an error of ciuic.

Random bytes hardly ever pass a checksum. So most tests here give hostile content correct checksums,
as an attacker with write access to the store would.
"""

import contextlib
import itertools
import json
import os
import tracemalloc

import msgspec
import zstandard
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ciuic import codec
from ciuic.chunking.content import ContentChunker
from ciuic.codec import planes
from ciuic.codec.plan import PAIRS, RAW, ZSTD, Column, Plan
from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.model import Entry, ExcludeRules, PathWarning, Root, SnapshotSummary
from ciuic.store.directory import find, pack_file
from ciuic.store.format import frame, pack
from ciuic.store.records import header, kinds, layout, manifest, recipe_nodes, sealed, tree_nodes
from ciuic.system.hashing import checksum, data_id, node_id, pack_id_of

REFUSED = (CorruptionError, UnknownFormatError)
ids = st.binary(min_size=32, max_size=32)
u16, u32, u64 = [st.integers(0, 2**bits - 1) for bits in (16, 32, 64)]


def call(parse, *arguments):
    """Return the result, or None after an error that a parser may raise."""
    try:
        return parse(*arguments)
    except REFUSED:
        return None


@contextlib.contextmanager
def opened(data):
    fd = os.memfd_create("pack")
    try:
        os.write(fd, data)
        yield fd
    finally:
        os.close(fd)


@st.composite
def mutations(draw, valid):
    """Return ``valid`` with some bytes changed, removed or inserted, or its end cut off."""
    data = bytearray(valid)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        what = draw(st.sampled_from(["set", "cut", "insert", "end"]))
        if what == "set" and at < len(data):
            data[at] = draw(st.integers(0, 255))
        elif what == "cut":
            del data[at : at + draw(st.integers(1, 40))]
        elif what == "insert":
            data[at:at] = draw(st.binary(max_size=8))
        else:
            del data[at:]
    return bytes(data)


# Frames


@st.composite
def frames(draw):
    """Draw any frame that a writer may write."""
    sizes = draw(st.lists(st.integers(1, 1000), min_size=1, max_size=5))
    chunks = tuple([(draw(ids), size) for size in sizes])
    kind = draw(st.sampled_from(sorted(kinds.KINDS)))
    stored = draw(st.integers(0, sum(sizes)))
    number, own = draw(st.integers(0, 255)), draw(u64)
    bases = tuple(draw(st.lists(ids.filter(any), max_size=2)))
    return frame.Frame(kind, number, bases, sum(sizes), stored, own, chunks)


def sealed_header(fields, table):
    """Draw a header and table of any content with a correct checksum."""
    bare = frame._HEADER.pack(frame.MAGIC, *fields, 0)[:-8]
    return bare + checksum(bare + table).to_bytes(8, "little") + table


@given(frames(), st.binary(max_size=20))
def test_frame_headers_come_back(one, behind):
    data = one.encode_header()
    assert frame.parse_header(data + behind) == one
    assert len(data) == one.header_bytes == frame.header_bytes_needed(data)


@given(frames(), u32)
def test_no_payload_is_longer_than_what_it_decodes_to(one, stored):
    found = call(frame.parse_header, one._replace(stored_bytes=stored).encode_header())
    assert (found is None) == (stored > one.plain_bytes)


@given(st.one_of(st.binary(max_size=300), st.binary(max_size=200).map(lambda b: b"CiF1" + b)))
def test_any_bytes_as_a_frame_header(data):
    assert call(frame.parse_header, data) is None


@given(frames().flatmap(lambda one: mutations(one.encode_header())))
def test_changed_frame_headers(data):
    found = call(frame.parse_header, data)
    assert found is None or data.startswith(found.encode_header())


@given(
    st.tuples(st.integers(0, 255), st.integers(0, 255), st.sampled_from([0, 1, 65535])),
    st.tuples(st.integers(0, 4) | u32, u32 | st.integers(0, 100), u32),
    st.tuples(st.sampled_from([0, 1, 2**32 - 1]), ids, u64),
    st.binary(max_size=3 * 36),
)
def test_hostile_frame_headers(first, second, third, table):
    data = sealed_header((*first, *second, *third), table)
    found = call(frame.parse_header, data)
    if found is not None:
        assert found.plain_bytes <= frame.PLAIN_BYTES_MAX
        assert sum([size for _, size in found.chunks]) == found.plain_bytes


@given(
    st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=10),
    st.sampled_from([1, 2, 3]),
)
def test_frames_come_back(parts, kind):
    chunks = [(kinds.chunk_id_of(kind, part), part) for part in parts]
    one, payload = frame.encode_frame(kind, chunks)
    assert frame.parse_header(one.encode_header()) == one
    plain = bytes(frame.decode_frame(one, payload))
    assert plain == b"".join(parts)
    start = 0
    for name, size in one.chunks:
        kinds.check_chunk(kind, name, plain[start : start + size])
        start += size


# Codecs


@given(st.integers(0, 5), st.binary(max_size=200), st.integers(0, 300))
def test_any_bytes_as_a_payload(number, stored, plain_bytes):
    plain = call(codec.decode, number, stored, plain_bytes)
    assert plain is None or len(plain) == plain_bytes


@given(
    st.binary(max_size=60)
    .map(lambda part: part * 20)
    .flatmap(lambda plain: st.tuples(st.just(len(plain)), mutations(zstandard.compress(plain))))
)
def test_changed_zstd_payloads(changed):
    size, stored = changed
    plain = call(codec.decode, codec.ZSTD, stored, size)
    assert plain is None or len(plain) == size


@st.composite
def pairs(draw):
    """Draw the content of a column of pairs."""
    low, high = draw(st.binary(max_size=20)), draw(st.binary(max_size=20))
    low = draw(st.sampled_from([low, zstandard.compress(low)]))
    high = draw(st.sampled_from([b"", high, zstandard.compress(high)]))
    length = draw(st.sampled_from([len(low), len(low) + 1, 2**32 - 1]))
    return draw(st.binary(min_size=1, max_size=1)) + length.to_bytes(4, "little") + low + high


@given(
    st.sampled_from([2, 4, 8]) | st.integers(0, 255),
    st.integers(0, 3) | st.integers(0, 255),
    st.lists(
        st.tuples(
            st.integers(0, 5),
            st.integers(0, 3),
            st.binary(max_size=40) | st.binary(max_size=40).map(zstandard.compress) | pairs(),
            st.sampled_from([0, 0, 0, 1, 2**31]),
        ),
        max_size=8,
    ),
    st.binary(max_size=20),
    st.integers(0, 64),
)
def test_hostile_byte_planes(width, skip, columns, rest, plain_bytes):
    head, bodies = bytes([width, skip]), b""
    for size, coding, body, more in columns:
        head += bytes([size, coding]) + (len(body) + more).to_bytes(4, "little")
        bodies += body
    plain = call(codec.decode, codec.PLANES, head + bodies + rest, plain_bytes)
    assert plain is None or len(plain) == plain_bytes


PLANS = {
    width: Plan(
        width,
        1,
        tuple([Column(size, coding, lowest=3) for size, coding in columns]),
        1.0,
    )
    for width, columns in {
        2: [(1, ZSTD), (1, PAIRS)],
        4: [(2, RAW), (1, PAIRS), (1, PAIRS)],
        8: [(1, PAIRS), (1, RAW), (4, ZSTD), (1, RAW), (1, 1)],
    }.items()
}


@given(st.sampled_from(sorted(PLANS)), st.binary(min_size=1, max_size=40), st.data())
def test_changed_byte_planes(width, part, data):
    """Payloads as ciuic writes them, of every coding, with some bytes changed."""
    plain = part * 30
    stored = bytes(planes.encode(plain, PLANS[width]))
    assert bytes(codec.decode(codec.PLANES, stored, len(plain))) == plain
    changed = data.draw(mutations(stored))
    size = data.draw(st.sampled_from([len(plain), len(plain) - 1, 0]))
    found = call(codec.decode, codec.PLANES, changed, size)
    assert found is None or len(found) == size


@given(st.integers(0, 2**32), st.sampled_from(["<f4", "<f8", "<f2", "<i8"]), st.integers(0, 9))
@settings(max_examples=20)
def test_arrays_come_back(seed, dtype, odd):
    import numpy as np

    values = np.random.default_rng(seed).normal(0, 0.02, 20_000) * (1000 if "i" in dtype else 1)
    plain = values.astype(dtype).tobytes() + b"behind it"[:odd]
    number, stored = codec.encode(plain)
    assert bytes(codec.decode(number, stored, len(plain))) == plain


@given(st.binary(max_size=3000) | st.binary(max_size=9).map(lambda part: part * 9000))
def test_payloads_come_back(plain):
    number, stored = codec.encode(plain)
    assert len(stored) <= len(plain)
    assert bytes(codec.decode(number, stored, len(plain))) == plain
    view = memoryview(plain)
    assert (
        bytes(codec.decode(number, memoryview(bytes(codec.encode(view)[1])), len(plain))) == plain
    )


def peak_bytes(work):
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_zstd_bomb_is_refused_before_it_is_decoded():
    bomb = zstandard.compress(bytes(128 * 1024 * 1024))
    assert len(bomb) < 20_000
    length = len(bomb).to_bytes(4, "little")
    longer = (len(bomb) + 5).to_bytes(4, "little")
    for number, stored in (
        (codec.ZSTD, bomb),
        (codec.PLANES, b"\x02\x00" + (b"\x01\x01" + length) * 2 + bomb * 2),
        (codec.PLANES, b"\x02\x00" + (b"\x01\x02" + longer) * 2 + (b"\x00" + length + bomb) * 2),
    ):
        assert peak_bytes(lambda n=number, s=stored: call(codec.decode, n, s, 5000)) < 1_000_000
        assert call(codec.decode, number, stored, 5000) is None


def test_a_zstd_bomb_with_a_wrong_size_is_refused():
    size = 128 * 1024 * 1024
    compressor = zstandard.ZstdCompressor().compressobj(size=size)
    bomb = compressor.compress(bytes(size)) + compressor.flush()
    real, lie = size.to_bytes(4, "little"), (5000).to_bytes(4, "little")
    stored = bomb[:12].replace(real, lie) + bomb[12:]
    assert zstandard.frame_content_size(bomb) == size
    assert zstandard.frame_content_size(stored) == 5000
    assert peak_bytes(lambda: call(codec.decode, codec.ZSTD, stored, 5000)) < 1_000_000
    assert call(codec.decode, codec.ZSTD, stored, 5000) is None


def test_a_zstd_frame_without_its_size_is_refused():
    stored = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(5000))
    assert call(codec.decode, codec.ZSTD, stored, 5000) is None


# Packs


def valid_pack(parts, kind=kinds.DATA):
    """Return the ID and the bytes of a pack that has one frame for each part."""
    data, packed = pack.MAGIC, []
    for part in parts:
        one, payload = frame.encode_frame(kind, [(kinds.chunk_id_of(kind, part), part)])
        packed.append(pack.PackedFrame(len(data), one, one.encode_header()))
        data += one.encode_header() + bytes(payload)
    name, end = pack.encode_footer(packed, len(data), bytes(16))
    return name, data + end, packed


parts = st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=5)


@given(parts)
def test_packs_come_back(some):
    name, data, packed = valid_pack(some)
    with opened(data) as fd:
        assert pack_file.read_footer(fd, name) == packed
        assert list(pack_file.walk_frames(fd)) == packed


@given(st.binary(max_size=400), ids)
def test_any_bytes_as_a_pack(data, name):
    with opened(data) as fd:
        assert call(pack_file.read_footer, fd, name) is None
        call(lambda: list(pack_file.walk_frames(fd)))


@given(parts.flatmap(lambda some: st.tuples(st.just(some), mutations(valid_pack(some)[1]))))
def test_a_changed_pack_yields_only_chunks_that_were_in_it(changed):
    some, data = changed
    name, _, packed = valid_pack(some)
    assume(data != valid_pack(some)[1])
    with opened(data) as fd:
        found = call(pack_file.read_footer, fd, name)
        assert found is None or found == packed
        walked = call(lambda: list(pack_file.walk_frames(fd))) or []
    known = {one.frame for one in packed}
    assert all(one.frame in known for one in walked)


@given(
    st.lists(st.tuples(u64 | st.integers(0, 300), frames()), max_size=3),
    st.integers(0, 200),
    st.binary(max_size=10),
    st.sampled_from([0, 1]),
)
def test_hostile_footers(listed, before, behind, miscounted):
    """A footer with a correct checksum that says anything."""
    footer = b"".join([at.to_bytes(8, "little") + one.encode_header() for at, one in listed])
    footer += behind
    start = len(pack.MAGIC) + before
    end = pack._TRAILER.pack(
        start, len(footer), len(listed) + miscounted, checksum(footer), pack._END_MAGIC
    )
    data = pack.MAGIC + bytes(before) + footer + end
    with opened(data) as fd:
        found = call(pack_file.read_footer, fd, pack_id_of(footer))
    end_at = len(pack.MAGIC)
    for one in sorted(found or []):
        assert end_at <= one.offset_bytes
        end_at = one.offset_bytes + one.frame.total_bytes
        assert end_at <= start


# Nodes

msgpack_values = st.recursive(
    st.integers(-(2**63), 2**64 - 1) | st.binary(max_size=40) | st.none() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=15),
    max_leaves=40,
)
names = st.binary(min_size=1, max_size=8).filter(
    lambda name: not {0, 47} & set(name) and name not in {b".", b".."}
)
u20 = st.integers(0, 2**20 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
contents = st.one_of(
    # The type, whether it has a size, the content, the level.
    st.tuples(st.just(0o100000), st.just(1), st.just(b"") | ids, st.integers(0, 9)),
    st.tuples(st.just(0o040000), st.just(0), st.just(b"") | ids, st.integers(0, 8)),
    st.tuples(st.just(0o120000), st.just(0), st.just(b"to"), st.just(0)),
    st.tuples(
        st.sampled_from([0o010000, 0o020000, 0o060000]), st.just(0), st.just(b""), st.just(0)
    ),
)


def _entry_of(name, mode, *fields, content, size_bytes, **more):
    kind, has_size, spelled, level = content
    return Entry(
        name,
        kind | mode,
        *fields,
        content=spelled,
        level=level,
        size_bytes=size_bytes * has_size,
        **more,
    )


entries = st.builds(
    _entry_of,
    names,
    st.integers(0, 0o7777),
    u32,
    u32,
    i64,
    i64,
    u64,
    size_bytes=st.integers(0, 2**63 - 1),
    state=st.integers(0, 3),
    content=contents,
    link_dev=u64,
    rdev=st.builds(lambda major, minor: major << 32 | minor, st.integers(0, 4095), u20),
    xattrs=st.dictionaries(names, st.binary(max_size=5), max_size=2).map(
        lambda found: tuple(sorted(found.items()))
    ),
)


class Memory:
    """Nodes in a dictionary, by ID."""

    def __init__(self):
        self.nodes = {}

    def put(self, kind, data):
        name = node_id(kind, data)
        self.nodes[kind, name] = data
        return name

    def get(self, kind, name):
        if (kind, name) not in self.nodes:
            raise CorruptionError("missing")
        return self.nodes[kind, name]


@given(st.lists(entries, max_size=150, unique_by=lambda one: one.name))
@settings(max_examples=40)
def test_trees_come_back(some):
    some.sort(key=lambda one: one.name)
    memory = Memory()
    builder = tree_nodes.TreeBuilder(memory.put)
    for one in some:
        builder.add(one)
    name, level = builder.finish()
    assert list(tree_nodes.iter_tree(memory.get, name, level)) == some
    for one in some[:20]:
        assert tree_nodes.Lookup(memory.get, name, level).find(one.name) == one


@given(st.binary(max_size=200) | msgpack_values.map(msgspec.msgpack.encode), st.integers(-1, 9))
def test_any_bytes_as_a_node(data, level):
    memory = Memory()
    for kind in (kinds.TREE, kinds.RECIPE):
        memory.put(kind, data)
    tree, recipe = node_id(kinds.TREE, data), node_id(kinds.RECIPE, data)
    call(lambda: list(tree_nodes.iter_tree(memory.get, tree, level)))
    call(lambda: tree_nodes.Lookup(memory.get, tree, level).find(b"name"))
    entry = Entry(b"", 0, 0, 0, 0, 0, 0, size_bytes=100, content=recipe, level=level + 1)
    found = call(lambda: list(recipe_nodes.iter_pieces(memory.get, entry)))
    assert found is None or sum([piece.length_bytes for piece in found]) == 100


@given(entries)
@settings(max_examples=50)
def test_entries_with_changed_bytes(one):
    memory = Memory()
    data = msgspec.msgpack.encode([0, [one]])
    for at in range(0, len(data), 3):
        changed = data[:at] + bytes([data[at] ^ 0x81]) + data[at + 1 :]
        name = memory.put(kinds.TREE, changed)
        call(lambda name=name: list(tree_nodes.iter_tree(memory.get, name, 0)))


@given(st.lists(st.tuples(st.integers(-5, 2**63), st.binary(max_size=33)), max_size=20), u64)
def test_hostile_recipes(some, size):
    memory = Memory()
    name = memory.put(kinds.RECIPE, msgspec.msgpack.encode([0, some]))
    entry = Entry(b"", 0, 0, 0, 0, 0, 0, size_bytes=size, content=name, level=1)
    for piece in call(lambda: list(recipe_nodes.iter_pieces(memory.get, entry))) or []:
        assert piece.length_bytes > 0
        assert len(piece.id) in {0, 32}


@given(st.sampled_from([kinds.TREE, kinds.RECIPE]), st.integers(-3000, 3000))
def test_a_tower_of_nodes_is_refused(kind, top):
    """Levels below 0 or above the limit, each node referring to the next one down."""
    memory = Memory()
    below = memory.put(kind, msgspec.msgpack.encode([top - 3000, []]))
    for level in range(top - 2999, top + 1):
        below = memory.put(kind, msgspec.msgpack.encode([level, [[1, b"", below]]]))
    entry = Entry(b"", 0, 0, 0, 0, 0, 0, size_bytes=1, content=below, level=top + 1)
    call(lambda: list(tree_nodes.iter_tree(memory.get, below, top)))
    call(lambda: list(recipe_nodes.iter_pieces(memory.get, entry)))
    call(lambda: tree_nodes.Lookup(memory.get, below, top).find(b"name"))


# Sealed documents, header, manifests

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=10,
)
SUMMARY = SnapshotSummary("cs-0123ab", "base", None, 1, 2, 3, 4, 5, ("tag",), 1, (b"/root\xff",))
MANIFEST = manifest.Manifest(
    SUMMARY,
    (Root(b"/root\xff", bytes(32)), Root(b"/gone", b"", "No such file or directory")),
    "host",
    "writer",
    6,
    0.5,
    ExcludeRules(("*.tmp",), 1 << 30, True, (".nobackup",)),
    (PathWarning(b"/root\xff/a\\x", "in flux"), PathWarning(b"/s", "is a socket", harmless=True)),
)
HEADER = header.Header(1, [], "00", "now", header.Chunking("fixed", 4096))
CUT_BY_CONTENT = header.Header(1, [], "0" * 32, "now", header.Chunking.of("content", 4096))


def seal_text(text):
    """Return a sealed document with any bytes."""
    head = text + b'"checksum": "blake3:'
    digest = data_id(head + b"0" * 64 + b'"\n}\n').hex().encode()
    return head + digest + b'"\n}\n'


def resealed(document):
    document["checksum"] = ""
    return sealed.seal(document)


@st.composite
def changed_documents(draw, valid):
    """Draw a sealed document in which some values have any type and size."""
    document = json.loads(valid)
    for _ in range(draw(st.integers(1, 3))):
        place = document
        key = draw(st.sampled_from(sorted(place)))
        while isinstance(place[key], (list, dict)) and place[key] and draw(st.booleans()):
            place = place[key]
            keys = sorted(place) if isinstance(place, dict) else range(len(place))
            key = draw(st.sampled_from(keys))
        place[key] = draw(json_values)
    return resealed(document)


@given(st.binary(max_size=300))
def test_any_bytes_as_a_sealed_document(data):
    assert call(sealed.unseal, data, dict) is None


@given(st.binary(max_size=100))
def test_any_bytes_under_a_correct_document_seal(data):
    for text in (data, b'{"id": "' + data + b'",', b'{"format": 1, "' + data + b'": 1,'):
        call(sealed.unseal, seal_text(text), header.Header)
        call(manifest.decode_manifest, seal_text(text), SUMMARY.id)


@given(mutations(manifest.encode_manifest(MANIFEST)))
def test_changed_manifests_are_refused(data):
    assume(data != manifest.encode_manifest(MANIFEST))
    assert call(manifest.decode_manifest, data, SUMMARY.id) is None


@given(changed_documents(manifest.encode_manifest(MANIFEST)))
def test_hostile_manifests(data):
    found = call(manifest.decode_manifest, data, SUMMARY.id)
    if found is not None:
        assert found.summary.id == SUMMARY.id
        assert all(root.path.startswith(b"/") and len(root.tree) in {0, 32} for root in found.roots)


raw_paths = st.binary(max_size=30).map(lambda path: b"/" + path)
plain_paths = st.lists(names, max_size=3).map(lambda parts: b"/" + b"/".join(parts))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@given(
    st.lists(st.builds(Root, plain_paths, st.just(b"") | ids, texts), max_size=3),
    st.lists(st.builds(PathWarning, raw_paths, texts, st.booleans()), max_size=3),
    st.tuples(i64, texts, st.lists(texts, max_size=2).map(tuple)),
)
def test_manifests_come_back(roots, trouble, others):
    ordered = sorted([root.path.rstrip(b"/") + b"/" for root in roots])
    assume(not any(two.startswith(one) for one, two in itertools.pairwise(ordered)))
    taken_ns, text, tags = others
    taken_ns //= 10
    paths = tuple([root.path for root in roots])
    summary = SnapshotSummary(
        "cs-123456", "delta", text, taken_ns, 1, 2, 3, 4, tags, 5, paths, host=text
    )
    one = manifest.Manifest(
        summary, tuple(roots), text, text, 7, 1.5, ExcludeRules((text,)), tuple(trouble)
    )
    assert manifest.decode_manifest(manifest.encode_manifest(one), "cs-123456") == one


@given(st.binary(max_size=40))
def test_paths_come_back_as_text(path):
    text = manifest._escaped(path)
    assert manifest._unescaped(text) == path
    text.encode()


@given(st.text(st.sampled_from("\\x5cC0g /\udcff\ud800é"), max_size=12))
def test_any_text_as_a_path(text):
    path = call(manifest._unescaped, text)
    if path is not None and "\\x" not in text:
        assert manifest._escaped(path) == text
    # ciuic reads needless escapes, and does not write them again.
    assert path is None or manifest._unescaped(manifest._escaped(path)) == path


@given(
    st.binary(max_size=200)
    | mutations(HEADER.encode())
    | changed_documents(HEADER.encode())
    | changed_documents(CUT_BY_CONTENT.encode())
    | st.binary(max_size=40).map(lambda data: seal_text(b'{"format": 1, "' + data + b'": 1,'))
)
def test_any_header(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "header"
    path.mkdir(exist_ok=True)
    (path / layout.HEADER).write_bytes(data)
    found = call(find.read_header, str(path))
    if found is not None:
        assert found.format == 1
        assert found.required == []
        cut = found.chunking
        assert 4096 <= cut.size_bytes <= 16 * 1024 * 1024
        if cut.kind == header.CONTENT:
            ContentChunker(cut.size_bytes, cut.average_bytes, cut.least_bytes)


@given(st.text(max_size=80))
def test_any_names_of_files_in_the_store(name):
    packed = layout.parse_pack_name(name)
    assert packed is None or layout.pack_name(packed) == name
    snapshot = layout.parse_manifest_name(name)
    assert snapshot is None or layout.manifest_name(snapshot) == name
