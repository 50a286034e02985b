"""Manifests: their content, and what ciuic refuses."""

import json
import tracemalloc

import msgspec
import pytest

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.model import ExcludeRules, PathWarning, Root, SnapshotSummary
from ciuic.store.directory.files import read_regular
from ciuic.store.records.manifest import (
    MANIFEST_BYTES_MAX,
    Manifest,
    decode_manifest,
    encode_manifest,
)
from ciuic.store.records.sealed import seal
from ciuic.system.clock import local_time_text
from ciuic.system.hashing import data_id

ID = "cs-1a2b3c"
ROOTS = (Root(b"/a \xff\\x", bytes(range(32))), Root(b"/gone", b"", "No such file or directory"))
SUMMARY = SnapshotSummary(
    ID,
    "delta",
    "cs-000000",
    10**18 + 1,
    2,
    3,
    4,
    5,
    ("b", "a"),
    1,
    tuple(one.path for one in ROOTS),
    host="host",
)
ONE = Manifest(
    SUMMARY,
    ROOTS,
    "host",
    "ciuic 0",
    6,
    0.25,
    ExcludeRules(("*.tmp", "/caf\udcff"), 10, caches=True, if_present=(".no\udcff",)),
    (PathWarning(b"/a \xff\\x/b", "in flux"), PathWarning(b"/s", "is a socket", harmless=True)),
)


def changed(**changes):
    document = json.loads(encode_manifest(ONE)) | changes
    del document["checksum"]
    return seal(document | {"checksum": ""})


def test_a_manifest_reads_back_as_written():
    assert decode_manifest(encode_manifest(ONE), ID) == ONE


def test_a_strict_reader_of_json_can_read_it():
    data = encode_manifest(ONE)
    data.decode("utf-8").encode("utf-8")
    document = json.loads(data)
    assert document["roots"][0]["path"] == "/a \\xff\\x5cx"
    assert document["taken"] == "2001-09-09T01:46:40.000000+00:00"
    assert document["taken_ns"] == 10**18 + 1


def test_text_that_is_not_unicode_costs_no_snapshot():
    odd = PathWarning(b"/a", "in flux: open for writing by \udcff\ud800 (pid 7)")
    words = msgspec.structs.replace(
        ONE, host="h\udcff", trouble=(odd,), roots=(Root(b"/gone", b"", "No \udcff"),)
    )
    data = encode_manifest(words)
    data.decode("utf-8")
    read = decode_manifest(data, ID)
    assert read.trouble[0].what == r"in flux: open for writing by \udcff\ud800 (pid 7)"
    assert (read.host, read.roots[0].missing) == (r"h\udcff", r"No \udcff")


@pytest.mark.parametrize("other", ["cs-1a2b3d", "cs-1a2b3c4", ""])
def test_the_manifest_of_another_snapshot_is_refused(other):
    with pytest.raises(CorruptionError, match=ID):
        decode_manifest(encode_manifest(ONE), other)


def test_a_later_format_is_refused_by_its_number():
    with pytest.raises(UnknownFormatError, match="format 2"):
        decode_manifest(changed(format=2), ID)


def test_a_later_format_may_have_changed_any_field():
    """It must not count as damage, because a repair puts damaged manifests into quarantine."""
    with pytest.raises(UnknownFormatError, match="format 2"):
        decode_manifest(changed(format=2, taken_ns="yesterday", roots={}), ID)


@pytest.mark.parametrize("number", [-1, 1 << 63, 10**30])
@pytest.mark.parametrize(
    "name",
    [
        "files",
        "logical_bytes",
        "read_bytes",
        "new_bytes",
        "stored_bytes",
        "trouble_count",
        "flux_count",
    ],
)
def test_impossible_counts_are_damage(name, number):
    with pytest.raises(CorruptionError):
        decode_manifest(changed(**{name: number}), ID)


@pytest.mark.parametrize("moment", [-(1 << 63) - 1, 1 << 63, 10**30])
def test_a_time_outside_the_calendar_is_damage(moment):
    with pytest.raises(CorruptionError, match="its time is out of range"):
        decode_manifest(changed(taken_ns=moment), ID)


@pytest.mark.parametrize("moment", [-(1 << 63), -1, (1 << 63) - 1])
def test_the_first_and_last_times_can_be_shown(moment):
    summary = decode_manifest(changed(taken_ns=moment), ID).summary
    assert summary.as_json()["taken"]
    assert local_time_text(summary.taken_ns)


def test_bytes_that_are_not_utf_8_are_damage_at_any_place():
    """The decoder does not check the bytes of a field that it skips."""
    text = encode_manifest(ONE).replace(b'"format"', b'"x": "\xff",\n  "format"', 1)
    sealed = text[:-68] + b"0" * 64 + text[-4:]
    data = text[:-68] + data_id(sealed).hex().encode() + text[-4:]
    with pytest.raises(CorruptionError, match="utf-8"):
        decode_manifest(data, ID)


def test_unknown_fields_are_ignored():
    assert decode_manifest(changed(owner={"name": "somebody"}), ID) == ONE


@pytest.mark.parametrize(
    "root",
    [
        {"path": "relative", "tree": "00" * 32},
        {"path": "/a", "tree": "00" * 31},
        {"path": "/a", "tree": "zz" * 32},
        {"path": "/a\\", "tree": ""},
        {"path": "/a\\x", "tree": ""},
        {"path": "/a\\x  ", "tree": ""},
        {"path": "/a\\x5", "tree": ""},
        {"path": "/a\\xFF", "tree": ""},
        {"path": "/a\\n", "tree": ""},
        {"path": "/a\\x5c\\", "tree": ""},
        {"path": 1, "tree": ""},
        {"tree": ""},
    ],
)
def test_an_invalid_root_is_damage(root):
    with pytest.raises(CorruptionError):
        decode_manifest(changed(roots=[root]), ID)


@pytest.mark.parametrize("name", ["id", "roots", "taken_ns", "kind", "parent", "tags"])
def test_a_missing_field_is_damage(name):
    document = json.loads(encode_manifest(ONE))
    del document[name]
    with pytest.raises(CorruptionError):
        decode_manifest(seal(document), ID)


def test_reading_a_small_file_takes_little_memory(tmp_path):
    (tmp_path / "manifest").write_bytes(b"x" * 1000)
    tracemalloc.start()
    try:
        assert read_regular(str(tmp_path / "manifest"), MANIFEST_BYTES_MAX) == b"x" * 1000
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert read_regular(str(tmp_path / "manifest"), 10) == b"x" * 10
