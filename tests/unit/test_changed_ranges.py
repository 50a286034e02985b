"""Planning a recipe: which old pieces ciuic keeps, and which ranges it reads."""

import pytest

from ciuic.chunking import FixedChunker, TensorChunker
from ciuic.formats.headers import Span
from ciuic.snapshot.read.changed_ranges import ITEMS_MAX, Gap, Kept, plan_changes, unchanged_chunks
from ciuic.source.byte_range import ByteRange
from ciuic.store.records.recipe_nodes import HOLE, Piece
from ciuic.system.hashing import data_id

KIB = 1024
MIB = 1024 * KIB
A, B, C = (data_id(name) for name in (b"a", b"b", b"c"))
THREE = [Piece(MIB, A), Piece(MIB, B), Piece(MIB, C)]


def plan(pieces, changed, size):
    return list(
        plan_changes(pieces, [ByteRange(*one) for one in changed], size, chunker=FixedChunker(MIB))
    )


def test_an_unchanged_file_keeps_its_pieces():
    assert plan(THREE, [], 3 * MIB) == [Kept(at * MIB, one) for at, one in enumerate(THREE)]


def test_a_block_in_the_middle_of_a_chunk_leaves_two_slices():
    assert plan(THREE, [(MIB + 8192, 4096)], 3 * MIB) == [
        Kept(0, Piece(MIB, A)),
        Kept(MIB, Piece(8192, B)),
        Gap(MIB + 8192, 4096),
        Kept(MIB + 12288, Piece(MIB - 12288, B, 12288)),
        Kept(2 * MIB, Piece(MIB, C)),
    ]


def test_a_slice_of_a_slice_counts_from_the_beginning_of_its_chunk():
    pieces = [Piece(MIB // 2, A, 4096), Piece(MIB // 2, B, 8192)]
    found = plan(pieces, [(MIB // 2 + 4096, 4096)], MIB)
    assert found == [
        Kept(0, Piece(MIB // 2, A, 4096)),
        Kept(MIB // 2, Piece(4096, B, 8192)),
        Gap(MIB // 2 + 4096, 4096),
        Kept(MIB // 2 + 8192, Piece(MIB // 2 - 8192, B, 16384)),
    ]


def test_adjacent_slices_of_one_chunk_become_one():
    pieces = [Piece(4096, A), Piece(MIB - 4096, A, 4096)]
    assert plan(pieces, [], MIB) == [Kept(0, Piece(MIB, A))]
    # The same chunk twice in a row is not one slice of it.
    assert len(plan([Piece(4096, A)] * 2, [], 8192)) == 2


def test_holes_stay_holes_and_are_cut_anywhere():
    found = plan([Piece(10 * MIB, HOLE)], [(3 * MIB + 4096, 4096)], 10 * MIB)
    assert found == [
        Kept(0, Piece(3 * MIB + 4096, HOLE)),
        Gap(3 * MIB + 4096, 4096),
        Kept(3 * MIB + 8192, Piece(7 * MIB - 8192, HOLE)),
    ]


def test_an_append_reads_the_last_block_and_the_new_ones():
    found = plan([*THREE[:2], Piece(5000, C)], [(2 * MIB + 4096, 10 * MIB - 4096)], 12 * MIB)
    assert found == [
        Kept(0, Piece(MIB, A)),
        Kept(MIB, Piece(MIB, B)),
        Gap(2 * MIB, 10 * MIB),  # 4096 bytes of a region are too few to keep
    ]


def test_a_shorter_file_ends_in_a_slice():
    found = plan(THREE, [], MIB + MIB // 2)
    assert found == [Kept(0, Piece(MIB, A)), Kept(MIB, Piece(MIB // 2, B))]
    assert plan(THREE, [], 0) == []


def test_a_region_of_tiny_pieces_is_read_entirely_and_its_neighbors_are_not():
    crumbs = [(MIB + at * 16 * KIB, 4096) for at in range(ITEMS_MAX // 2 + 1)]
    assert plan(THREE, crumbs, 3 * MIB) == [
        Kept(0, Piece(MIB, A)),
        Gap(MIB, MIB),
        Kept(2 * MIB, Piece(MIB, C)),
    ]
    fewer = plan(THREE, crumbs[: ITEMS_MAX // 2], 3 * MIB)
    assert sum(one.length_bytes for one in fewer if isinstance(one, Gap)) == ITEMS_MAX // 2 * 4096


def test_a_region_with_little_left_is_read_entirely():
    most = MIB - 200 * KIB
    assert plan(THREE, [(MIB, most)], 3 * MIB)[1] == Gap(MIB, MIB)
    assert plan(THREE, [(MIB, MIB // 2)], 3 * MIB)[1] == Gap(MIB, MIB // 2)


def test_the_end_of_a_long_gap_counts_in_the_region_that_it_ends_in():
    found = plan([Piece(3 * MIB, HOLE)], [(0, MIB + 900 * KIB)], 3 * MIB)
    assert found == [Gap(0, 2 * MIB), Kept(2 * MIB, Piece(MIB, HOLE))]


def test_bytes_beyond_the_old_recipe_are_all_read():
    assert plan(THREE, [], 3 * MIB + 1)[-1] == Gap(3 * MIB, 1)


def test_gaps_of_whole_regions_are_one_gap_that_a_fresh_read_would_cut_the_same_way():
    found = plan(THREE, [(0, MIB), (MIB, MIB + 4096)], 3 * MIB)
    assert found[0] == Gap(0, 2 * MIB + 4096)


@pytest.mark.parametrize(
    ("pieces", "changed", "expected"),
    [
        (THREE, [(MIB, 4096)], [0, 2 * MIB]),
        ([Piece(4096, A), Piece(MIB, B)], [], []),
        ([Piece(MIB, HOLE), Piece(MIB, B)], [], [MIB]),
        ([Piece(MIB, A), Piece(5000, B)], [], [0]),
    ],
)
def test_a_full_read_must_find_only_the_entire_chunks_in_their_places(pieces, changed, expected):
    size = sum(one.length_bytes for one in pieces)
    ranges = [ByteRange(*one) for one in changed]
    found = unchanged_chunks(pieces, ranges, size, chunker=FixedChunker(MIB), chunk_bytes=MIB)
    assert [one.offset_bytes for one in found] == expected


def test_a_recipe_of_another_chunking_is_reused_slice_by_slice():
    chunker = TensorChunker([Span(5000, MIB), Span(5000 + MIB, MIB)], MIB)
    changed = [ByteRange(5000, MIB)]
    assert list(plan_changes(THREE, changed, 3 * MIB, chunker=chunker)) == [
        Kept(0, Piece(5000, A)),
        Gap(5000, MIB),
        Kept(MIB + 5000, Piece(MIB - 5000, B, 5000)),
        Kept(2 * MIB, Piece(MIB, C)),
    ]
    assert list(plan_changes(THREE, [], 3 * MIB, chunker=chunker)) == plan(THREE, [], 3 * MIB)


def test_a_full_read_need_not_find_chunks_that_it_would_cut_elsewhere():
    chunker = TensorChunker([Span(5000, 200_000), Span(2 * MIB, 500_000)], MIB)
    pieces = [Piece(5000, A), Piece(200_000, B), *THREE]
    size = sum(one.length_bytes for one in pieces)
    found = unchanged_chunks(pieces, [], size, chunker=chunker, chunk_bytes=MIB)
    assert [one.offset_bytes for one in found] == [205_000]
