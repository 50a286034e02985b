"""Frames: what ciuic refuses, and with which error."""

import struct

import pytest

from ciuic.errors import CorruptionError, DigestError, UnknownFormatError
from ciuic.store.format import frame
from ciuic.store.format.frame import Frame
from ciuic.store.records import kinds
from ciuic.store.records.kinds import DATA, RECIPE, TREE
from ciuic.system.hashing import checksum, data_id, node_id

PARTS = (b"one", b"2", b"three" * 50)


def encoded(kind=DATA, parts=PARTS):
    return frame.encode_frame(kind, [(kinds.chunk_id_of(kind, part), part) for part in parts])


def resealed(header, at, data):
    """Return the header with other bytes at a place, and a correct checksum."""
    changed = bytearray(header)
    changed[at : at + len(data)] = data
    own = checksum(bytes(changed[:64] + changed[72:]))
    changed[64:72] = own.to_bytes(8, "little")
    return bytes(changed)


@pytest.mark.parametrize("kind", [DATA, RECIPE, TREE])
def test_chunks_are_decoded_in_their_order(kind):
    one, payload = encoded(kind)
    assert frame.parse_header(one.encode_header()) == one
    assert bytes(frame.decode_frame(one, payload)) == b"".join(PARTS)
    assert [size for _, size in one.chunks] == [len(part) for part in PARTS]
    assert one.total_bytes == 72 + 3 * 36 + len(payload)


def test_the_kind_is_part_of_the_chunk_id():
    assert kinds.chunk_id_of(DATA, b"x") == data_id(b"x")
    assert kinds.chunk_id_of(TREE, b"x") == node_id(TREE, b"x")
    assert len({kinds.chunk_id_of(kind, b"x") for kind in (DATA, RECIPE, TREE)}) == 3


def test_a_chunk_with_the_id_of_another_is_a_digest_error():
    kinds.check_chunk(DATA, data_id(b"x"), memoryview(b"x"))
    with pytest.raises(DigestError):
        kinds.check_chunk(DATA, data_id(b"x"), b"y")
    with pytest.raises(DigestError):
        kinds.check_chunk(TREE, data_id(b"x"), b"x")


@pytest.mark.parametrize("length", [0, 3, 71, 72, 72 + 3 * 36 - 1])
def test_a_header_that_is_cut_short_is_damage(length):
    header = encoded()[0].encode_header()
    with pytest.raises(CorruptionError):
        frame.parse_header(header[:length])


def test_every_changed_byte_of_header_and_table_is_damage():
    header = encoded()[0].encode_header()
    for at in range(len(header)):
        changed = bytearray(header)
        changed[at] ^= 0x10
        with pytest.raises(CorruptionError):
            frame.parse_header(bytes(changed) + bytes(10))


@pytest.mark.parametrize(
    ("at", "data", "error"),
    [
        (4, b"\x00", UnknownFormatError),
        (4, b"\x04", UnknownFormatError),
        (6, b"\x01\x00", UnknownFormatError),
        (20, b"\x02\x00\x00\x00", UnknownFormatError),
        (12, struct.pack("<I", 64 * 1024 * 1024 + 1), CorruptionError),
        (12, struct.pack("<I", 1), CorruptionError),
        (72 + 32, struct.pack("<I", 2**32 - 1), CorruptionError),
    ],
    ids=["kind 0", "kind 4", "flags", "reserved", "too long", "sum", "chunk"],
)
def test_a_sound_header_with_impossible_values_is_refused(at, data, error):
    header = encoded()[0].encode_header()
    with pytest.raises(error):
        frame.parse_header(resealed(header, at, data))


@pytest.mark.parametrize("count", [0, 65_537, 2**32 - 1])
def test_a_count_out_of_bounds_is_refused_before_anything_is_read(count):
    start = frame.MAGIC + bytes(4) + count.to_bytes(4, "little") + bytes(60)
    with pytest.raises(CorruptionError, match=f"{count:,}"):
        frame.header_bytes_needed(start)


def test_a_changed_payload_is_damage():
    one, payload = encoded()
    with pytest.raises(CorruptionError, match="checksum"):
        frame.decode_frame(one, bytes(payload)[:-1] + b"!")


def test_a_delta_base_without_a_delta_is_refused():
    one, payload = encoded()
    header = resealed(one.encode_header(), 24, data_id(b"base"))
    delta = frame.parse_header(header)
    assert delta.delta_bases == (data_id(b"base"),)
    with pytest.raises(CorruptionError, match="has 1 delta base instead of 0"):
        frame.decode_frame(delta, payload)


def test_a_delta_without_a_base_is_refused():
    one, payload = encoded()
    delta = frame.parse_header(resealed(one.encode_header(), 5, b"\x03"))
    with pytest.raises(CorruptionError, match="codec 3 has 0 delta bases instead of 1"):
        frame.decode_frame(delta, payload)


def test_a_payload_longer_than_its_chunks_is_refused_before_it_is_read():
    """The length alone would make a reader allocate up to 4 GiB."""
    one, _ = encoded()
    for stored in (one.plain_bytes + 1, 2**32 - 1):
        header = resealed(one.encode_header(), 16, stored.to_bytes(4, "little"))
        with pytest.raises(CorruptionError, match="longer than the chunks"):
            frame.parse_header(header)
    longest = resealed(one.encode_header(), 16, one.plain_bytes.to_bytes(4, "little"))
    assert frame.parse_header(longest).stored_bytes == one.plain_bytes


def test_an_unknown_codec_is_refused_on_decoding():
    one, payload = encoded()
    future = frame.parse_header(resealed(one.encode_header(), 5, b"\xc8"))
    assert isinstance(future, Frame)
    with pytest.raises(UnknownFormatError, match="codec 200"):
        frame.decode_frame(future, payload)
