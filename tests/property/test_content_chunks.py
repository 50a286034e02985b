"""Cuts by content have every byte once, and do not depend on the sizes of the blocks read."""

import random
from collections.abc import Sequence
from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from ciuic.chunking.content import AVERAGE_BYTES, IS_COMPILED, LEAST_BYTES, ContentChunker

KIB = 1024
SIZES = ((4096, 1024, 256), (4096, 4096, 4096), (5000, 2048, 64), (9973, 256, 128))
"""Maximum, average and minimum length, with odd maximums and rare averages among them."""


@st.composite
def contents(draw: st.DrawFn) -> bytes:
    """Noise, text and runs of one byte, one after another."""
    parts = []
    for kind, length in draw(
        st.lists(st.tuples(st.sampled_from("ntr"), st.integers(0, 30_000)), max_size=4)
    ):
        dice = random.Random(length)
        if kind == "n":
            parts.append(dice.randbytes(length))
        elif kind == "t":
            lines = [b"step %d loss %f\n" % (one, dice.random()) for one in range(length // 20)]
            parts.append(b"".join(lines))
        else:
            parts.append(bytes([dice.randrange(256)]) * length)
    return b"".join(parts)


def lengths(data: bytes, sizes: tuple[int, int, int], blocks: Sequence[int] = ()) -> list[int]:
    """Return the lengths of the chunks of ``data``, read in blocks of these lengths."""
    ends = [one for one in accumulate(blocks) if one < len(data)]
    bounds = [0, *ends, len(data)]
    view = memoryview(data)
    pairs = pairwise(bounds)
    cut = list(
        ContentChunker(*sizes).chunks((one, view[one:end]) for one, end in pairs if one < end)
    )
    assert b"".join(chunk for _, chunk in cut) == data
    found = [len(chunk) for _, chunk in cut]
    assert [at for at, _ in cut] == [0, *accumulate(found)][:-1] * bool(cut)
    return found


@given(contents(), st.sampled_from(SIZES), st.lists(st.integers(1, 12_000), max_size=60))
def test_any_division_into_blocks_gives_the_same_cuts(
    data: bytes, sizes: tuple[int, int, int], blocks: list[int]
) -> None:
    found = lengths(data, sizes)
    assert lengths(data, sizes, blocks) == found
    assert lengths(data, sizes, [1] * min(len(data), 300)) == found
    longest, _, least = sizes
    assert all(one <= longest for one in found)
    assert all(one >= least for one in found[:-1])


@given(contents(), st.sampled_from(SIZES), st.data())
def test_cuts_after_a_cut_are_those_of_a_file_that_begins_there(
    data: bytes, sizes: tuple[int, int, int], draws: st.DataObject
) -> None:
    found = lengths(data, sizes)
    count = draws.draw(st.integers(0, len(found)))
    assert lengths(data[sum(found[:count]) :], sizes) == found[count:]


@given(contents(), contents(), st.sampled_from(SIZES), st.integers(1, 10_000))
def test_separate_ranges_are_cut_separately(
    one: bytes, other: bytes, sizes: tuple[int, int, int], apart: int
) -> None:
    far = len(one) + apart
    blocks = [(at, memoryview(data)) for at, data in ((0, one), (far, other)) if data]
    cut = [(at, len(chunk)) for at, chunk in ContentChunker(*sizes).chunks(blocks)]
    alone = [(at, len(chunk)) for at, chunk in ContentChunker(*sizes).chunks(blocks[:1])]
    ends = [(at, len(chunk)) for at, chunk in ContentChunker(*sizes).chunks(blocks[1:])]
    assert cut == alone + ends


@given(st.integers(0, 2**32), st.integers(0, 200_000), st.binary(min_size=1, max_size=300))
def test_an_insertion_changes_only_a_few_chunks(seed: int, at: int, inserted: bytes) -> None:
    sizes = (4096, 1024, 256)
    data = random.Random(seed).randbytes(256 * KIB)
    old = set(accumulate(lengths(data, sizes)))
    new = [
        one - len(inserted) for one in accumulate(lengths(data[:at] + inserted + data[at:], sizes))
    ]
    fresh = [one for one in new if at < one and one not in old]
    # Two sequences of cuts meet again at each cut with a chance of about a half.
    assert len(fresh) <= 25
    assert len(data) in new


NOISE_CUTS = (
    "235217 250541 570454 176885 203777 425594 86755 376035 162368 200963 683369 "
    "349848 815778 131655 328622 143534 185929 363941 288154 147446 164591"
)
SHORT_CUTS = (
    "1061 1889 1732 1208 1283 1220 436 1675 706 620 469 871 1108 1456 1568 1303 322 "
    "572 1209 561 1197 1658 1620 1035 1559 1004 550 1452 1424"
)
TEXT_CUTS = "2874 8733 1134 8404 9954 5737 5339 5690 6354 365"


def spelled(cuts: str) -> list[int]:
    return [int(one) for one in cuts.split()]


def test_cuts_are_those_of_all_earlier_versions() -> None:
    """Another version of the library, or another library, must make the same cuts."""
    assert IS_COMPILED
    noise = random.Random(16).randbytes(6 * 1024 * KIB)
    assert lengths(noise, (1024 * KIB, 256 * KIB, 64 * KIB)) == spelled(NOISE_CUTS)
    assert lengths(noise[: 32 * KIB], (4096, 1024, 256)) == spelled(SHORT_CUTS)
    text = b"".join(b'{"step": %d, "loss": %d}\n' % (one, one**3 % 997) for one in range(2000))
    assert lengths(text, (16_384, 4096, 1024)) == spelled(TEXT_CUTS)
    assert lengths(bytes(10_000), (4096, 1024, 256)) == [4096, 4096, 1808]


def test_every_length_that_a_header_may_have_works() -> None:
    for average in (AVERAGE_BYTES.start, AVERAGE_BYTES.stop - 1):
        for least in (LEAST_BYTES.start, LEAST_BYTES.stop - 1):
            if least <= average:
                longest = max(4096, average)
                assert lengths(b"one", (longest, average, least)) == [3]
