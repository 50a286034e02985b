"""Codecs: what is chosen, and what is refused."""

import random
import threading

import numpy as np
import pytest
import zstandard

from ciuic import codec
from ciuic.errors import CorruptionError, UnknownFormatError

SIZE = 256 * 1024


def floats(dtype, scale=0.02):
    values = np.random.default_rng(1).normal(0, scale, SIZE // 4)
    return values.astype(dtype).tobytes()


def bfloat16():
    return np.frombuffer(floats("<f4"), "<u2")[1::2].tobytes()


def text():
    return b"".join([b"step %d loss %f\n" % (n, 1 / n) for n in range(1, 12_000)])


@pytest.mark.parametrize(
    ("plain", "number"),
    [
        (b"", codec.RAW),
        (b"short", codec.RAW),
        (b"a line of text\n" * 20, codec.ZSTD),
        (random.Random(1).randbytes(SIZE), codec.RAW),
        (bytes(SIZE), codec.ZSTD),
        (text(), codec.ZSTD),
        (floats("<f4"), codec.PLANES),
        (bfloat16(), codec.PLANES),
        (floats("<f8"), codec.PLANES),
    ],
    ids=["empty", "short", "small text", "noise", "zeros", "text", "fp32", "bf16", "fp64"],
)
def test_each_kind_of_data_gets_its_codec_and_comes_back(plain, number):
    found, stored = codec.encode(plain)
    assert found == number
    assert bytes(codec.decode(found, stored, len(plain))) == plain
    assert (stored is plain) == (number == codec.RAW)


def test_numbers_shrink_more_than_by_zstd():
    for plain in (floats("<f4"), bfloat16()):
        _, stored = codec.encode(plain)
        assert len(stored) < 0.98 * len(zstandard.compress(plain, 3))


@pytest.mark.parametrize("behind", [1, 2, 3, 7])
def test_bytes_behind_the_last_number_come_back(behind):
    plain = floats("<f4") + b"7 bytes"[:behind]
    number, stored = codec.encode(plain)
    assert number == codec.PLANES
    assert bytes(codec.decode(number, stored, len(plain))) == plain


def test_a_view_into_a_buffer_is_encoded_as_its_bytes():
    plain = text()
    view = memoryview(bytearray(b"--" + plain))[2:]
    assert codec.encode(view)[1] == codec.encode(plain)[1]


def test_a_codec_that_is_not_known_is_refused_by_its_number():
    with pytest.raises(UnknownFormatError, match="codec 77"):
        codec.decode(77, b"", 0)


@pytest.mark.parametrize("plain_bytes", [0, 4, 6])
def test_a_raw_payload_of_a_wrong_length_is_damage(plain_bytes):
    with pytest.raises(CorruptionError):
        codec.decode(codec.RAW, b"12345", plain_bytes)


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"not zstd at all",
        zstandard.compress(b"12345")[:-1],
        zstandard.compress(b"1234"),
        zstandard.ZstdCompressor(write_content_size=False).compress(b"12345"),
    ],
    ids=["empty", "garbage", "cut short", "another length", "no length"],
)
def test_a_zstd_payload_that_is_none_is_damage(stored):
    with pytest.raises(CorruptionError):
        codec.decode(codec.ZSTD, stored, 5)


def planes(width, *bodies, rest=b""):
    head = bytes([width])
    for coding, body in bodies:
        head += bytes([coding]) + len(body).to_bytes(4, "little")
    return head + b"".join([body for _, body in bodies]) + rest


def test_byte_planes_by_hand():
    packed = zstandard.compress(b"\x7f\x80")
    assert bytes(codec.decode(2, planes(2, (0, b"\x00\x01"), (1, packed)), 4)).hex() == "803f00c0"
    assert bytes(codec.decode(2, planes(2, (0, b""), (0, b""), rest=b"!"), 1)) == b"!"
    assert bytes(codec.decode(2, planes(4, *[(0, b"")] * 4), 0)) == b""


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"\x03" + bytes(30),
        b"\x02\x00",
        planes(2, (0, b"\x00"), (0, b"\x7f\x80")),
        planes(2, (0, b"\x00\x01\x02"), (0, b"\x7f\x80")),
        planes(2, (9, b"\x00\x01"), (0, b"\x7f\x80")),
        planes(2, (1, b"\x00\x01"), (0, b"\x7f\x80")),
        planes(2, (0, b"\x00\x01"), (0, b"\x7f\x80"), rest=b"more"),
        planes(2, (0, b"\x00\x01"), (0, b"\x7f\x80"))[:-1],
    ],
    ids=["empty", "width", "header", "short", "long", "coding", "no zstd", "behind", "cut"],
)
def test_byte_planes_that_are_none_are_damage(stored):
    with pytest.raises(CorruptionError):
        codec.decode(codec.PLANES, stored, 4)


def test_threads_do_not_share_what_must_not_be_shared():
    plains = [text()[at:] for at in range(4)] + [floats("<f4")[at * 4 :] for at in range(4)]
    wrong = []

    def work(plain):
        for _ in range(5):
            number, stored = codec.encode(plain)
            if bytes(codec.decode(number, stored, len(plain))) != plain:
                wrong.append(plain)

    threads = [threading.Thread(target=work, args=(plain,)) for plain in plains]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
