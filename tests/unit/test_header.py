"""The store's header: what ciuic refuses, with which error and hint."""

import json

import pytest

from ciuic.chunking.content import ContentChunker
from ciuic.errors import CorruptionError, StoreError, UnknownFormatError, UsageError
from ciuic.store.directory.create import create_store
from ciuic.store.directory.find import read_header
from ciuic.store.records import layout
from ciuic.store.records.header import Chunking, Header
from ciuic.store.records.sealed import seal
from tests.kit.clock import ManualClock

KIB = 1024
HEADER = Header(1, [], "ab" * 16, "2026-06-15T14:30:00+00:00", Chunking("fixed", 65_536))


@pytest.fixture
def store(tmp_path):
    (tmp_path / layout.HEADER).write_bytes(HEADER.encode())
    return tmp_path


def rewrite(store, **changes):
    document = json.loads(HEADER.encode()) | changes
    del document["checksum"]
    (store / layout.HEADER).write_bytes(seal(document | {"checksum": ""}))


def test_a_header_reads_back_as_written(store):
    found = read_header(str(store))
    assert found.chunking == HEADER.chunking
    assert found.encode() == HEADER.encode()


def test_a_new_store_has_an_id_of_its_own(tmp_path):
    ids = set()
    for name in ("one", "two"):
        assert create_store(str(tmp_path / name), ManualClock(0), chunk_bytes=4096)
        header = read_header(str(tmp_path / name))
        assert (header.created[:4], header.chunking) == (
            "1970",
            Chunking("content", 4096, 2048, 512),
        )
        ids.add(header.store_id)
    assert len(ids) == 2


@pytest.mark.parametrize(
    ("size_bytes", "average_bytes", "least_bytes"),
    [
        (4096, 2048, 512),
        (5000, 2048, 512),
        (1024 * KIB, 512 * KIB, 128 * KIB),
        (1000 * 1000, 256 * KIB, 64 * KIB),
        (16 * 1024 * KIB, 4096 * KIB, 1024 * KIB),
    ],
)
def test_missing_lengths_follow_from_the_maximum(tmp_path, size_bytes, average_bytes, least_bytes):
    path = str(tmp_path / "store")
    create_store(path, ManualClock(0), chunk_bytes=size_bytes)
    found = read_header(path).chunking
    assert found == Chunking("content", size_bytes, average_bytes, least_bytes)
    assert ContentChunker(found.size_bytes, found.average_bytes, found.least_bytes)


def test_only_requested_lengths_are_recorded(tmp_path):
    lengths = {"chunk_bytes": 65_536, "average_bytes": 8192, "least_bytes": 8192}
    create_store(str(tmp_path / "one"), ManualClock(0), **lengths)
    assert read_header(str(tmp_path / "one")).chunking == Chunking("content", 65_536, 8192, 8192)
    with pytest.raises(UsageError, match="not in ascending order"):
        create_store(str(tmp_path / "two"), ManualClock(0), **lengths | {"least_bytes": 16_384})
    assert not (tmp_path / "two").exists()
    create_store(str(tmp_path / "three"), ManualClock(0), chunking="tensors")
    document = json.loads((tmp_path / "three" / layout.HEADER).read_bytes())
    assert document["chunking"] == {"kind": "tensors", "size_bytes": 1024 * KIB}


def content(size_bytes, average_bytes, least_bytes):
    chunking = {"kind": "content", "size_bytes": size_bytes}
    return {"chunking": chunking | {"average_bytes": average_bytes, "least_bytes": least_bytes}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": 2}, "format 2"),
        ({"format": 0}, "format 0"),
        ({"required": ["keyed-ids"]}, "keyed-ids"),
        ({"chunking": {"kind": "of the future", "size_bytes": 65_536}}, "of the future"),
        ({"chunking": {"kind": "content", "size_bytes": 65_536}}, "an average of 0 bytes"),
        (content(65_536, 3000, 512), "an average of 3000 bytes"),
        (content(65_536, 128, 64), "an average of 128 bytes"),
        (content(2**24, 2**23, 512), "an average of 8388608 bytes"),
        (content(65_536, -4096, 512), "an average of -4096 bytes"),
        (content(65_536, 4096, 65), "a minimum length of 65 bytes"),
        (content(65_536, 4096, 32), "a minimum length of 32 bytes"),
        (content(2**24, 2**22, 2**21), "a minimum length of 2097152 bytes"),
        (content(65_536, 2**17, 512), "not in ascending order"),
        (content(65_536, 4096, 8192), "not in ascending order"),
        (content(2**25, 4096, 512), str(2**25)),
        ({"chunking": {"kind": "fixed", "size_bytes": 4095}}, "4095"),
        ({"chunking": {"kind": "fixed", "size_bytes": 2**25}}, str(2**25)),
    ],
)
def test_an_unknown_feature_is_refused_by_name(store, changes, words):
    rewrite(store, **changes)
    with pytest.raises(UnknownFormatError, match=words):
        read_header(str(store))


@pytest.mark.parametrize("field", ["required_to_write", "optional"])
def test_features_that_a_reader_may_ignore_are_kept(store, field):
    rewrite(store, **{field: ["later", "still-later"]})
    found = read_header(str(store))
    assert getattr(found, field) == ["later", "still-later"]
    assert bool(found.problem_for_writers) == (field == "required_to_write")
    assert json.loads(found.encode()).keys() == {*json.loads(HEADER.encode()), field}
    assert "required_to_write" not in json.loads(HEADER.encode())


def test_the_version_is_checked_before_the_checksum(store):
    (store / layout.HEADER).write_text('{"format": 3, "sealed": "in a way of the future"}')
    with pytest.raises(UnknownFormatError, match="format 3"):
        read_header(str(store))


def test_unknown_fields_are_ignored(store):
    rewrite(store, owner="somebody")
    assert read_header(str(store)).chunking == HEADER.chunking


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 300,
        b"[]",
        b'{"format": "one"}',
        b'{"format": 1, "required": ["\xff"]}',
        HEADER.encode()[:-1],
        HEADER.encode().replace(b"65536", b"65537"),
        b"[" * 100000,
    ],
)
def test_an_invalid_header_is_damage(store, data):
    (store / layout.HEADER).write_bytes(data)
    with pytest.raises(CorruptionError, match=r"ciuic-store\.json"):
        read_header(str(store))


def test_the_error_says_what_is_at_the_path_of_the_store(tmp_path):
    with pytest.raises(StoreError, match="there is no store") as missing:
        read_header(str(tmp_path / "nothing"))
    assert "init" in missing.value.hint
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="is a file"):
        read_header(str(tmp_path / "file"))
    with pytest.raises(StoreError, match="not a store"):
        read_header(str(tmp_path))
    (tmp_path / layout.PACKS).mkdir()
    with pytest.raises(StoreError, match="never completely created"):
        read_header(str(tmp_path))
    (tmp_path / layout.PACKS / ("0" * 64)).write_bytes(b"")
    with pytest.raises(CorruptionError, match="lost its header"):
        read_header(str(tmp_path))
