"""Codecs: which one ciuic chooses, and which bytes it refuses."""

import random
import threading

import numpy as np
import pytest
import zstandard

from ciuic import codec
from ciuic.codec import dense_delta, planes, sparse_delta
from ciuic.codec.plan import PAIRS, ZSTD, Column, Plan
from ciuic.errors import CorruptionError, UnknownFormatError
from tests.format import reader
from tests.kit.older import Older

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


def test_numbers_shrink_more_than_with_zstd():
    for plain in (floats("<f4"), bfloat16()):
        _, stored = codec.encode(plain)
        assert len(stored) < 0.98 * len(zstandard.compress(plain, 3))


def numbers(kind):
    """Return arrays that zstd shrinks well, but to an eighth more than byte planes do."""
    dice = np.random.default_rng(3)
    values = np.frombuffer(floats("<f4"), "<f4").copy()
    if kind == "rounded to bf16":
        return (values.view("<u4") & 0xFFFF0000).tobytes()
    if kind == "half zero":
        return (values * (dice.random(len(values)) < 0.5)).astype("<f4").tobytes()
    if kind == "rows of zeros":
        rows = values.reshape(-1, 128) * (dice.random((len(values) // 128, 1)) < 0.3)
        return rows.astype("<f4").tobytes()
    if kind == "fp64 of fp32":
        return values.astype("<f8").tobytes()
    return dice.integers(0, 50_000, SIZE // 4).astype(kind).tobytes()


@pytest.mark.parametrize(
    "kind", ["rounded to bf16", "half zero", "rows of zeros", "fp64 of fp32", "<i4", "<i8"]
)
def test_numbers_that_zstd_shrinks_well_shrink_more_in_planes(kind):
    plain = numbers(kind)
    number, stored = codec.encode(plain)
    assert number == codec.PLANES
    assert len(stored) < 0.94 * len(zstandard.compress(plain, 3))
    assert bytes(codec.decode(number, stored, len(plain))) == plain


@pytest.mark.parametrize("zeros", [1, 4])
def test_numbers_are_found_wherever_zeros_lie_among_them(zeros):
    """This holds even if the first sample sees only zeros."""
    values = np.random.default_rng(5).normal(0, 0.02, SIZE).astype("<f4").reshape(zeros * 4, -1)
    values[:, :1024] = 0
    number, stored = codec.encode(values.tobytes())
    assert number == codec.PLANES
    assert len(stored) < 0.87 * values.nbytes
    assert bytes(codec.decode(number, stored, values.nbytes)) == values.tobytes()


def test_mixed_content_is_not_searched_for_numbers():
    plain = numbers("<i4")
    assert codec.encode(plain, is_mixed=True)[0] == codec.ZSTD


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


def test_an_unknown_codec_is_refused_by_its_number():
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
def test_an_invalid_zstd_payload_is_damage(stored):
    with pytest.raises(CorruptionError):
        codec.decode(codec.ZSTD, stored, 5)


EMPTY = zstandard.compress(b"")
LONG = bytes.fromhex("28b52ffd805800000000")
"""The header of a zstd frame with a window of 2 MiB and a content size of 0."""
LAST_BLOCK = bytes.fromhex("010000")


@pytest.mark.parametrize(
    ("stored", "is_sound"),
    [
        (EMPTY, True),
        (EMPTY[:-1], False),
        (EMPTY + b"\0", False),
        (EMPTY + EMPTY, False),
        (EMPTY[:-3] + b"\x09\x00\x00x", False),
        (bytes.fromhex("502a4d1800000000"), False),
        (LONG + bytes(3 * 1000) + LAST_BLOCK, True),
        (LONG + bytes(3 * 1000) + LAST_BLOCK + b"\0" * 100, False),
        (LONG + b"\x02\x00\x10x" * 100_000 + LAST_BLOCK, False),
    ],
    ids=[
        "sound",
        "cut short",
        "a byte left over",
        "two frames",
        "content",
        "skippable",
        "empty blocks",
        "empty blocks and bytes left over",
        "12 GiB of content",
    ],
)
def test_a_zstd_payload_of_no_bytes_is_exactly_one_frame(stored, is_sound):
    """The library does not decode a frame whose header says that it is empty."""
    as_column = payload(2, (1, 1, stored), (1, 0, b""), rest=b"x")
    for number, whole, plain in ((codec.ZSTD, stored, b""), (codec.PLANES, as_column, b"x")):
        if is_sound:
            assert codec.decode(number, whole, len(plain)) == plain
            assert reader.decode_payload(number, whole, len(plain)) == plain
        else:
            with pytest.raises(CorruptionError):
                codec.decode(number, whole, len(plain))
            with pytest.raises(reader.FormatError):
                reader.decode_payload(number, whole, len(plain))


def payload(width, *columns, skip=0, rest=b""):
    head, bodies = bytes([width, skip]), b""
    for size, coding, body in columns:
        head += bytes([size, coding]) + len(body).to_bytes(4, "little")
        bodies += body
    return head + bodies + rest


def pairs(base, low, high=b""):
    low = zstandard.compress(low)
    high = high and zstandard.compress(high)
    return bytes([base]) + len(low).to_bytes(4, "little") + low + high


SIGNS = (1, 0, b"\x00\x80")
EXPONENTS = (1, 0, b"\x7f\x80")


def test_byte_planes_by_hand():
    packed = (1, 1, zstandard.compress(b"\x7f\x80"))
    for stored, plain in (
        (payload(2, SIGNS, packed), "803f00c0"),
        (payload(2, SIGNS, (1, 2, pairs(0x7F, b"\x10"))), "803f00c0"),
        (payload(2, SIGNS, (1, 2, pairs(0xFE, b"\x21", b"\x88"))), "803f00c0"),
        (payload(2, SIGNS, EXPONENTS, skip=1, rest=b"!?"), "21803f00c03f"),
        (payload(2, (1, 0, b""), (1, 0, b""), rest=b"odd"), "6f6464"),
        (payload(4, *[(1, 0, b"")] * 4), ""),
        (payload(4, (2, 0, b"\1\2\3\4"), SIGNS, EXPONENTS), "0102803f030400c0"),
        (payload(4, (1, 0, b"\1\3"), (1, 0, b"\2\4"), SIGNS, EXPONENTS), "0102803f030400c0"),
        (
            payload(8, (4, 0, b"12345678"), (2, 0, b"abcd"), SIGNS, EXPONENTS),
            b"1234ab\x80\x3f5678cd\x00\xc0".hex(),
        ),
    ):
        assert bytes(codec.decode(2, stored, len(plain) // 2)).hex() == plain


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"\x02",
        b"\x03" + bytes(30),
        b"\x02\x00",
        payload(2, (1, 0, b""), (1, 0, b""), skip=2, rest=b"skip"),
        payload(2, (2, 0, b"\x00\x01\x7f\x80")),
        payload(4, (3, 0, b""), SIGNS, EXPONENTS),
        payload(4, SIGNS, EXPONENTS, (2, 0, b"\x00\x01\x7f\x80")),
        payload(2, SIGNS, (2, 0, b"\x00\x01\x7f\x80")),
        payload(2, (0, 0, b""), SIGNS, EXPONENTS),
        payload(2, (1, 0, b"\x00"), EXPONENTS),
        payload(2, (1, 0, b"\x00\x01\x02"), EXPONENTS),
        payload(2, (1, 9, b"\x00\x01"), EXPONENTS),
        payload(2, (1, 1, b"\x00\x01"), EXPONENTS),
        payload(2, SIGNS, (1, 1, zstandard.compress(b"\x7f\x80") + b"!"))[:-1],
        payload(2, SIGNS, (1, 2, b"\x7f\x01")),
        payload(2, SIGNS, (1, 2, b"\x7f\x20\0\0\0" + zstandard.compress(b"\x10"))),
        payload(2, SIGNS, (1, 2, pairs(0, b"\x00\x01"))),
        payload(2, SIGNS, (1, 2, pairs(0, b"\x00", b"\x01\x02"))),
        payload(4, (2, 2, pairs(0, b"\x00")), SIGNS, EXPONENTS),
        payload(2, SIGNS, EXPONENTS, rest=b"more"),
        payload(2, SIGNS, EXPONENTS)[:-1],
    ],
    ids=[
        "empty",
        "no skip",
        "width",
        "no columns",
        "skips an element",
        "one column",
        "three bytes",
        "not by bytes on top",
        "too wide",
        "no bytes",
        "short",
        "long",
        "coding",
        "no zstd",
        "zstd cut short",
        "no header of pairs",
        "pairs cut short",
        "too many pairs",
        "too many high halves",
        "pairs of two bytes",
        "behind",
        "cut",
    ],
)
@pytest.mark.parametrize("plain_bytes", [4, 0, 1])
def test_invalid_byte_planes_are_damage(stored, plain_bytes):
    with pytest.raises(CorruptionError):
        codec.decode(codec.PLANES, stored, plain_bytes)


def test_numbers_shrink_as_much_at_any_offset():
    plain = floats("<f4")
    best = len(codec.encode(plain)[1])
    for behind in (1, 2, 3):
        other = plain[behind:] + plain[:behind]
        number, stored = codec.encode(other)
        assert number == codec.PLANES
        assert len(stored) < 1.002 * best
        assert bytes(codec.decode(number, stored, len(other))) == other


@pytest.mark.parametrize("coding", [ZSTD, PAIRS])
@pytest.mark.parametrize("base", [0, 100, 250])
def test_a_column_comes_back_whatever_its_values(coding, base):
    rng = np.random.default_rng(base)
    values = rng.choice([0, 1, 17, 255], p=[0.9, 0.05, 0.04, 0.01], size=2 * SIZE)
    plain = values.astype(np.uint8).tobytes()
    columns = (Column(1, coding, base), Column(1, coding, base))
    stored = planes.encode(plain, Plan(2, 0, columns, 1.0))
    assert len(stored) < len(plain) / 2
    assert bytes(planes.decode(stored, len(plain))) == plain


@pytest.mark.parametrize("at", [0, 3, 5000, SIZE - 5000, -1])
def test_a_fault_while_encoding_only_causes_a_raw_payload(monkeypatch, at):
    plain, encode = floats("<f4"), planes.encode

    def faulty(*arguments):
        stored = bytearray(encode(*arguments))
        stored[at % len(stored)] ^= 0x10
        return memoryview(stored)

    monkeypatch.setattr(planes, "encode", faulty)
    assert codec.encode(plain) == (codec.RAW, plain)


def test_threads_do_not_share_encoders():
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


@pytest.mark.parametrize("width", [0, 1, 2, 4, 8, 16])
def test_a_header_with_a_wrong_width_costs_little(width):
    """A wrong width costs at most the other half of an exponent."""
    numbers = np.random.default_rng(5).normal(0, 0.02, 100_000)
    for plain, worst in (
        (numbers.astype("<f4").tobytes(), 1.08),
        (numbers.tobytes(), 1.01),
        (b"text, no number" * 9000, 1.01),
    ):
        number, stored = codec.encode(plain, width=width)
        assert bytes(codec.decode(number, stored, len(plain))) == plain
        assert len(stored) <= worst * len(codec.encode(plain)[1])


def a_little_later(plain, dtype):
    """Return the same numbers after a training step."""
    later = np.frombuffer(plain, dtype).copy()
    later *= 1.001
    return later.tobytes()


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("ends", [0, 3])
def test_a_payload_is_decoded_into_given_memory(monkeypatch, compiled, ends):
    if not compiled:
        for module in (planes, dense_delta, sparse_delta):
            monkeypatch.setattr(module, "core", lambda: None)
    seen = set()
    for plain in (random.Random(1).randbytes(SIZE), text(), floats("<f4"), floats("<f8")):
        cut = plain[: len(plain) - ends]
        number, stored = codec.encode(cut)
        check_into(cut, number, stored)
        seen.add(number)
    base = floats("<f4")[: SIZE - ends or None]
    touched = bytearray(base)
    touched[400:404] = b"\1\2\3\4"
    whole = len(base) // 4 * 4
    dense = a_little_later(base[:whole], "<f4") + base[whole:]
    for plain in (dense, bytes(touched)):
        found = codec.encode_delta(plain, [Older(lambda: base, 0, len(base))], 100.0)
        check_into(plain, found.codec, found.stored, base)
        seen.add(found.codec)
    assert seen == {codec.RAW, codec.ZSTD, codec.PLANES, codec.DELTA, codec.SPARSE}


def check_into(plain, number, stored, *bases):
    memory = bytearray(b"\xaa" * (len(plain) + 16))
    out = memoryview(memory)[8:-8]
    assert codec.decode(number, stored, len(plain), *bases, out=out) is out
    assert bytes(out) == plain
    assert memory[:8] == memory[-8:] == b"\xaa" * 8
    cut = memoryview(stored)[: len(stored) // 2]
    with pytest.raises(CorruptionError):
        codec.decode(number, cut, len(plain), *bases, out=out)
    assert memory[:8] == memory[-8:] == b"\xaa" * 8
