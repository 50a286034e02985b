"""Content addresses have a domain; checksums are as docs/format.md says."""

import pytest

from ciuic.system.hashing import ID_BYTES, checksum, data_id, node_id, pack_id_of

DATA = b"epoch 1\n"


def test_the_address_of_file_bytes_is_the_one_that_b3sum_prints():
    empty = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
    assert data_id(b"").hex() == empty
    assert len(data_id(DATA)) == ID_BYTES


def test_the_same_bytes_have_a_different_address_in_every_domain():
    addresses = {data_id(DATA), node_id(2, DATA), node_id(3, DATA), pack_id_of(DATA)}
    assert len(addresses) == 4


@pytest.mark.parametrize("function", [data_id, checksum])
def test_buffers_of_every_kind_hash_alike(function):
    wanted = function(DATA)
    assert function(bytearray(DATA)) == wanted
    assert function(memoryview(b"--" + DATA)[2:]) == wanted


def test_a_kind_other_than_nodes_has_no_domain():
    with pytest.raises(KeyError):
        node_id(1, DATA)


def test_a_checksum_is_xxh3_with_64_bits():
    assert f"{checksum(b''):016x}" == "2d06800538d394c2"
    assert checksum(DATA) != checksum(DATA[:-1])
