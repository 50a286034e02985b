"""Any bytes in the trash and in the list of retired IDs raise only errors of ciuic."""

import json

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from ciuic.errors import CorruptionError
from ciuic.store.records.manifest import decode_manifest, encode_manifest
from ciuic.store.records.sealed import seal
from ciuic.store.snapshots.trash_files import _Entry, _Retired, decode_forgotten, decode_retired
from ciuic.system.clock import local_time_text, rfc3339
from tests.property.test_parsers import (
    MANIFEST,
    SUMMARY,
    call,
    changed_documents,
    mutations,
    seal_text,
)

NOW_NS = 1_781_533_800_000_000_000


def entry(text=None, **changes):
    """A sealed file of the trash."""
    text = encode_manifest(MANIFEST).decode() if text is None else text
    one = {
        "format": 1,
        "id": SUMMARY.id,
        "forgotten": rfc3339(NOW_NS),
        "forgotten_ns": NOW_NS,
        "manifest": text,
    }
    return seal(one | changes | {"checksum": ""})


RETIRED = seal(_Retired(1, ["cs-0123ab", "cs-abcdef01"]))


def test_an_entry_holds_the_manifest_to_the_byte():
    found = decode_forgotten(entry(), SUMMARY.id)
    assert found.data == encode_manifest(MANIFEST)
    assert (found.id, found.forgotten_ns) == (SUMMARY.id, NOW_NS)
    assert found.manifest == decode_manifest(found.data, SUMMARY.id)
    again = _Entry(1, SUMMARY.id, rfc3339(NOW_NS), NOW_NS, found.data.decode())
    assert seal(again) == entry()


@given(mutations(entry()))
def test_changed_entries_are_refused(data):
    assume(data != entry())
    assert call(decode_forgotten, data, SUMMARY.id) is None


@given(changed_documents(entry()))
def test_hostile_entries(data):
    found = call(decode_forgotten, data, SUMMARY.id)
    if found is not None:
        assert found.id == found.manifest.summary.id == SUMMARY.id
        assert decode_manifest(found.data, SUMMARY.id) == found.manifest
        local_time_text(found.forgotten_ns)


@given(mutations(encode_manifest(MANIFEST)).map(lambda one: one.decode("utf-8", "surrogateescape")))
def test_entries_whose_manifest_was_changed(text):
    assume(text.encode("utf-8", "surrogateescape") != encode_manifest(MANIFEST))
    text = text.encode("utf-8", "replace").decode()
    assert call(decode_forgotten, entry(text), SUMMARY.id) is None


@given(changed_documents(encode_manifest(MANIFEST)))
def test_entries_with_a_hostile_manifest_under_a_right_seal(data):
    found = call(decode_forgotten, entry(data.decode()), SUMMARY.id)
    if found is not None:
        rfc3339(found.manifest.summary.taken_ns)
        local_time_text(found.manifest.summary.taken_ns)
        json.dumps(found.manifest.summary.as_json())
        encode_manifest(found.manifest)


@given(st.integers(-(2**70), 2**70))
@example(-1)
@example(0)
@example(2**63 - 1)
@example(2**63)
def test_a_time_that_no_clock_shows_is_refused(moment):
    found = call(decode_forgotten, entry(forgotten_ns=moment), SUMMARY.id)
    assert (found is not None) == (0 <= moment < 2**63)


@pytest.mark.parametrize("name", ["cs-0123ac", "cs-0123abcd", "", "../x"])
def test_the_entry_of_another_snapshot_is_refused(name):
    """Somebody renamed files: none of them may come back as another."""
    with pytest.raises(CorruptionError, match="says that it is"):
        decode_forgotten(entry(id=name), SUMMARY.id)
    with pytest.raises(CorruptionError, match="says that it is"):
        decode_forgotten(entry(), "cs-0123ac")


@pytest.mark.parametrize(
    "name", ["", "cs-12345", "cs-ABCDEF", "0123ab", "cs-0123ab\n", "cs-0123ab/"]
)
def test_a_list_of_what_is_no_id_is_damage(name):
    with pytest.raises(CorruptionError, match="not a snapshot ID"):
        decode_retired(seal(_Retired(1, ["cs-0123ab", name])))


@given(mutations(RETIRED))
def test_changed_lists_of_ids_are_refused(data):
    assume(data != RETIRED)
    assert call(decode_retired, data) is None


@given(changed_documents(RETIRED))
def test_hostile_lists_of_ids(data):
    found = call(decode_retired, data)
    assert found is None or all(one.startswith("cs-") for one in found)


@given(st.binary(max_size=100))
def test_any_bytes_under_a_right_seal(data):
    for text in (data, b'{"format": 1, "ids": ["' + data + b'"],', b'{"format": 1, "' + data):
        call(decode_forgotten, seal_text(text), SUMMARY.id)
        call(decode_retired, seal_text(text))
