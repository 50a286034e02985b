"""Frames: what is refused, and by which error."""

import struct

import pytest

from ciuic.errors import CorruptionError, DigestError, UnknownFormatError
from ciuic.hashing import checksum, data_id, node_id
from ciuic.store import frame
from ciuic.store.frame import DATA, RECIPE, TREE, Frame

PARTS = (b"one", b"", b"three" * 50)


def encoded(kind=DATA, parts=PARTS):
    return frame.encode_frame(kind, [(frame.chunk_id(kind, part), part) for part in parts])


def resealed(header, at, data):
    """The header with other bytes at a place and a checksum that is right for them."""
    changed = bytearray(header)
    changed[at : at + len(data)] = data
    own = checksum(bytes(changed[:64] + changed[72:]))
    changed[64:72] = own.to_bytes(8, "little")
    return bytes(changed)


@pytest.mark.parametrize("kind", [DATA, RECIPE, TREE])
def test_chunks_come_back_in_their_order(kind):
    one, payload = encoded(kind)
    assert frame.parse_header(one.encode_header()) == one
    assert bytes(frame.decode_frame(one, payload)) == b"".join(PARTS)
    assert [size for _, size in one.chunks] == [len(part) for part in PARTS]
    assert one.total_bytes == 72 + 3 * 36 + len(payload)


def test_a_kind_is_part_of_a_chunks_name():
    assert frame.chunk_id(DATA, b"x") == data_id(b"x")
    assert frame.chunk_id(TREE, b"x") == node_id(TREE, b"x")
    assert len({frame.chunk_id(kind, b"x") for kind in (DATA, RECIPE, TREE)}) == 3


def test_a_chunk_that_is_another_one_is_a_digest_error():
    frame.check_chunk(DATA, data_id(b"x"), memoryview(b"x"))
    with pytest.raises(DigestError):
        frame.check_chunk(DATA, data_id(b"x"), b"y")
    with pytest.raises(DigestError):
        frame.check_chunk(TREE, data_id(b"x"), b"x")


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
        (20, b"\x01\x00\x00\x00", UnknownFormatError),
        (12, struct.pack("<I", 64 * 1024 * 1024 + 1), CorruptionError),
        (12, struct.pack("<I", 1), CorruptionError),
        (72 + 32, struct.pack("<I", 2**32 - 1), CorruptionError),
    ],
    ids=["kind 0", "kind 4", "flags", "reserved", "too long", "sum", "chunk"],
)
def test_a_whole_header_that_says_too_much_is_refused(at, data, error):
    header = encoded()[0].encode_header()
    with pytest.raises(error):
        frame.parse_header(resealed(header, at, data))


@pytest.mark.parametrize("count", [0, 65_537, 2**32 - 1])
def test_a_count_out_of_bounds_is_refused_before_anything_is_read(count):
    start = frame.MAGIC + bytes(4) + count.to_bytes(4, "little") + bytes(60)
    with pytest.raises(CorruptionError, match=str(count)):
        frame.header_bytes_needed(start)


def test_a_changed_payload_is_damage():
    one, payload = encoded()
    with pytest.raises(CorruptionError, match="checksum"):
        frame.decode_frame(one, bytes(payload)[:-1] + b"!")


def test_a_reference_of_what_is_no_delta_is_refused():
    one, payload = encoded()
    header = resealed(one.encode_header(), 24, data_id(b"reference"))
    delta = frame.parse_header(header)
    assert delta.reference == data_id(b"reference")
    with pytest.raises(UnknownFormatError, match="with a reference"):
        frame.decode_frame(delta, payload)


def test_a_delta_without_a_reference_is_refused():
    one, payload = encoded()
    delta = frame.parse_header(resealed(one.encode_header(), 5, b"\x03"))
    with pytest.raises(UnknownFormatError, match="codec 3 without a reference"):
        frame.decode_frame(delta, payload)


def test_a_codec_of_the_future_is_refused_when_it_is_decoded():
    one, payload = encoded()
    future = frame.parse_header(resealed(one.encode_header(), 5, b"\xc8"))
    assert isinstance(future, Frame)
    with pytest.raises(UnknownFormatError, match="codec 200"):
        frame.decode_frame(future, payload)
