"""Every core decides as decoding and comparing does whether columns join to given bytes."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic.codec import decoding, planes
from ciuic.codec.plan import PAIRS, RAW, ZSTD, Column, Plan
from ciuic.errors import CorruptionError
from tests.kit.cores import VARIANTS, using

CORES = [None, *VARIANTS]


@st.composite
def encoded(draw):
    """Draw a payload and its decoded bytes: elements of 2, 4 or 8 bytes, and others around."""
    width = draw(st.sampled_from([2, 4, 8]))
    coding = st.sampled_from([RAW, ZSTD, PAIRS])
    wide = {2: [], 4: [2], 8: draw(st.sampled_from([[2, 4], [4, 2], [1, 1, 4], [2, 2, 2]]))}[width]
    columns = [Column(size, RAW) for size in wide]
    columns += [Column(1, draw(coding), draw(st.integers(0, 255))) for _ in range(2)]
    size = draw(st.one_of(st.integers(0, 200), st.integers(4000, 9000)))
    chance = np.random.default_rng(draw(st.integers(0, 9999)))
    plain = chance.normal(0, 0.02, size // 4 + 1).astype("<f4").tobytes()[:size]
    skip = draw(st.integers(0, min(width - 1, size)))
    return bytes(planes.encode(plain, Plan(width, skip, tuple(columns), 1.0))), plain


def answer(stored: bytes, plain: bytes) -> bool | str:
    try:
        return planes.matches(memoryview(stored), plain)
    except CorruptionError as error:
        return str(error)


def compared(stored: bytes, plain: bytes) -> bool | str:
    try:
        return bytes(planes.decode(memoryview(stored), len(plain))) == plain
    except CorruptionError as error:
        return str(error)


@given(encoded(), st.integers(0, 2**32))
def test_one_different_byte_is_found_anywhere(payload, seed):
    stored, plain = payload
    chance = random.Random(seed)
    places = {0, len(plain) - 1, *[chance.randrange(len(plain)) for _ in range(4)]} if plain else ()
    for compiled in CORES:
        with using(compiled):
            assert planes.matches(memoryview(stored), plain) is True
            for place in places:
                other = bytearray(plain)
                other[place] ^= 1 << chance.randrange(8)
                assert planes.matches(memoryview(stored), bytes(other)) is False


@given(encoded(), st.integers(0, 2**16), st.integers(0, 7), st.integers(-2, 2))
def test_hostile_payloads_get_the_answer_that_decoding_and_comparing_gives(
    payload, at, bit, longer
):
    stored, plain = payload
    hostile = bytearray(stored)
    hostile[at % len(hostile)] ^= 1 << bit
    other = plain[: len(plain) + longer] if longer < 0 else plain + bytes(longer)
    for damaged, wanted in (
        (bytes(hostile), plain),
        (stored[: at % len(stored)], plain),
        (stored, other),
        (bytes(hostile), other),
    ):
        expected = compared(damaged, wanted)
        for compiled in CORES:
            with using(compiled):
                assert answer(damaged, wanted) == expected


@pytest.mark.parametrize("compiled", CORES, ids=str)
def test_an_encoding_that_decodes_to_other_bytes_is_found(compiled):
    plain = np.random.default_rng(1).normal(0, 0.02, 3000).astype("<f4").tobytes()
    stored = bytes(
        planes.encode(plain, Plan(4, 0, (Column(2, RAW), Column(1, RAW), Column(1, ZSTD)), 1.0))
    )
    other = plain[:5000] + bytes([plain[5000] ^ 1]) + plain[5001:]

    with using(compiled):
        assert decoding.round_trips(decoding.PLANES, stored, b"", plain)
        assert not decoding.round_trips(decoding.PLANES, stored, b"", other)
        assert not decoding.round_trips(decoding.PLANES, stored[:-1], b"", plain)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize(
    ("count", "skip", "bodies"),
    [
        (4, 0, [b"12345678", b"", b"1234", b"", b"1234"]),
        (4, 0, [b"1234567", b"", b"1234", b"", b"1234", b""]),
        (4, 1, [b"12345678", b"", b"1234", b"", b"1234", b""]),
        (3, 0, [b"123456", b"", b"123", b"", b"123", b""]),
        (-2, 0, [b"", b"", b"", b"", b"", b""]),
        (4, -1, [b"12345678", b"", b"1234", b"", b"1234", b""]),
    ],
)
def test_columns_that_do_not_fit_are_not_compared(variant, count, skip, bodies):
    plan = bytes([4, 2, 0, 0, 1, 0, 0, 1, 0, 0])
    with pytest.raises(ValueError, match=r"fit their buffers|length of its elements"):
        variant.functions.planes_match(variant.targets, plan, bodies, count, bytes(16), skip)
