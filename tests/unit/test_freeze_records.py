"""Records of reflink copies: any file is a valid record or is ignored."""

import contextlib
import json
import os

import pytest

from ciuic.source.freeze import records
from ciuic.source.freeze.area import Area
from ciuic.source.freeze.copies import Copies, Copy
from ciuic.source.freeze.records import RootRecord
from ciuic.system.hashing import data_id

SNAPSHOT = "cs-123456"
COPY = Copy((7, -5, 4096), 3, 8, 9, bytes(16))


@pytest.fixture
def area(tmp_path):
    for name in ("copies", "trees", "records"):
        (tmp_path / name).mkdir()
    with contextlib.closing(Area(os.fsencode(tmp_path))) as made:
        yield made


def roots():
    return [
        RootRecord(b"/a\xff", "reflink", copies=Copies.of([COPY.packed()])),
        RootRecord(
            b"/b",
            "subvolume",
            b"cs-123456.0",
            b"deep/down",
            bytes(16),
            5,
            doubtful=frozenset({7, 2**63}),
        ),
    ]


def write(area, data):
    with open(os.path.join(area.path, b"records", SNAPSHOT.encode()), "wb") as file:
        file.write(data + data_id(data))


def test_a_record_reads_back_as_written(area):
    area.begin(SNAPSHOT)
    area.write_record(-5, roots())
    found = area.record(SNAPSHOT)
    assert found is not None
    assert found.taken_ns == -5
    assert [one[:6] for one in found.roots] == [one[:6] for one in roots()]
    assert [one.doubtful for one in found.roots] == [one.doubtful for one in roots()]
    assert found.roots[0].copies.find(7, -5, 4096) == COPY
    assert list(found.roots[0].copies.numbers()) == [3]
    assert area.snapshots() == [(-5, SNAPSHOT)]


CHANGES = [
    lambda head: head.clear(),
    lambda head: head.update(roots=5),
    lambda head: head.update(roots=[5]),
    lambda head: head.update(taken_ns="now"),
    lambda head: head.update(taken_ns=2**70),
    lambda head: head["roots"][0].update(count=-1),
    lambda head: head["roots"][0].update(count=2),
    lambda head: head["roots"][0].update(count=1.0),
    lambda head: head["roots"][0].update(path="no hex"),
    lambda head: head["roots"][0].pop("uuid"),
    lambda head: head["roots"][1].update(generation=-1),
    lambda head: head["roots"][1].update(tree=b"../elsewhere".hex()),
    lambda head: head["roots"][1].update(tree=b"/elsewhere".hex()),
    lambda head: head["roots"][1].update(doubtful=7),
    lambda head: head["roots"][1].update(doubtful=[-1]),
    lambda head: head["roots"][1].update(doubtful=["7"]),
    lambda head: head["roots"][1].update(inside=b"a\0b".hex()),
]


@pytest.mark.parametrize("change", CHANGES, ids=range(len(CHANGES)))
def test_an_impossible_record_is_rejected_even_with_a_correct_seal(area, change):
    area.begin(SNAPSHOT)
    area.write_record(5, roots())
    with open(os.path.join(area.path, b"records", SNAPSHOT.encode()), "rb") as file:
        data = file.read()[:-32]
    start = len(records._MAGIC) + 4
    (length,) = records._HEAD.unpack_from(data, start - 4)
    head = json.loads(data[start : start + length])
    change(head)
    text = json.dumps(head).encode()
    write(area, records._MAGIC + records._HEAD.pack(len(text)) + text + data[start + length :])
    assert area.record(SNAPSHOT) is None
    assert area.snapshots() == []


@pytest.mark.parametrize(
    "text", [b"[" * 100_000, b"[]", b"\xff", b"", b'{"roots": [], "taken_ns": %s}' % (b"9" * 5000)]
)
def test_an_invalid_head_of_a_record_is_ignored(area, text):
    write(area, records._MAGIC + records._HEAD.pack(len(text)) + text)
    assert area.record(SNAPSHOT) is None


def test_a_head_that_claims_to_be_longer_than_its_file_is_ignored(area):
    text = b'{"roots": [], "taken_ns": 1}'
    write(area, records._MAGIC + records._HEAD.pack(len(text) + 1) + text)
    assert area.record(SNAPSHOT) is None


def test_only_files_with_names_from_ciuic_count_as_copies(area):
    for name in (b"0000000000000002", b"f" * 200, b"0x1", b"1_0", b"-000000000000001", b"a b"):
        with open(os.path.join(area.path, b"copies", name), "wb"):
            pass
    assert area.numbers() == {2, -1}
