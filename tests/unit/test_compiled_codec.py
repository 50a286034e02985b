"""The compiled core and numpy store the same bytes, read each other's, and refuse the same."""

import functools
import random
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic.codec import decoding, dense_delta, planes
from ciuic.codec.dense_delta import DeltaPlan
from ciuic.codec.plan import PAIRS, RAW, ZSTD, Column, Plan
from ciuic.errors import CorruptionError
from tests.kit.cores import VARIANTS, using

CORES = [None, *VARIANTS]


class Payload(NamedTuple):
    plain: bytes
    plan: Plan


@st.composite
def plain_bytes(draw, most=300):
    """Bytes of all kinds: noise, runs, numbers with few exponents, and long ones now and then."""
    size = draw(st.one_of(st.integers(0, most), st.integers(2000, 9000)), label="size")
    chance = random.Random(draw(st.integers(0, 9999), label="seed"))
    kind = draw(st.sampled_from(["noise", "zeros", "few", "floats", "halves"]), label="kind")
    if kind == "noise":
        return chance.randbytes(size)
    if kind == "zeros":
        return bytes(size)
    if kind == "few":
        return bytes(chance.choices(range(100, 120), k=size))
    numbers = np.random.default_rng(chance.randrange(9999)).normal(0, 0.02, size // 2 + 1)
    width = "<f4" if kind == "floats" else "<f2"
    return numbers.astype(width).tobytes()[:size]


@st.composite
def payloads(draw):
    width = draw(st.sampled_from([2, 4, 8]), label="width")
    columns: list[Column] = []
    left = width - 2
    while left:
        size = draw(st.sampled_from([size for size in (1, 2, 4) if size <= left]))
        columns.append(Column(size, RAW))
        left -= size
    columns += [Column(1, RAW), Column(1, RAW)]
    for at, column in enumerate(columns):
        codings = [RAW, ZSTD, PAIRS] if column.width == 1 else [RAW, ZSTD]
        coding = draw(st.sampled_from(codings))
        columns[at] = Column(column.width, coding, draw(st.integers(0, 255)))
    plain = draw(plain_bytes())
    skip = draw(st.integers(0, min(width - 1, len(plain))), label="skip")
    return Payload(plain, Plan(width, skip, tuple(columns), 1.0))


class Delta(NamedTuple):
    plain: bytes
    base: bytes
    plan: DeltaPlan


@st.composite
def deltas(draw):
    base = draw(plain_bytes())
    width = draw(st.sampled_from([2, 4, 8]), label="width")
    skip = draw(st.integers(0, min(width - 1, len(base))), label="skip")
    cuts = draw(st.lists(st.integers(0, 255), max_size=7, unique=True), label="cuts")
    columns = tuple(Column(1, draw(st.sampled_from([RAW, ZSTD, PAIRS])), 0) for _ in range(width))
    shifts = [draw(st.integers(0, 8 * width - 1)) for _ in range(len(cuts) + 1)]
    classes = tuple((shift, Plan(width, 0, columns, 1.0)) for shift in shifts)
    chance = random.Random(draw(st.integers(0, 9999), label="seed of the change"))
    plain = bytearray(base)
    for _ in range(draw(st.integers(0, 300), label="changes") if base else 0):
        plain[chance.randrange(len(base))] = chance.randrange(256)
    return Delta(bytes(plain), base, DeltaPlan(width, skip, bytes(sorted(cuts)), classes, 1.0))


def outcome(decode: Callable[[memoryview, int], memoryview], stored: bytes, size: int) -> object:
    """The decoded bytes, or the sentence that refuses them."""
    try:
        return bytes(decode(memoryview(stored), size))
    except CorruptionError as error:
        return str(error)


@given(payloads())
def test_every_core_stores_the_same_planes_and_reads_them(payload):
    found = []
    for compiled in CORES:
        with using(compiled):
            found.append(bytes(planes.encode(payload.plain, payload.plan)))

    assert all(stored == found[0] for stored in found)
    for compiled in CORES:
        with using(compiled):
            assert bytes(planes.decode(memoryview(found[0]), len(payload.plain))) == payload.plain


@given(payloads(), st.integers(0, 9999), st.integers(0, 7))
def test_every_core_refuses_the_same_damaged_planes(payload, at, bit):
    with using(None):
        stored = bytearray(planes.encode(payload.plain, payload.plan))
    flipped = bytearray(stored)
    flipped[at % len(stored)] ^= 1 << bit
    cut = stored[: at % len(stored)]
    for hostile in (flipped, cut, stored + b"\0"):
        for size in (len(payload.plain), len(payload.plain) + 1, 0):
            found = []
            for compiled in CORES:
                with using(compiled):
                    found.append(outcome(planes.decode, bytes(hostile), size))
            assert all(one == found[0] for one in found)


@pytest.mark.parametrize("compiled", CORES, ids=str)
@given(payload=payloads(), skip=st.integers(1, 9))
def test_elements_may_begin_at_any_address(compiled, payload, skip):
    shifted = memoryview(bytes(skip) + payload.plain)[skip:]

    with using(compiled):
        stored = bytes(skip) + bytes(planes.encode(shifted, payload.plan))
        again = planes.decode(memoryview(stored)[skip:], len(payload.plain))

    assert bytes(again) == payload.plain


@given(deltas())
def test_every_core_stores_the_same_deltas_and_reads_them(delta):
    found = []
    for compiled in CORES:
        with using(compiled):
            found.append(bytes(dense_delta.encode(delta.plain, delta.base, delta.plan)))

    assert all(stored == found[0] for stored in found)
    for compiled in CORES:
        with using(compiled):
            again = dense_delta.decode(memoryview(found[0]), len(delta.plain), delta.base)
        assert bytes(again) == delta.plain


@given(deltas(), st.integers(0, 9999), st.integers(0, 7), st.integers(0, 9999))
def test_every_core_refuses_the_same_damaged_deltas(delta, at, bit, seed):
    with using(None):
        stored = bytearray(dense_delta.encode(delta.plain, delta.base, delta.plan))
    flipped = bytearray(stored)
    flipped[at % len(stored)] ^= 1 << bit
    other = random.Random(seed).randbytes(len(delta.base))
    size = len(delta.base)
    for hostile, base in (
        (flipped, delta.base),
        (stored[: at % len(stored)], delta.base),
        (stored + b"\0", delta.base),
        (stored, other),
        (stored, delta.base + b"\0"),
        (stored, b""),
    ):
        for wanted in {size, len(base)}:
            found = []
            for compiled in CORES:
                with using(compiled):
                    decode = functools.partial(dense_delta.decode, delta_base=base)
                    found.append(outcome(decode, bytes(hostile), wanted))
            assert all(one == found[0] for one in found)


@pytest.mark.parametrize("compiled", CORES, ids=str)
def test_a_payload_that_decodes_to_other_bytes_is_found(compiled):
    plain = bytes(range(256)) * 64
    other = plain[:-1] + b"\0"

    with using(compiled):
        assert decoding.round_trips(decoding.RAW, plain, b"", plain)
        assert not decoding.round_trips(decoding.RAW, other, b"", plain)


PLAN = bytes([4, 2, 0, 0, 1, 0, 0, 1, 1, 5])


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize(
    "plan",
    [
        b"",
        b"\4",
        PLAN[:-1],
        PLAN + b"\1",
        bytes([3, 1, 0, 0, 1, 0, 0, 1, 0, 0]),
        bytes([4, 2, 0, 0, 2, 0, 0]),
        bytes([4, 2, 1, 0, 1, 0, 0, 1, 0, 0]),
        bytes([8, *(1, 0, 0) * 9]),
        bytes([2, 1, 0, 0]),
        bytes([4, 3, 0, 0, 1, 0, 0]),
    ],
    ids=repr,
)
def test_columns_that_form_no_element_are_refused(variant, plan):
    functions, targets = variant

    with pytest.raises(ValueError, match="do not form an element"):
        functions.planes_split(targets, plan, bytes(80), 0, 2, bytearray(80), 0)
    with pytest.raises(ValueError, match="do not form an element"):
        functions.planes_join(targets, plan, [], 2, bytearray(80), 0)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize(
    ("plain", "skip", "count", "out", "begin"),
    [
        (16, 0, 6, 24, 0),
        (16, 1, 4, 16, 0),
        (16, 0, 4, 16, 1),
        (16, 0, 4, 15, 0),
        (16, -1, 2, 16, 0),
        (16, 17, 0, 16, 0),
        (16, 0, 3, 16, 0),
        (16, 0, -2, 16, 0),
        (16, 0, 2**62, 16, 0),
        (16, 2**63 - 1, 2, 16, 0),
    ],
)
def test_elements_outside_of_their_buffers_are_refused(variant, plain, skip, count, out, begin):
    functions, targets = variant

    with pytest.raises(ValueError, match="do not fit"):
        functions.planes_split(targets, PLAN, bytes(plain), skip, count, bytearray(out), begin)
    with pytest.raises(ValueError, match="do not fit"):
        bodies = [bytes(plain)] * 6
        functions.planes_join(
            targets, PLAN, bodies, count, bytearray(min(plain, out)), skip or begin
        )


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize(
    "bodies",
    [
        [bytes(7), b"", bytes(4), b"", bytes(2), bytes(2)],
        [bytes(8), b"", bytes(5), b"", bytes(2), bytes(2)],
        [bytes(8), b"", bytes(4), b"", bytes(1), bytes(2)],
        [bytes(8), b"", bytes(4), b"", bytes(2), bytes(1)],
        [bytes(8), bytes(8), bytes(4), b"", bytes(2), b""],
        [bytes(8), b"", bytes(4), b"", b"", b""],
    ],
)
def test_columns_of_the_wrong_length_are_refused(variant, bodies):
    functions, targets = variant

    with pytest.raises(ValueError, match="does not have the length"):
        functions.planes_join(targets, PLAN, bodies, 4, bytearray(16), 0)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_too_few_columns_or_none_are_refused(variant):
    functions, targets = variant

    with pytest.raises(ValueError, match="do not fit"):
        functions.planes_join(targets, PLAN, [bytes(8)] * 5, 4, bytearray(16), 0)
    with pytest.raises(TypeError):
        functions.planes_join(
            targets, PLAN, [bytes(8), "x", b"", b"", b"", b""], 4, bytearray(16), 0
        )
    with pytest.raises(TypeError):
        functions.planes_join(targets, PLAN, 5, 4, bytearray(16), 0)
    with pytest.raises(ValueError, match="no negative length"):
        functions.buffer(-1)


def packed(width: int, count: int, shift: int = 0, own: int = 0) -> bytes:
    """Classes as the core takes them; all exponents are in class ``own``."""
    return bytes([width, count, *[shift] * 8, *[own] * 256])


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize(
    "classes",
    [
        b"",
        packed(4, 1)[:-1],
        packed(4, 1) + b"\0",
        packed(3, 1),
        packed(1, 1),
        packed(4, 0),
        packed(4, 9),
        packed(4, 1, shift=32),
        packed(2, 1, shift=16),
        packed(4, 2, own=2),
    ],
    ids=lambda classes: f"{classes[:3].hex()}-{len(classes)}",
)
def test_impossible_classes_are_refused(variant, classes):
    functions, targets = variant

    with pytest.raises(ValueError, match="impossible"):
        functions.delta_sizes(classes, bytes(8), 0)
    with pytest.raises(ValueError, match="impossible"):
        functions.delta_split(targets, classes, bytes(8), bytes(8), 0, bytearray(8))
    with pytest.raises(ValueError, match="impossible"):
        functions.delta_join(targets, classes, [bytes(8)], bytes(8), 0, bytearray(8))


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_differences_that_do_not_fit_their_buffers_are_refused(variant):
    functions, targets = variant
    classes = packed(4, 2)

    assert functions.delta_sizes(classes, bytes(11), 2) == (2, 0)
    for plain, old, skip, out in ((7, 8, 0, 8), (8, 8, 0, 7), (8, 8, 9, 0), (8, 8, -1, 8)):
        with pytest.raises(ValueError, match="do not fit"):
            functions.delta_split(targets, classes, bytes(plain), bytes(old), skip, bytearray(out))
    for sizes, old, skip, out in (
        ((8, 0), 8, 0, 7),
        ((8, 0), 8, 9, 8),
        ((8,), 8, 0, 8),
        ((8, 0, 0), 8, 0, 8),
    ):
        bodies = [bytes(size) for size in sizes]
        with pytest.raises(ValueError, match="do not fit"):
            functions.delta_join(targets, classes, bodies, bytes(old), skip, bytearray(out))
    for sizes in ((4, 4), (7, 0), (12, 0), (0, 0)):
        bodies = [bytes(size) for size in sizes]
        with pytest.raises(ValueError, match="does not have the length"):
            functions.delta_join(targets, classes, bodies, bytes(8), 0, bytearray(8))
