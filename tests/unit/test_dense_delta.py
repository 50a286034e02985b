"""Dense deltas: any two versions are decoded exactly, and only a delta that saves bytes is used."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic import codec
from ciuic.codec import dense_delta
from ciuic.codec.plan import PAIRS, WIDTHS, ZSTD, Column, DeltaPlan, Plan
from ciuic.errors import CorruptionError
from tests.kit.older import Older

SIZE = 256 * 1024


def weights(dtype="<f4", *, seed=1, size=SIZE):
    values = np.random.default_rng(seed).normal(0, 0.02, size // np.dtype(dtype).itemsize)
    return values.astype(dtype)


def moved(values, rate=1e-4, *, seed=2):
    step = np.random.default_rng(seed).normal(0, rate, len(values))
    return (values + step).astype(values.dtype)


def bfloat16(values):
    return values.astype("<f4").view("<u2")[1::2].tobytes()


def encoded(plain, old, *, cost_bytes=0, chain_cost=2.0, worth_bytes=SIZE, number=codec.DELTA):
    reference = Older(lambda: old, cost_bytes, worth_bytes)
    found = codec.encode_delta(plain, [reference], chain_cost)
    assert found is None or found.codec == number
    return None if found is None else found.stored


def there_and_back(plain, reference, width, skip):
    plan = dense_delta.probe(plain, reference, width, skip)
    stored = dense_delta.encode(plain, reference, plan)
    return bytes(codec.decode(codec.DELTA, stored, len(plain), reference))


@given(st.data(), st.integers(0, 300), st.sampled_from(WIDTHS))
def test_any_two_versions_are_decoded_exactly(data, size, width):
    plain = data.draw(st.binary(min_size=size, max_size=size))
    reference = data.draw(st.binary(min_size=size, max_size=size))
    skip = data.draw(st.integers(0, min(width - 1, size)))
    cuts = bytes(sorted(data.draw(st.sets(st.integers(0, 255), max_size=7))))
    shift = data.draw(st.integers(0, 8 * width - 1))
    columns = (Column(1, ZSTD), Column(1, PAIRS))
    classes = ((shift, Plan(2, 0, columns, 1.0)),) * (len(cuts) + 1)
    plan = DeltaPlan(width, skip, cuts, classes, 1.0)
    stored = dense_delta.encode(plain, reference, plan)
    assert bytes(codec.decode(codec.DELTA, stored, size, reference)) == plain


@pytest.mark.parametrize("step", [0, 1, 2, 0x7FFF, 0x8000, 0xFFFF])
def test_every_16_bit_pattern_is_decoded_exactly(step):
    """NaN payloads, denormals, both zeros and infinities are among them."""
    plain = np.arange(1 << 16, dtype="<u2")
    reference = plain + np.uint16(step)
    assert there_and_back(plain.tobytes(), reference.tobytes(), 2, 0) == plain.tobytes()


@pytest.mark.parametrize("width", [4, 8])
def test_random_bits_are_decoded_exactly(width):
    special = np.array([0, 0x7F800001, 0xFFC00000, 0x80000000, 1, 0x7FF0000000000001], "<u8")
    noise = np.random.default_rng(3).integers(0, 1 << 63, 4096, dtype=np.uint64)
    plain, reference = np.concatenate([special, noise]), np.concatenate([special[::-1], noise + 1])
    assert there_and_back(plain.tobytes(), reference.tobytes(), width, 0) == plain.tobytes()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (weights().tobytes(), moved(weights()).tobytes()),
        (bfloat16(weights()), bfloat16(moved(weights()))),
        (weights("<f8").tobytes(), moved(weights("<f8"), 1e-7).tobytes()),
    ],
    ids=["fp32", "bf16", "fp64"],
)
def test_slightly_changed_numbers_become_a_delta_that_takes_less(old, new):
    stored = encoded(new, old)
    assert stored is not None
    assert len(stored) <= 0.85 * len(codec.encode(new)[1])
    assert bytes(codec.decode(codec.DELTA, stored, len(new), old)) == new


def test_a_delta_that_saves_little_is_used_only_if_much_may_be_read():
    old, new = weights().tobytes(), moved(weights(), 1e-3).tobytes()
    assert encoded(new, old, chain_cost=3.0) is None
    stored = encoded(new, old, chain_cost=8.0)
    assert stored is not None
    assert 0.85 < len(stored) / len(codec.encode(new)[1]) < 0.95


def test_classes_make_deltas_of_two_byte_numbers_smaller():
    old, new = bfloat16(weights()), bfloat16(moved(weights(), 1e-3))
    plan = dense_delta.probe(new, old, 2, 0)
    assert 2 <= len(plan.cuts) <= 5
    one = dense_delta.encode(new, old, plan._replace(cuts=b"", classes=(plan.classes[1],)))
    assert len(dense_delta.encode(new, old, plan)) < 0.95 * len(one)


def test_unchanged_elements_are_found_in_a_file_of_noise():
    """This holds for other data than numbers too, such as pages of a database."""
    old = random.Random(4).randbytes(SIZE)
    new = old[:1000] + b"changed" + old[1007:]
    stored = encoded(new, old, number=codec.SPARSE)
    assert stored is not None
    assert len(stored) < 64
    assert bytes(codec.decode(codec.SPARSE, stored, SIZE, old)) == new


def test_unlike_versions_give_no_delta():
    assert encoded(weights(seed=5).tobytes(), weights(seed=6).tobytes()) is None


def test_numbers_that_change_between_rows_of_zeros_become_a_delta():
    """This holds even if the first sample sees only zeros."""
    old = weights(size=SIZE).reshape(4, -1).copy()
    old[:, :1024] = 0
    new = moved(old.ravel()).reshape(4, -1)
    new[:, :1024] = 0
    stored = encoded(new.tobytes(), old.tobytes())
    assert stored is not None
    assert len(stored) < 0.8 * len(codec.encode(new.tobytes())[1])


def test_small_chunks_are_no_deltas():
    assert encoded(bytes(60 * 1024), bytes(60 * 1024)) is None


def test_a_chunk_of_another_length_is_not_a_delta_base():
    assert encoded(moved(weights()).tobytes(), weights().tobytes()[:-4]) is None


def test_an_unreadable_chunk_is_not_a_delta_base():
    assert encoded(moved(weights()).tobytes(), None) is None


def test_the_first_suitable_delta_base_is_taken():
    old, new = weights().tobytes(), moved(weights()).tobytes()
    references = [
        Older(lambda: None, 0, SIZE),
        Older(lambda: weights(seed=9).tobytes(), 0, SIZE),
        Older(lambda: old, 0, SIZE),
        Older(lambda: new, 0, SIZE),
    ]
    found = codec.encode_delta(new, references, 2.0)
    assert found is not None
    assert found.base_number == 2


def test_a_delta_that_saves_too_little_is_not_made():
    old, new = weights().tobytes(), moved(weights()).tobytes()
    length = len(encoded(new, old))
    assert encoded(new, old, worth_bytes=length) is not None
    assert encoded(new, old, worth_bytes=length - 1) is None


def test_a_delta_base_that_could_not_save_anything_is_not_read():
    def read():
        raise AssertionError("it was read")

    plain = moved(weights()).tobytes()
    alone = len(codec.encode(plain)[1])
    assert codec.encode_delta(plain, [Older(read, int(2.05 * alone), SIZE)], 2.0) is None


def test_no_delta_base_is_read_if_the_delta_is_unlikely_to_fit():
    reads = []
    plain = moved(weights()).tobytes()
    alone = len(codec.encode(plain)[1])

    def read():
        reads.append(1)

    for bytes_min in (int(0.2 * alone), 0):
        reference = Older(read, int(1.9 * alone), SIZE, bytes_min)
        assert codec.encode_delta(plain, [reference], 2.0) is None
        assert len(reads) == (bytes_min == 0)


def test_the_bytes_read_stay_within_the_limit():
    old, new = weights().tobytes(), moved(weights()).tobytes()
    alone = len(codec.encode(new)[1])
    small = len(encoded(new, old, chain_cost=100))
    for cost_bytes in range(0, 2 * alone, alone // 16):
        stored = encoded(new, old, cost_bytes=cost_bytes)
        room = 2 * alone - cost_bytes - small
        assert (stored is not None) == (room > 0) or abs(room) < alone / 8


def test_a_delta_that_does_not_decode_to_the_chunk_is_not_kept(monkeypatch):
    old, new = weights().tobytes(), moved(weights()).tobytes()
    broken = moved(weights(), seed=7).tobytes()
    monkeypatch.setattr(dense_delta, "decode", lambda *_: memoryview(broken))
    assert encoded(new, old) is None


GOOD = bytes(
    dense_delta.encode(
        b"abcdefgh!", b"abcdefgX?", dense_delta.probe(b"abcdefgh", b"abcdefgX", 2, 0)
    )
)


def test_the_delta_behind_the_damaged_ones_is_valid():
    assert bytes(codec.decode(codec.DELTA, GOOD, 9, b"abcdefgX?")) == b"abcdefgh!"


@pytest.mark.parametrize(
    ("stored", "reference"),
    [
        (b"", b"abcdefgX?"),
        (b"\x02\x00", b"abcdefgX?"),
        (b"\x03" + GOOD[1:], b"abcdefgX?"),
        (GOOD[:1] + b"\x02" + GOOD[2:], b"abcdefgX?"),
        (GOOD[:2] + b"\x08" + bytes(range(8)) + GOOD[4:], b"abcdefgX?"),
        (GOOD[:2] + b"\x02\x50\x50" + GOOD[4:], b"abcdefgX?"),
        (GOOD[:2] + b"\x02\x50", b"abcdefgX?"),
        (GOOD[:4], b"abcdefgX?"),
        (GOOD[:7], b"abcdefgX?"),
        (GOOD[:-1], b"abcdefgX?"),
        (GOOD + b"!", b"abcdefgX?"),
        (b"\x02\x00\x00!" + bytes(4) + b"\x10", b"abcdefgX?"),
        (GOOD, b""),
        (GOOD, b"abcdefgX"),
        (GOOD, b"abcdefgX??"),
    ],
)
def test_an_invalid_delta_is_damage(stored, reference):
    with pytest.raises(CorruptionError):
        codec.decode(codec.DELTA, stored, 9, reference)
