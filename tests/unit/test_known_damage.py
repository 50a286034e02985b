"""Records of damage: their names, and what they say together."""

import itertools
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic.ids import PackId
from ciuic.store.records import layout
from ciuic.store.records.damage import RECORDS_MAX, ByteSpan, KnownDamage, merged

PACK, OTHER = PackId(b"\x01" * 32), PackId(b"\x02" * 32)

spans = st.lists(
    st.tuples(st.integers(0, 300), st.integers(1, 40)).map(
        lambda pair: ByteSpan(pair[0], pair[0] + pair[1])
    ),
    max_size=12,
)


def named(found: list[ByteSpan], pack_id: PackId = PACK) -> list[str]:
    return [layout.damage_name(pack_id, *span, os.urandom(8)) for span in found]


def bytes_of(found: list[ByteSpan]) -> set[int]:
    return {at for span in found for at in range(span.begin_bytes, span.end_bytes)}


@given(spans, st.integers(0, 400), st.integers(1, 50))
def test_bytes_are_damaged_if_a_record_names_one_of_them(
    found: list[ByteSpan], offset: int, length: int
) -> None:
    known = KnownDamage(named(found))
    wanted = set(range(offset, offset + length))
    assert known.touches(PACK, offset, length) == bool(bytes_of(found) & wanted)
    assert known.covers(PACK, ByteSpan(offset, offset + length)) == (wanted <= bytes_of(found))
    assert not known.touches(OTHER, offset, length)
    assert bool(known) == bool(found)


@given(spans, st.integers(1, 12))
def test_merged_spans_have_all_bytes_and_are_apart(found: list[ByteSpan], count: int) -> None:
    joined = merged(found, count)
    assert len(joined) <= count
    assert bytes_of(found) <= bytes_of(joined)
    assert all(one.end_bytes < two.begin_bytes for one, two in itertools.pairwise(joined))
    assert bytes_of(merged(found)) == bytes_of(found)


def test_the_smallest_gaps_are_closed_first() -> None:
    found = [ByteSpan(0, 1), ByteSpan(50, 51), ByteSpan(53, 60), ByteSpan(90, 91)]
    assert merged(found, 2) == [ByteSpan(0, 1), ByteSpan(50, 91)]
    assert merged(found, 1) == [ByteSpan(0, 91)]


@pytest.mark.parametrize(
    "name",
    [
        "01" * 32,
        "01" * 32 + "-damaged-5-5-0123456789abcdef",
        "01" * 32 + "-damaged-05-9-0123456789abcdef",
        "01" * 32 + "-damaged--5-9-0123456789abcdef",
        "01" * 32 + "-damaged-5-9-0123456789abcde",
        "01" * 32 + "-damaged-5-9-0123456789abcdef\n",
        "01" * 32 + f"-damaged-5-{10**15}-0123456789abcdef",
        "0G" * 32 + "-damaged-5-9-0123456789abcdef",
        "01" * 31 + "-damaged-5-9-0123456789abcdef",
    ],
)
def test_other_names_say_nothing(name: str) -> None:
    assert layout.parse_damage_name(name) is None
    assert not KnownDamage([name])


def test_damage_behind_many_records_is_heeded_and_all_can_be_deleted() -> None:
    spans = [ByteSpan(2 * number, 2 * number + 1) for number in range(3 * RECORDS_MAX)]
    last = named([ByteSpan(1, 2), ByteSpan(8, 9)], OTHER)
    known = KnownDamage([*last, *named(spans)])
    assert known.count == 3 * RECORDS_MAX + 2
    assert all(known.covers(PACK, span) for span in spans)
    assert known.touches(OTHER, 1, 1)
    assert known.touches(OTHER, 8, 1)
    assert not known.touches(OTHER, 4, 1)
    assert known.packs() == {PACK, OTHER}
    assert set(known.names_of(OTHER)) == set(last)


def test_damage_in_very_many_packs_is_heeded_in_each() -> None:
    packs = [PackId(number.to_bytes(32, "big")) for number in range(RECORDS_MAX + 5)]
    known = KnownDamage(name for pack_id in packs for name in named([ByteSpan(3, 4)], pack_id))
    assert all(known.touches(pack_id, 3, 1) for pack_id in packs)
    assert not known.touches(packs[0], 4, 1)
