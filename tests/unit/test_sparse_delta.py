"""Sparse deltas: unchanged elements take no space, changed ones little, and all are decoded."""

import struct
import warnings

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from ciuic import codec
from ciuic.codec import sparse_delta
from ciuic.errors import CorruptionError
from tests.kit.older import Older

SIZE = 1024 * 1024


def weights(count, seed=1):
    return np.random.default_rng(seed).normal(0, 0.02, count).astype("<f4")


def bfloat16(values):
    return values.view("<u4") >> 16


def changed(values, share, seed=2):
    """Return the numbers, with some of them changed a little."""
    dice = np.random.default_rng(seed)
    steps = dice.normal(0, 1e-4, len(values)).astype("<f4") * (dice.random(len(values)) < share)
    return values + steps


def difference(old, new):
    found = codec.encode_delta(new, [Older(lambda: old, 0, len(new))], 2.0)
    assert found is not None
    assert bytes(codec.decode(found.codec, found.stored, len(new), old)) == new
    return found


def there_and_back(plain, reference, width, skip):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stored = sparse_delta.encode(plain, reference, width, skip)
    if stored is None:
        return None
    return bytes(codec.decode(codec.SPARSE, bytes(stored), len(plain), reference))


@given(st.data(), st.integers(0, 300), st.sampled_from(sparse_delta.WIDTHS))
def test_any_two_versions_are_decoded_exactly_or_have_too_little_in_common(data, size, width):
    reference = data.draw(st.binary(min_size=size, max_size=size))
    plain = bytearray(reference)
    for at in data.draw(st.sets(st.integers(0, max(size - 1, 0)), max_size=size // 2)):
        plain[at] = data.draw(st.integers(0, 255))
    skip = data.draw(st.integers(0, min(width - 1, size)))

    again = there_and_back(bytes(plain), reference, width, skip)

    elements = np.frombuffer(plain, f"<u{width}", (size - skip) // width, skip)
    old = np.frombuffer(reference, f"<u{width}", (size - skip) // width, skip)
    is_sparse = np.count_nonzero(elements != old) <= len(old) // 2
    assert again == (bytes(plain) if is_sparse else None)


@pytest.mark.parametrize("width", sparse_delta.WIDTHS)
def test_every_bit_pattern_is_decoded_exactly(width):
    """NaN payloads, denormals, infinities, both zeros and very long gaps are among them."""
    old = np.zeros(1 << 18, f"<u{width}")
    new = old.copy()
    special = [0x7F800001, 0xFFC00000, 0x80000000, 1, 0x7FF0000000000001, 1 << 63, 0x7FC0, 0x7E]
    mask = (1 << 8 * width) - 1
    new[[0, 1, 70_000, 70_001, 70_300, 200_000, -2, -1]] = [one & mask for one in special]
    plain, reference = new.tobytes(), old.tobytes()
    assert there_and_back(plain, reference, width, 0) == plain
    assert there_and_back(reference, plain, width, 0) == reference


@pytest.mark.parametrize("share", [1e-5, 1e-4, 1e-3, 1e-2, 0.1])
def test_a_sparse_delta_takes_little_more_than_its_entropy(share):
    """The limit is the entropy of the changed positions, and three bytes for each."""
    old = weights(SIZE // 4)
    new = changed(old, share)
    found = difference(old.tobytes(), new.tobytes())

    count = np.count_nonzero(old != new)
    part = count / len(old)
    places = -len(old) * (part * np.log2(part) + (1 - part) * np.log2(1 - part)) / 8
    assert found.codec == codec.SPARSE
    assert len(found.stored) < 80 + 1.05 * places + 3 * count


def test_changed_rows_of_a_table_take_their_own_bytes_and_few_more():
    """A sample shows neither the places of changed rows nor how many are adjacent."""
    old = weights(SIZE // 4).reshape(256, 1024)
    new = old.copy()
    new[[3, 100, 101, 230]] = changed(old[[3, 100, 101, 230]].ravel(), 1.0).reshape(4, 1024)
    found = difference(old.tobytes(), new.tobytes())
    assert found.codec == codec.SPARSE
    assert len(found.stored) < 0.75 * 4 * 4096


def test_fine_tuned_numbers_of_two_bytes_are_sparse():
    old = weights(SIZE // 2)
    new = old + np.random.default_rng(3).normal(0, 1e-6, len(old)).astype("<f4")
    one, other = (bfloat16(each).astype("<u2").tobytes() for each in (old, new))
    found = difference(one, other)
    assert found.codec == codec.SPARSE
    assert len(found.stored) < SIZE * 0.02


@pytest.mark.parametrize(("share", "most"), [(0.003, 0.006), (0.02, 0.03), (0.14, 0.13)])
def test_numbers_of_eight_bits_are_distinguished(share, most):
    """As in training with fp8, neighbors change separately, mostly to the next number."""
    dice = np.random.default_rng(4)
    old = np.clip(dice.normal(56, 12, SIZE), 1, 126).astype(np.uint8)
    old |= dice.integers(0, 2, SIZE, dtype=np.uint8) << 7
    new = old.copy()
    moved = dice.random(SIZE) < share
    new[moved] += dice.choice(np.array([1, 255], np.uint8), np.count_nonzero(moved))
    found = difference(old.tobytes(), new.tobytes())
    assert found.codec == codec.SPARSE
    assert found.stored[0] == 1
    assert len(found.stored) < most * SIZE


def test_versions_that_differ_mostly_make_no_sparse_delta():
    old = weights(SIZE // 4)
    assert difference(old.tobytes(), changed(old, 1.0).tobytes()).codec == codec.DELTA
    assert sparse_delta.encode(b"abcdef", b"xyzdef", 1, 0) is not None
    assert sparse_delta.encode(b"abcdef", b"xyzwef", 1, 0) is None


OLD, NEW = b"a" * 40 + b"?", b"a" * 8 + b"bcdefghi" + b"a" * 24 + b"!"
GOOD = bytes(sparse_delta.encode(NEW, OLD, 4, 0) or b"")
BYTES = bytes(sparse_delta.encode(NEW, OLD, 1, 0) or b"")


def test_the_sparse_deltas_behind_the_damaged_ones_are_valid():
    for one in (GOOD, BYTES):
        assert bytes(codec.decode(codec.SPARSE, one, 41, OLD)) == NEW


def column(body, coding=0, length=None):
    return struct.pack("<BI", coding, len(body) if length is None else length) + body


@pytest.mark.parametrize(
    ("stored", "reference"),
    [
        (b"", OLD),
        (GOOD[:6], OLD),
        (b"\x03" + GOOD[1:], OLD),
        (GOOD[:1] + b"\x04" + GOOD[2:], OLD),
        (GOOD[:2] + struct.pack("<I", 6) + GOOD[6:], OLD),
        (GOOD[:2] + struct.pack("<I", 2**32 - 1) + GOOD[6:], OLD),
        (GOOD[:6] + b"\0" + GOOD[7:], OLD),
        (GOOD[:6] + b"\5" + GOOD[7:], OLD),
        (GOOD[:7], OLD),
        (GOOD[:10], OLD),
        (GOOD[:13], OLD),
        (GOOD[:-1], OLD),
        (GOOD + b"!", OLD),
        (BYTES + b"!", OLD),
        (BYTES[:-1], OLD),
        (GOOD, b""),
        (GOOD, OLD[:-1]),
        (b"\1\0\2\0\0\0\1" + column(b"\0\x28") + column(b"ab"), OLD),
        (b"\1\0\2\0\0\0\4" + column(b"\xff\xff") * 4 + column(b"ab"), OLD),
        (b"\1\0\2\0\0\0\1" + column(b"\0\0", coding=2) + column(b"ab"), OLD),
        (b"\1\0\2\0\0\0\1" + column(b"\0\0\0") + column(b"ab"), OLD),
        (b"\1\0\2\0\0\0\1" + column(b"\0\0") + column(b"abc"), OLD),
        (b"\1\0\2\0\0\0\1" + column(b"\0\0", length=3), OLD),
        (
            b"\1\0\2\0\0\0\1" + column(zstandard.compress(bytes(10**6)), coding=1) + column(b"ab"),
            OLD,
        ),
    ],
)
def test_an_invalid_sparse_delta_is_damage(stored, reference):
    with pytest.raises(CorruptionError):
        codec.decode(codec.SPARSE, stored, 41, reference)


def test_elements_of_one_byte_in_a_header_are_compared_one_by_one():
    """Quantized weights do not look like numbers of any width."""
    old = np.random.default_rng(1).integers(0, 256, 1 << 20, dtype=np.uint8)
    new = old.copy()
    new[:: 1 << 5] += 1
    reference = Older(old.tobytes, 0, len(new))

    probed, told = [codec.encode_delta(new.tobytes(), [reference], 2.0, width) for width in (0, 1)]

    assert probed is not None
    assert told is not None
    assert len(told.stored) < 0.9 * len(probed.stored)
    assert bytes(codec.decode(told.codec, told.stored, len(new), old.tobytes())) == new.tobytes()
