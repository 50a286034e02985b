"""Recipes of changed files have the new bytes everywhere, for any changes."""

import itertools
from collections.abc import Iterator, Sequence

from hypothesis import given
from hypothesis import strategies as st

from ciuic.chunking import Chunker, FixedChunker
from ciuic.snapshot.read.changed_ranges import (
    ITEMS_MAX,
    Gap,
    Kept,
    plan_changes,
    unchanged_chunks,
    unchanged_whole_chunks,
)
from ciuic.source.byte_range import ByteRange
from ciuic.store.index.places import ChunkPlace
from ciuic.store.records.recipe_nodes import Piece
from ciuic.system.hashing import data_id

LEFT_MIN = 0.25
"""The smallest share of a region that is worth keeping: ciuic/snapshot/read/changed_ranges.py."""

CHUNK_BYTES = st.sampled_from([8, 64, 400])


class Uneven(FixedChunker):
    """Cuts at multiples of a length, counted from each of some offsets to the next."""

    def __init__(self, size_bytes: int, bounds: set[int]) -> None:
        super().__init__(size_bytes)
        self.bounds = sorted(bounds | {0})

    def before(self, offset_bytes: int) -> int:
        start = max(one for one in self.bounds if one <= offset_bytes)
        return offset_bytes - (offset_bytes - start) % self.size_bytes

    def after(self, offset_bytes: int) -> int:
        cut = self.before(offset_bytes) + self.size_bytes
        return min([cut, *[one for one in self.bounds if one > offset_bytes]])


@st.composite
def chunkers(draw: st.DrawFn, chunk_bytes: int) -> Chunker:
    """The fixed rule, or cuts at any offsets."""
    return Uneven(chunk_bytes, draw(st.sets(st.integers(1, 12 * chunk_bytes), max_size=12)))


class Chunks:
    """The chunks that a store would hold."""

    def __init__(self) -> None:
        self.data: dict[bytes, bytes] = {}

    def add(self, data: bytes) -> bytes:
        """Add a chunk; return its ID."""
        name = data_id(data)
        self.data[name] = data
        return name

    def cut(self, piece: Piece) -> bytes:
        """Return a piece's bytes; fail if its chunk does not have them."""
        if not piece.id:
            assert piece.start_bytes == 0
            return bytes(piece.length_bytes)
        data = self.data[piece.id][piece.start_bytes :][: piece.length_bytes]
        assert len(data) == piece.length_bytes
        return data

    def whole(self, pieces: Sequence[Piece]) -> bytes:
        """Return a file's bytes."""
        return b"".join([self.cut(one) for one in pieces])


@st.composite
def recipes(draw: st.DrawFn, chunks: Chunks, chunk_bytes: int) -> list[Piece]:
    """Draw entire chunks, slices, short chunks and holes, in any order."""
    pieces = []
    noise = draw(st.randoms(use_true_random=False))
    for _ in range(draw(st.integers(0, 12))):
        kind = draw(st.sampled_from(["chunk", "slice", "short", "hole", "same"]))
        if kind == "hole":
            pieces.append(Piece(draw(st.integers(1, 3 * chunk_bytes)), b""))
            continue
        length = draw(st.integers(1, chunk_bytes)) if kind == "short" else chunk_bytes
        # Adjacent slices of one chunk could be joined by mistake.
        data = (bytes(range(256)) * 2)[:length] if kind == "same" else noise.randbytes(length)
        start = length_cut = 0
        if kind in {"slice", "same"}:
            start = draw(st.integers(0, length - 1))
            length_cut = draw(st.integers(0, length - 1 - start))
        pieces.append(Piece(length - start - length_cut, chunks.add(data), start))
    return pieces


@st.composite
def changes(draw: st.DrawFn, old_size: int) -> tuple[int, list[ByteRange]]:
    """Draw a new length and the changes: none, all, or ranges that may touch."""
    longer = st.integers(old_size, 2 * old_size + 40)
    new_size = draw(st.one_of(st.just(old_size), st.integers(0, old_size), longer))
    if draw(st.integers(0, 9)) == 0:
        return new_size, [ByteRange(0, new_size)] if new_size else []
    most = draw(st.sampled_from([0, 5, 5, 60]))
    ends = draw(st.lists(st.integers(0, new_size), max_size=2 * most, unique=True).map(sorted))
    found = [ByteRange(a, b - a) for a, b in zip(ends[::2], ends[1::2], strict=False)]
    if draw(st.booleans()):
        found = [ByteRange(a, b - a) for a, b in itertools.pairwise(ends)]
    return new_size, list(_with_growth(found, min(old_size, new_size), new_size))


