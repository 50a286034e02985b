"""Any integer in any place of a store's objects is decoded and shown, or is damage.

The checksums are right: a program that can write to a store can compute them. What a decoder lets
through is used as a reader of the store uses it.
"""

import contextlib
import copy
import json
import sqlite3
import struct
from collections.abc import Callable, Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic.cli.render import mode_text
from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.model import Entry
from ciuic.mount.nodes import attributes_of
from ciuic.report.entries import entry_json, mark
from ciuic.restore.tar_headers import header as tar_header
from ciuic.store.directory import pack_file
from ciuic.store.format import frame, pack, segment
from ciuic.store.records import condemnation, copy_record, header, kinds, manifest, retired
from ciuic.store.records import mark as marks
from ciuic.store.records.recipe_nodes import iter_pieces, pieces_from
from ciuic.store.records.references import references
from ciuic.store.records.tree_nodes import Lookup, iter_tree, leaf_entries, read_root
from ciuic.system.clock import local_time_text, rfc3339
from ciuic.system.hashing import checksum, pack_id_of
from ciuic.units import format_bytes, format_duration
from tests.property.test_parsers import (
    CUT_BY_CONTENT,
    MANIFEST,
    Memory,
    opened,
    seal_text,
    valid_pack,
)

REFUSED = (CorruptionError, UnknownFormatError)
NAME = MANIFEST.summary.id
PACK = bytes(32)
POSITIVE = [2**bits + by for bits in (0, 15, 31, 32, 40, 53, 62) for by in (-1, 0)]
EDGES = [*POSITIVE, *[-edge for edge in POSITIVE], 2**63 - 1, -(2**63)]
PACKED = st.sampled_from(EDGES) | st.integers(-(2**63), 2**64 - 1)
"""What msgpack can hold."""
LARGE = [2**63, 2**64 - 1, 2**64, 2**70, -(2**63) - 1, -(10**30), 10**400]
WRITTEN = PACKED | st.sampled_from(LARGE)
"""What JSON can hold."""


def places(value: object, at: tuple = ()) -> Iterator[tuple]:
    """Yield the way to each integer in lists and dictionaries; a boolean is none."""
    if isinstance(value, int) and not isinstance(value, bool):
        yield at
    elif isinstance(value, (list, dict)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*at, key))


def replaced(value: object, at: tuple, number: int) -> None:
    *way, last = at
    for key in way:
        value = value[key]
    value[last] = number


@st.composite
def wild(draw, value: object, numbers: st.SearchStrategy[int]) -> object:
    """Draw the same value with another integer in one to three places."""
    copied = copy.deepcopy(value)
    found = list(places(copied))
    for at in draw(st.lists(st.sampled_from(found), min_size=1, max_size=3, unique=True)):
        replaced(copied, at, draw(numbers))
    return copied


