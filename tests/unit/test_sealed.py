"""Sealed documents: JSON that any reader can read, with a checksum."""

import json

import msgspec
import pytest

from ciuic.errors import CorruptionError
from ciuic.store.records.sealed import seal, unseal
from ciuic.system.hashing import data_id


class Document(msgspec.Struct):
    name: str
    sizes: list[int]
    checksum: str = ""


ONE = Document("größe", [1, 2**62])


def test_a_document_reads_back_as_written():
    found = unseal(seal(ONE), Document)
    assert (found.name, found.sizes) == (ONE.name, ONE.sizes)
    assert seal(found) == seal(ONE)


def test_any_json_tool_reads_it():
    data = seal(ONE)
    document = json.loads(data)
    assert document["name"] == "größe"
    assert list(document)[-1] == "checksum"
    assert data.count(b"\n") == data.decode().count("\n") > 4


def test_the_checksum_is_that_of_the_file_with_zeros_instead_of_it():
    data = seal(ONE)
    digits = data[-68:-4]
    assert data_id(data.replace(digits, b"0" * 64)).hex().encode() == digits


def test_every_changed_byte_is_found():
    data = seal(ONE)
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 0x01
        with pytest.raises(CorruptionError):
            unseal(bytes(changed), Document)


def test_every_cut_and_every_addition_is_found():
    data = seal(ONE)
    for length in range(len(data)):
        with pytest.raises(CorruptionError):
            unseal(data[:length], Document)
    for more in (b"\n", b" ", b"{}", bytes(1)):
        with pytest.raises(CorruptionError):
            unseal(data + more, Document)
        with pytest.raises(CorruptionError):
            unseal(more + data, Document)


def test_a_document_of_another_type_is_refused():
    class Other(msgspec.Struct):
        name: int
        checksum: str

    with pytest.raises(CorruptionError, match="decoded"):
        unseal(seal(ONE), Other)


def test_unknown_fields_of_a_document_are_ignored():
    class Later(Document, kw_only=True):
        owner: str = "somebody"
        checksum: str = ""

    assert unseal(seal({"owner": "x", "name": "n", "sizes": [], "checksum": ""}), Document)
    assert unseal(seal(Document("n", [])), Later).owner == "somebody"


@pytest.mark.parametrize("inside", [b"\xff", b"\xed\xa0\x80"])
def test_text_that_is_not_utf_8_is_damage_even_with_a_correct_checksum(inside):
    head = b'{"name": "' + inside + b'", "sizes": [], "checksum": "blake3:'
    digest = data_id(head + b"0" * 64 + b'"\n}\n').hex().encode()
    with pytest.raises(CorruptionError):
        unseal(head + digest + b'"\n}\n', Document)


def test_deeply_nested_json_is_damage():
    head = b'{"sizes": ' + b"[" * 100_000 + b'"checksum": "blake3:'
    digest = data_id(head + b"0" * 64 + b'"\n}\n').hex().encode()
    with pytest.raises(CorruptionError):
        unseal(head + digest + b'"\n}\n', Document)


def resealed(body):
    """Return a document with other text between its first brace and its checksum."""
    head = b"{" + body + b', "checksum": "blake3:'
    return head + data_id(head + b"0" * 64 + b'"\n}\n').hex().encode() + b'"\n}\n'


def test_a_document_in_another_form_is_read_and_a_repeated_key_refused():
    found = unseal(resealed(b'"sizes": [1], "name": "n", "new": 1e3'), Document)
    assert (found.name, found.sizes) == ("n", [1])
    for body in (
        b'"name": "a", "name": "n", "sizes": []',
        b'"name": "n", "sizes": [], "new": {"a": 1, "a": 2}',
    ):
        with pytest.raises(CorruptionError, match="repeats the key"):
            unseal(resealed(body), Document)
