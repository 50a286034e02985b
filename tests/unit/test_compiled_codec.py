"""The compiled core and numpy store equal bytes, read each other's, and refuse the same ones."""

import functools
import random
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic.codec import decoding, dense_delta, planes, sparse_delta
from ciuic.codec.plan import PAIRS, RAW, ZSTD, Column, DeltaPlan, Plan
from ciuic.errors import CorruptionError
from tests.kit.cores import VARIANTS, using

CORES = [None, *VARIANTS]


class Payload(NamedTuple):
    plain: bytes
    plan: Plan


@st.composite
def plain_bytes(draw, most=300):
    """Draw bytes: noise, runs, or numbers with few exponents, and sometimes many of them."""
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
    """Return the decoded bytes, or the message of the refusal."""
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


class Sparse(NamedTuple):
    plain: bytes
    base: bytes
    width: int
    skip: int


@st.composite
def few_changes(draw):
    """Two versions with few changed elements, near each other or with gaps of up to 3 bytes."""
    base = draw(plain_bytes())
    if draw(st.integers(0, 9), label="long") == 0:
        base = (base or b"!") * (200_000 // (len(base) or 1))
    width = draw(st.sampled_from(sparse_delta.WIDTHS), label="width")
    skip = draw(st.integers(0, min(width - 1, len(base))), label="skip")
    chance = random.Random(draw(st.integers(0, 9999), label="seed of the change"))
    plain = bytearray(base)
    begin = chance.randrange(len(base) or 1)
    length = draw(st.sampled_from([len(base), 300]), label="range of the changes")
    most = draw(st.sampled_from([0, 1, 20, len(base) // 2]), label="changes")
    for _ in range(most if base else 0):
        plain[(begin + chance.randrange(length or 1)) % len(base)] = chance.randrange(256)
    return Sparse(bytes(plain), base, width, skip)


@given(few_changes())
def test_every_core_stores_the_same_sparse_deltas_and_reads_them(sparse):
    found = []
    for compiled in CORES:
        with using(compiled):
            found.append(sparse_delta.encode(*sparse))

    assert len({stored if stored is None else bytes(stored) for stored in found}) == 1
    stored = found[0]
    for compiled in CORES if stored is not None else []:
        with using(compiled):
            again = sparse_delta.decode(stored, len(sparse.plain), sparse.base)
        assert bytes(again) == sparse.plain


@given(few_changes(), st.integers(0, 9999), st.integers(0, 7), st.integers(0, 9999))
def test_every_core_refuses_the_same_damaged_sparse_deltas(sparse, at, bit, seed):
    with using(None):
        stored = bytearray(sparse_delta.encode(*sparse) or sparse_delta.encode(b"", b"", 1, 0))
    flipped = bytearray(stored)
    flipped[at % len(stored)] ^= 1 << bit
    early = bytearray(stored)
    early[at % min(len(stored), 40)] ^= 1 << bit
    size = len(sparse.base)
    other = random.Random(seed).randbytes(size)
    for hostile, base in (
        (flipped, sparse.base),
        (early, sparse.base),
        (stored[: at % len(stored)], sparse.base),
        (stored + b"\0", sparse.base),
        (stored, other),
        (stored, sparse.base[: at % (size + 1)]),
        (stored, sparse.base + b"\0"),
    ):
        for wanted in {size, len(base)}:
            found = []
            for compiled in CORES:
                with using(compiled):
                    decode = functools.partial(sparse_delta.decode, delta_base=base)
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
def test_columns_that_make_up_no_element_are_refused(variant, plan):
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
    """Return classes as the core takes them, with all exponents in class ``own``."""
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
def test_deltas_that_do_not_fit_their_buffers_are_refused(variant):
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


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize(
    ("width", "plain", "old", "skip"),
    [
        (0, 8, 8, 0),
        (3, 9, 9, 0),
        (-4, 8, 8, 0),
        (16, 16, 16, 0),
        (2**62, 8, 8, 0),
        (4, 8, 7, 0),
        (4, 7, 8, 0),
        (4, 8, 8, -1),
        (4, 8, 8, 9),
        (4, 8, 8, 2**63 - 1),
    ],
)
def test_changed_elements_outside_of_their_buffers_are_refused(variant, width, plain, old, skip):
    functions, targets = variant

    with pytest.raises(ValueError, match="do not fit"):
        functions.sparse_count(targets, width, bytes(plain), bytes(old), skip)
    with pytest.raises(ValueError, match="do not fit"):
        nothing = bytearray()
        functions.sparse_split(width, bytes(plain), bytes(old), skip, nothing, nothing, nothing)
    with pytest.raises(ValueError, match="do not fit"):
        functions.sparse_join(width, [b""], b"", bytes(old), skip, bytearray(plain))


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_changes_that_do_not_fit_their_buffers_are_refused(variant):
    functions, targets = variant
    plain, old = b"abcdefgh", b"abcd1234"

    assert functions.sparse_count(targets, 2, plain, old, 0) == 2
    for gaps, now, before in ((7, 4, 4), (9, 4, 4), (8, 5, 5), (8, 4, 3), (8, 6, 6), (12, 4, 4)):
        with pytest.raises(ValueError, match="do not fit"):
            functions.sparse_split(
                2, plain, old, 0, bytearray(gaps), bytearray(now), bytearray(before)
            )
    for changed in (0, 1, 3, 4):
        with pytest.raises(ValueError, match="another number"):
            functions.sparse_split(
                2,
                plain,
                old,
                0,
                bytearray(4 * changed),
                bytearray(2 * changed),
                bytearray(2 * changed),
            )


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_gaps_that_do_not_fit_their_elements_are_refused(variant):
    functions, _ = variant

    for gaps in ([], [b"\0"] * 5):
        with pytest.raises(ValueError, match="do not fit"):
            functions.sparse_take(2, gaps, bytes(8), 0, bytearray(2))
    with pytest.raises(ValueError, match="differ in length"):
        functions.sparse_take(2, [b"\0", b""], bytes(8), 0, bytearray(2))
    for length in (0, 1, 3, 4):
        with pytest.raises(ValueError, match="do not fit"):
            functions.sparse_take(2, [b"\0"], bytes(8), 0, bytearray(length))
        with pytest.raises(ValueError, match="do not fit"):
            functions.sparse_join(2, [b"\0"], bytes(length), bytes(8), 0, bytearray(8))
    with pytest.raises(TypeError):
        functions.sparse_take(2, 5, bytes(8), 0, bytearray(2))
    with pytest.raises(TypeError):
        functions.sparse_take(2, [b"\0", "x"], bytes(8), 0, bytearray(2))


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize(
    ("gaps", "fits"),
    [
        ([b"\3"], True),
        ([b"\4"], False),
        ([b"\1\1"], True),
        ([b"\1\2"], False),
        ([b"\0", b"\1"], False),
        ([b"\0", b"\0", b"\0", b"\0"], True),
        ([b"\xff\xff", b"\xff\xff", b"\xff\xff", b"\xff\xff"], False),
        ([b"\0\0\0\0\0"], False),
    ],
    ids=repr,
)
def test_gaps_that_lead_beyond_the_end_are_found(variant, gaps, fits):
    """This is damage, not a fault of ciuic, so the answer is False."""
    functions, _ = variant
    size = 2 * len(gaps[0])

    assert functions.sparse_take(2, gaps, bytes(9), 1, bytearray(size)) is fits
    assert functions.sparse_join(2, gaps, bytes(size), bytes(9), 1, bytearray(9)) is fits


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("width", sparse_delta.WIDTHS)
def test_all_elements_may_have_changed(variant, width):
    """Counters are as narrow as the elements, and must not overflow."""
    functions, targets = variant

    for count in (0, 1, 127, 128, 129, 255, 256, 257, 1000, 70_001):
        plain, old = b"\1" * (count * width), bytes(count * width)
        assert functions.sparse_count(targets, width, plain, old, 0) == count