def plain(value: object) -> object:
    """Return records as lists, as msgpack has them."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value))


def call(use: Callable[[], object]) -> None:
    with contextlib.suppress(*REFUSED):
        use()


# Sealed documents


def use_manifest(data: bytes) -> None:
    found = manifest.decode_manifest(data, NAME)
    summary = found.summary
    manifest.encode_manifest(found)
    local_time_text(summary.taken_ns)
    json.dumps(summary.as_json())
    format_duration(found.capture_s)
    numbers = (summary.files, summary.logical_bytes, summary.new_bytes, summary.stored_bytes)
    for number in (*numbers, found.read_bytes, found.exclude.larger_than_bytes):
        format_bytes(number)
    with sqlite3.connect(":memory:") as base:
        base.execute("SELECT ?, ?", (summary.taken_ns, msgspec.msgpack.encode(summary)))


def use_mark(data: bytes) -> None:
    found = marks.decode_mark(data, NAME, 7)
    marks.encode_mark(found, NAME, 7)
    local_time_text(found.forgotten_ns or 0)


def use_copy_record(data: bytes) -> None:
    found = copy_record.decode_copy_record(data)
    copy_record.encode_copy_record(found)
    for time_ns in (found.since_ns, found.tried_ns, found.done_ns or 0):
        local_time_text(time_ns)
        rfc3339(time_ns)


RECORD = copy_record.CopyRecord(
    1, "/mnt/copy", "0" * 32, 1, 2, 3, marks={NAME: 4}, damaged=5, followed=["cs-123456"]
)
DOCUMENTS = {
    "manifest": (manifest.encode_manifest(MANIFEST), use_manifest),
    "mark": (marks.encode_mark(marks.Mark(("x",), True, 5), NAME, 7), use_mark),
    "header": (CUT_BY_CONTENT.encode(), lambda data: header.decode_header(data).encode()),
    "retired": (retired.encode_retired([NAME]), retired.decode_retired),
    "condemnation": (condemnation.encode_condemnation([PACK]), condemnation.decode_condemnation),
    "verdict": (condemnation.encode_verdict([PACK]), condemnation.decode_verdict),
    "tombstone": (condemnation.new_tombstone(), condemnation.is_tombstone),
    "record of a copy": (copy_record.encode_copy_record(RECORD), use_copy_record),
}


@pytest.mark.parametrize("which", DOCUMENTS)
@given(data=st.data())
def test_an_integer_of_a_sealed_document(which: str, data: st.DataObject) -> None:
    valid, use = DOCUMENTS[which]
    document = data.draw(wild(json.loads(valid), WRITTEN))
    call(lambda: use(resealed(document)))


def resealed(document: dict[str, object]) -> bytes:
    # Not sealed.seal: msgspec writes no number of more than 64 bits.
    text = json.dumps(document | {"checksum": ""}, indent=2)
    return seal_text(text.partition('"checksum": ""')[0].encode())


@pytest.mark.parametrize("which", DOCUMENTS)
def test_each_integer_of_a_sealed_document_at_each_edge(which: str) -> None:
    valid, use = DOCUMENTS[which]
    for at in places(json.loads(valid)):
        for number in (*EDGES, *LARGE):
            document = json.loads(valid)
            replaced(document, at, number)
            call(lambda document=document: use(resealed(document)))


def test_the_unchanged_documents_are_read() -> None:
    for valid, use in DOCUMENTS.values():
        use(valid)
        use(resealed(json.loads(valid)))


# Nodes


def use_entry(entry: Entry) -> None:
    json.dumps(entry_json(b"/a", entry))
    mode_text(entry.mode)
    mark(entry)
    local_time_text(entry.mtime_ns)
    attributes_of(entry, 1)
    tar_header(b"a", entry, b"0", size_bytes=entry.size_bytes)
    struct.pack("<IIqqQqQI", *_fields(entry))


def _fields(entry: Entry) -> tuple[int, ...]:
    return (
        entry.uid,
        entry.gid,
        entry.mtime_ns,
        entry.ctime_ns,
        entry.ino,
        entry.size_bytes,
        entry.link_dev,
        entry.mode,
    )


FIELDS = (0o644, 1, 2, 3, 4, 5)
ENTRIES = [
    Entry(b"a", 0o100000 | FIELDS[0], *FIELDS[1:], size_bytes=9, content=bytes(32), level=1),
    Entry(b"d", 0o040755, *FIELDS[1:], content=bytes(32), link_dev=6, xattrs=((b"user.a", b"b"),)),
    Entry(b"l", 0o120777, *FIELDS[1:], content=b"to"),
    Entry(b"n", 0o020666, *FIELDS[1:], rdev=1 << 32 | 3),
]
ROOT = [Entry(b".", 0o040755, *FIELDS[1:], content=bytes(32), level=1)]


def use_tree(node: object, level: int) -> None:
    memory = Memory()
    data = msgspec.msgpack.encode(node)
    name = memory.put(kinds.TREE, data)
    call(lambda: references(kinds.TREE, data, level))
    call(lambda: [use_entry(entry) for entry in iter_tree(memory.get, name, level)])
    call(lambda: Lookup(memory.get, name, level).find(b"a"))


@given(wild([0, plain(ENTRIES)], PACKED))
def test_an_integer_of_a_directory(node: object) -> None:
    use_tree(node, 0)
    call(lambda: leaf_entries(msgspec.msgpack.encode(node)))


@given(wild([0, plain(ROOT)], PACKED))
def test_an_integer_of_a_root(node: object) -> None:
    memory = Memory()
    name = memory.put(kinds.TREE, msgspec.msgpack.encode(node))
    call(lambda: use_entry(read_root(memory.get, name)))


@given(wild([1, [[3, b"a", bytes(32)], [4, b"b", bytes(32)]]], PACKED))
def test_an_integer_of_an_index_node(node: object) -> None:
    use_tree(node, 1)
    use_recipe(node, 9, 2)


@given(wild([0, [[4, b"\1" * 32], [5, b"\2" * 32, 6], [7, b""]]], PACKED), PACKED)
def test_an_integer_of_a_recipe(node: object, size_bytes: int) -> None:
    use_recipe(node, 16, 1)
    use_recipe(node, size_bytes, 1)


def use_recipe(node: object, size_bytes: int, level: int) -> None:
    memory = Memory()
    data = msgspec.msgpack.encode(node)
    name = memory.put(kinds.RECIPE, data)
    entry = Entry(b"a", 0o100644, *FIELDS[1:], size_bytes=size_bytes, content=name, level=level)
    call(lambda: references(kinds.RECIPE, data, level - 1))
    call(lambda: list(iter_pieces(memory.get, entry)))
    for offset_bytes in (0, 5, max(0, size_bytes - 1)):
        call(lambda at=offset_bytes: list(pieces_from(memory.get, entry, at)))


# Packs and segments

LONG = st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1])
SHORT = st.sampled_from([0, 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1])


@given(st.lists(st.none() | LONG, min_size=2, max_size=2), st.lists(st.none() | SHORT, min_size=2))
def test_an_integer_of_a_trailer_and_a_footer(long: list, short: list) -> None:
    _, data, packed = valid_pack([b"some", b"more"])
    listed = [
        at if at is not None else one.offset_bytes for at, one in zip(long, packed, strict=True)
    ]
    footer = b"".join(
        [at.to_bytes(8, "little") + one.header for at, one in zip(listed, packed, strict=True)]
    ) + bytes(16)
    start = packed[-1].offset_bytes + packed[-1].frame.total_bytes
    length = len(footer) if short[0] is None else short[0]
    count = len(packed) if short[1] is None else short[1]
    for offset in (start, *[one for one in long if one is not None]):
        end = pack._TRAILER.pack(offset, length, count, checksum(footer), pack._END_MAGIC)
        name = pack_id_of(footer)
        with opened(data[:start] + footer + end) as fd:
            call(lambda fd=fd, name=name: pack_file.read_footer(fd, name))
        for size_bytes in (0, start, len(footer) + len(end), 2**63, 2**64 - 1):
            pack.is_end(footer + end, name, size_bytes)


@given(LONG, SHORT, SHORT, SHORT, SHORT)
def test_an_integer_of_a_segment(
    size_bytes: int, offset: int, length: int, count: int, flags: int
) -> None:
    head = segment._HEAD.pack(b"CIUICSG1", count, flags)
    for table in (b"", segment._ENTRY.pack(PACK, size_bytes, offset, length)):
        call(lambda table=table: segment.Segment(head + table).pack_ids())


@given(st.integers(0, 6), LONG)
def test_an_integer_of_a_frame(which: int, number: int) -> None:
    one, _ = frame.encode_frame(kinds.DATA, [(kinds.chunk_id_of(kinds.DATA, b"ab"), b"ab")])
    fields = list(frame._HEADER.unpack_from(one.encode_header()))
    bits = 8 * struct.calcsize("<" + "BBHIIII"[which])
    fields[1 + which] = number % 2**bits
    table = one.encode_header()[frame.HEADER_BYTES :]
    bare = frame._HEADER.pack(*fields[:-1], 0)[:-8]
    call(lambda: frame.parse_header(bare + checksum(bare + table).to_bytes(8, "little") + table))