def _with_growth(changed: Sequence[ByteRange], old_size: int, new_size: int) -> Iterator[ByteRange]:
    """Everything beyond the old end counts as changed."""
    for start, length in changed:
        end = min(start + length, old_size)
        if start < end:
            yield ByteRange(start, end - start)
    if old_size < new_size:
        yield ByteRange(old_size, new_size - old_size)


def changed_bytes(old: bytes, new_size: int, changed: Sequence[ByteRange]) -> bytes:
    """Return the new content: it has other bytes in the changed ranges, and only there."""
    new = bytearray(old[:new_size].ljust(new_size, b"\xee"))
    for start, length in changed:
        for at in range(start, start + length):
            new[at] ^= 0x55
    return bytes(new)


def spelled(
    chunks: Chunks, plan: Sequence[Kept | Gap], new: bytes, chunker: Chunker
) -> list[Piece]:
    """Return the recipe of a plan: gaps are read, and cut where every read cuts."""
    pieces = []
    for one in plan:
        if isinstance(one, Kept):
            pieces.append(one.piece)
            continue
        at, end = one.offset_bytes, one.offset_bytes + one.length_bytes
        while at < end:
            until = min(end, chunker.after(at))
            pieces.append(Piece(until - at, chunks.add(new[at:until])))
            at = until
    return pieces


def check_plan(plan: Sequence[Kept | Gap], new_size: int) -> None:
    """Check that a plan covers the file in order, and has no two gaps that touch."""
    at = 0
    last_is_gap = False
    for one in plan:
        assert one.length_bytes > 0
        assert one.offset_bytes == at
        assert not (last_is_gap and isinstance(one, Gap))
        at += one.length_bytes
        last_is_gap = isinstance(one, Gap)
    assert at == new_size


def inside(ranges: Sequence[ByteRange | Gap | Kept], start: int, end: int) -> list[int]:
    """Return the part of each range that is in a region."""
    parts = [
        min(one.offset_bytes + one.length_bytes, end) - max(one.offset_bytes, start)
        for one in ranges
    ]
    return [one for one in parts if one > 0]


def check_regions(
    plan: Sequence[Kept | Gap], changed: Sequence[ByteRange], new_size: int, chunker: Chunker
) -> None:
    """Check that a region is read entirely, or only its changes, with enough of it kept."""
    gaps = [one for one in plan if isinstance(one, Gap)]
    end = 0
    while end < new_size:
        start, end = end, min(chunker.after(end), new_size)
        read = sum(inside(gaps, start, end))
        wanted = sum(inside(changed, start, end))
        if read == end - start:
            continue
        assert read == wanted
        if read:
            assert len(inside(plan, start, end)) <= ITEMS_MAX
            assert end - start - read >= LEFT_MIN * (end - start)


@given(st.data(), CHUNK_BYTES)
def test_kept_pieces_and_read_ranges_make_the_new_file(
    data: st.DataObject, chunk_bytes: int
) -> None:
    chunks = Chunks()
    pieces = data.draw(recipes(chunks, chunk_bytes))
    old = chunks.whole(pieces)
    new_size, changed = data.draw(changes(len(old)))
    new = changed_bytes(old, new_size, changed)
    chunker = data.draw(chunkers(chunk_bytes))

    plan = list(plan_changes(pieces, changed, new_size, chunker=chunker))

    check_plan(plan, new_size)
    check_regions(plan, changed, new_size, chunker)
    assert chunks.whole(spelled(chunks, plan, new, chunker)) == new


@given(st.data(), CHUNK_BYTES)
def test_trusted_changes_equal_those_of_a_full_read(data: st.DataObject, chunk_bytes: int) -> None:
    chunks = Chunks()
    pieces = data.draw(recipes(chunks, chunk_bytes))
    old = chunks.whole(pieces)
    new_size, changed = data.draw(changes(len(old)))
    new = changed_bytes(old, new_size, changed)
    chunker = data.draw(chunkers(chunk_bytes))

    found = list(
        unchanged_chunks(pieces, changed, new_size, chunker=chunker, chunk_bytes=chunk_bytes)
    )

    for one in found:
        assert chunker.before(one.offset_bytes) == one.offset_bytes
        assert chunker.after(one.offset_bytes) == one.offset_bytes + chunk_bytes
        assert one.piece.id == data_id(new[one.offset_bytes :][:chunk_bytes])


