"""Any bytes in a mark or in a record of retired IDs raise only errors of ciuic."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from ciuic.errors import CorruptionError
from ciuic.store.records.mark import Mark, decode_mark, encode_mark
from ciuic.store.records.retired import decode_retired
from ciuic.store.records.sealed import seal
from ciuic.system.clock import local_time_text, rfc3339
from tests.property.test_parsers import call, changed_documents, mutations, seal_text

NAME = "cs-0123ab"
NOW_NS = 1_781_533_800_000_000_000
FORGOTTEN = Mark(("a", "b"), pinned=True, forgotten_ns=NOW_NS, purged=True)
SEALED = encode_mark(FORGOTTEN, NAME, 7)
RETIRED = seal({"format": 1, "ids": ["cs-0123ab", "cs-abcdef01"], "checksum": ""})


def sealed(**changes):
    """Return a sealed mark."""
    one = {"format": 1, "id": NAME, "number": 7, "tags": [], "pinned": False}
    return seal(one | changes | {"checksum": ""})


@given(
    st.lists(st.text(st.characters(codec="utf-8"), max_size=5), max_size=3),
    st.booleans(),
    st.one_of(st.none(), st.integers(0, 2**63 - 1)),
    st.booleans(),
)
def test_a_mark_reads_back_as_written(tags, pinned, forgotten_ns, purged):
    mark = Mark(tuple(tags), pinned, forgotten_ns, purged and forgotten_ns is not None)
    assert decode_mark(encode_mark(mark, NAME, 7), NAME, 7) == mark


def test_a_mark_with_only_tags_and_a_pin_means_a_listed_snapshot():
    assert decode_mark(sealed(tags=["x"], pinned=True), NAME, 7) == Mark(("x",), pinned=True)


def test_a_mark_shows_when_its_snapshot_was_forgotten_in_readable_form():
    assert f'"forgotten": "{rfc3339(NOW_NS)}"'.encode() in SEALED


@given(mutations(SEALED))
def test_changed_marks_are_refused(data):
    assume(data != SEALED)
    assert call(decode_mark, data, NAME, 7) is None


@given(changed_documents(SEALED))
def test_hostile_marks(data):
    found = call(decode_mark, data, NAME, 7)
    if found is not None and found.forgotten_ns is not None:
        local_time_text(found.forgotten_ns)
        assert decode_mark(encode_mark(found, NAME, 8), NAME, 8) == found


@given(st.integers(-(2**70), 2**70))
@example(-1)
@example(0)
@example(2**63 - 1)
@example(2**63)
def test_a_time_that_no_clock_shows_is_refused(moment):
    found = call(decode_mark, sealed(forgotten_ns=moment), NAME, 7)
    assert (found is not None) == (0 <= moment < 2**63)


def test_a_snapshot_that_was_never_forgotten_cannot_be_purged():
    with pytest.raises(CorruptionError, match="not forgotten"):
        decode_mark(sealed(purged=True), NAME, 7)


@pytest.mark.parametrize(("name", "number"), [("cs-0123ac", 7), (NAME, 8), ("", 7), ("../x", 7)])
def test_the_mark_of_another_snapshot_is_refused(name, number):
    """A user may have renamed files. No snapshot may come back as another one."""
    with pytest.raises(CorruptionError, match="says that it is"):
        decode_mark(sealed(id=name, number=number), NAME, 7)


@pytest.mark.parametrize(
    "name", ["", "cs-12345", "cs-ABCDEF", "0123ab", "cs-0123ab\n", "cs-0123ab/"]
)
def test_a_record_of_invalid_ids_is_damage(name):
    with pytest.raises(CorruptionError, match="not a snapshot ID"):
        decode_retired(seal({"format": 1, "ids": ["cs-0123ab", name], "checksum": ""}))


@given(mutations(RETIRED))
def test_changed_records_of_ids_are_refused(data):
    assume(data != RETIRED)
    assert call(decode_retired, data) is None


@given(changed_documents(RETIRED))
def test_hostile_records_of_ids(data):
    found = call(decode_retired, data)
    assert found is None or all(one.startswith("cs-") for one in found)


@given(st.binary(max_size=100))
def test_any_bytes_under_a_correct_seal(data):
    for text in (data, b'{"format": 1, "ids": ["' + data + b'"],', b'{"format": 1, "' + data):
        call(decode_mark, seal_text(text), NAME, 7)
        call(decode_retired, seal_text(text))
