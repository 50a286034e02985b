"""The distribution of the bytes of numbers: all cores agree, and it gives their entropy."""

import math
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic.codec import columns, probing
from tests.kit.cores import VARIANTS, using

UNIT = 1 << 20
KINDS = ("noise", "zeros", "few", "floats", "wraps")


@st.composite
def samples(draw):
    """Draw bytes, the width of their elements, and the number of bytes before the first."""
    size = draw(st.one_of(st.integers(0, 40), st.integers(41, 9000), st.just(59_392)))
    chance = random.Random(draw(st.integers(0, 9999)))
    kind = draw(st.sampled_from(KINDS))
    if kind == "noise":
        sample = chance.randbytes(size)
    elif kind == "zeros":
        sample = bytes(size)
    elif kind == "few":
        sample = bytes(chance.choices(range(100, 120), k=size))
    elif kind == "wraps":
        sample = bytes(chance.choices([250, 255, 0, 3], k=size))
    else:
        numbers = np.random.default_rng(chance.randrange(9999)).normal(0, 0.02, size // 4 + 1)
        sample = numbers.astype("<f4").tobytes()[:size]
    return sample, draw(st.sampled_from([2, 4, 8])), min(draw(st.integers(0, 7)), size)


@given(samples())
def test_all_cores_and_numpy_give_the_same_tally(sampled):
    sample, width, skip = sampled
    expected = columns.tally(sample, width, skip)

    assert len(expected) == width
    for variant in VARIANTS:
        assert variant.functions.planes_tally(width, sample, skip) == expected


@given(samples())
def test_a_tally_is_the_entropy_and_the_fullest_window(sampled):
    """The test compares with simple arithmetic: floats, and all 256 windows."""
    sample, width, skip = sampled
    count = (len(sample) - skip) // width
    elements = [sample[skip + at * width : skip + (at + 1) * width] for at in range(count)]
    tops = [int.from_bytes(element[-2:], "little") for element in elements]
    places = [[element[byte] for element in elements] for byte in range(width - 2)]
    places.append([top & 0x7F | top >> 8 & 0x80 for top in tops])
    places.append([top >> 7 & 0xFF for top in tops])
    for (bits, near, lowest), values in zip(
        columns.tally(sample, width, skip), places, strict=True
    ):
        counts = Counter(values)
        entropy = sum([-n * math.log2(n / count) for n in counts.values()])
        windows = [sum([counts[(low + at) % 256] for at in range(16)]) for low in range(256)]
        assert bits / UNIT == pytest.approx(entropy, abs=1e-4 * count + 1e-9)
        assert near == max(windows) == windows[lowest]


@given(samples(), st.sampled_from([0, 1, 2, 4, 8]))
def test_every_core_chooses_the_same_plan(sampled, told):
    sample, width, _ = sampled
    found = []
    for variant in [None, *VARIANTS]:
        with using(variant):
            found.append((probing.plan(sample, width), probing.probe(sample, told)))
    assert all(plans == found[0] for plans in found)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize(
    ("width", "skip"),
    [(0, 0), (1, 0), (3, 0), (16, 0), (-4, 0), (2**62, 0), (4, -1), (4, 101), (4, 2**63 - 1)],
)
def test_elements_that_do_not_fit_are_not_tallied(variant, width, skip):
    with pytest.raises(ValueError, match="do not fit"):
        variant.functions.planes_tally(width, bytes(100), skip)