@given(st.data(), CHUNK_BYTES)
def test_reused_pieces_of_a_file_cut_by_content_are_whole_existing_chunks(
    data: st.DataObject, chunk_bytes: int
) -> None:
    chunks = Chunks()
    pieces = data.draw(recipes(chunks, chunk_bytes))
    old = chunks.whole(pieces)
    new_size, changed = data.draw(changes(len(old)))
    new = changed_bytes(old, new_size, changed)

    def places(ids: Sequence[bytes]) -> dict[bytes, ChunkPlace]:
        return {one: ChunkPlace(b"", 0, 0, 0, len(chunks.data[one]), 1) for one in ids}

    found = list(unchanged_whole_chunks(pieces, changed, new_size, places=places))

    for one in found:
        assert one.piece.id == data_id(new[one.offset_bytes :][: one.length_bytes])
    whole = [one for one in pieces if one.id and len(chunks.data[one.id]) == one.length_bytes]
    if not changed and new_size == len(old):
        assert [one.piece for one in found] == whole


@given(st.data(), CHUNK_BYTES, st.integers(1, 12))
def test_a_file_may_change_in_many_snapshots(
    data: st.DataObject, chunk_bytes: int, generations: int
) -> None:
    chunks = Chunks()
    noise = data.draw(st.randoms(use_true_random=False))
    new = noise.randbytes(data.draw(st.integers(0, 6 * chunk_bytes)))
    chunker = data.draw(chunkers(chunk_bytes))
    pieces = spelled(chunks, [Gap(0, len(new))] if new else [], new, chunker)
    for _ in range(generations):
        new_size, changed = data.draw(changes(len(new)))
        new = changed_bytes(new, new_size, changed)
        plan = list(plan_changes(pieces, changed, new_size, chunker=chunker))
        pieces = spelled(chunks, plan, new, chunker)
        assert chunks.whole(pieces) == new
        # No sequence of reads and reuse makes a recipe grow without end.
        at = 0
        counts: dict[int, int] = {}
        for one in pieces:
            end = at + one.length_bytes
            while at < end:
                region = chunker.before(at)
                counts[region] = counts.get(region, 0) + 1
                at = min(chunker.after(at), end)
        assert max(counts.values(), default=0) <= ITEMS_MAX


def test_unchanged_pieces_are_reused_as_they_are() -> None:
    chunks = Chunks()
    whole, tail = chunks.add(bytes(range(64))), chunks.add(b"tail")
    pieces = [Piece(64, whole), Piece(1000, b""), Piece(5, whole, 9), Piece(4, tail)]

    plan = list(plan_changes(pieces, [], 1073, chunker=FixedChunker(64)))

    assert [one.piece for one in plan if isinstance(one, Kept)] == pieces


def test_adjacent_slices_are_joined_if_the_second_continues_the_first() -> None:
    name = Chunks().add(bytes(range(64)))
    joined = [Piece(9, name, 1), Piece(20, name, 10), Piece(3, b""), Piece(4, b"")]
    apart = [Piece(5, name, 40), Piece(5, name, 50), Piece(5, name, 2), Piece(9, name, 7)]

    plan = list(plan_changes(joined + apart, [], 60, chunker=FixedChunker(64)))

    assert [one.piece for one in plan if isinstance(one, Kept)] == [
        Piece(29, name, 1),
        Piece(7, b""),
        *apart[:2],
        Piece(14, name, 2),
    ]


def test_a_region_that_has_changed_is_cut_like_any_read() -> None:
    chunks = Chunks()
    pieces = [Piece(64, chunks.add(bytes([number]) * 64)) for number in range(5)]

    plan = list(plan_changes(pieces, [ByteRange(60, 72)], 320, chunker=FixedChunker(64)))

    assert plan == [
        Kept(0, Piece(60, pieces[0].id)),
        Gap(60, 72),
        Kept(132, Piece(60, pieces[2].id, 4)),
        Kept(192, pieces[3]),
        Kept(256, pieces[4]),
    ]


def test_a_region_of_tiny_pieces_is_read_entirely() -> None:
    chunks = Chunks()
    pieces = [Piece(400, chunks.add(bytes([number]) * 400)) for number in range(3)]
    crumbs = [ByteRange(400 + 5 * number, 1) for number in range(ITEMS_MAX // 2 + 1)]
    mostly = [ByteRange(800, 301)]

    plan = list(plan_changes(pieces, [*crumbs, *mostly], 1200, chunker=FixedChunker(400)))
    assert plan == [Kept(0, pieces[0]), Gap(400, 800)]

    fewer = list(
        plan_changes(pieces, [*crumbs[1:-1], ByteRange(800, 300)], 1200, chunker=FixedChunker(400))
    )
    assert sum(one.length_bytes for one in fewer if isinstance(one, Gap)) == len(crumbs) - 2 + 300
